"""Faulty kernels on a borrowed GPU, one after the other: each is answered in time, and the next right kernel works.

    python -m tools.gpu_faults prepare DIR                     compile the kernels of tests/faults past the verifier
    python -m tools.gpu_faults run DIR OUT [--trial] [--only NAME]    on the GPU machine (numpy, ml_dtypes, pydantic, cuda-bindings)
    python -m tools.gpu_faults record DIR OUT [DIR OUT ...]    corpus/results/isolation.json; later runs add to the first

The run goes through the product's own supervision: the GPU's lock, one worker process a job, the questions after a fault
(`server.diagnosis`), and an evidence store that is written and read back after every kernel.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from corpus import evidence

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "corpus" / "results" / "isolation.json"
START_S = 15.0
"""Seconds that a worker may take beside the limit of its launch: to start, check or time until the fault, and end."""
JOB_LIMIT_S = 75.0


def prepare(directory: Path) -> int:
    """DIR/jobs.jsonl: one job a line, cubins inside; DIR/meta.json: the right kernel's job, compiler and commit."""
    from corpus.export import head_commit
    from tests.faults.build import job, right
    from tests.faults.kernels import KERNELS, TRIAL

    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "jobs.jsonl").open("w", encoding="utf-8") as sink:
        for k in KERNELS:
            made = job(k)
            row = {
                "name": k.name,
                "ending": k.ending,
                "trial": k.name in TRIAL,
                "kind": type(k).__name__.lower(),
                **made,
            }
            sink.write(json.dumps(row) + "\n")
            print(f"{k.name}: {k.ending}{', can be asked where it stands' if made['where'] else ''}", flush=True)
    meta = {"commit": head_commit(), "compiler": right()["compiler"], "right": right()}
    (directory / "meta.json").write_text(json.dumps(meta))
    return 0


def jobs_of(directory: Path, trial: bool = False, only: Sequence[str] = ()) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (directory / "jobs.jsonl").read_text().splitlines()]
    return [j for j in found if (j["trial"] or not trial) and (not only or j["name"] in only)]


def run(directory: Path, out: Path, trial: bool = False, only: Sequence[str] = ()) -> int:
    """All kernels in a row; OUT/rows.jsonl as they come, OUT/device.json. Exit code 1 when the GPU is lost."""
    from server.store import Store

    out.mkdir(parents=True, exist_ok=True)
    meta = json.loads((directory / "meta.json").read_text())
    bench = Row(Store(out / "workspace"), meta["right"])
    device = bench.ask_gpu({"kind": "probe", "use_torch": False}, 60)["device"]
    (out / "device.json").write_text(json.dumps(device))
    begin = time.monotonic()
    with (out / "rows.jsonl").open("a", encoding="utf-8") as sink:
        for number, job in enumerate(jobs_of(directory, trial, only), 1):
            row = bench.one(job, device["sms"])
            sink.write(json.dumps(row) + "\n")
            sink.flush()
            verdict = "ok" if row["ok"] else "NOT AS EXPECTED"
            print(
                f"{time.monotonic() - begin:6.1f} s {number}: {row['name']}: {verdict}: {row['code']} {row['says'][:160]}",
                flush=True,
            )
            if row["standing"].get("stood"):
                print(f"         {row['standing']['stood'][:3]}", flush=True)
            if not row["right_after"] and not bench.answers():
                print("THE GPU NO LONGER ANSWERS", flush=True)
                return 1
    bench.store.close()
    return 0


class Row:
    """The run: a store, the right kernel, and the ids that must still be there."""

    def __init__(self, store: Any, right: Mapping[str, Any]) -> None:
        from server.worker import Control

        self.store, self.right, self.control = store, dict(right), Control()
        self.failures: dict[str, str] = {}
        self.checks: list[str] = []

    def ask_gpu(self, job: dict[str, Any], seconds: float) -> dict[str, Any]:
        from server.worker import run_worker

        return run_worker("corpus.gpu_main", job, timeout_s=seconds, control=self.control)

    def ask_cpu(self, job: dict[str, Any], seconds: float) -> dict[str, Any]:
        from server.worker import run_worker

        return run_worker("server.cpu_main", job, timeout_s=seconds, control=self.control)

    def answers(self) -> bool:
        """Whether the GPU answers a fresh process."""
        from server.diagnosis import health

        return health(0, self.ask_gpu)[0]

    def one(self, job: dict[str, Any], sms: int) -> dict[str, Any]:
        """One faulty kernel, the questions after it, the right kernel, and the store; the row says what came of each."""
        from server.diagnosis import Case, diagnose
        from server.worker import gpu_lock

        limit = float(job["job"]["launch_timeout_s"])
        with gpu_lock(0, self.control, wait_s=60) as lock:
            begin = time.monotonic()
            code, says, at = self.answer(job["job"])
            answered = time.monotonic() - begin
            where = job["where"]
            ask = (lambda shape: {**where, "launch_timeout_s": limit}) if where else None
            case = Case(0, job["named"], sms, ask)
            begin = time.monotonic()
            standing = diagnose(code, at, case, self.ask_gpu, self.ask_cpu, lock.set_problem)
            diagnosed = time.monotonic() - begin
            begin = time.monotonic()
            right, right_says = self.right_kernel()
            after = time.monotonic() - begin
            told = standing.to_json()
            stored = self.keep(job["name"], code, {"says": says, "standing": told}, right_says)
        row = {
            "name": job["name"], "ending": job["ending"], "made_of": job["kind"], "mode": mode(job["job"]), "code": code, "says": says,
            "at": at, "limit_s": limit, "answered_s": round(answered, 2), "in_time": answered <= limit + START_S,
            "standing": told, "diagnosed_s": round(diagnosed, 2), "gpu_answers": standing.answers, "right_after": right,
            "right_says": right_says, "right_s": round(after, 2), "store_whole": stored,
        }  # fmt: skip
        return {**row, "ok": as_expected(row)}

    def answer(self, job: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
        """(code, words, where it stood) of one job; the code `passed` would be a fault of ours."""
        from server.diagnosis import fault_in
        from server.errors import EngineError
        from server.worker import JobFault

        try:
            raw = self.ask_gpu(job, JOB_LIMIT_S)
            found = fault_in(raw)
            if found is None:
                return code_of(raw), str(raw["summary"])[:300], {}
            raise found
        except EngineError as exc:
            return exc.code, exc.message[:300], exc.at if isinstance(exc, JobFault) else {}

    def right_kernel(self) -> tuple[bool, str]:
        """Whether the right kernel passes its check in a fresh worker."""
        from server.errors import EngineError

        try:
            raw = self.ask_gpu(self.right, JOB_LIMIT_S)
        except EngineError as exc:
            return False, f"{exc.code}: {exc.message}"[:300]
        return bool(raw["passed"]), str(raw["summary"])[:300]

    def keep(self, name: str, code: str, record: dict[str, Any], right_says: str) -> bool:
        """Store both answers; whether the store is whole and still has every row of before."""
        from server.store import digest

        failure = digest("f", name)
        self.store.put_failure(failure, "verifier", code, record)
        self.failures[failure] = name
        variant = digest("v", "right", name)
        self.store.put_measurement(
            variant, "rmsnorm", {"M": 3, "D": 256}, "gpu", "check-gpu", "passed", {"says": right_says}
        )
        self.checks.append(variant)
        whole = self.store._one("PRAGMA integrity_check")[0] == "ok"
        return (
            whole
            and all(self.store.failure(f) for f in self.failures)
            and all(self.store.measurements(v) for v in self.checks)
        )


def mode(job: Mapping[str, Any]) -> str:
    return "check" if job["kind"] == "check" else f"bench {job['modes'][0]}"


def code_of(raw: Mapping[str, Any]) -> str:
    """The code of a verdict without a device fault: the cause of the first case that is not skipped."""
    if raw.get("passed"):
        return "passed"
    causes = [c["cause"] for c in raw.get("cases", ()) if c["verdict"] in ("failed", "error")]
    return causes[0] if causes else "not passed"


EXPECTED: dict[str, Callable[[str], bool]] = {
    "hang": lambda code: code == "worker/hung",
    "fault": lambda code: code == "lowering/device-fault",
    "stop": lambda code: code in ("worker/hung", "lowering/device-fault"),
    "refused": lambda code: (
        code in ("lowering/launch-refused", "lowering/wrong-architecture", "lowering/cuda-error", "lowering/bad-plan")
    ),
}


def as_expected(row: Mapping[str, Any]) -> bool:
    """The right code in time, a GPU that answers, a right kernel that passes, a store that is whole."""
    return bool(
        EXPECTED[row["ending"]](row["code"])
        and row["in_time"]
        and row["gpu_answers"]
        and row["right_after"]
        and row["store_whole"]
    )


def record(runs: Sequence[tuple[Path, Path]]) -> int:
    """corpus/results/isolation.json from one run over all kernels and later ones over some, each as (jobs, answers).

    A later answer of a kernel replaces an earlier one. Kernels that the last jobs no longer hold are listed as withdrawn,
    with what they did.
    """
    rows: dict[str, dict[str, Any]] = {}
    about, devices = [], []
    for directory, out in runs:
        meta, jobs = json.loads((directory / "meta.json").read_text()), {j["name"]: j for j in jobs_of(directory)}
        lines = (out / "rows.jsonl").read_text().splitlines()
        devices.append(json.loads((out / "device.json").read_text()))
        ran = {r["name"]: r for r in map(json.loads, lines)}
        about.append(
            {
                "kernels_in_a_row": len(ran), "as_expected": sum(r["ok"] for r in ran.values()), "commit": meta["commit"],
                "compiler": meta["compiler"], "device_uuid": devices[-1].get("uuid"),
            }
        )  # fmt: skip
        for row in ran.values():
            rows[row["name"]] = {**row, "run": len(about), "sha256": _sha(jobs[row["name"]]["job"])}
    if len({(d.get("name"), d.get("driver")) for d in devices}) > 1:
        print("the runs are of different devices or drivers")
        return 1
    endings = {j["name"]: j["ending"] for j in jobs_of(runs[-1][0])}
    missing = endings.keys() - rows.keys()
    if missing:
        print(f"the runs lack {', '.join(sorted(missing))}")
        return 1
    withdrawn = [r for r in rows.values() if r["name"] not in endings]
    kept = [{**r, "ending": endings[r["name"]]} for r in rows.values() if r["name"] in endings]
    kept = [{**r, "ok": as_expected(r)} for r in kept]
    stopped = [r for r in kept if r["code"] in ("worker/hung", "lowering/device-fault")]
    found = {
        "kind": "isolation", "device": devices[0], "compiler": about[0]["compiler"],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "runs": about,
        "command": "python -m tools.gpu_faults prepare DIR; run DIR OUT; record DIR OUT",
        "kernels": len(kept), "hung_or_faulting": len(stopped), "codes": dict(Counter(r["code"] for r in kept)),
        "in_time": sum(r["in_time"] for r in kept), "gpu_answers": sum(r["gpu_answers"] for r in kept),
        "right_after": sum(r["right_after"] for r in kept), "store_whole": sum(r["store_whole"] for r in kept),
        "as_expected": sum(r["ok"] for r in kept), "located": sum(bool(r["standing"].get("stood")) for r in kept),
        "longest_answer_s": max(r["answered_s"] for r in kept),
        "seconds": round(sum(r["answered_s"] + r["diagnosed_s"] + r["right_s"] for r in kept), 1),
        "withdrawn": withdrawn, "rows": kept,
    }  # fmt: skip
    evidence.replace(RESULT, found)
    print({k: v for k, v in found.items() if k not in ("rows", "device", "withdrawn")})
    for r in kept:
        if not r["ok"]:
            print(f"NOT AS EXPECTED {r['name']}: {r['code']} {r['says']}")
    return 0 if found["as_expected"] == len(kept) else 1


def _sha(job: Mapping[str, Any]) -> str:
    """The SHA-256 of the faulty kernel's cubin (comma separated for several)."""
    return ",".join(sorted({str(p["cubin_sha256"]) for launch in job["launches"] for p in launch["plans"]}))


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    cli = argparse.ArgumentParser(prog="tools.gpu_faults")
    cli.add_argument("step", choices=("prepare", "run", "record"))
    cli.add_argument("dir", type=Path)
    cli.add_argument("out", type=Path, nargs="*")
    cli.add_argument("--trial", action="store_true", help="only a first few")
    cli.add_argument("--only", action="append", default=[], metavar="NAME", help="only this kernel")
    a = cli.parse_args(argv)
    if a.step == "prepare":
        return prepare(a.dir)
    if len(a.out) % 2 == 0 or (a.step == "run" and len(a.out) != 1):
        cli.error("give DIR OUT" + (", or several such pairs" if a.step == "record" else ""))
    paths = [a.dir, *a.out]
    return (
        run(a.dir, a.out[0], a.trial, a.only)
        if a.step == "run"
        else record(list(zip(paths[::2], paths[1::2], strict=True)))
    )


if __name__ == "__main__":
    sys.exit(main())
