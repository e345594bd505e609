"""After a kernel hung or broke the device: does the device answer, where did each role stand, what does the model say.

Asked while the GPU's lock is still held, each in a fresh process: a health probe; for a hang, one launch of the
instrumented kernel (`corpus/gpu_where.py`); and the order reading's own run of the shape (`analyses/order/stand.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.errors import Cancelled, EngineError, Missing
from server.results import clean
from server.worker import Control, JobFault, gpu_lock, gpu_state, run_worker

HANG = ("worker/hung", "worker/timeout")
DEVICE_FAULT = "lowering/device-fault"
FAULT_NEXT = "an accepted kernel that faults is a missing rule: report_failure (symptom crash)"
PROBE_TIMEOUT_S = 60.0
WHERE_TIMEOUT_S = 45.0
WHERE_LAUNCH_S = 2.0
STAND_TIMEOUT_S = 60.0
PREPARE_TIMEOUT_S = 120.0
MOST_ROLES = 6

Ask = Callable[[dict[str, Any], float], dict[str, Any]]
"""Run one job in a fresh worker within so many seconds; raises EngineError."""


@dataclass
class Standing:
    """What is known of one fault. `roles`: in words, one per role; `why_not`: what the
    device said instead, or why it could not be asked."""

    code: str
    at: dict[str, Any]
    health: str = ""
    answers: bool = False
    roles: list[str] = field(default_factory=list)
    why_not: str = ""
    model: str = ""
    model_roles: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """For the failure record and, since it is short, for the answer."""
        shown = {
            "at": {k: v for k, v in self.at.items() if v not in (None, "")},
            "health": self.health,
            "stood": self.roles,
            "device_says": self.why_not,
            "model": self.model,
            "model_stands": self.model_roles,
            "lines": self.lines,
        }
        return {k: v for k, v in shown.items() if v}

    def words(self) -> str:
        """One sentence or two for the answer's summary."""
        parts = [self.health]
        stood = self.roles or self.model_roles
        if stood:
            parts.append("; ".join(stood[:3]))
        if self.model:
            parts.append(self.model)
        return ". ".join(clean(p, 300) for p in parts if p)


def fault_in(raw: Mapping[str, Any]) -> JobFault | None:
    """The device fault that a check, a timing or a profile met on its way, as an error: its other verdicts stand on a lost context."""
    for case in raw.get("cases") or ():
        if case.get("cause") == DEVICE_FAULT:
            name = " ".join(f"{k}={v}" for k, v in case["shape"].items()) + f" {case.get('distribution', '')}"
            at = {"job": "check", "kernel": raw.get("kernel", ""), "shape": case["shape"], "case": name.strip()}
            return JobFault(DEVICE_FAULT, f"{name.strip()}: {case.get('message', '')}", FAULT_NEXT, at)
    one = raw.get("shape")
    for row in raw.get("shapes") or ([one] if raw.get("kind") == "profile" and isinstance(one, Mapping) else ()):
        if row.get("verdict") == "error" and DEVICE_FAULT in row.get("message", ""):
            kind, kernel = raw.get("kind", "bench"), raw.get("kernel", "")
            at = {"job": kind, "kernel": kernel, "shape": row["shape"], "case": row["mode"]}
            return JobFault(DEVICE_FAULT, row["message"], FAULT_NEXT, at)
    return None


@dataclass(frozen=True)
class Case:
    """What is needed to ask about one kernel: the CPU worker's job naming it (text, bindings, target, kernel, contract,
    contracts_dir), multiprocessors of the device, and how to make the `where` job of a shape (None: it cannot be asked)."""

    index: int
    named: Mapping[str, Any]
    sms: int
    where_job: Callable[[dict[str, int]], dict[str, Any]] | None


def diagnose(
    code: str, at: Mapping[str, Any], case: Case, ask_gpu: Ask, ask_cpu: Ask, keep: Callable[[str], None]
) -> Standing:
    """Everything that can be said after a fault. keep: told why the device does not answer, or empty."""
    standing = Standing(code, dict(at))

    def look() -> None:
        standing.answers, standing.health = health(case.index, ask_gpu)
        keep("" if standing.answers else standing.health)

    look()
    if code not in HANG:
        return standing
    needs = ask_model(standing, case.named, case.sms, ask_cpu) if case.named else []
    if standing.answers and case.where_job is not None:
        ask_device(standing, case.where_job, needs, ask_gpu)
        look()
    return standing


def health(index: int, ask_gpu: Ask) -> tuple[bool, str]:
    """(whether the GPU answers a fresh process, that in words)."""
    try:
        found = ask_gpu(
            {"kind": "probe", "device": index, "use_torch": False, "timeout_s": PROBE_TIMEOUT_S - 5}, PROBE_TIMEOUT_S
        )
    except Cancelled:
        raise
    except EngineError as exc:
        return False, f"GPU {index} does not answer: {clean(exc.message, 200)}"
    if found.get("healthy") is False:
        return False, f"GPU {index} does not answer: a copy of some bytes through its memory came back changed"
    return True, f"GPU {index} answers again"


def look_at(index: int) -> tuple[bool, str]:
    """(whether the GPU can be used, that in words) for `cake doctor`: a fresh probe where the GPU is free, else who has it."""
    control = Control()

    def ask(job: dict[str, Any], seconds: float) -> dict[str, Any]:
        return run_worker("corpus.gpu_main", job, timeout_s=seconds, control=control)

    try:
        with gpu_lock(index, control, wait_s=0.2) as lock:
            before = lock.problem
            ok, words = health(index, ask)
            lock.set_problem("" if ok else words)
    except Missing:
        state = gpu_state(index)
        since = time.time() - float(state.get("since") or time.time())
        return (
            True,
            f"GPU {index} is taken by process {state.get('pid', 'unknown')} for {since:.0f} s; one job at a time",
        )
    except OSError as exc:
        return False, f"the lock of GPU {index} cannot be taken: {exc.strerror}"
    return (
        ok,
        f"{words.removesuffix(' again')}{' again; before: ' + before if ok and before else ''}, nobody has its lock",
    )


def ask_model(standing: Standing, job: Mapping[str, Any], sms: int, ask_cpu: Ask) -> list[dict[str, Any]]:
    """The order reading's word on the shape; `job`: text, bindings, target, kernel, contract, contracts_dir. Returns what
    each barrier wait of the kernel needs."""
    shape = standing.at.get("shape")
    if not shape:
        standing.model = "the order reading was not asked: which shape hung is not known"
        return []
    try:
        found = ask_cpu({**job, "kind": "stand", "shape": shape, "sms": sms}, STAND_TIMEOUT_S)
        if "diagnostic" in found:
            raise EngineError("internal/unexpected", str(found["diagnostic"].get("message", "")))
    except Cancelled:
        raise
    except EngineError as exc:
        standing.model = f"the order reading did not answer: {clean(exc.message, 160)}"
        return []
    standing.model = clean(str(found["text"]), 400)
    standing.model_roles = [clean(str(s), 160) for s in found["stuck"][:MOST_ROLES]]
    return list(found["needs"])


def ask_device(
    standing: Standing,
    prepare: Callable[[dict[str, int]], dict[str, Any]],
    needs: Sequence[Mapping[str, Any]],
    ask_gpu: Ask,
) -> None:
    """Launch the instrumented kernel once more and say where its roles stop. prepare: the `where` job of a shape."""
    shape = standing.at.get("shape")
    if not shape:
        standing.why_not = "which shape hung is not known"
        return
    try:
        found = ask_gpu(prepare(shape), WHERE_TIMEOUT_S)
    except Cancelled:
        raise
    except EngineError as exc:
        standing.why_not = f"the instrumented kernel did not answer: {clean(exc.message, 200)}"
        return
    standing.roles, standing.lines = stood(found, needs)
    if found.get("moving") or not standing.roles:
        standing.why_not = clean(str(found.get("message", "")), 200)


def stood(found: Mapping[str, Any], needs: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[int]]:
    """(words per group of role instances, lines) of a `where` answer (see `corpus.gpu_where.run_where`), each wait with the
    completion that it needs. Roles that have ended are left out."""
    words: list[str] = []
    lines: list[int] = []
    for row in found.get("roles", ()):
        if row["ended"]:
            continue
        which = row.get("which") or [0]
        name = f"{row['role']} {which[0]}..{which[-1]}" if len(which) > 1 else str(row["role"])
        ctas = row.get("ctas", 1)
        rounds = " to ".join(map(str, sorted(set(row.get("passed") or ()))))
        text = f"{name} stands at line {row['line']}, {row['text']} in {ctas} CTA{'s' if ctas != 1 else ''}"
        text += f", the wait's round {rounds}" if rounds and row.get("barrier") else ""
        need = next((n for n in needs if n["line"] == row["line"] and n["barrier"] == row.get("barrier")), None)
        if need:
            text += f", which needs {need['text'].partition(' needs ')[2]}"
        words.append(clean(text, 260))
        lines.append(int(row["line"]))
    return words[:MOST_ROLES], sorted(set(lines))[:MOST_ROLES]
