"""How often the timing gate sees a difference between equal kernels, and whether it sees a known one.

    python -m corpus.aa prepare DIR [--repeats N] [--only NAME]    build the jobs here (no GPU)
    python -m corpus.aa run DIR OUT [--only NAME]                  time them on the GPU machine; answers into OUT/aa.json
    python -m corpus.aa record DIR OUT                             corpus/results/aa.json

An A/A pair is a corpus kernel timed beside itself: the same cubin and launch plan, outputs of its own, the same code,
sampling and rule as any timing (`corpus.gpu_bench`). Every verdict but inconclusive is a false positive. Each pair gets
fresh buffers. A power pair is a kernel beside itself followed by a launch of the same kernel on 1/32 of the rows: at
least 3 % more work, which the gate has to call.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError
from corpus import evidence, jobs
from corpus.ask import ask

TARGET = "sm_90a"
REPEATS = 6
EXTRA = 32
"""A power pair's rival does 1/32 of the rows twice."""
LIMIT_S = 400.0


@dataclass(frozen=True)
class Subject:
    """A corpus kernel and the shapes it is timed at, small to large. power: the shape of its power pairs, and rows the
    extent that their rival has more of; it is large, so that a second launch costs little beside its work.
    """

    kernel: str
    shapes: tuple[dict[str, int], ...]
    bindings: tuple[tuple[str, Any], ...] = ()
    rows: str = ""
    power: tuple[tuple[str, int], ...] = ()


GEMM = ({"M": 512, "N": 512, "K": 512}, {"M": 2048, "N": 2048, "K": 1024}, {"M": 4096, "N": 4096, "K": 2048})
KMEANS = (
    {"B": 1, "N": 8192, "C": 256, "D": 128}, {"B": 4, "N": 16384, "C": 512, "D": 128}, {"B": 8, "N": 32768, "C": 1024, "D": 128},
)  # fmt: skip
SUBJECTS = (
    Subject(
        "rmsnorm",
        ({"M": 512, "D": 4096}, {"M": 2048, "D": 4096}, {"M": 8192, "D": 4096}),
        (("WARPS", 8),),
        "M",
        (("M", 16384), ("D", 4096)),
    ),
    Subject(
        "softmax",
        ({"M": 256, "N": 4096}, {"M": 1024, "N": 8192}, {"M": 4096, "N": 8192}),
        (),
        "M",
        (("M", 8192), ("N", 8192)),
    ),
    Subject("gemm_sm90", GEMM),
    Subject("gemm_sm80", GEMM),
    Subject("kmeans_assign", KMEANS),
    Subject("kmeans_packed", KMEANS),
)


def job_names() -> list[str]:
    """Names of the jobs: one per kernel, and a power job where the kernel has rows."""
    return [n for s in SUBJECTS for n in ((s.kernel, f"{s.kernel}-power") if s.rows else (s.kernel,))]


def prepare(directory: Path, only: Sequence[str] = (), repeats: int = REPEATS) -> int:
    """Write the jobs to DIR/NAME.json; the exit code. Each shape comes `repeats` times in both modes."""
    from corpus.export import head_commit
    from corpus.kernels import kernels
    from corpus.prepare import prepare as make

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "commit").write_text(head_commit())
    table = {k.name: k for k in kernels()}
    failed = 0
    for s in SUBJECTS:
        k = table[s.kernel]
        large = dict(s.power)
        wanted = [*map(dict, s.shapes), *([large, {**large, s.rows: large[s.rows] // EXTRA}] if s.rows else [])]
        try:
            job, skipped = make(
                k.text(), k.contract, "bench", wanted, target=TARGET, bindings={**k.bindings, **dict(s.bindings)},
                kernel=k.kernel, name=k.name, modes=("warm", "cold"), warmup_ms=50.0, timeout_s=LIMIT_S,
            )  # fmt: skip
        except CakeError as exc:
            print(f"{s.kernel}: {exc.diagnostic.render()}")
            failed += 1
            continue
        if skipped:
            print(f"{s.kernel}: not admitted: {skipped}")
            failed += 1
            continue
        made = job.launches[: len(s.shapes)]
        work = {s.kernel: [(x, x) for x in made]}
        if s.rows:
            whole, extra = job.launches[-2:]
            work[f"{s.kernel}-power"] = [(whole, whole.model_copy(update={"plans": whole.plans + extra.plans}))]
        for name, pairs in work.items():
            if only and name not in only:
                continue
            again = [p for p in pairs for _ in range(repeats)]
            one = job.model_copy(update={"launches": tuple(a for a, _ in again), "rivals": tuple(b for _, b in again)})
            (directory / f"{name}.json").write_text(one.model_dump_json() + "\n")
            print(f"{name}: {len(again) * len(one.modes)} pairs")
    return 1 if failed else 0


def run(directory: Path, out: Path, only: Sequence[str] = ()) -> int:
    """Each job in a fresh worker; what is answered so far is on disk. The exit code: 1 when a job gave no result."""
    answers: dict[str, Any] = {}
    failed = 0
    for name in job_names():
        path = directory / f"{name}.json"
        if not path.exists() or (only and name not in only):
            continue
        answer = ask(path.read_text(encoding="utf-8"), LIMIT_S + 20)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        answers[name] = {**answer, "date": now}
        (out / "aa.json").write_text(json.dumps(answers))
        if "result" not in answer:
            failed += 1
            print(f"{name}: {answer['error'].get('code')}: {answer['error'].get('message')}", flush=True)
            continue
        result = answer["result"]
        print(f"{name}: {len(result['shapes'])} pairs in {result['seconds']} s", flush=True)
    found = [p for name, a in answers.items() if "result" in a for p in pairs_of(name, a["result"])]
    print("\n".join(words(found)))
    return 1 if failed else 0


def pairs_of(name: str, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The pairs of a bench result, summarised: no samples, but what the verdict was made of."""
    out = []
    for s in result["shapes"]:
        a, b = s.get("candidate"), next(iter(s.get("baselines", ())), None)
        row = {"kernel": result["kernel"], "power": name.endswith("-power"), "shape": s["shape"], "mode": s["mode"],
               "method": s.get("method", ""), "verdict": s["verdict"], "message": s.get("message", "")}  # fmt: skip
        if a and b:
            row |= {
                "ratio": round(b["ratio"], 5), "interval": [round(b["ratio_low"], 5), round(b["ratio_high"], 5)],
                "us": [round(a["median_us"], 3), round(b["median_us"], 3)], "cv": [round(a["cv"], 5), round(b["cv"], 5)],
                "batch": [a["batch"], b["batch"]], "rounds": len(a["samples_us"]), "sm_mhz": [a["sm_mhz"], b["sm_mhz"]],
                "reasons": ((s.get("conditions") or {}).get("telemetry") or {}).get("reasons", []),
            }  # fmt: skip
        out.append(row)
    return out


def summary(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Verdicts, the false-positive rate of the A/A pairs with its 95 % Clopper-Pearson interval, and spread per mode."""
    from lowering.runtime.stats import proportion_bound

    equal = [p for p in pairs if not p["power"]]
    valid = [p for p in equal if p["verdict"] in jobs.VALID]
    false = [p for p in valid if p["verdict"] != "inconclusive"]
    known = [p for p in pairs if p["power"]]
    out: dict[str, Any] = {
        "pairs": len(equal), "verdicts": dict(Counter(str(p["verdict"]) for p in equal)), "valid": len(valid),
        "false_positives": len(false), "rate": len(false) / len(valid) if valid else None,
        "rate_interval": list(proportion_bound(len(false), len(valid))) if valid else None,
    }  # fmt: skip
    for mode in ("warm", "cold"):
        some = [p for p in valid if p["mode"] == mode]
        if some:
            cvs = [v for p in some for v in p["cv"]]
            off = [abs(p["ratio"] - 1) for p in some]
            out[mode] = {
                "pairs": len(some), "cv_median": statistics.median(cvs), "cv_p90": percentile(cvs, 0.9), "cv_max": max(cvs),
                "difference_median": statistics.median(off), "difference_p90": percentile(off, 0.9), "difference_max": max(off),
            }  # fmt: skip
    if known:
        seen = [p["ratio"] for p in known if "ratio" in p]
        out["power"] = {
            "pairs": len(known), "found": sum(p["verdict"] == "faster" for p in known),
            "verdicts": dict(Counter(str(p["verdict"]) for p in known)),
            "ratio_min": min(seen, default=None), "ratio_median": statistics.median(seen) if seen else None,
        }  # fmt: skip
    return out


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def words(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The summary for a person, then every pair that is not inconclusive and valid."""
    got = summary(pairs)
    if not got["valid"]:
        lines = [f"no valid A/A pair: {got['verdicts']}"]
    else:
        low, high = got["rate_interval"]
        lines = [f"{got['false_positives']} false positives in {got['valid']} valid of {got['pairs']} A/A pairs: "
                 f"{got['rate']:.2%} (95 % interval {low:.2%} to {high:.2%}); verdicts {got['verdicts']}"]  # fmt: skip
    for mode in ("warm", "cold"):
        if mode in got:
            m = got[mode]
            lines.append(f"{mode}: cv median {m['cv_median']:.2%} p90 {m['cv_p90']:.2%} max {m['cv_max']:.2%}; |ratio - 1| median "
                         f"{m['difference_median']:.2%} p90 {m['difference_p90']:.2%} max {m['difference_max']:.2%}")  # fmt: skip
    if "power" in got:
        lines.append(f"known slowdown: {got['power']}")
    odd = [p for p in pairs if p["verdict"] != ("faster" if p["power"] else "inconclusive")]
    return lines + [f"  {json.dumps({k: v for k, v in p.items() if k != 'method'})}" for p in odd[:20]]


def record(directory: Path, out: Path, results: Path = evidence.DIRECTORY) -> Path:
    """Write `aa.json` from the answers; raises ValueError when there is no result."""
    answers = json.loads((out / "aa.json").read_text(encoding="utf-8"))
    done = {n: a for n, a in answers.items() if "result" in a}
    if not done:
        raise ValueError("no job gave a result")
    pairs = [p for n, a in done.items() for p in pairs_of(n, a["result"])]
    made = {n: jobs.parse(json.loads((directory / f"{n}.json").read_text(encoding="utf-8"))) for n in done}
    first = next(iter(done.values()))["result"]
    shapes = [s for a in done.values() for s in a["result"]["shapes"]]
    telemetry = [s["conditions"].get("telemetry") or {} for s in shapes if s.get("conditions")]
    plain = {
        "kind": "aa", "summary": summary(pairs), "rule": first["rule"],
        "device": {k: v for k, v in first["device"].items() if k not in ("uuid", "index")},
        "conditions": conditions(telemetry),
        "kernels": [_kernel(n, j, done[n]) for n, j in made.items()],
        "settings": next((s["conditions"]["settings"] for s in shapes if s.get("conditions")), {}),
        "missing": {n: a["error"] for n, a in answers.items() if "error" in a},
        "command": "python -m corpus.aa prepare DIR; python -m corpus.aa run DIR OUT; python -m corpus.aa record DIR OUT",
        "commit": (directory / "commit").read_text().strip(), "pairs": pairs,
    }  # fmt: skip
    return evidence.replace(results / "aa.json", plain)


def _kernel(name: str, job: jobs.Job, answer: Mapping[str, Any]) -> dict[str, Any]:
    """What was timed, in the fields by which a record is seen to be stale."""
    return {
        "job": name, "kernel": job.kernel, "contract": job.contract, "contract_digest": job.contract_digest,
        "content_id": job.content_id, "variant_id": job.variant_id, "bindings": job.bindings, "target": job.target,
        "compiler": job.compiler, "cubin_sha256": ",".join(sorted(job.cubins)), "seconds": answer["result"]["seconds"],
        "secret": answer["result"]["secret"], "date": answer["date"],
    }  # fmt: skip


def conditions(telemetry: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Extremes over all pairs of what NVML said, or why it said nothing."""
    said = [t for t in telemetry if t and "unavailable" not in t]
    if not said:
        return {"unavailable": next((t["unavailable"] for t in telemetry if "unavailable" in t), "the monitor was off")}
    steady = (
        "driver",
        "ecc",
        "mig",
        "persistence",
        "clocks",
        "power_limit_w",
        "sm_max_mhz",
        "memory_max_mhz",
        "processes",
    )
    out: dict[str, Any] = {k: said[0][k] for k in steady if k in said[0]}
    for word, pick in (("min", min), ("max", max)):
        for name in ("sm_mhz", "memory_mhz", "power_w", "temperature_c"):
            values = [t[f"{name}_{word}"] for t in said if f"{name}_{word}" in t]
            if values:
                out[f"{name}_{word}"] = pick(values)
    out["pairs_with_reason"] = dict(Counter(r for t in said for r in t["reasons"]))
    return out


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    p = argparse.ArgumentParser(prog="corpus.aa", description="False-positive rate and power of the timing gate.")
    p.add_argument("step", choices=("prepare", "run", "record"))
    p.add_argument("dir", type=Path)
    p.add_argument("out", type=Path, nargs="?")
    p.add_argument("--only", action="append", default=[], choices=job_names())
    p.add_argument("--repeats", type=int, default=REPEATS, help="times each shape is timed in each mode")
    a = p.parse_args(argv)
    if a.step == "prepare":
        return prepare(a.dir, a.only, a.repeats)
    if a.out is None:
        p.error("OUT is missing")
    if a.step == "run":
        return run(a.dir, a.out, a.only)
    try:
        path = record(a.dir, a.out)
    except (OSError, ValueError) as exc:
        print(f"cannot record: {exc}", file=sys.stderr)
        return 1
    print("\n".join(words(json.loads(path.read_text())["pairs"])))
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
