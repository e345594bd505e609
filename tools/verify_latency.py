"""How long `verify` takes: over the corpus, over mutants (accepted, and rejected with their repairs), and as programs grow.

    python -m tools.verify_latency [--mutants N] [--seed S] [--repeat R] [--write FILE]

Run by hand on an idle machine; no test calls it. Times are processor seconds of one thread, in a warm process (imports are not
counted), the least of R runs each, so that other load of the machine shows as little as possible. Every run starts from the
text. The file has the raw samples; docs/verifier.md, "Latency", is written from it by
tools/gen_docs.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analyses.verifier import verify_text
from cake_ir.effort import spent
from corpus.kernels import kernels
from tests.mutation.mutants import mutations, text_of
from tests.mutation.subjects import subjects

ROOT = Path(__file__).parents[1]
WRITE = ROOT / "corpus" / "results" / "verify-latency.json"
GROWTH = (1, 2, 4, 8, 16)
STAGES = (2, 4, 8, 16)


def sample(
    name: str, text: str, bindings: dict[str, Any], target: str | None, kernel: str | None, repeat: int
) -> dict[str, Any]:
    """One program: milliseconds with repairs where it is rejected, without where it is accepted, and steps of work."""
    best, steps, report = 1e9, 0, None
    for _ in range(repeat):
        gc.collect()
        begin, before = time.process_time(), spent()
        report = verify_text(text, bindings, target, kernel, fixes=True)
        best = min(best, time.process_time() - begin)
        steps = spent() - before
    assert report is not None
    errors = [d.rule for d in report.diagnostics if d.severity == "error"]
    return {"name": name, "ms": round(1e3 * best, 2), "steps": steps, "accepted": not errors, "rules": errors}


def grown(ops: int, stages: int) -> str:
    """A TMA ring with `ops` copies and as many reads per stage in a loop of unknown length."""
    lines = [
        '@kernel(target="sm_90a")',
        "def grown(a: In[bf16, M, K]):",
        "    where(K > 0, K % 8 == 0)",
        "    launch(ctas=1)",
        "    producer = role(thread, warps=4)",
        "    team = role(warpgroup)",
        f"    a_s = smem(bf16, {8 * ops}, 64, stages={stages}, swizzle=128)",
        f"    full = mbarrier(stages={stages})",
        f"    free = mbarrier(stages={stages})",
        "    for n in range(ceil_div(K, 64)):",
        "        with producer:",
        f"            wait(free[n - {stages}])",
        "            expect(full[n])",
    ]
    lines += [
        f"            tma_load(a_s[n].rows({8 * i}, 8), a[{8 * i}:, 64 * n:], signal=full[n])" for i in range(ops)
    ]
    lines += ["        with team:", "            wait(full[n])"]
    lines += [f"            x{i} = load(a_s[n].rows({8 * i}, 8), vec(4, 8)[8, 64])" for i in range(ops)]
    return "\n".join([*lines, "            fence_async()", "            arrive(free[n])"]) + "\n"


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0


def summary(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts and quantiles in milliseconds."""
    ms = [s["ms"] for s in samples]
    return {"programs": len(ms), "p50": quantile(ms, 0.5), "p95": quantile(ms, 0.95), "max": max(ms, default=0.0)}


def drawn(count: int, seed: int) -> list[tuple[str, str, dict[str, Any], str]]:
    """Mutants: (name, text, bindings, target), the same number of each subject."""
    chance = random.Random(seed)
    chosen = []
    for s in subjects():
        every = list(mutations(s))
        for i in sorted(chance.sample(range(len(every)), min(len(every), -(-count // len(subjects()))))):
            chosen.append(
                (f"{s.name} {every[i].what}", text_of(every[i]), dict(s.bindings[i % len(s.bindings)]), s.target)
            )
    return chosen


def measure(count: int, seed: int, repeat: int) -> dict[str, Any]:
    """The whole record."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    for k in kernels()[:2]:  # warm: imports and tables
        verify_text(k.text(), dict(k.bindings), k.targets[0], k.kernel, fixes=True)
    corpus = [
        sample(f"{k.name} {t}", k.text(), dict(k.bindings), t, k.kernel, repeat) for k in kernels() for t in k.targets
    ]
    mutants = []
    for n, (name, text, bindings, target) in enumerate(drawn(count, seed)):
        mutants.append(sample(name, text, bindings, target, None, 1))
        if n % 50 == 0:
            print(f"{n} mutants", file=sys.stderr, flush=True)
    large = (ROOT / "tests" / "data" / "large" / "fused_sm90.cake").read_text(encoding="utf-8")
    fault = large.replace("                wait(b1_full[n])\n", "", 1)
    largest = [
        sample(n, t, {}, None, None, repeat)
        for n, t in (("12 roles, 30 barriers", large), ("the same, one wait less", fault))
    ]
    growth = [
        {"ops": 2 * o + 5, "stages": s, **sample(f"{o} copies, {s} stages", grown(o, s), {}, None, None, repeat)}
        for o, s in [*((o, 2) for o in GROWTH), *((2, s) for s in STAGES[1:])]
    ]
    return {
        "kind": "verify-latency",
        "machine": f"{platform.processor() or platform.machine()}, {cpu()}",
        "load": [round(x, 1) for x in os.getloadavg()],
        "python": platform.python_version(),
        "commit": commit,
        "unit": "milliseconds of processor time, rejected programs with their verified repairs",
        "seed": seed,
        "corpus": summary(corpus),
        "mutants_accepted": summary([m for m in mutants if m["accepted"]]),
        "mutants_rejected": summary([m for m in mutants if not m["accepted"]]),
        "largest": summary(largest),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "samples": {"corpus": corpus, "mutants": mutants, "largest": largest, "growth": growth},
    }


def cpu() -> str:
    """The processor's name, where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown processor"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")


def main() -> int:
    """Measures, writes, prints the figures."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--mutants", type=int, default=400)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--repeat", type=int, default=3)
    args.add_argument("--write", type=Path, default=WRITE)
    options = args.parse_args()
    record = measure(options.mutants, options.seed, options.repeat)
    options.write.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name in ("corpus", "mutants_accepted", "mutants_rejected", "largest"):
        print(f"{name:<18} {record[name]}")
    for g in record["samples"]["growth"]:
        print(f"{g['ops']:>4} ops {g['stages']:>3} stages {g['ms']:>8.1f} ms {g['steps']:>8} steps")
    print(f"peak memory {record['peak_rss_mb']} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
