"""GPU work: which device, what it is, one worker process per job under the device's lock.

Launch plans are made in the CPU worker and cross to the GPU worker as plain JSON with the cubin; that worker compiles
nothing and reads no program text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from cake_ir.diagnostics import Diagnostic
from server.errors import BadArgument, Cancelled, EngineError, Missing
from server.failures import Symptom
from server.programs import Program, Unit
from server.results import Result, clean
from server.worker import Control, WorkerDied, gpu_lock, run_worker

if TYPE_CHECKING:
    from server.engine import Engine

COMPILE_TIMEOUT_S = 180.0
GPU_TIMEOUT_S = 540.0
NO_GPU_NEXT = "verify, estimate_cost, compile and check by interpretation work here; time it on a machine with the GPU"
NO_GPU = "this machine has no GPU (or the server runs with --no-gpu)"


class GpuWork:
    """The part of the evaluator that starts GPU workers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._devices: dict[int, dict[str, Any]] = {}

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
            with gpu_lock(index, control):
                return self._probe(index, control)
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

        A worker that hangs or dies on an accepted program is stored as a failure before the error goes up.
        """
        index = self._gpu()
        contracts_dir = self._engine.config.contracts_dir
        extra = str(contracts_dir.resolve()) if contracts_dir else None
        with gpu_lock(index, control):
            device = self._probe(index, control)
            prepare = {
                **job_of(program, unit),
                "kind": "prepare",
                "job": kind,
                "contract": spec.name,
                "shapes": shapes,
                "contracts_dir": extra,
                "sms": device["sms"],
                "more": {"device": index, "timeout_s": GPU_TIMEOUT_S - 20, **more},
            }
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
            except Cancelled:
                raise
            except EngineError as exc:
                self._raise_recorded(exc, unit)
        return {**raw, "device": raw.get("device") or device, "refused_shapes": ready["skipped"]}

    def run_cpu(self, unit: Unit, job: dict[str, Any], timeout_s: float, control: Control) -> dict[str, Any]:
        """One job of the CPU worker about an accepted kernel; a death of the worker is stored as a failure."""
        try:
            return run_worker("server.cpu_main", job, timeout_s=timeout_s, control=control)
        except WorkerDied as exc:
            self._raise_recorded(exc, unit)

    def _raise_recorded(self, exc: EngineError, unit: Unit) -> NoReturn:
        """Raise the error, with the id under which it is kept when it says something about the kernel."""
        symptom = _symptom(exc.code)
        if symptom is None:
            raise exc
        log = exc.log if isinstance(exc, WorkerDied) else exc.message
        try:
            failure_id = self._engine.record_worker_failure(symptom, unit, exc.code, log)
        except EngineError:  # a full disk must not hide why the worker died
            raise exc from None
        next = f"recorded as {failure_id}, owner verifier; the program is kept as evidence. {exc.next}"
        raise EngineError(
            exc.code, exc.message, next, {"failure_id": failure_id, "variant_id": unit.variant_id}
        ) from exc

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
    if code == "worker/timeout":
        return "hang"
    return "crash" if code in ("worker/killed", "worker/crashed", "lowering/device-fault") else None


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
        "baseline": row.get("baseline"),
        "baseline_us": base.get("median_us"),
        "ratio": row.get("ratio"),
        "comparison": base.get("comparison"),
        "unavailable": row.get("unavailable") or None,
    }
    return {k: v for k, v in out.items() if v not in (None, "")}
