"""Measure prepared jobs on the GPU of this machine: `python -m corpus.calibrate.run DIR OUT`. No compiler, no torch.

DIR holds `jobs.json`, OUT gets `answers.json`: per rate the times of the shorter and the longer run in microseconds, round by round, and
the SM clock in MHz while the longer one ran; the device; its conditions. About a minute for all.

The clock is counted, not asked for: before and after each run an instrumented empty kernel reads the cycle counter and the timer of every
SM, and the difference is the mean clock of what lay between.

Rounds alternate short and long; each run stands between two events. Short kernels and pauses keep the device off its power cap; the
clock under load is measured by the probes of mode `sustained`, which run without a pause until the clock has settled.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError, error
from corpus import files
from corpus.calibrate.prepare import chosen, read
from corpus.calibrate.probe import SUSTAINED_MS
from lowering import timeline
from lowering.plan import DTYPE_BYTES, LaunchPlan
from lowering.runtime.bench import FLUSH_CHUNK
from lowering.runtime.device import Device
from lowering.runtime.host import prepare
from lowering.runtime.telemetry import Monitor

ANSWERS = "answers.json"
FORM = "cake-calibration-answers-3"
ROUNDS = 15
STRETCHES = 5
IDLE_S = 0.1
"""Pause before a run that shows how a clock settles."""
PATTERN = 0x3F803F81
FLUSH_FACTOR = 4
"""Flush buffer in sizes of L2: half of it is written, half read, each more than both partitions of L2 hold."""
WAIT_S = 20.0
"""Longest wait for the device; a run takes milliseconds."""
STATUS_HUNG = 3


def measure(
    jobs: dict[str, Any],
    only: str = "",
    *,
    command: str = "",
    each: Callable[[str, dict[str, Any]], None] = lambda rate, answer: None,
) -> dict[str, Any]:
    """Run all jobs; `each` sees every answer as it comes. A job that the device refuses is an answer with `error`. `command` is kept.

    Raises CakeError: `lowering/no-gpu`; `corpus/other-device` when the jobs were made for another number of SMs or architecture.
    """
    device = Device(0)
    info = device.info()
    _fits(info, jobs)
    monitor = Monitor(info.uuid)
    monitor.start()
    out: dict[str, Any] = {
        "form": FORM, "target": jobs["target"], "device": info.to_json(), "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command, "rounds": ROUNDS, "rates": {},
    }  # fmt: skip

    def hung() -> None:
        each("", out)
        os._exit(STATUS_HUNG)

    device.patience.limit(WAIT_S, hung)
    bench = _Bench(device, monitor, jobs)
    bench.wake(chosen(jobs["jobs"], "tensor.")[:1] or jobs["jobs"][:1], jobs["cubins"])
    for job in chosen(jobs["jobs"], only):
        try:
            answer = bench.run(job, jobs["cubins"][job["cubin"]])
        except CakeError as exc:
            answer = {"error": f"{exc.diagnostic.rule}: {exc.diagnostic.message}"[:400]}
            if exc.diagnostic.rule == "lowering/device-fault":
                out["rates"][job["rate"]] = answer
                break
        out["rates"][job["rate"]] = answer
        each(job["rate"], answer)
    seen = monitor.stop()
    out["telemetry"] = seen.to_json()
    out["faults"] = list(seen.faults)
    device.close()
    return out


class _Bench:
    """Buffers, stream and events of one run."""

    def __init__(self, device: Device, monitor: Monitor, jobs: dict[str, Any]) -> None:
        self.device, self.monitor = device, monitor
        self._clock = _Clock(device, jobs["clock"], jobs["cubins"][jobs["clock"]["cubin"]])
        self._flush = device.alloc(FLUSH_FACTOR * device.info().l2_bytes, guard=0)
        self.stream = device.new_stream()
        self.first, self.second = device.event(), device.event()
        self._random = _noise()

    def wake(self, jobs: list[dict[str, Any]], cubins: dict[str, str]) -> None:
        """Bring an idle device to its clocks: half a second of work."""
        for job in jobs:
            held: list[Any] = []
            launch = self._prepared(job, 1, cubins[job["cubin"]], held)
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                launch(self.stream)
                self.device.wait_stream(self.stream)
            for b in held:
                b.free()

    def run(self, job: dict[str, Any], cubin: str) -> dict[str, Any]:
        """One job's samples. Raises CakeError when the device refuses it; its buffers are free afterwards."""
        held: list[Any] = []
        try:
            return self._samples(job, cubin, held)
        finally:
            for b in held:
                b.free(ignore_errors=True)

    def _samples(self, job: dict[str, Any], cubin: str, held: list[Any]) -> dict[str, Any]:
        trips = [r["trips"] for r in job["runs"]]
        if job["mode"] == "residency":
            clusters = self._prepared(job, 1, cubin, held).max_clusters()
            return {"trips": trips, "few_us": [], "few_mhz": [], "many_us": [], "many_mhz": [], "clusters": clusters}
        if job["mode"] == "launches":
            launch = self._prepared(job, 1, cubin, held)
            graphs = []
            for n in trips:
                with self.device.capture(self.stream) as graph:
                    for _ in range(n):
                        launch(self.stream)
                graphs.append(graph)
            few, many = (g.launch for g in graphs)
        else:
            few, many = (self._prepared(job, which, cubin, held) for which in (0, 1))
            graphs = []
        answer: dict[str, Any] = {"trips": trips}
        if job["mode"] == "sustained":
            answer |= self._sustained(many)
        elif job["mode"] == "settling":
            answer |= self._settling(many, job["after_ms"])
        else:
            cold, idle = job["cold"], IDLE_S if job["idle"] else 0.0
            for call in (few, many):
                self._timed(call, cold)
            rounds = [(*self._timed(few, cold, idle), *self._timed(many, cold, idle)) for _ in range(ROUNDS)]
            answer |= {
                name: [r[i] for r in rounds] for i, name in enumerate(("few_us", "few_mhz", "many_us", "many_mhz"))
            }
        for graph in graphs:
            graph.close()
        return answer

    def _sustained(self, call: Callable[[int], None]) -> dict[str, Any]:
        """Runs without a pause until clocks have settled, then stretches of them: time of one run and the mean clock of each stretch."""
        single_us = self._single(call)
        times, clocks = [], []
        self._several(call, SUSTAINED_MS / 2, single_us)
        for _ in range(STRETCHES):
            self._several(call, SUSTAINED_MS / 20, single_us)  # over the pause in which the stretch before was read
            us, mhz = self._stretch(call, SUSTAINED_MS / 10, single_us)
            times.append(us)
            clocks.append(mhz)
        return {"few_us": [], "few_mhz": [], "many_us": times, "many_mhz": clocks}

    def _settling(self, call: Callable[[int], None], ms: float) -> dict[str, Any]:
        """Each time from an idle device: runs for half of the time, then the time of one and the mean clock in the other half."""
        single_us = self._single(call)
        times, clocks = [], []
        for _ in range(STRETCHES):
            time.sleep(IDLE_S)
            if ms * 500 > single_us:
                self._several(call, ms / 2, single_us)
            us, mhz = self._stretch(call, ms / 2, single_us)
            times.append(us)
            clocks.append(mhz)
        return {"few_us": [], "few_mhz": [], "many_us": times, "many_mhz": clocks}

    def _single(self, call: Callable[[int], None]) -> float:
        """Microseconds of one run, not of the first."""
        self._timed(call)
        return self._timed(call)[0]

    def _several(self, call: Callable[[int], None], ms: float, single_us: float) -> int:
        """Enqueue runs of that many milliseconds; how many."""
        n = max(1, round(ms * 1000 / single_us))
        for _ in range(n):
            call(self.stream)
        return n

    def _stretch(self, call: Callable[[int], None], ms: float, single_us: float) -> tuple[float, float]:
        """(Microseconds of one run, mean clock in MHz) over that many milliseconds of them."""
        n = 0

        def runs(_: int) -> None:
            nonlocal n
            n = self._several(call, ms, single_us)

        us, mhz = self._timed(runs)
        return round(us / n, 3), mhz

    def _timed(self, call: Callable[[int], None], cold: bool = False, idle: float = 0.0) -> tuple[float, float]:
        """(µs between two events around one call, SM clock in MHz meanwhile), after a rest of `idle` seconds."""
        if idle:
            time.sleep(idle)
        if cold:
            self._empty_l2()
        self._clock.read(0, self.stream)
        self.first.record(self.stream)
        call(self.stream)
        self.second.record(self.stream)
        self._clock.read(1, self.stream)
        self.second.wait()
        us = self.second.ms_since(self.first) * 1000
        self.device.wait_stream(self.stream)
        return round(us, 3), round(self._clock.mhz(), 1)

    def _empty_l2(self) -> None:
        """Overwrite L2, then read other memory, so that its lines are clean: a write-back would be charged to what follows."""
        half = self._flush.nbytes // 2
        self.device.fill(self._flush.pointer, half, PATTERN, 4, self.stream)
        for at in range(half, self._flush.nbytes - FLUSH_CHUNK + 1, FLUSH_CHUNK):
            self.device.copy_device(self._flush.pointer, self._flush.pointer + at, FLUSH_CHUNK, self.stream)

    def _prepared(self, job: dict[str, Any], which: int, cubin: str, held: list[Any]) -> Any:
        """A launch; its buffers are added to `held`. Raises CakeError when they do not fit or the driver refuses the launch."""
        run, pointers = job["runs"][which], {}
        for name, (dtype, direction) in job["tensors"].items():
            count = 1
            for extent in run["shapes"][name]:
                count *= extent
            nbytes = count * DTYPE_BYTES[dtype]
            buffer = self.device.alloc(nbytes, guard=0)
            held.append(buffer)
            pointers[name] = buffer.pointer
            if direction != "Out":
                self._fill(buffer, dtype)
        return prepare(self.device, base64.b64decode(cubin), LaunchPlan.from_json(run["plan"]), pointers)

    def _fill(self, buffer: Any, dtype: str) -> None:
        """Normal random numbers (what a product or a transfer costs in power depends on them), doubled on the device until they fill it."""
        data = self._random[dtype][: buffer.nbytes]
        self.device.copy_in(buffer.pointer, data)
        done = len(data)
        while done < buffer.nbytes:
            more = min(done, buffer.nbytes - done)
            self.device.copy_device(buffer.pointer + done, buffer.pointer, more)
            done += more


class _Clock:
    """Readings of the cycle counter and the timer of every SM."""

    def __init__(self, device: Device, job: dict[str, Any], cubin: str) -> None:
        shape = timeline.Shape(**job["shape"])
        self._device, self._shape = device, shape
        self._places, self._launches = [], []
        out = device.alloc(4 * shape.grid, guard=0)
        for _ in range(2):
            memory = device.alloc(shape.nbytes + shape.align, guard=0)
            memory.poison(0)
            at = memory.pointer + -memory.pointer % shape.align
            pointers = {"y": out.pointer, timeline.POINTER: at}
            self._places.append(at)
            self._launches.append(prepare(device, base64.b64decode(cubin), LaunchPlan.from_json(job["plan"]), pointers))

    def read(self, which: int, stream: int) -> None:
        """Enqueue reading 0 or 1."""
        self._launches[which](stream)

    def mhz(self) -> float:
        """The median over the SMs of their mean clocks between the two last readings. Raises CakeError `lowering/bad-timeline` when they
        do not tell."""
        earlier, later = (
            timeline.starts(self._device.read(at, self._shape.nbytes), self._shape) for at in self._places
        )
        seen = [
            (cycles - earlier[sm][1]) / (ns - earlier[sm][0])
            for sm, (ns, cycles) in later.items()
            if sm in earlier and ns > earlier[sm][0]
        ]
        if not seen or min(seen) <= 0:
            raise CakeError(
                error("lowering/bad-timeline", "performance", "no SM tells how fast its clock runs",
                      contract="Each CTA of the clock's kernel records its timer and its cycle counter.")
            )  # fmt: skip
        return statistics.median(seen) * 1000


def _noise() -> dict[str, bytes]:
    """Two MiB of normal random numbers in each dtype that inputs have, always the same."""
    import numpy as np

    values = np.random.default_rng(20260101).standard_normal(1 << 19).astype(np.float32)
    bf16 = (values.view(np.uint32) >> 16).astype(np.uint16)
    return {
        "f32": values.tobytes(),
        "bf16": bf16.tobytes(),
        "f16": values.astype(np.float16).tobytes(),
        "i32": (values * 1e6).astype(np.int32).tobytes(),
    }


def _fits(info: Any, jobs: dict[str, Any]) -> None:
    major, minor = info.compute_capability
    if jobs["target"].rstrip("abf") != f"sm_{major}{minor}" or info.sms != jobs["sms"]:
        raise CakeError(
            error("corpus/other-device", "hardware",
                  f"the jobs are for {jobs['target']} with {jobs['sms']} SMs; {info.name} is sm_{major}{minor} with {info.sms}",
                  contract="Grids of microbenchmarks fill every SM once; make the jobs again with --target and --sms of this device.")
        )  # fmt: skip


def answer_to(
    directory: Path, out: Path, only: str, tell: Callable[[str, dict[str, Any], int], None], command: str
) -> dict[str, Any]:
    """Measure the jobs of `directory` and write `out`/answers.json, also when the device hangs (then the process ends). `tell(rate, answer,
    number)` sees every answer. Raises like `measure` and `read`."""
    out.mkdir(parents=True, exist_ok=True)
    done = 0

    def each(rate: str, answer: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        if rate:
            tell(rate, answer, done)
        else:  # what there is is kept
            files.replace(out / ANSWERS, json.dumps(answer).encode())

    found = measure(read(directory), only, command=command, each=each)
    files.replace(out / ANSWERS, json.dumps(found).encode())
    return found


def told(found: dict[str, Any]) -> tuple[str, int]:
    """One line on a run, and how many rates failed."""
    failed = sum("error" in r for r in found["rates"].values())
    line = f"{len(found['rates'])} rates of {found['device']['name']}, {failed} failed, faults: {', '.join(found['faults']) or 'none'}"
    return line, failed


def worker() -> int:
    """The job on stdin (`directory`, `out`, `only`), progress and result on stdout: how `cake calibrate` runs this."""
    job = json.loads(sys.stdin.read())
    of = len(chosen(read(Path(job["directory"]))["jobs"], job["only"]))

    def tell(rate: str, answer: dict[str, Any], number: int) -> None:
        print(json.dumps({"progress": number, "total": of, "message": rate}), flush=True)

    try:
        line, failed = told(
            answer_to(
                Path(job["directory"]),
                Path(job["out"]),
                job["only"],
                tell,
                f"cake calibrate --only {job['only']}".removesuffix(" --only "),
            )
        )
        print(json.dumps({"result": {"told": line, "failed": failed}}), flush=True)
    except CakeError as exc:
        print(json.dumps({"error": {"code": exc.diagnostic.rule, "message": exc.diagnostic.message}}), flush=True)
    return 0


def main(argv: list[str] | None = None) -> int:
    """Command line. Exit 0: all measured, 1: some failed, 2: cannot run."""
    words = sys.argv[1:] if argv is None else argv
    if not words:
        return worker()
    p = argparse.ArgumentParser(prog="corpus.calibrate.run")
    p.add_argument("dir", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--only", default="", help="rates that begin with this")
    a = p.parse_args(words)

    def tell(rate: str, answer: dict[str, Any], number: int) -> None:
        if "error" in answer:
            print(f"{rate}: {answer['error']}", file=sys.stderr)

    try:
        line, failed = told(answer_to(a.dir, a.out, a.only, tell, " ".join(["python -m corpus.calibrate.run", *words])))
    except CakeError as exc:
        print(f"error[{exc.diagnostic.rule}]: {exc.diagnostic.message}", file=sys.stderr)
        return 2
    print(line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
