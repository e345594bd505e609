"""Build a GPU job on a machine that may have none: `python -m corpus.prepare KERNEL --kind bench --out job.json`.

KERNEL is a corpus kernel's name or a `.cake` file (then --contract is needed). The job is self-contained: run it where
the GPU is with `python -m corpus.gpu_main < job.json > result.jsonl`. Exit code 1: the program does not bind, build or
fit.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cake_ir import content_id, parse, variant_id
from cake_ir.binding import bind
from cake_ir.diagnostics import CakeError
from corpus import jobs
from corpus.check import named_shapes, narrow_sums, shape_text
from corpus.contract import contracts
from corpus.kernels import CorpusKernel, kernels
from corpus.sanitizer import table

if TYPE_CHECKING:
    from cake_ir.bound import BoundKernel
    from corpus.contract import Contract

H200_SMS = 132
DEFAULT_TARGET = "sm_90a"


def prepare(
    text: str, contract: str, kind: jobs.Kind, shapes: str | list[dict[str, int]], *, target: str | None = None,
    bindings: Mapping[str, Any] | None = None, kernel: str | None = None, name: str = "", sms: int = H200_SMS,
    contracts_dir: str | None = None, cache_dir: str | Path | None = None, **more: Any,
) -> tuple[jobs.Job, list[tuple[dict[str, int], str]]]:  # fmt: skip
    """A job for one kernel text and the shapes it does not admit. Raises CakeError of the first fault.

    name: what records call the kernel (default its own name). cache_dir: of cubins. more: further fields of the job,
    which win over those computed here.
    """
    from lowering import build
    from lowering.emission import emit

    parsed = parse(text)
    if parsed.file is None:
        raise CakeError(next(d for d in parsed.diagnostics if d.severity == "error"))
    done = bind(parsed.file, dict(bindings or {}), target, kernel)
    if done.bound is None:
        raise CakeError(next(d for d in done.diagnostics if d.severity == "error"))
    bound = done.bound
    emitted = emit(bound)
    built = build(emitted, cache_dir=Path(cache_dir) if cache_dir else None)
    broken = [d for d in built.diagnostics if d.severity == "error"]
    if broken:
        raise CakeError(broken[0])
    found = contracts(contracts_dir, [])
    if contract not in found:
        raise jobs.bad("job/bad-contract", f"no contract {contract!r}; known: {', '.join(found)}")
    spec = found[contract]
    fault = next(iter(narrow_sums(bound, spec)), None)
    if fault is not None and kind in ("check", "bench", "profile"):  # the others only ask how it runs
        raise CakeError(fault)
    sha = hashlib.sha256(built.cubin).hexdigest()
    made, skipped = jobs.launches(bound, emitted, spec, named_shapes(spec, shapes), sms, sha, gate=kind == "check")
    cubins = [built.cubin]
    if kind in ("profile", "where"):
        made, marked = with_timeline(bound, spec, made, sms, built.occupancy.blocks_per_sm, cache_dir)
        cubins.append(marked)
    if kind == "sanitize":  # the worker reads no machine code: it gets the line table
        last = text.count("\n") + 1  # the compiler counts on behind the program's last line
        own = [i for i in built.sass.instructions if i.function == emitted.symbol]
        code = [(i.offset, i.line if i.line <= last else 0) for i in own]
        more = {"lines": {emitted.symbol: tuple(table(code))}, **more}
    fields: dict[str, Any] = {
        "kernel": name or bound.name,
        "content_id": content_id(parsed.file),
        "variant_id": variant_id(parsed.file, dict(bindings or {}), bound.target.name, bound.name),
        "bindings": {k: _plain(v) for k, v in bound.tunables.items()},
        "target": bound.target.name,
        "compiler": f"NVRTC {built.compiled.nvrtc_version}",
        "contracts_dir": contracts_dir,
        **more,
    }
    return jobs.job(kind, spec, made, cubins, **fields), skipped


def with_timeline(
    bound: BoundKernel, contract: Contract, made: Sequence[jobs.Launch], sms: int, resident: int,
    cache_dir: str | Path | None = None,
) -> tuple[list[jobs.Launch], bytes]:  # fmt: skip
    """Launches with the instrumented form of their plans, and its cubin. resident: CTAs per SM of the plain form, which the
    instrumented one should hold too, if that costs it no spill."""
    from lowering import build
    from lowering.emission import emit

    cache = Path(cache_dir) if cache_dir else None
    emitted = emit(bound, timeline=True)
    built = build(emitted, cache_dir=cache)
    if built.occupancy.blocks_per_sm < resident:
        tight = build(emit(bound, timeline=True, resident=resident), cache_dir=cache)
        if tight.resources.spill_store_bytes <= built.resources.spill_store_bytes:
            built = tight
    marks = emitted.manifest.timeline or {}
    sha = hashlib.sha256(built.cubin).hexdigest()
    plans, _ = jobs.launches(bound, emitted, contract, [x.shape for x in made], sms, sha)
    marked = [tuple(jobs.Instrumented(plan=p, table=marks) for p in x.plans) for x in plans]
    return [x.model_copy(update={"timeline": t}) for x, t in zip(made, marked, strict=True)], built.cubin


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, bool, str)) else str(value)


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    p = argparse.ArgumentParser(prog="corpus.prepare", description=__doc__)
    p.add_argument("kernel")
    p.add_argument("--kind", choices=("check", "bench", "profile", "sanitize", "where"), default="check")
    p.add_argument("--contract")
    p.add_argument("--contracts", metavar="DIR")
    p.add_argument("--target")
    p.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    p.add_argument("--shapes", default="boundary", help="a shape set, or M=1,N=8;M=2,N=8")
    p.add_argument("--distributions", help="comma separated; default all of the contract")
    p.add_argument("--baselines", help="comma separated; default those of the contract")
    p.add_argument("--modes", default="warm", help="warm, cold or warm,cold")
    p.add_argument("--samples", type=int, default=21)
    p.add_argument("--gap-s", type=float, default=0.0)
    p.add_argument("--timeout-s", type=float, default=540.0)
    p.add_argument("--sms", type=int, default=H200_SMS)
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args(argv)
    entry = next((k for k in kernels() if k.name == a.kernel), None)
    contract = a.contract or (entry.contract if entry else None)
    if contract is None:
        p.error("--contract is needed for a file that is no corpus kernel")
    try:
        text = entry.text() if entry else Path(a.kernel).read_text(encoding="utf-8")
        job, skipped = prepare(
            text, contract, a.kind, shape_list(a.shapes), target=a.target or (_target(entry) if entry else None),
            bindings={**(entry.bindings if entry else {}), **dict(map(binding, a.set))},
            kernel=entry.kernel if entry else None, name=entry.name if entry else "", sms=a.sms,
            contracts_dir=a.contracts, distributions=_names(a.distributions), baselines=_names(a.baselines),
            modes=_names(a.modes) or ("warm",), samples=a.samples, gap_s=a.gap_s, timeout_s=a.timeout_s,
        )  # fmt: skip
    except CakeError as exc:
        print(exc.diagnostic.render(), file=sys.stderr)
        return 1
    except OSError as exc:
        print(f"{a.kernel}: {exc.strerror}", file=sys.stderr)
        return 2
    for shape, why in skipped:
        print(f"skipped {shape_text(shape)}: {why}", file=sys.stderr)
    a.out.write_text(job.model_dump_json() + "\n", encoding="utf-8")
    print(f"{a.out}: {job.kind} of {job.kernel} ({job.target}), {len(job.launches)} shapes", file=sys.stderr)
    return 0 if job.launches else 1


def _target(entry: CorpusKernel) -> str:
    return DEFAULT_TARGET if DEFAULT_TARGET in entry.targets else entry.targets[0]


def shape_list(text: str) -> str | list[dict[str, int]]:
    """`tuning`, or `M=1,N=8;M=2,N=8` as a list of shapes."""
    if "=" not in text:
        return text
    pairs = ((part.split("=") for part in one.split(",")) for one in text.split(";") if one)
    return [{k.strip(): int(v) for k, v in shape} for shape in pairs]


def binding(text: str) -> tuple[str, int | float | bool | str]:
    """`NAME=VALUE`: an int, a float, true, false, or a word (a dtype name)."""
    name, _, value = text.partition("=")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, {"true": True, "false": False}.get(value.lower(), value)


def _names(text: str | None) -> tuple[str, ...] | None:
    return tuple(t for t in text.split(",") if t) if text is not None else None


if __name__ == "__main__":
    sys.exit(main())
