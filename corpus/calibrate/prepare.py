"""From probes to jobs: every microbenchmark verified, compiled and planned for its two trip counts. No GPU.

The jobs are one JSON file: `jobs` (what to launch), `cubins` (base64 by SHA-256), `sms` and `target` they were made for, the `commit`.
The machine with the GPU needs this file and `python -m corpus.calibrate.run`, no compiler.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from cake_ir.diagnostics import CakeError, error
from corpus import files
from corpus.calibrate.probe import Probe, size
from corpus.calibrate.probes import probes

DIRECTORY = Path(__file__).parents[1] / "microbenchmarks"
JOBS = "jobs.json"
FORM = "cake-calibration-jobs-3"
CLOCK_BYTES = 1 << 20
"""Most memory of one reading of the clocks."""


def prepare(
    directory: Path, target: str = "sm_90a", sms: int | None = None, *, only: str = "", cache_dir: Path | None = None,
    each: Callable[[str, int, int], None] = lambda name, i, n: None,
) -> dict[str, Any]:  # fmt: skip
    """Write `directory`/jobs.json and return it. `sms`: SMs of the device (default: those of the target's full product); `only`: rates
    that begin with this; `each(rate, number, of)` is told of progress.

    Raises CakeError: `corpus/no-probes` for a target without microbenchmarks, `corpus/bad-probe` for one that is not accepted or whose
    machine code lacks what it measures, and whatever the compiler says.
    """
    from cake_ir import targets
    from corpus.export import head_commit

    count = sms or targets.get(target).value("sm_count")
    chosen = [p for p in probes() if p.target == target and p.rate.startswith(only)]
    if not chosen:
        raise CakeError(
            error("corpus/no-probes", "language", f"no microbenchmark for {target}" + (f" begins with {only!r}" if only else ""),
                  contract="corpus/calibrate/probes.py lists the microbenchmarks of a target.")
        )  # fmt: skip
    cubins: dict[str, str] = {}
    jobs = []
    for i, probe in enumerate(chosen):
        each(probe.rate, i, len(chosen))
        jobs.append(_job(probe, count, cubins, cache_dir))
    clock = _clock(target, count, cubins, cache_dir)
    out = {
        "form": FORM, "target": target, "sms": count, "commit": head_commit(), "jobs": jobs, "clock": clock, "cubins": cubins,
    }  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    files.replace(directory / JOBS, json.dumps(out).encode())
    return out


def bound_of(probe: Probe) -> Any:
    """The bound program of a probe, verified. Raises CakeError `corpus/bad-probe` with the first finding."""
    from cake_ir import bind

    done = bind(_file(probe.file), dict(probe.bindings), probe.target, probe.kernel)
    if done.bound is None:
        _bad(probe, next(d.render() for d in done.diagnostics if d.severity == "error"))
    found = _verified(probe.file, probe.kernel, tuple(sorted(probe.bindings.items())), probe.target)
    if found:
        _bad(probe, found)
    return done.bound


def content_of(probe: Probe) -> str:
    """The content id of a probe's kernel by itself: what stands beside it in the file may change and leave its rates valid."""
    from cake_ir import content_id

    file = _file(probe.file)
    return content_id(file.model_copy(update={"kernels": tuple(k for k in file.kernels if k.name == probe.kernel)}))


@cache
def _file(name: str) -> Any:
    from cake_ir import parse

    parsed = parse((DIRECTORY / f"{name}.cake").read_text(encoding="utf-8"), f"{name}.cake")
    if parsed.file is None:
        raise CakeError(parsed.diagnostics[0])
    return parsed.file


@cache
def _verified(file: str, kernel: str, bindings: tuple[tuple[str, Any], ...], target: str) -> str:
    """The first error of the verifier, or nothing."""
    from analyses import verify
    from cake_ir import bind

    bound = bind(_file(file), dict(bindings), target, kernel).bound
    assert bound is not None
    return next((d.render() for d in verify(bound).diagnostics if d.severity == "error"), "")


def _job(probe: Probe, sms: int, cubins: dict[str, str], cache_dir: Path | None) -> dict[str, Any]:
    from cake_ir import variant_id
    from cake_ir.arithmetic import compile_sx
    from lowering import build, emit
    from lowering import plan as make_plan
    from lowering.sass import histogram

    bound = bound_of(probe)
    emitted = emit(bound)
    made = build(emitted, cache_dir=cache_dir)
    if not made.ok:
        _bad(probe, next(d.render() for d in made.diagnostics if d.severity == "error"))
    seen = histogram(made.sass)
    lacking = [f"{seen.get(m, 0)} of {n} {m}" for m, n in probe.sass.items() if seen.get(m, 0) < n]
    if lacking:
        _bad(probe, f"the machine code holds {', '.join(lacking)}: the compiler removed what is to be measured")
    beyond = [f"{seen.get(m, 0)} {m}, not {n}" for m, n in probe.most.items() if seen.get(m, 0) > n]
    if beyond:
        _bad(probe, f"the machine code holds {', '.join(beyond)}: the compiler made more of it than is to be measured")
    if made.resources is not None and made.resources.spill_store_bytes:
        _bad(probe, "the compiler spills registers: what it stores and loads again would be measured")
    cubins[made.sha256] = base64.b64encode(made.cubin).decode()
    runs = []
    for which, trips in enumerate(probe.counts(sms)):
        dims = {k: size(v, sms) for k, v in probe.dims.items()}
        scalars: dict[str, Any] = dict(probe.scalars)
        if probe.start is not None:
            scalars["start"] = probe.start[which]
        if probe.mode in ("trips", "sustained", "settling"):
            (dims if probe.trip in bound.dims else scalars)[probe.trip] = trips
        plan = make_plan(emitted, dims, scalars, sms, cubin_sha256=made.sha256)
        env: list[Any] = [0] * len(bound.scalars)
        for name, var in bound.dims.items():
            env[var.slot] = dims[name]
        shapes = {t.name: [int(compile_sx(e)(env)) for e in t.extents] for t in bound.tensors}
        runs.append({"trips": trips, "plan": plan.to_json(), "shapes": shapes})
    return {
        "rate": probe.rate, "mode": probe.mode, "after_ms": probe.after_ms, "cold": probe.cold, "idle": probe.idle, "runs": runs,
        "cubin": made.sha256,
        "tensors": {t.name: [t.dtype.name, t.direction] for t in bound.tensors},
        "ctas": runs[1]["plan"]["grid"], "content_id": content_of(probe), "bindings": dict(probe.bindings), "kernel": probe.kernel,
        "variant_id": variant_id(_file(probe.file), dict(probe.bindings), probe.target, probe.kernel),
        "compiler": made.compiled.nvrtc_version,
    }  # fmt: skip


def _clock(target: str, sms: int, cubins: dict[str, str], cache_dir: Path | None) -> dict[str, Any]:
    """The instrumented empty kernel: one CTA an SM, each records its cycle counter and the device's timer."""
    from cake_ir import bind
    from lowering import build, emit, timeline
    from lowering import plan as make_plan

    bound = bind(_file("launch"), {}, target, "empty").bound
    assert bound is not None
    emitted = emit(bound, timeline=True)
    table = emitted.manifest.timeline or {}
    made = build(emitted, cache_dir=cache_dir)
    cubins[made.sha256] = base64.b64encode(made.cubin).decode()
    plan = make_plan(emitted, {"G": sms}, {}, sms, cubin_sha256=made.sha256).to_json()
    shape = timeline.fit(table, sms, CLOCK_BYTES, 64)
    return {"plan": timeline.sized(plan, shape), "table": table, "shape": asdict(shape), "cubin": made.sha256}


def read(directory: Path) -> dict[str, Any]:
    """The jobs that `prepare` wrote. Raises CakeError `corpus/bad-jobs` when the folder holds none, or others."""
    path = directory / JOBS
    try:
        jobs = json.loads(path.read_bytes())
        if jobs["form"] != FORM:
            raise ValueError(f"its form is {jobs['form']!r}, not {FORM}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
        raise CakeError(
            error("corpus/bad-jobs", "language", f"{path} does not hold calibration jobs ({exc}); `cake calibrate --prepare` makes them",
                  contract="Calibration jobs are what `cake calibrate --prepare` wrote.")
        ) from None  # fmt: skip
    return jobs


def chosen(jobs: Sequence[dict[str, Any]], only: str) -> list[dict[str, Any]]:
    """The jobs whose rate begins with `only`."""
    return [j for j in jobs if j["rate"].startswith(only)]


def _bad(probe: Probe, why: str) -> NoReturn:
    raise CakeError(
        error("corpus/bad-probe", "language", f"{probe.rate} ({probe.file}.cake, {probe.kernel}): {why}",
              contract="A microbenchmark is a program like any other: verified, compiled, and its loop is in the machine code.")
    )  # fmt: skip
