"""The suite on a GPU: every cheat as CUDA, every control, one fresh worker per job as in production. For developers only.

    python -m tests.adversarial.gpu prepare DIR [--only NAME]      compile with the locked NVRTC; one job per row and contract
    python -m tests.adversarial.gpu run DIR OUT [--only NAME] [--workers 4]     on the GPU machine
    python -m tests.adversarial.gpu record DIR OUT                 corpus/results/adversarial.json

run needs numpy, ml_dtypes, pydantic and cuda-bindings, and torch for the few jobs that compare on the device. Checks run
several workers at a time, timings one by one. It exits with 1 when a cheat passes or a control is flagged.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from corpus.ask import ask
from corpus.contract import Shape, contracts
from tests.adversarial.cases import GEMM, KMEANS, RMS, ROWS, SOFTMAX, Cheat, outcome
from tests.adversarial.fixtures import CUDA

LIMIT_S = 90.0
CORPUS = ("kmeans_assign", "kmeans_packed", "gemm_sm90", "gemm_sm80", "rmsnorm", "softmax")
TIMED: dict[str, Shape] = {
    GEMM: {"M": 2048, "N": 1024, "K": 1024},
    KMEANS: {"B": 1, "N": 16384, "C": 512, "D": 128},
    RMS: {"M": 2048, "D": 4096},
    SOFTMAX: {"M": 1024, "N": 4096},
}
ROUNDS, TWICE = 32, "twice"


@dataclass(frozen=True)
class Run:
    """One job: a row of the table on a contract, or a control made of a corpus kernel (then `kernel` names it)."""

    cheat: Cheat
    contract: str
    torch: bool = False
    kernel: str = ""

    @property
    def id(self) -> str:
        """The job's file name."""
        return f"{self.cheat.name}-{self.kernel or self.contract}{'-torch' if self.torch else ''}"


CHECKED = Cheat("corpus_check", "a corpus kernel", "none", "passed", ("ok",))
ITSELF = Cheat("corpus_against_itself", "a corpus kernel beside itself (A/A)", "none", "inconclusive", kind="bench")
DOUBLED = Cheat("corpus_twice", "a corpus kernel launched twice, beside itself", "none", "slower", kind="bench")


def runs(only: Sequence[str] = ()) -> Iterator[Run]:
    """All jobs, checks before timings."""
    contract = {"kmeans_packed": KMEANS, "kmeans_assign": KMEANS, "gemm_sm90": GEMM, "gemm_sm80": GEMM, "rmsnorm": RMS}
    found = [Run(c, of, torch) for c in ROWS for of, torch in c.on_gpu]
    found += [Run(c, contract.get(k, SOFTMAX), kernel=k) for c in (CHECKED, ITSELF) for k in CORPUS]
    found += [Run(DOUBLED, GEMM, kernel="gemm_sm90"), Run(DOUBLED, RMS, kernel="rmsnorm")]
    found.sort(key=lambda r: r.cheat.kind == "bench")
    yield from (r for r in found if not only or any(o in r.id for o in only))


# ---- here ----------------------------------------------------------------------------------------------------------


def prepare(directory: Path, only: Sequence[str]) -> int:
    """Write a job per run to `DIR/ID.json`."""
    from corpus.export import head_commit

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "commit").write_text(head_commit())
    count = 0
    for r in runs(only):
        job = _corpus_job(r) if r.kernel else _fixture_job(r)
        (directory / f"{r.id}.json").write_text(job.model_dump_json() + "\n")
        count += 1
    print(f"{count} jobs in {directory}")
    return 0


def _common(r: Run) -> dict[str, Any]:
    common: dict[str, Any] = {"use_torch": r.torch, "timeout_s": LIMIT_S - 10, "baselines": (), "sample_ms": 2.0}
    return {**common, "warmup_ms": 50.0, "samples": ROUNDS if r.kernel else 5, **r.cheat.job}


def _fixture_job(r: Run) -> Any:
    from corpus import jobs
    from lowering.compile import compile_cuda
    from tests.adversarial.fixtures import TARGET, plans, source

    contract = contracts()[r.contract]
    shapes = [r.cheat.shapes[r.contract]] if r.cheat.kind == "bench" else contract.shapes["boundary"]
    spec = contract.outputs[0]
    largest = max(prod(contract.extents(spec, s)) for s in shapes)
    done = compile_cuda(source(r.cheat.source, contract, largest), TARGET)
    made = [jobs.Launch(shape=dict(s), plans=plans(contract, s, done.sha256, r.cheat.refused)) for s in shapes]
    return jobs.job(
        r.cheat.kind, contract, made, [done.cubin], kernel=r.cheat.name, target=TARGET,
        compiler=f"NVRTC {done.nvrtc_version}", **_common(r),
    )  # fmt: skip


def _corpus_job(r: Run) -> Any:
    from corpus.kernels import kernel
    from corpus.prepare import prepare as make_job
    from tests.adversarial.fixtures import TARGET

    k = kernel(r.kernel)
    shapes: Any = "boundary" if r.cheat.kind == "check" else [dict(TIMED[r.contract])]
    job, _ = make_job(
        k.text(), k.contract, r.cheat.kind, shapes, target=TARGET, bindings=k.bindings, kernel=k.kernel, name=k.name,
        **_common(r),
    )  # fmt: skip
    if r.cheat.kind == "check":
        return job
    twice = tuple(x.model_copy(update={"plans": x.plans * 2}) for x in job.launches)
    return job.model_copy(update={"rivals": job.launches, "launches": twice if r.cheat is DOUBLED else job.launches})


# ---- there ---------------------------------------------------------------------------------------------------------


def run(directory: Path, out: Path, only: Sequence[str], workers: int) -> int:
    """Run the jobs; answers go to `OUT/answers.json`. 1 when one is not as the table says."""
    out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    probe = ask(json.dumps({"kind": "probe", "use_torch": False}) + "\n", 60)
    answers: dict[str, Any] = {"device": probe, "answers": {}}

    def one(r: Run) -> tuple[Run, dict[str, Any]]:
        start = time.monotonic()
        answer = ask((directory / f"{r.id}.json").read_text(), LIMIT_S)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return r, {**_brief(answer), "seconds": round(time.monotonic() - start, 2), "date": now}

    todo = [r for r in runs(only) if (directory / f"{r.id}.json").exists()]
    wrong = 0
    for kind, at_once in (("check", workers), ("bench", 1)):
        with ThreadPoolExecutor(at_once) as pool:
            for r, answer in pool.map(one, [r for r in todo if r.cheat.kind == kind]):
                answers["answers"][r.id] = answer
                verdict, cause, message = outcome(answer)
                good = r.cheat.caught(r.contract, verdict, cause, message)
                wrong += not good
                print(f"{'as expected' if good else 'NOT EXPECTED'}  {r.id}: {verdict} {cause} "
                      f"({answer['seconds']} s){'' if good else ' ' + message[:400]}", flush=True)  # fmt: skip
                answers["seconds"] = round(time.monotonic() - begin, 1)
                (out / "answers.json").write_text(json.dumps(answers))  # a run that is cut off keeps what it has
    print(f"{len(todo)} jobs, {wrong} not as expected, {time.monotonic() - begin:.0f} s")
    return 1 if wrong else 0


def _brief(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without the cases of a check that passed."""
    if "cases" not in answer.get("result", {}):
        return answer
    cases = [c for c in answer["result"]["cases"] if c["verdict"] != "passed"]
    return {**answer, "result": {**answer["result"], "cases": cases}}


# ---- here again ----------------------------------------------------------------------------------------------------


def record(directory: Path, out: Path) -> int:
    """Write corpus/results/adversarial.json; 1 when something is not as the table says."""
    from corpus.evidence import DIRECTORY

    rec = report(directory, out)
    (DIRECTORY / "adversarial.json").write_text(json.dumps(rec, indent=1) + "\n", encoding="utf-8")
    print(rec["totals"])
    return 1 if rec["totals"]["passed_the_gates"] or rec["totals"]["controls_flagged"] else 0


def report(directory: Path, out: Path) -> dict[str, Any]:
    """The record as JSON: a row per job, totals, where and with what it was run."""
    ran = json.loads((out / "answers.json").read_text())
    rows = []
    for r in runs():
        answer = ran["answers"].get(r.id)
        if answer is None:
            continue
        job = json.loads((directory / f"{r.id}.json").read_text())
        verdict, cause, message = outcome(answer)
        rows.append(
            {
                "id": r.id, "kernel": r.kernel or r.cheat.source, "cheat": None if r.cheat.honest else r.cheat.name,
                "contract": r.contract, "contract_digest": job["contract_digest"], "kind": r.cheat.kind,
                "gate": r.cheat.gate, "torch": r.torch, "shapes": len(job["launches"]),
                "expected": {"verdict": r.cheat.verdict, "causes": list(r.cheat.causes), "says": r.cheat.says},
                "verdict": verdict, "cause": cause, "message": message[:300],
                "as_expected": r.cheat.caught(r.contract, verdict, cause, message),
                "cubin_sha256": ",".join(sorted(job["cubins"])), "compiler": job["compiler"], "target": job["target"],
                **_made_of(r, job),
                "seconds": answer["seconds"], "date": answer["date"],
            }
        )  # fmt: skip
    cheats, honest = [r for r in rows if r["cheat"]], [r for r in rows if not r["cheat"]]
    probe = ran["device"].get("result", {})
    telemetry = probe.get("telemetry") or {}
    return {
        "kind": "adversarial", "device": probe.get("device", {}), "driver": telemetry.get("driver", ""),
        "commit": (directory / "commit").read_text().strip(),
        "command": "python -m tests.adversarial.gpu prepare DIR; python -m tests.adversarial.gpu run DIR OUT; "
        "python -m tests.adversarial.gpu record DIR OUT",
        "date": max((r["date"] for r in rows), default=""), "seconds": ran["seconds"],
        "totals": {
            "cheats": len({r["cheat"] for r in cheats}), "cheat_jobs": len(cheats),
            "caught": sum(r["as_expected"] for r in cheats),
            "passed_the_gates": sum(r["verdict"] in ("passed", "measured", "faster", "slower", "inconclusive") for r in cheats),
            "controls": len(honest), "controls_flagged": sum(not r["as_expected"] for r in honest),
        },
        "rows": rows,
    }  # fmt: skip


def _made_of(r: Run, job: dict[str, Any]) -> dict[str, Any]:
    """What the row's cubin was built from, so that a later change is seen: a variant of a corpus kernel, or a fixture."""
    if r.kernel:
        return {k: job[k] for k in ("content_id", "variant_id", "bindings")}
    text = (CUDA / f"{r.cheat.source}.cu").read_bytes()
    return {"fixture_sha256": hashlib.sha256(text).hexdigest()}


def main() -> int:
    """Command line."""
    p = argparse.ArgumentParser(prog="tests.adversarial.gpu")
    p.add_argument("step", choices=("prepare", "run", "record"))
    p.add_argument("dir", type=Path)
    p.add_argument("out", type=Path, nargs="?")
    p.add_argument("--only", action="append", default=[])
    p.add_argument("--workers", type=int, default=4)
    a = p.parse_args()
    if a.step == "prepare":
        return prepare(a.dir, a.only)
    if a.out is None:
        p.error("OUT is missing")
    return run(a.dir, a.out, a.only, a.workers) if a.step == "run" else record(a.dir, a.out)


if __name__ == "__main__":
    sys.exit(main())
