"""How long an estimate takes: bindings drawn from the domains of the corpus kernels, each alone and a hundred at a time.

    python -m tools.estimate_latency [--each N] [--seed S] [--hundred KERNEL,..] [--write FILE]

Run by hand on an idle machine; no test calls it. A candidate is timed as the ranking assesses it (`server.assess`): bound, put
through its gates and estimated, from a parsed text, in a warm process; processor milliseconds of one thread. A hundred candidates,
like the corpus kernel in all but three tunables, are a call of the engine: seconds by the clock, worker processes and their start
included, and `load` says what else the machine did. Only bindings that pass count. docs/cost-model.md quotes the file.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analyses.cost import estimate
from cake_ir import parse
from cake_ir.binding import domain
from cake_ir.collector import seldom_collected
from cake_ir.diagnostics import CakeError
from cake_ir.dtypes import DType
from corpus.contract import contracts
from corpus.kernels import CorpusKernel, kernel, kernels
from corpus.signature import solve_dims
from server.assess import Gates
from server.engine import Config, Engine
from server.programs import Ref
from server.ranking import Request
from tools.verify_latency import cpu, quantile

ROOT = Path(__file__).parents[1]
WRITE = ROOT / "corpus" / "results" / "latency" / "estimate.json"
TARGET = "sm_90a"
TRIES = 20
"""Draws per admitted binding that is wanted."""
HUNDRED = ("gemm_sm90_cluster", "kmeans_split", "softmax")


def tunables(text: str, k: CorpusKernel) -> dict[str, Sequence[Any]]:
    """Every tunable's domain."""
    file = parse(text).file
    assert file is not None
    (own,) = [x for x in file.kernels if k.kernel in (None, x.name)]
    return {t.name: tuple(v.name if isinstance(v, DType) else v for v in domain(t)) for t in own.tunables}


def draws(
    domains: dict[str, Sequence[Any]], base: dict[str, Any] | None, source: random.Random
) -> Iterator[dict[str, Any]]:
    """Different bindings, each tunable uniformly, or with a base up to three of its tunables; ends when nothing new is met."""
    seen, missed = set(), 0
    while missed < 200:
        names = list(domains) if base is None else source.sample(list(domains), min(len(domains), source.randint(1, 3)))
        made = {**(base or {}), **{name: source.choice(domains[name]) for name in names}}
        key = tuple(made.values())
        missed = missed + 1 if key in seen else 0
        if key not in seen:
            seen.add(key)
            yield made


@seldom_collected
def sample(k: CorpusKernel, gates: Gates, bindings: dict[str, Any], shape: dict[str, int]) -> dict[str, Any] | None:
    """Milliseconds of each step for one binding; None where it is rejected."""
    item = {"text": 0, "bindings": bindings, "target": TARGET, "kernel": k.kernel}
    at = [time.process_time()]
    try:
        bound = gates.bind(item)
        at.append(time.process_time())
        gates.admit(item, bound)
        at.append(time.process_time())
        dims = solve_dims(bound, contracts()[k.contract], shape)
        at.append(time.process_time())
        estimate(bound, dims, l2="warm", explain=False)
        at.append(time.process_time())
        estimate(bound, dims, l2="warm")
        at.append(time.process_time())
    except CakeError:
        return None
    ms = [round(1e3 * (b - a), 2) for a, b in itertools.pairwise(at)]
    step = {"bind": ms[0], "gates": ms[1], "estimate": ms[3], "explained": ms[4]}
    return {"kernel": k.name, "bindings": bindings, "shape": shape, **step, "whole": round(ms[0] + ms[1] + ms[3], 2)}


def admitted(
    k: CorpusKernel, most: int, seed: str, shapes: Sequence[dict[str, int]], near: bool = False
) -> list[dict[str, Any]]:
    """Up to `most` samples of a kernel, each at one of the shapes. near: bindings like those of the corpus."""
    text = k.text()
    gates = Gates([text])
    first = gates.bind({"text": 0, "bindings": dict(k.bindings), "target": TARGET, "kernel": k.kernel})
    domains = tunables(text, k)
    source = random.Random(f"{k.name} {seed}")
    found: list[dict[str, Any]] = []
    base = (
        {**{n: v.name if isinstance(v, DType) else v for n, v in first.tunables.items()}, **k.bindings}
        if near
        else None
    )
    for tried, bindings in enumerate(draws(domains, base, source)):
        if len(found) >= most or tried >= TRIES * most:
            break
        gc.collect()
        made = sample(k, gates, bindings, dict(source.choice(shapes)))
        if made is not None:
            found.append(made)
    return found


def candidates(each: int, seed: int) -> list[dict[str, Any]]:
    """`each` admitted bindings of every corpus kernel for `TARGET`, at tuning and held-out shapes of its contract."""
    out = []
    for k in kernels():
        if TARGET in k.targets:
            spec = contracts()[k.contract]
            out += admitted(k, each, str(seed), [*spec.shapes["tuning"], *spec.shapes["heldout"]])
    return out


def hundred(k: CorpusKernel, seed: int) -> dict[str, Any]:
    """A call of the engine with a hundred different admitted bindings (fewer where no more are found) at the first tuning shape."""
    shape = dict(contracts()[k.contract].shapes["tuning"][0])
    sets = [s["bindings"] for s in admitted(k, 100, f"hundred {seed}", [shape], near=True)]
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Config(Path(folder) / "workspace", no_gpu=True))
        begin = time.monotonic()
        got = engine.rank(Request([Ref(text=k.text(), target=TARGET, kernel=k.kernel)], sets), shape, l2="warm")
        wall = time.monotonic() - begin
        engine.close()
    load = round(os.getloadavg()[0], 1)
    return {"kernel": k.name, "shape": shape, **got.data["counts"], "seconds": round(wall, 2), "load": load}


def summary(samples: Sequence[dict[str, Any]], step: str) -> dict[str, Any]:
    """Quantiles of one step in milliseconds."""
    ms = [s[step] for s in samples]
    return {"p50": quantile(ms, 0.5), "p95": quantile(ms, 0.95), "max": max(ms, default=0.0)}


def measure(each: int, seed: int, names: Sequence[str]) -> dict[str, Any]:
    """The whole record."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    candidates(1, seed + 1)  # warm: imports and tables
    load = os.getloadavg()
    samples = candidates(each, seed)
    calls = [hundred(kernel(n), seed) for n in names]
    return {
        "kind": "estimate-latency", "machine": f"{platform.processor() or platform.machine()}, {cpu()}",
        "cores": len(os.sched_getaffinity(0)), "load": [round(x, 1) for x in load], "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit.strip(), "seed": seed,
        "command": f"python -m tools.estimate_latency --each {each} --seed {seed} --hundred {','.join(names)}",
        "unit": "milliseconds of processor time; hundred: seconds by the clock",
        "candidates": len(samples),
        **{step: summary(samples, step) for step in ("whole", "bind", "gates", "estimate", "explained")},
        "hundred": calls, "samples": samples,
    }  # fmt: skip


def main() -> int:
    """Measures, writes, prints the figures."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--each", type=int, default=12)
    args.add_argument("--seed", type=int, default=6)
    args.add_argument("--hundred", default=",".join(HUNDRED))
    args.add_argument("--write", type=Path, default=WRITE)
    options = args.parse_args()
    record = measure(options.each, options.seed, [n for n in options.hundred.split(",") if n])
    options.write.parent.mkdir(parents=True, exist_ok=True)
    options.write.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{record['candidates']} candidates, load {record['load']}, milliseconds of processor time")
    for step in ("whole", "bind", "gates", "estimate", "explained"):
        print(f"{step:<10} {record[step]}")
    for call in record["hundred"]:
        print(call)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
