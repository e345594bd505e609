"""GPU work: which device, what it is, one worker process per job under the device's lock.

Launch plans are made in the CPU worker and cross to the GPU worker as plain JSON with the cubin; that worker compiles
nothing and reads no program text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from cake_ir.diagnostics import Diagnostic
from server.diagnosis import (
    DEVICE_FAULT,
    HANG,
    PREPARE_TIMEOUT_S,
    WHERE_LAUNCH_S,
    WHERE_TIMEOUT_S,
    Case,
    Standing,
    diagnose,
    fault_in,
)
from server.errors import BadArgument, Cancelled, EngineError, Missing
from server.failures import Symptom
from server.programs import Program, Unit
from server.results import Result, clean
from server.worker import Control, GpuLock, JobFault, WorkerDied, gpu_lock, run_worker

if TYPE_CHECKING:
    from server.engine import Engine

COMPILE_TIMEOUT_S = 180.0
BLAME_TIMEOUT_S = 60.0
GPU_TIMEOUT_S = 540.0
NO_GPU_NEXT = (
    "here: estimate_cost at a shape predicts its time, compile_and_bench with until=check builds it and checks it by interpretation; "
    "repeat this call on a machine with the GPU"
)
NO_GPU = "this machine has no GPU (or the server runs with --no-gpu)"


class GpuWork:
    """The part of the evaluator that starts GPU workers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._devices: dict[int, dict[str, Any]] = {}

    @property
    def engine(self) -> Engine:
        """What this works for."""
        return self._engine

    def _gpu(self) -> int:
        """The GPU to use. Raises Missing gpu/none."""
        found = self._engine.catalog.gpu_indices()
        if not found:
            raise Missing("gpu/none", NO_GPU, NO_GPU_NEXT)
        return found[0]

    def device(self, control: Control) -> dict[str, Any]:
        """What the GPU is (see lowering.runtime.DeviceInfo). Raises Missing gpu/none or gpu/unusable."""
        index = self._gpu()
        if index not in self._devices:
            with gpu_lock(index, control) as lock:
                return self._usable(index, lock, control)
        return self._devices[index]

    def for_device(self, program: Program, control: Control) -> Program:
        """The program bound for the target of this machine's GPU; an explicit target has to be that one.

        A cubin loads on its own architecture only: a program for sm_80 and sm_90a runs on an H200 as sm_90a.
        Raises Missing gpu/other-target when the program names no such target.
        """
        from cake_ir import targets

        if program.file is None:
            return program
        device = self.device(control)
        here = tuple(device["compute_capability"])
        wanted = program.ref.kernel
        named = [t for k in program.file.kernels if wanted in (None, k.name) for t in k.targets]
        fitting = [t for t in dict.fromkeys(named) if tuple(targets.get(t).compute_capability) == here]
        target = program.ref.target or (fitting[0] if fitting else "")
        if target not in fitting:
            raise Missing(
                "gpu/other-target",
                f"{device['name']} (compute capability {here[0]}.{here[1]}) does not run "
                f"{target or ', '.join(dict.fromkeys(named))}",
                "add the GPU's target to @kernel(target=...) if the program is legal there, or name it with target=",
            )
        return replace(program, ref=replace(program.ref, target=target))

    def unavailable(self, program: Program, unit: Unit, what: str, why: str = NO_GPU) -> Result:
        """The answer to GPU work on a machine without one: what still works, never a guess."""
        return Result(
            summary=f"{what} is unavailable: {why}",
            status="unavailable",
            code="gpu/none",
            ids={**program.ids, "variant_id": unit.variant_id},
            next=NO_GPU_NEXT,
        )

    def run_gpu(
        self,
        program: Program,
        unit: Unit,
        spec: Any,
        kind: str,
        shapes: list[dict[str, int]],
        control: Control,
        **more: Any,
    ) -> dict[str, Any]:
        """Prepare launches in the CPU worker, then run them in a fresh GPU worker under the device's lock.

        A kernel that hangs or breaks the device is diagnosed (see server.diagnosis) and stored as a failure before the
        error goes up: `worker/hung`, `worker/timeout`, `worker/killed`, `worker/crashed`, `lowering/device-fault`.
        """
        index = self._gpu()
        with gpu_lock(index, control) as lock:
            device = self._usable(index, lock, control)
            prepare = self._preparation(program, unit, spec, kind, shapes, index, device, **more)
            control.progress(0, None, f"preparing {unit.kernel} for the GPU")
            ready = self.run_cpu(unit, prepare, COMPILE_TIMEOUT_S, control)
            if "diagnostic" in ready:
                raise as_error(Diagnostic.model_validate(ready["diagnostic"]))
            if not ready["job"]["launches"]:
                raise BadArgument(
                    f"the kernel refuses every one of these shapes: {why_refused(ready['skipped'])}",
                    "give shapes that its `where` admits",
                    code="args/shape",
                )
            try:
                raw = run_worker("corpus.gpu_main", ready["job"], timeout_s=GPU_TIMEOUT_S, control=control)
                broken = fault_in(raw)
                if broken is not None:
                    raise broken
            except Cancelled:
                raise
            except EngineError as exc:
                if _symptom(exc.code) is None:
                    raise
                again = self._preparation(program, unit, spec, "where", [], index, device)
                launches = ready["job"]["launches"]
                again["at"] = {"job": kind, "shape": launches[0]["shape"] if len(launches) == 1 else None}
                self._raise_recorded(exc, unit, self._diagnose(exc, unit, again, lock, control))
        plans = [p for launch in ready["job"]["launches"] for p in launch["plans"]]
        answer = {
            **raw, "device": raw.get("device") or device, "refused_shapes": ready["skipped"],
            "cubin_sha256": plans[0]["cubin_sha256"] if plans else "",
        }  # fmt: skip
        return self._blamed(program, unit, spec, answer, device["sms"], control)

    def _blamed(
        self, program: Program, unit: Unit, spec: Any, raw: dict[str, Any], sms: int, control: Control
    ) -> dict[str, Any]:
        """The answer with the op, role instance and CTA that wrote each wrong element; as it is where nothing says so."""
        lists = [raw.get("cases", []), *(s.get("checks", []) for s in raw.get("shapes", ()) if isinstance(s, dict))]
        wrong = [c for cases in lists for c in cases if c.get("at")]
        if not wrong:
            return raw
        job = {
            **job_of(program, unit),
            "kind": "blame",
            "contract": spec.name,
            "contracts_dir": self._engine.config.contracts_path,
            "cases": wrong,
            "seed": raw["seed"],
            "secret": raw["secret"],
            "sms": sms,
        }
        try:
            named = run_worker("server.cpu_main", job, timeout_s=BLAME_TIMEOUT_S, control=control).get("cases", [])
        except Cancelled:
            raise
        except EngineError:  # the verdict stands without it
            return raw
        return _renamed(raw, {id(old): new for old, new in zip(wrong, named, strict=False)})

    def _preparation(
        self,
        program: Program,
        unit: Unit,
        spec: Any,
        kind: str,
        shapes: list[dict[str, int]],
        index: int,
        device: Mapping[str, Any],
        **more: Any,
    ) -> dict[str, Any]:
        """The CPU worker's job that builds one GPU job."""
        return {
            **job_of(program, unit),
            "kind": "prepare",
            "job": kind,
            "contract": spec.name,
            "shapes": shapes,
            "contracts_dir": self._engine.config.contracts_path,
            "sms": device["sms"],
            "more": {
                "device": index,
                "timeout_s": GPU_TIMEOUT_S - 20,
                "cache_dir": str(self._engine.cubin_dir()),
                **more,
            },
        }

    def _usable(self, index: int, lock: GpuLock, control: Control) -> dict[str, Any]:
        """What the device is, once it answers: after a fault that it did not survive it is asked afresh."""
        if lock.problem:
            self._devices.pop(index, None)
        device = self._probe(index, control)
        if lock.problem:
            lock.set_problem("")
        return device

    def _diagnose(
        self, exc: EngineError, unit: Unit, again: dict[str, Any], lock: GpuLock, control: Control
    ) -> Standing:
        """Where the roles stood and whether the device answers; the lock is still held, so nobody else meets a broken one."""
        index = again["more"]["device"]
        at = {**again["at"], **(exc.at if isinstance(exc, JobFault) else {})}

        def ask_gpu(job: dict[str, Any], seconds: float) -> dict[str, Any]:
            return run_worker("corpus.gpu_main", job, timeout_s=seconds, control=control)

        def ask_cpu(job: dict[str, Any], seconds: float) -> dict[str, Any]:
            return run_worker("server.cpu_main", job, timeout_s=seconds, control=control)

        def where_job(shape: dict[str, int]) -> dict[str, Any]:
            limits = {"timeout_s": WHERE_TIMEOUT_S - 5, "launch_timeout_s": WHERE_LAUNCH_S}
            job = {**again, "shapes": [shape], "more": {**again["more"], "use_torch": False, **limits}}
            ready = ask_cpu(job, PREPARE_TIMEOUT_S)
            if "diagnostic" in ready:
                raise EngineError(ready["diagnostic"]["rule"], f"not built: {ready['diagnostic']['message']}")
            return ready["job"]

        control.progress(0, None, f"{unit.kernel} failed on the device; asking whether the GPU answers")
        case = Case(index, again, again["sms"], where_job)
        standing = diagnose(exc.code, at, case, ask_gpu, ask_cpu, lock.set_problem)
        if not standing.answers:
            self._devices.pop(index, None)
        return standing

    def run_cpu(self, unit: Unit, job: dict[str, Any], timeout_s: float, control: Control) -> dict[str, Any]:
        """One job of the CPU worker about an accepted kernel; a death of the worker is stored as a failure."""
        try:
            return run_worker("server.cpu_main", job, timeout_s=timeout_s, control=control)
        except WorkerDied as exc:
            self._raise_recorded(exc, unit)

    def _raise_recorded(self, exc: EngineError, unit: Unit, standing: Standing | None = None) -> NoReturn:
        """Raise the error, with the id under which it is kept when it says something about the kernel."""
        symptom = _symptom(exc.code)
        if symptom is None:
            raise exc
        log = exc.log if isinstance(exc, WorkerDied) else exc.message
        told = standing.to_json() if standing else {}
        message = f"{exc.message}. {standing.words()}" if standing else exc.message
        ids = {"variant_id": unit.variant_id}
        try:
            ids["failure_id"] = self._engine.record_worker_failure(symptom, unit, exc.code, log, told)
        except EngineError:  # a full disk must not hide why the worker died
            raise EngineError(exc.code, message, exc.next, ids, told) from exc
        next = f"recorded as {ids['failure_id']}, owner verifier; the program is kept as evidence. {exc.next}"
        raise EngineError(exc.code, message, next, ids, told) from exc

    def _probe(self, index: int, control: Control) -> dict[str, Any]:
        """What the device is; asked once per process. Raises Missing gpu/unusable when the driver cannot use it."""
        if index not in self._devices:
            try:
                probe = {"kind": "probe", "device": index}
                self._devices[index] = run_worker("corpus.gpu_main", probe, timeout_s=60, control=control)["device"]
            except Cancelled:
                raise
            except EngineError as exc:
                raise Missing("gpu/unusable", f"GPU {index} does not answer: {exc.message}", NO_GPU_NEXT) from exc
        return self._devices[index]


def _symptom(code: str) -> Symptom | None:
    """What the end of a GPU worker says about an accepted kernel; None when it says nothing about the kernel."""
    if code in HANG:
        return "hang"
    return "crash" if code in ("worker/killed", "worker/crashed", DEVICE_FAULT) else None


def _renamed(raw: dict[str, Any], named: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """The answer with its cases replaced (by identity), the new words in messages made of theirs, and their diagnostics."""
    out = dict(raw)
    if "cases" in raw:
        out["cases"] = [named.get(id(c), c) for c in raw["cases"]]
        out["summary"] = _reworded(str(raw.get("summary", "")), raw["cases"], named)
    if isinstance(raw.get("shapes"), list):
        out["shapes"] = [
            {
                **s,
                "checks": [named.get(id(c), c) for c in s.get("checks", [])],
                "message": _reworded(str(s.get("message", "")), s.get("checks", []), named),
            }
            for s in raw["shapes"]
        ]
    located = [c["diagnostic"] for c in named.values() if c.get("diagnostic")]
    out["diagnostics"] = [*raw.get("diagnostics", []), *located]
    return out


def _reworded(text: str, cases: Sequence[dict[str, Any]], named: Mapping[int, dict[str, Any]]) -> str:
    for c in cases:
        new = named.get(id(c))
        if new is not None and c["message"]:
            text = text.replace(c["message"], new["message"])
    return text


def job_of(program: Program, unit: Unit) -> dict[str, Any]:
    return {"text": program.text, "bindings": unit.bindings, "target": unit.target, "kernel": unit.kernel}


def as_error(found: Diagnostic) -> EngineError:
    return EngineError(found.rule, found.message, found.contract)


def why_refused(skipped: Sequence[Any]) -> str:
    return clean("; ".join(sorted({str(s[1]) for s in skipped})), 300)


def device_name(raw: Mapping[str, Any]) -> str:
    device = raw.get("device") or {}
    return clean(str(device.get("name", "the GPU")), 80) if isinstance(device, Mapping) else clean(str(device), 80)


def bench_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """One shape and mode: what a reader compares. The samples are in the artifact."""
    candidate = row.get("candidate") or {}
    base = next((b for b in row.get("baselines", ()) if b["name"] == row.get("baseline")), {})
    out = {
        "shape": row["shape"],
        "mode": row["mode"],
        "verdict": row["verdict"],
        "message": row.get("message", ""),
        "time_us": candidate.get("median_us"),
        "floor_us": row.get("floor_us"),
        "mad_us": candidate.get("mad_us"),
        "cv": None if candidate.get("cv") is None else round(candidate["cv"], 4),
        "baseline": row.get("baseline"),
        "baseline_us": base.get("median_us"),
        "ratio": row.get("ratio"),
        "interval": [round(base["ratio_low"], 4), round(base["ratio_high"], 4)] if base.get("ratio_low") else None,
        "unavailable": row.get("unavailable") or None,
    }
    return {k: v for k, v in out.items() if v not in (None, "")}
