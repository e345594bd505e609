"""From mutants to jobs: verdicts, cubins and launch plans. Runs without a GPU.

`verdict` and `judged` say what a mutant is; `make` compiles it past the verifier. All answers are JSON and are kept by mutant id.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analyses.verifier import verify
from cake_ir import bind, parse
from cake_ir.bound import BoundKernel
from cake_ir.diagnostics import CakeError
from corpus.arrays import numpy_dtype
from lowering import emit, plan
from lowering.compile import compile_cuda
from tests.mutation.judge import OutOfTime, judge, processor_time
from tests.mutation.silicon.delays import with_delays
from tests.mutation.silicon.programs import SMS, dims_of, program
from tests.mutation.subjects import Subject
from tests.reference import Problem

VERDICT_S = 30.0
"""Processor seconds for binding, verifying and lowering one mutant."""
COPY_OPS = ("tma_load", "tma_store", "tma_reduce", "bulk_load", "bulk_store", "bulk_reduce")


class Unfit(Exception):
    """The mutant cannot be launched; the message says why."""


def bound_of(subject: Subject, text: str | None) -> BoundKernel:
    """The mutant of that text, or the unmutated kernel. Raises Unfit when it does not bind."""
    bindings = dict(subject.bindings[0])
    if text is None:
        return subject.bound(bindings)
    parsed = parse(text, subject.name)
    if parsed.file is None:
        raise Unfit("a printed mutant does not parse")
    result = bind(parsed.file, bindings, subject.target)
    if result.bound is None:
        first = next(d for d in result.diagnostics if d.severity == "error")
        raise Unfit(f"does not bind: {first.rule}")
    return result.bound


def launches(subject: Subject, emitted: Any) -> list[dict[str, Any]]:
    """Plans of the launches that the program admits, each with the number of its problem. Raises Unfit without any."""
    found, why = [], ""
    for number, launch in enumerate(subject.launches):
        problem = launch.problem()
        try:
            _same_types(emitted.bound, problem)
            dims = dims_of(emitted.bound, problem)
            made = plan(emitted, dims, dict(problem.scalars), launch.sms)
        except (CakeError, ValueError) as exc:
            why = exc.diagnostic.rule if isinstance(exc, CakeError) else str(exc)
            continue
        if made.grid > 0:
            found.append({"problem": number, "plan": made.to_json()})
    if not found:
        raise Unfit(f"no launch is admitted: {why}")
    return found


def _same_types(bound: BoundKernel, problem: Problem) -> None:
    """Raises ValueError when a tensor's element type is not that of its array: the device would read other bytes."""
    for t in bound.tensors:
        have = {**problem.right, **problem.tensors}[t.name].dtype
        if numpy_dtype(t.dtype.name) != have:
            raise ValueError(f"{t.name} has elements {t.dtype.name}, the array {have}")


def verdict(name: str, text: str) -> dict[str, Any]:
    """{"class": refuted | accepted, "rules", "message"} of a mutant that can be launched, or {"class": "unfit", "why"}."""
    subject = program(name)
    try:
        with processor_time(VERDICT_S):
            bound = bound_of(subject, text)
            report = verify(bound)
            launches(subject, emit(bound))
    except (Unfit, CakeError) as exc:
        return {"class": "unfit", "why": str(exc) if isinstance(exc, Unfit) else exc.diagnostic.rule}
    except OutOfTime:
        return {"class": "unfit", "why": "no verdict in time"}
    except Exception as bug:  # a bug of ours in a mutant is not the end of the draw; the engine's own run reports it
        return {"class": "unfit", "why": f"{type(bug).__name__}: {bug}"[:200]}
    errors = [d for d in report.diagnostics if d.severity == "error"]
    rules = list(dict.fromkeys(d.rule for d in errors))
    return {
        "class": "refuted" if errors else "accepted",
        "rules": rules,
        "message": errors[0].message[:300] if errors else "",
    }


def judged(name: str, text: str, accepted: bool) -> dict[str, Any]:
    """What the judge says, on the launches that are its own: {"state", "kind", "first", "message", "runs"}."""
    subject = program(name)
    small = tuple(x for x in subject.launches if x.sms < SMS)
    j = judge(bound_of(subject, text), small, ordered=subject.ordered, ragged=subject.ragged, patient=accepted)
    return {"state": j.state, "kind": j.kind, "first": j.first, "message": j.message[:300], "runs": j.runs}


def class_of(state: str) -> str:
    """The class of an accepted mutant by the judge's state."""
    return {"passed": "accepted", "wrong": "other function", "fault": "false accept", "schedule": "false accept",
            "timeout": "false accept"}.get(state, "unfit")  # fmt: skip


def make(name: str, text: str | None, cache: Path) -> dict[str, Any]:
    """{"launches", "cubins": {"plain": sha, "delayed": sha}, "tma"} of a mutant, its cubins at `cache/SHA.cubin`.

    The delayed cubin is missing where the program has no synchronisation point. Raises Unfit when the compiler refuses.
    """
    subject = program(name)
    bound = bound_of(subject, text)
    emitted = emit(bound)
    sources = {"plain": emitted.cuda}
    delayed = with_delays(emitted.cuda)
    if "cake::delay(" in delayed.partition("__global__")[2]:
        sources["delayed"] = delayed
    cubins = {}
    for variant, source in sources.items():
        try:
            done = compile_cuda(source, emitted.arch, cache_dir=cache / "compiled")
        except CakeError as exc:
            raise Unfit(f"{variant}: {exc.diagnostic.rule}: {exc.diagnostic.message[:200]}") from exc
        (cache / f"{done.sha256}.cubin").write_bytes(done.cubin)
        cubins[variant] = done.sha256
    tma = bool(emitted.manifest.tensor_maps) or any(f"cake::{op}" in emitted.cuda for op in COPY_OPS)
    return {
        "launches": launches(subject, emitted),
        "cubins": cubins,
        "tma": tma,
        "compiler": f"NVRTC {done.nvrtc_version}",
    }


NOISE = r"""
extern "C" __global__ void scrub(unsigned pattern, unsigned words) {
  extern __shared__ unsigned shared[];
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) {
    volatile unsigned* at = shared + i;
    *at = pattern;
  }
}
extern "C" __global__ void noise(unsigned* memory, unsigned words, unsigned rounds) {
  // traffic through L2 and device memory from blocks that come and go
  unsigned at = (blockIdx.x * 7919u + threadIdx.x * 33u) % words, sum = 0;
  for (unsigned i = 0; i < rounds; ++i) {
    sum += atomicAdd(memory + at, 1u);
    at = (at * 1664525u + 1013904223u + (sum & 1u)) % words;
  }
}
"""
"""Two kernels of our own beside the mutants: one leaves a pattern in all shared memory, one loads the memory system."""


def noise(cache: Path) -> str:
    """SHA-256 of the cubin with `scrub` and `noise`."""
    done = compile_cuda(NOISE, "sm_90a", cache_dir=cache / "compiled")
    (cache / f"{done.sha256}.cubin").write_bytes(done.cubin)
    return done.sha256
