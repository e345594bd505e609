"""A session on a borrowed GPU: build here with the locked compiler, run there, record here.

    python -m tools.gpu_session prepare DIR [--only NAME]      compile; one job per entry into DIR
    python -m tools.gpu_session run DIR OUT [--only NAME]      on the GPU machine (numpy, ml_dtypes, pydantic, cuda-bindings, torch)
    python -m tools.gpu_session record DIR OUT                 evidence into corpus/results/ through the product's exporter

Jobs carry cubins built by NVRTC on this machine, so the GPU machine compiles nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TARGET = "sm_90a"


@dataclass(frozen=True)
class Entry:
    """One job: a corpus kernel, how it is bound, and what is asked. shapes: a set's name or explicit shapes."""

    name: str
    kernel: str
    kind: str
    shapes: str | tuple[dict[str, int], ...]
    bindings: dict[str, Any] = field(default_factory=dict)
    modes: tuple[str, ...] = ("warm",)


KMEANS = ({"B": 32, "N": 65536, "C": 1024, "D": 128}, {"B": 1, "N": 262144, "C": 4096, "D": 128})
GEMM = ({"M": 4096, "N": 4096, "K": 4096}, {"M": 8192, "N": 4096, "K": 14336})
CHECKED = (
    "kmeans_bias", "kmeans_split", "kmeans_split_cluster", "gemm_sm90_cluster", "gemm_sm90_nn", "row_norms",
    "kmeans_assign", "kmeans_packed", "gemm_sm90", "gemm_sm80", "rmsnorm", "softmax",
)  # fmt: skip

ENTRIES = (
    *(Entry(f"check_{k}", k, "check", "boundary") for k in CHECKED),
    Entry("kmeans_bias", "kmeans_bias", "bench", KMEANS),
    Entry("kmeans_assign", "kmeans_assign", "bench", KMEANS),
    Entry("kmeans_packed", "kmeans_packed", "bench", KMEANS),
    Entry("gemm_sm90", "gemm_sm90", "bench", GEMM),
    Entry("gemm_sm80", "gemm_sm80", "bench", GEMM[:1]),
    Entry("rmsnorm", "rmsnorm", "bench", ({"M": 16384, "D": 4096},), {"WARPS": 8}),
    Entry("softmax", "softmax", "bench", ({"M": 8192, "N": 8192},)),
)


def entries(only: list[str]) -> list[Entry]:
    return [e for e in ENTRIES if not only or any(o in e.name for o in only)]


def prepare(directory: Path, only: list[str]) -> int:
    """Compile every entry and write its job to `DIR/NAME.json`."""
    from cake_ir.diagnostics import CakeError
    from corpus import kernels
    from corpus.export import head_commit
    from corpus.prepare import prepare as make_job

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "commit").write_text(head_commit())
    table = {k.name: k for k in kernels()}
    failed = 0
    for e in entries(only):
        k = table[e.kernel]
        shapes = e.shapes if isinstance(e.shapes, str) else [dict(s) for s in e.shapes]
        try:
            job, skipped = make_job(
                k.text(), k.contract, e.kind, shapes, target=TARGET, bindings={**k.bindings, **e.bindings},  # type: ignore[arg-type]
                kernel=k.kernel, name=k.name, modes=e.modes, gap_s=0.1, timeout_s=200.0,
            )  # fmt: skip
        except CakeError as exc:
            print(f"{e.name}: {exc.diagnostic.render()}")
            failed += 1
            continue
        (directory / f"{e.name}.json").write_text(job.model_dump_json() + "\n")
        print(f"{e.name}: {len(job.launches)} shapes, {len(skipped)} not admitted")
    return 1 if failed else 0


def run(directory: Path, out: Path, only: list[str]) -> int:
    """Run the jobs one by one, each in a fresh worker; answers go to `OUT/results.json`."""
    from corpus.ask import ask

    answers: dict[str, Any] = {"device": ask(json.dumps({"kind": "probe"}) + "\n", 60)}
    for e in entries(only):
        path = directory / f"{e.name}.json"
        if not path.exists():
            continue
        final = ask(path.read_text(), 230)
        answers[e.name] = {**final, "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
        (out / "results.json").write_text(json.dumps(answers))
        print(e.name, summarise(final), flush=True)
    return 0


def summarise(answer: dict[str, Any]) -> str:
    """One line (per shape) for a person."""
    if "error" in answer:
        return f"ERROR {answer['error'].get('code')}: {str(answer['error'].get('message'))[:600]}"
    r = answer["result"]
    if r.get("kind") != "bench":
        return f"passed={r.get('passed')} {str(r.get('summary'))[:500]}"
    out = []
    for s in r["shapes"]:
        base = ", ".join(
            f"{b['name']} {b['median_us']:.1f} ({b['ratio']:.3f} {b['comparison']}, cv {b['cv']:.2%})"
            for b in s["baselines"]
        )
        mine = f"{s['candidate']['median_us']:.1f} us cv {s['candidate']['cv']:.2%}" if s.get("candidate") else "-"
        rates = f"{s['flops_per_s'] / 1e12:.0f} TFLOP/s {s['bytes_per_s'] / 1e9:.0f} GB/s"
        out.append(f"\n    {s['shape']} {s['mode']} {s['verdict']} {mine} {rates} | {base} | {s['message'][:300]}")
    return "".join(out)


def record(directory: Path, out: Path) -> int:
    """Timing rows and check verdicts of the run into corpus/results/."""
    from corpus import evidence, jobs
    from corpus.export import export

    answers = json.loads((out / "results.json").read_text())
    checks = []
    commit = (directory / "commit").read_text().strip()
    device = answers.pop("device").get("result", {})
    for name, answer in answers.items():
        job = jobs.parse(json.loads((directory / f"{name}.json").read_text()))
        result = answer.get("result")
        if not result:
            print(f"{name}: {summarise(answer)}")
            continue
        run_it = f"python -m tools.gpu_session prepare DIR --only {name}; python -m tools.gpu_session run DIR OUT --only {name}"
        if result.get("kind") == "bench":
            rows = export(result, job, command=run_it, date=answer["date"], commit=commit)
            print(f"{name}: {len(rows)} rows -> {evidence.write(name, rows) if rows else 'nothing'}")
        else:
            checks.append(evidence.check_row(result, job, device, command=run_it, date=answer["date"], commit=commit))
    probes = out / "probes.jsonl"
    if probes.exists():
        command = "python -m tests.lowering.decoder.hardware_probes --cubin FILE > OUT/probes.jsonl"
        print(f"decoder probes -> {evidence.write_probes(probes.read_text(), command=command, commit=commit)}")
    if checks:
        print(f"{len(checks)} checks -> {evidence.write_checks(checks)}")
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
