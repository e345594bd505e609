"""Where a kernel stands: launch its instrumented form with the timeline in host memory, wait a while, and read the last marks.

The host reads while the kernel spins: marks are strong stores at system scope to page-locked memory (see
`lowering.helpers.timeline`), and nothing here waits for the device after the launch. A kernel that hangs cannot be ended
inside its process: the worker must answer and exit at once, without freeing anything; the driver then ends the context.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from cake_ir.diagnostics import CakeError
from corpus.check import shape_text
from corpus.contract import Case, Contract
from corpus.gpu_buffers import Env
from corpus.gpu_check import allocate
from corpus.gpu_timeline import Recording
from corpus.jobs import Job, bad
from lowering import timeline as tl

LIMIT_S = 2.0
POLL_S = 0.002
SETTLE_S = 0.05
"""Between two readings that must agree before the roles are said to stand still."""

BUDGET = 32 << 20
CAPACITY = 1 << 12
CTAS = 512
SHOWN_CTAS = 3


def run_where(env: Env, job: Job, contract: Contract, secret: int) -> dict[str, Any]:
    """Where each role of the job's first launch stands after `launch_timeout_s` (default 2 s), or that it ended.

    {"kind": "where", "contract", "kernel", "shape", "ended", "message", "summary", "waited_s", "moving", "roles": [{"role",
    "instances", "ctas", "line", "end_line", "kind", "op", "ops", "text", "barrier", "stage", "stages", "passed": [least, most] or
    None, "ended"}], "tracks": [{"cta", "sm", "role", "instance", "line", "text", "passed"}]}. Roles are grouped by the place where
    their instances stand, the largest group first; `passed` counts how often an instance made that mark. Raises CakeError.
    """
    launch = job.launches[0]
    if not launch.timeline:
        raise bad("job/bad", "a where job needs the instrumented kernel of its shape")
    limit = job.launch_timeout_s or LIMIT_S
    buffers = allocate(env, contract, launch)
    distribution = (job.distributions or (contract.bench_distribution,))[0]
    case = Case(launch.shape, distribution, job.seed, secret, launch.dtypes)
    inputs = contract.inputs(case)
    for name, t in buffers.all.items():
        if name in inputs:
            buffers.load(name, inputs[name])
        else:
            t.memory.poison(0)
    recordings: list[Recording] = []
    for form in launch.timeline:
        shape = tl.fit(form.table, int(form.plan["grid"]), BUDGET, CAPACITY, CTAS)
        memory = env.device.alloc_host(shape.nbytes + shape.align)
        recordings.append(Recording.of(env, job, form, buffers.pointers, memory, shape))
    env.sync()
    event = env.device.event()
    start = time.monotonic()
    for r in recordings:
        r.step(env.stream)
    event.record(env.stream)
    fault, ended = "", False
    try:
        while not (ended := event.done()) and time.monotonic() - start < limit:
            time.sleep(POLL_S)
    except CakeError as exc:
        fault = exc.diagnostic.message
    waited = time.monotonic() - start
    common = {"kind": "where", "contract": contract.name, "kernel": job.kernel, "shape": dict(launch.shape), "ended": ended,
              "waited_s": round(waited, 3)}  # fmt: skip
    if ended:
        message = f"the kernel ended this time, within {waited:.3g} s"
        return {**common, "message": message, "summary": message, "moving": False, "roles": [], "tracks": []}
    stuck = next((r for r in recordings if any(not t.ended for t in _tracks(r))), recordings[-1])
    before = [t.last for t in _tracks(stuck)]
    if not fault:
        time.sleep(SETTLE_S)
    tracks = _tracks(stuck)
    moving = not fault and [t.last for t in tracks] != before
    roles = standing(tracks, tl.marks_of(stuck.table))
    if fault:
        message = f"the kernel faulted: {fault}; the last marks before it are shown"
    elif not tracks:
        message = f"no CTA has started within {limit:g} s"
    else:
        message = f"{shape_text(launch.shape)} has not ended within {limit:g} s"
        message += "; its roles still move: slow, or an endless loop" if moving else "; no role moves"
    return {**common, "message": message, "summary": sentence(roles, stuck.shape), "moving": moving, "roles": roles,
            "tracks": shown(tracks, tl.marks_of(stuck.table))}  # fmt: skip


def _tracks(r: Recording) -> list[tl.Track]:
    return list(tl.tracks_of(r.memory.read()[r.offset :], r.table, r.shape))


def place(t: tl.Track, marks: dict[int, tl.Mark]) -> tuple[tl.Mark | None, int | None]:
    """(the mark at which a track stands, how often it was made; None where older records are lost). No mark: it has ended."""
    last = int(t.ids[-1]) if len(t.ids) else min(m.id for m in marks.values() if m.role == t.role)
    if not last:
        return None, None
    return marks[last], None if t.dropped else int((t.ids == last).sum())


def standing(tracks: Iterable[tl.Track], marks: dict[int, tl.Mark]) -> list[dict[str, Any]]:
    """Role instances grouped by where they stand; those that have ended last."""
    groups: dict[tuple[str, int], list[tuple[tl.Track, int | None]]] = defaultdict(list)
    for t in tracks:
        mark, passed = place(t, marks)
        groups[t.role, mark.id if mark else 0].append((t, passed))
    rows = []
    for (role, number), members in groups.items():
        counts = [p for _, p in members if p is not None]
        row: dict[str, Any] = {
            "role": role, "instances": len(members), "ctas": len({t.cta for t, _ in members}),
            "which": sorted({t.instance for t, _ in members}), "ended": number == 0,
            "passed": [min(counts), max(counts)] if counts and len(counts) == len(members) else None,
        }  # fmt: skip
        if number:
            m = marks[number]
            wait = m.wait or {}
            row |= {"line": m.line, "end_line": m.end_line, "kind": m.kind, "op": m.ops[0], "ops": list(m.ops),
                    "text": wait.get("text", m.ops[0]), "barrier": wait.get("barrier"), "stage": wait.get("stage"),
                    "stages": wait.get("stages")}  # fmt: skip
        rows.append(row)
    return sorted(rows, key=lambda r: (r["ended"], -r["instances"], r["role"]))


def sentence(roles: list[dict[str, Any]], shape: tl.Shape) -> str:
    """In words: "producer stands at line 34, wait(free[n - 4]) (132 CTAs); math 0..1 stands at ..."."""
    words = []
    for r in roles:
        which = f" {r['which'][0]}..{r['which'][-1]}" if len(r["which"]) > 1 else ""
        ctas = f"{r['ctas']} CTA{'s' if r['ctas'] > 1 else ''}"
        if r["ended"]:
            words.append(f"{r['role']}{which} has ended ({ctas})")
            continue
        passed = r["passed"]
        times = f", time {' to '.join(map(str, sorted(set(passed))))}" if passed else ""
        words.append(f"{r['role']}{which} stands at line {r['line']}, {r['text']} ({ctas}{times})")
    sampled = f"; one CTA in {shape.stride} is recorded" if shape.stride > 1 else ""
    return "; ".join(words) + sampled


def shown(tracks: Iterable[tl.Track], marks: dict[int, tl.Mark]) -> list[dict[str, Any]]:
    """The tracks of a few CTAs that have not ended."""
    tracks = list(tracks)
    ctas = sorted({t.cta for t in tracks if not t.ended})[:SHOWN_CTAS]
    rows = []
    for t in tracks:
        if t.cta in ctas:
            mark, passed = place(t, marks)
            row = {"cta": t.cta, "sm": t.sm, "role": t.role, "instance": t.instance, "line": mark.line if mark else None,
                   "text": (mark.wait or {}).get("text", mark.ops[0]) if mark else "ended", "passed": passed}  # fmt: skip
            rows.append(row)
    return rows
