"""The suite on a GPU: every cheat as CUDA, every control, one fresh worker per job as in production. For developers only.

    python -m tests.adversarial.gpu prepare DIR [--only NAME]      compile with the locked NVRTC; one job per row and contract
    python -m tests.adversarial.gpu run DIR OUT [--only NAME] [--workers 4]     on the GPU machine
    python -m tests.adversarial.gpu record DIR OUT [DIR OUT ...]   corpus/results/adversarial.json

A later pair's answers replace those of the same job in earlier ones, so a part can be run again: prepare it into a DIR of
its own. Every row keeps the commit and date of its run.

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

from corpus import evidence
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


def record(pairs: Sequence[tuple[Path, Path]]) -> int:
    """Write corpus/results/adversarial.json; 1 when something is not as the table says."""

    rec = report(pairs)
    evidence.replace(evidence.DIRECTORY / "adversarial.json", rec)
    totals = rec["totals"]
    print(totals)
    for r in rec["rows"]:
        if not r["as_expected"]:
            print(f"NOT EXPECTED  {r['id']}: {r['verdict']} {r['cause']} {r['message'][:200]}")
    return 1 if totals["caught"] < totals["cheat_jobs"] or totals["controls_flagged"] else 0


def report(pairs: Sequence[tuple[Path, Path]]) -> dict[str, Any]:
    """The record as JSON: a row per job, totals, where and with what it was run. pairs: (jobs, answers) of runs on the
    same device, the oldest first; of two answers of a job the later counts. Raises ValueError for different devices."""
    rows: dict[str, dict[str, Any]] = {}
    devices: list[tuple[dict[str, Any], str]] = []
    seconds = 0.0
    for directory, out in pairs:
        ran = json.loads((out / "answers.json").read_text())
        commit = (directory / "commit").read_text().strip()
        probe = ran["device"].get("result", {})
        devices.append((probe.get("device", {}), (probe.get("telemetry") or {}).get("driver", "")))
        seconds += ran["seconds"]
        for r in runs():
            if r.id in ran["answers"]:
                job = json.loads((directory / f"{r.id}.json").read_text())
                rows[r.id] = _row(r, job, ran["answers"][r.id], commit)
    if len({(d.get("name"), driver) for d, driver in devices}) > 1:
        raise ValueError("the runs are of different devices or drivers; one record is about one")
    device, driver = devices[-1]
    found = [rows[r.id] for r in runs() if r.id in rows]
    cheats, honest = [r for r in found if r["cheat"]], [r for r in found if not r["cheat"]]
    return {
        "kind": "adversarial", "device": device, "driver": driver,
        "commits": sorted({r["commit"] for r in found}),
        "command": "python -m tests.adversarial.gpu prepare DIR; python -m tests.adversarial.gpu run DIR OUT; "
        "python -m tests.adversarial.gpu record DIR OUT",
        "date": max((r["date"] for r in found), default=""), "seconds": round(seconds, 1),
        "totals": {
            "cheats": len({r["cheat"] for r in cheats}), "cheat_jobs": len(cheats),
            "caught": sum(r["as_expected"] for r in cheats),
            "passed_the_gates": sum(r["verdict"] in ("passed", "measured", "faster", "slower", "inconclusive") for r in cheats),
            "controls": len(honest), "controls_flagged": sum(not r["as_expected"] for r in honest),
        },
        "rows": found,
    }  # fmt: skip


def _row(r: Run, job: dict[str, Any], answer: dict[str, Any], commit: str) -> dict[str, Any]:
    verdict, cause, message = outcome(answer)
    soaked = answer.get("result", {}).get("soak")
    return {
        "id": r.id, "kernel": r.kernel or r.cheat.source, "cheat": None if r.cheat.honest else r.cheat.name,
        "contract": r.contract, "contract_digest": job["contract_digest"], "kind": r.cheat.kind,
        "gate": r.cheat.gate, "torch": r.torch, "shapes": len(job["launches"]),
        "expected": {"verdict": r.cheat.verdict, "causes": list(r.cheat.causes), "says": list(r.cheat.says)},
        "verdict": verdict, "cause": cause, "message": message[:400],
        "as_expected": r.cheat.caught(r.contract, verdict, cause, message), **({"soak": soaked} if soaked else {}),
        "cubin_sha256": ",".join(sorted(job["cubins"])), "compiler": job["compiler"], "target": job["target"],
        **_made_of(r, job),
        "seconds": answer["seconds"], "date": answer["date"], "commit": commit,
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
    p.add_argument("out", type=Path, nargs="*")
    p.add_argument("--only", action="append", default=[])
    p.add_argument("--workers", type=int, default=4)
    a = p.parse_args()
    if a.step == "prepare":
        return prepare(a.dir, a.only)
    if len(a.out) % 2 == 0 or (a.step == "run" and len(a.out) > 1):
        p.error("run takes DIR OUT; record DIR OUT [DIR OUT ...]")
    if a.step == "run":
        return run(a.dir, a.out[0], a.only, a.workers)
    paths = [a.dir, *a.out]
    return record(list(zip(paths[::2], paths[1::2], strict=True)))


if __name__ == "__main__":
    sys.exit(main())
