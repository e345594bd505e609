"""The run on the GPU machine: one forked process per mutant, results as JSON lines as they come.

The parent never opens the device. It prepares inputs and references once and forks; a child that faults or hangs loses only
its own context. `python -m tests.mutation.silicon.runner DIR ID` is the single launch that compute-sanitizer watches.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutation.silicon.outcome import TOOLS, sanitizer, worst
from tests.mutation.silicon.programs import program

ROOT = Path(__file__).parents[3]
SILENCE_S = 60.0
"""Seconds without a word after which a child is killed: it hangs inside a driver call."""
BROKEN = 8
"""So many children in a row that cannot open the device end the run."""
SANITIZER_S = 60.0
ORDER = ("control", "accepted", "other function", "false accept", "refuted")


@dataclass(frozen=True)
class Package:
    """What `prepare` wrote: facts of the session, jobs, cubins by SHA-256."""

    directory: Path

    @property
    def meta(self) -> dict[str, Any]:
        return json.loads((self.directory / "meta.json").read_text())

    @property
    def jobs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "jobs.jsonl").read_text().splitlines()]

    def cubin(self, sha: str) -> bytes:
        """A cubin; KeyError."""
        with zipfile.ZipFile(self.directory / "cubins.zip") as z:
            return z.read(sha)


@dataclass
class Child:
    """A running mutant."""

    job: dict[str, Any]
    pid: int
    pipe: int
    begin: float
    heard: float
    text: bytes = b""
    series: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    ended: bool = False


def fork(job: dict[str, Any], work: Callable[[Callable[[dict[str, Any]], None]], None]) -> Child:
    """A child that does `work(say)`; what it says goes through the pipe."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        os.set_blocking(reading, False)
        now = time.monotonic()
        return Child(job, pid, reading, now, now)
    os.close(reading)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG

    def say(obj: dict[str, Any]) -> None:
        line = (json.dumps(obj) + "\n").encode()
        while line:
            line = line[os.write(writing, line) :]

    try:
        work(say)
        say({"end": True})
    except BaseException:
        say({"error": traceback.format_exc()[-900:]})
    os._exit(0)  # no teardown: destructors of a broken context may block


def listen(child: Child) -> bool:
    """Takes what the child has said; False when it has ended."""
    while True:
        try:
            data = os.read(child.pipe, 1 << 16)
        except BlockingIOError:
            return True
        if not data:
            return False
        child.heard = time.monotonic()
        *lines, child.text = (child.text + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "error" in said:
                child.error = said["error"]
            elif "end" in said:
                child.ended = True
            else:
                child.series.append(said)


def conclude(child: Child, silent: bool) -> dict[str, Any]:
    """The row of a child that has ended or was killed for silence."""
    row: dict[str, Any] = {
        "id": child.job["id"],
        "class": child.job["class"],
        "seconds": round(time.monotonic() - child.begin, 2),
    }
    if silent:
        child.series.append({"outcome": "hang", "says": f"a driver call did not return within {SILENCE_S:g} s"})
    elif child.error or not child.ended:
        return {**row, "error": child.error or "the process died"}
    return {**row, "outcome": worst(s["outcome"] for s in child.series), "series": child.series}


def in_parallel(
    todo: Iterable[tuple[dict[str, Any], Callable[[Any], None]]], workers: int, write: Callable[[dict[str, Any]], None]
) -> bool:
    """Runs jobs in children, `workers` at once. False when the device stopped answering."""
    waiting, alive, broken = iter(todo), [], 0
    dead: list[int] = []
    ended = False
    while alive or not ended:
        while len(alive) < workers and not ended:
            following = next(waiting, None)
            if following is None:
                ended = True
            else:
                alive.append(fork(*following))
        if not alive:
            break
        select.select([c.pipe for c in alive], [], [], 0.2)
        for c in list(alive):
            running = listen(c)
            silent = running and time.monotonic() - c.heard > SILENCE_S
            if running and not silent:
                continue
            if silent:
                os.kill(c.pid, signal.SIGKILL)
            os.close(c.pipe)
            alive.remove(c)
            dead.append(c.pid)
            row = conclude(c, silent)
            write(row)
            broken = broken + 1 if "error" in row else 0
        dead = [pid for pid in dead if os.waitpid(pid, os.WNOHANG)[0] == 0]
        if broken >= BROKEN:
            return False
    return True


def run(
    directory: Path, out: Path, *, workers: int, launches: int, timeout: float, only: Sequence[str], limit: int = 0
) -> int:
    """All jobs (of the classes in `only`, if any) that OUT/results.jsonl lacks."""
    package = Package(directory)
    out.mkdir(parents=True, exist_ok=True)
    log = out / "results.jsonl"
    done = {r["id"] for r in rows(log) if "error" not in r}
    jobs = [j for j in package.jobs if j["id"] not in done and (not only or j["class"] in only)]
    jobs.sort(key=lambda j: (ORDER.index(j["class"]), j["subject"]))
    jobs = jobs[:limit] if limit else jobs
    noise = package.meta["noise"]
    with zipfile.ZipFile(package.directory / "cubins.zip") as z:
        cubins = {n: z.read(n) for n in z.namelist()}
    begin, count = time.monotonic(), 0
    with contextlib.suppress(ImportError):  # loaded once before the forks; it is initialised in the children only
        importlib.import_module("cuda.bindings.driver")
    with log.open("a", encoding="utf-8") as sink:

        def write(row: dict[str, Any]) -> None:
            nonlocal count
            count += 1
            sink.write(json.dumps(row) + "\n")
            sink.flush()
            if "error" in row or count % 40 == 0 or row["class"] == "control":
                says = row.get("error") or f"{row['outcome']} {[s['says'] for s in row['series'] if s['says']][:1]}"
                print(
                    f"{time.monotonic() - begin:6.1f} s {count} of {len(jobs)}: {row['class']} {row['id']} {says}",
                    flush=True,
                )

        def work(job: dict[str, Any]) -> Callable[[Any], None]:
            from tests.mutation.silicon.device import run_job

            made = problems(job["subject"])
            return lambda say: run_job(
                job, made, cubins.__getitem__, noise, launches=launches, timeout=timeout, say=say
            )

        if not in_parallel([({"id": "device", "class": "device"}, probe)], 1, lambda row: keep_device(out, row)):
            return 1
        healthy = in_parallel(((j, work(j)) for j in jobs), workers, write)
        again = [{**j, "id": f"{j['id']} after"} for j in package.jobs if j["class"] == "control"]
        if healthy and not limit:
            healthy = in_parallel(((j, work(j)) for j in again), workers, write)
    print(
        f"{count} rows in {time.monotonic() - begin:.0f} s{'' if healthy else '; THE DEVICE STOPPED ANSWERING'}",
        flush=True,
    )
    return 0 if healthy else 1


@cache
def problems(name: str) -> dict[int, Any]:
    """The problems of a program's launches by number."""
    return {i: launch.problem() for i, launch in enumerate(program(name).launches)}


def probe(say: Callable[[dict[str, Any]], None]) -> None:
    """What the device is."""
    from lowering.runtime.device import Device

    say({"outcome": "ok", "says": "", "device": Device(0).info().to_json()})


def keep_device(out: Path, row: dict[str, Any]) -> None:
    """OUT/device.json."""
    found = row["series"][0]["device"] if row.get("series") else {"error": row.get("error", "no answer")}
    (out / "device.json").write_text(json.dumps(found))
    print(found, flush=True)


def rows(path: Path) -> list[dict[str, Any]]:
    """JSON lines of a file; a torn last line of a killed run is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


# ---- compute-sanitizer -------------------------------------------------------------------------------------------------


def find_tool() -> str | None:
    """compute-sanitizer's path."""
    known = [shutil.which("compute-sanitizer"), *map(str, Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))]
    return next((k for k in known if k and os.path.exists(k)), None)


def run_sanitizer(directory: Path, out: Path, *, workers: int) -> int:
    """The chosen jobs under every tool that suits them, into OUT/sanitizer.jsonl."""
    package = Package(directory)
    out.mkdir(parents=True, exist_ok=True)
    log = out / "sanitizer.jsonl"
    tool = find_tool()
    if tool is None:
        print("compute-sanitizer is not installed here")
        return 1
    version = (
        subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout.strip().splitlines()
    )
    done = {(r["id"], r["tool"]) for r in rows(log)}
    todo = [
        (j, t)
        for t in TOOLS
        for j in package.jobs
        if j.get("sanitize") and (j["id"], t) not in done and not (t == "racecheck" and j["tma"])
    ]
    todo.sort(key=lambda p: p[0]["class"] != "control")
    begin, count = time.monotonic(), 0
    with log.open("a", encoding="utf-8") as sink, ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(one_tool, tool, t, directory, j) for j, t in todo]
        for finished in as_completed(waiting):
            row = {**finished.result(), "version": version[-1] if version else ""}
            sink.write(json.dumps(row) + "\n")
            sink.flush()
            count += 1
            if row["class"] == "control" or count % 20 == 0:
                print(f"{time.monotonic() - begin:6.1f} s {count} of {len(todo)}: {row}"[:400], flush=True)
    print(f"{count} rows in {time.monotonic() - begin:.0f} s", flush=True)
    return 0


def one_tool(tool: str, name: str, directory: Path, job: dict[str, Any]) -> dict[str, Any]:
    """One job under one tool: {"id", "class", "tool", "errors", "findings", "launch", "seconds"}."""
    ours = [sys.executable, "-m", "tests.mutation.silicon.runner", str(directory), job["id"]]
    begin = time.monotonic()
    process = subprocess.Popen(
        [tool, "--tool", name, "--print-limit", "20", *ours], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    text, launch = "", "no answer"
    try:
        text = process.communicate(timeout=SANITIZER_S)[0]
    except subprocess.TimeoutExpired:
        launch = "no end"
        os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(
            subprocess.TimeoutExpired
        ):  # it may sit in a driver call; the row is worth more than its text
            text = process.communicate(timeout=10)[0]
    said = [line.removeprefix("LAUNCH ") for line in text.splitlines() if line.startswith("LAUNCH ")]
    launch = said[0] if said else launch
    seconds = round(time.monotonic() - begin, 1)
    row = {
        "id": job["id"],
        "class": job["class"],
        "tool": name,
        **sanitizer(text),
        "launch": launch,
        "seconds": seconds,
    }
    return row if launch != "no answer" else {**row, "log": text[-1200:]}


def main() -> int:
    """One launch of one job on its first problem."""
    from tests.mutation.silicon.device import run_once

    package = Package(Path(sys.argv[1]))
    job = next(j for j in package.jobs if j["id"] == sys.argv[2])
    step = job["launches"][0]
    problem = program(job["subject"]).launches[step["problem"]].problem()
    says = run_once(job, problem, step["plan"], package.cubin(job["cubins"]["plain"]))
    print(f"LAUNCH {says or 'ok'}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
