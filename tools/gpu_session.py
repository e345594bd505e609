"""A session on a borrowed GPU: build here with the locked compiler, run there, record here.

    python -m tools.gpu_session prepare DIR [--only NAME] [--quick]     compile, write one job per entry to DIR
    python -m tools.gpu_session run DIR OUT [--only NAME]               on the GPU machine: needs numpy, ml_dtypes, pydantic, cuda-bindings, torch
    python -m tools.gpu_session record DIR OUT                          evidence rows into corpus/results/ through the product's exporter

Jobs carry cubins built by NVRTC on this machine, so the GPU machine compiles nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SMS = 132  # H200


@dataclass(frozen=True)
class Entry:
    """One job: a corpus kernel, how it is bound, and what is asked."""

    name: str
    kernel: str
    kind: str
    shapes: tuple[dict[str, int], ...] = ()
    shape_set: str = ""
    bindings: dict[str, Any] = field(default_factory=dict)
    baselines: tuple[str, ...] | None = None
    modes: tuple[str, ...] = ("warm",)
    quick: bool = True
    samples: int = 21
    distributions: tuple[str, ...] | None = None


KM = {"B": 32, "N": 65536, "C": 1024, "D": 128}
GEMM = ({"M": 4096, "N": 4096, "K": 4096}, {"M": 8192, "N": 4096, "K": 14336})
CHECKED = ("kmeans_assign", "kmeans_packed", "gemm_sm90", "gemm_sm80", "rmsnorm", "softmax")

ENTRIES = (
    *(Entry(f"check_{k}", k, "check", shape_set="boundary") for k in CHECKED),
    Entry("bench_kmeans", "kmeans_assign", "bench", shapes=(KM,)),
    Entry("bench_kmeans_packed", "kmeans_packed", "bench", shapes=(KM,)),
    Entry("bench_gemm", "gemm_sm90", "bench", shapes=GEMM),
    Entry("bench_gemm_sm80", "gemm_sm80", "bench", shapes=GEMM[:1]),
    Entry("bench_rmsnorm", "rmsnorm", "bench", shapes=({"M": 16384, "D": 4096},)),
    Entry("bench_softmax", "softmax", "bench", shapes=({"M": 8192, "N": 8192},)),
)


def entries(only: list[str]) -> list[Entry]:
    return [e for e in ENTRIES if not only or any(o in e.name for o in only)]


def prepare(directory: Path, only: list[str]) -> int:
    """Compile every entry and write `DIR/NAME.json` (a job) and `DIR/NAME.meta.json` (what evidence needs)."""
    from cake_ir import bind, parse, variant_id
    from corpus import contracts, jobs
    from corpus import kernels as corpus_kernels
    from lowering import build, emit

    directory.mkdir(parents=True, exist_ok=True)
    table = {k.name: k for k in corpus_kernels()}
    built: dict[str, Any] = {}
    failed = 0
    for e in entries(only):
        k = table[e.kernel]
        bindings = {**k.bindings, **e.bindings}
        key = json.dumps([e.kernel, bindings], sort_keys=True)
        try:
            if key not in built:
                file = parse(k.text(), k.file).file
                assert file is not None
                bound = bind(file, bindings, "sm_90a", k.kernel, k.file).bound
                assert bound is not None
                emitted = emit(bound)
                built[key] = (bound, emitted, build(emitted), variant_id(file, bindings, "sm_90a", k.kernel))
            bound, emitted, made, variant = built[key]
            contract = contracts()[k.contract]
            shapes = list(e.shapes) or list(contract.shapes[e.shape_set])
            launches, skipped = jobs.launches(bound, emitted, contract, shapes, SMS, made.sha256)
            job = jobs.job(
                e.kind, contract, launches, [made.cubin], kernel=e.kernel, content_id=bound.content_id, variant_id=variant,  # type: ignore[arg-type]
                bindings=bindings, baselines=e.baselines, modes=e.modes, samples=e.samples, gap_s=0.05, timeout_s=200.0, distributions=e.distributions,
            )  # fmt: skip
        except Exception as exc:  # one entry must not stop the others; the reader sees which failed
            print(f"{e.name}: NOT PREPARED: {type(exc).__name__}: {str(exc)[:300]}")
            failed += 1
            continue
        (directory / f"{e.name}.json").write_text(job.model_dump_json())
        meta = {"target": "sm_90a", "bindings": bindings, "cubin_sha256": made.sha256, "content_id": bound.content_id, "variant_id": variant,
                "compiler": f"NVRTC {made.compiled.nvrtc_version}", "commit": _commit()}  # fmt: skip
        (directory / f"{e.name}.meta.json").write_text(json.dumps(meta))
        print(f"{e.name}: {len(launches)} launches, {len(skipped)} refused, {made.report().get('resources', {})}")
    return 1 if failed else 0


def _commit() -> str:
    run = ["git", "-C", str(ROOT)]
    head = subprocess.run([*run, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    dirty = subprocess.run([*run, "status", "--porcelain", "--untracked-files=no", "cake_ir", "lowering", "corpus/kernels"], capture_output=True, text=True, check=True)
    return head + ("-dirty" if dirty.stdout.strip() else "")


def run(directory: Path, out: Path, only: list[str]) -> int:
    """Run the jobs one by one, each in a fresh worker; answers go to `OUT/results.json`."""
    answers: dict[str, Any] = {}
    for e in entries(only):
        path = directory / f"{e.name}.json"
        if not path.exists():
            continue
        try:
            done = subprocess.run([sys.executable, "-m", "corpus.gpu_main"], input=path.read_text().replace("\n", " ") + "\n", capture_output=True, text=True,
                                  timeout=230, cwd=ROOT)  # fmt: skip
            lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            final = next((x for x in reversed(lines) if "result" in x or "error" in x), {"error": {"code": "worker/silent", "message": done.stderr[-1500:]}})
            if "error" in final:
                final["stderr"] = done.stderr[-1500:]
        except subprocess.TimeoutExpired:
            final = {"error": {"code": "worker/timeout", "message": "no answer in 230 s"}}
        answers[e.name] = final
        (out / "results.json").write_text(json.dumps(answers))
        print(e.name, summarise(final), flush=True)
    return 0


def summarise(answer: dict[str, Any]) -> str:
    """One line (per shape) for a person."""
    if "error" in answer:
        return f"ERROR {answer['error'].get('code')}: {str(answer['error'].get('message'))[:600]} {answer.get('stderr', '')[-600:]}"
    r = answer["result"]
    if r.get("kind") == "bench":
        out = []
        for s in r["shapes"]:
            base = ", ".join(f"{b['name']} {b['median_us']:.1f} ({b['ratio']:.3f})" for b in s["baselines"])
            mine = f"{s['candidate']['median_us']:.1f} us" if s.get("candidate") else "-"
            out.append(f"\n    {s['shape']} {s['mode']} {s['verdict']} {mine} {s['flops_per_s'] / 1e12:.0f} TF {s['bytes_per_s'] / 1e9:.0f} GB/s | {base} | {s['message'][:300]} {s['unavailable'] or ''}")
        return "".join(out)
    return f"passed={r.get('passed')} {str(r.get('summary'))[:500]}"


def record(directory: Path, out: Path) -> int:
    """Evidence rows of all measured benches, and the check verdicts, into corpus/results/."""
    from corpus import evidence

    answers = json.loads((out / "results.json").read_text())
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    for name, answer in answers.items():
        result = answer.get("result")
        meta = json.loads((directory / f"{name}.meta.json").read_text())
        if not result:
            print(f"{name}: no result")
            continue
        command = f"python -m tools.gpu_session prepare DIR && python -m tools.gpu_session run DIR OUT --only {name}"
        if result.get("kind") == "bench":
            rows = evidence.rows_from_bench(
                result, content_id=meta["content_id"], variant_id=meta["variant_id"], bindings=meta["bindings"], target=meta["target"],
                compiler=meta["compiler"], cubin_sha256=meta["cubin_sha256"], command=command, date=date, commit=meta["commit"],
            )  # fmt: skip
            print(f"{name}: {len(rows)} rows -> {evidence.write(name, rows) if rows else 'nothing'}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.gpu_session")
    parser.add_argument("step", choices=("prepare", "run", "record"))
    parser.add_argument("dir", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--only", action="append", default=[])
    a = parser.parse_args()
    if a.step == "prepare":
        return prepare(a.dir, a.only)
    if a.out is None:
        parser.error("OUT is missing")
    return run(a.dir, a.out, a.only) if a.step == "run" else record(a.dir, a.out)


if __name__ == "__main__":
    sys.exit(main())
