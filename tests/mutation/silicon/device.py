"""One mutant on the GPU, in a process of its own: launches from poison, under delays, noise and a deadline."""

from __future__ import annotations

import ctypes
import hashlib
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cake_ir.diagnostics import CakeError
from lowering.plan import LaunchPlan
from lowering.runtime import host
from lowering.runtime.device import Buffer, Device
from lowering.runtime.errors import check
from tests.mutation.silicon.outcome import series
from tests.reference import Problem

POISON = (0xA5, 0xFF)
"""Two byte patterns, one a small negative number, one a NaN in every float type."""
SCRUB = (0xA5A5A5A5, 0xFFFFFFFF, 0x7FC07FC0)
GUARD = 4096
MOST_ROUNDS = (0, 40, 400, 3000)
"""Longest spin of a delay, in rounds of some 30 cycles; launches take these in turn."""
NOISE_WORDS = 1 << 24
Say = Callable[[dict[str, Any]], None]


class Hang(Exception):
    """A launch did not end in time."""


class Bench:
    """The device, streams, and our own two kernels. timeout: seconds one launch may take."""

    def __init__(self, noise_cubin: bytes, timeout: float) -> None:
        self.device = Device(0)
        self.stream, self.side = self.device.new_stream(), self.device.new_stream()
        self.timeout = timeout
        module = self.device.load(noise_cubin)
        self._scrub, self._noise = module.kernel("scrub"), module.kernel("noise")
        self.sms = self.device.attribute("MULTIPROCESSOR_COUNT")
        self._smem = self.device.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self._scrub.set_attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES", self._smem)
        self._memory = self.device.alloc(4 * NOISE_WORDS, guard=0)

    def scrub(self, pattern: int) -> None:
        """Leave `pattern` in the shared memory of every SM."""
        self._plain(
            self._scrub, self.sms, 512, self._smem, self.stream, ctypes.c_uint(pattern), ctypes.c_uint(self._smem // 4)
        )

    def noise(self, blocks: int, rounds: int) -> None:
        """Load the memory system for a while from a stream beside."""
        memory, words = ctypes.c_uint64(self._memory.pointer), ctypes.c_uint(NOISE_WORDS)
        self._plain(self._noise, blocks, 128, 0, self.side, memory, words, ctypes.c_uint(rounds))

    def flush(self) -> None:
        """Push everything else out of L2."""
        self.device.fill(self._memory.pointer, 4 * NOISE_WORDS, 0, 4, self.stream)

    def _plain(self, kernel: Any, grid: int, threads: int, smem: int, stream: int, *args: Any) -> None:
        addresses = (ctypes.c_void_p * len(args))(*(ctypes.addressof(a) for a in args))
        cu = self.device.cu
        done = cu.cuLaunchKernel(
            kernel.function, grid, 1, 1, threads, 1, 1, smem, cu.CUstream(stream), ctypes.addressof(addresses), 0
        )
        check(done, "launch our own kernel")

    def wait(self) -> None:
        """Until both streams are idle; raises Hang after the deadline, CakeError for a fault."""
        begin = time.monotonic()
        for stream in (self.stream, self.side):
            event = self.device.event()
            event.record(stream)
            while not event.done():
                spent = time.monotonic() - begin
                if spent > self.timeout:
                    raise Hang(f"no end within {self.timeout:g} s")
                if spent > 0.002:
                    time.sleep(0.0005)
            event.close()


def configure(bench: Bench, kernel: Any, seed: int, rounds: int) -> None:
    """Set the delays of a loaded cubin that has them."""
    cu = bench.device.cu
    found = check(cu.cuModuleGetGlobal(kernel.module.handle, b"cake_delay_config"), "find the delays")
    bench.device.copy_in(int(found[0]), np.array([seed & 0xFFFFFFFF, rounds], np.uint32))


class Trial:
    """One cubin on one problem. outputs: what the kernel writes; ragged: some of their rows are not the program's."""

    def __init__(self, bench: Bench, cubin: bytes, plan: Mapping[str, Any], problem: Problem, directions: Mapping[str, str],
                 *, ragged: bool, guard: int = GUARD) -> None:  # fmt: skip
        self.bench, self.problem, self.ragged = bench, problem, ragged
        self.arrays = {
            n: np.ascontiguousarray(a) for n, a in {**problem.right, **problem.tensors}.items() if n in directions
        }
        self.directions = directions
        self.buffers: dict[str, Buffer] = {}
        for n, a in self.arrays.items():
            self.buffers[n] = bench.device.alloc(a.nbytes, guard=guard)
            if directions[n] != "Out":
                self._load(n)
        concrete = LaunchPlan.from_json({**plan, "cubin_sha256": hashlib.sha256(cubin).hexdigest()})
        self.run = host.prepare(bench.device, cubin, concrete, {n: b.pointer for n, b in self.buffers.items()})
        self.verdicts: dict[str, str] = {}

    def _load(self, name: str) -> None:
        a = self.arrays[name]
        if a.nbytes:
            self.buffers[name].write(a.reshape(-1).view(np.uint8))

    def read(self, name: str) -> np.ndarray:
        """The tensor as it is on the device."""
        a = self.arrays[name]
        raw = np.zeros(a.nbytes, np.uint8)
        if raw.size:
            self.buffers[name].read_into(raw)
        return raw.view(a.dtype).reshape(a.shape)

    def launch(self, number: int, chance: random.Random, delayed: bool) -> dict[str, Any]:
        """One launch from poison. Raises Hang and CakeError."""
        bench = self.bench
        for n, d in self.directions.items():
            if d == "Out":
                self.buffers[n].poison(POISON[number % 2])
            elif d == "InOut":
                self._load(n)
        if delayed:
            configure(bench, self.run.kernel, chance.getrandbits(32), MOST_ROUNDS[number % len(MOST_ROUNDS)])
        bench.scrub(SCRUB[number % len(SCRUB)])
        if number % 4 == 1:
            bench.flush()
        if number % 4 >= 2:
            bench.noise(chance.choice((8, 66, 400, 3000)), chance.choice((20, 200, 600)))
            time.sleep(chance.random() * 3e-4)
        self.run.launch(bench.stream)
        bench.wait()
        return self.inspect(number)

    def inspect(self, number: int) -> dict[str, Any]:
        """What the launch left behind."""
        for n, b in self.buffers.items():
            offsets = b.damage()
            if offsets:
                return {
                    "state": "outside",
                    "says": f"{len(offsets)} bytes beside {n} were written, the first at offset {offsets[0]}",
                }
        out = {n: self.read(n) for n, d in self.directions.items() if d in ("Out", "InOut")}
        digest = hashlib.sha256(b"".join(out[n].tobytes() for n in sorted(out))).hexdigest()
        if digest not in self.verdicts:
            self.verdicts[digest] = self._judge(out)
        says = self.verdicts[digest]
        group = number % 2 if self.ragged else 0
        return {"state": "ran", "bits": digest, "right": not says, "says": says, "group": group}

    def _judge(self, out: dict[str, np.ndarray]) -> str:
        try:
            with np.errstate(all="ignore"):
                says = self.problem.judge(out)
        except Exception as bug:  # a reference that stumbles over a wrong value says no
            return f"the reference cannot read the result: {bug}"[:300]
        return says[0][:300] if says else ""

    def inputs_changed(self) -> str:
        """The name of an input whose bytes are not those that were loaded, or empty."""
        for n, d in self.directions.items():
            if d not in ("Out", "InOut") and self.read(n).tobytes() != self.arrays[n].tobytes():
                return n
        return ""

    def close(self) -> None:
        for b in self.buffers.values():
            b.free(ignore_errors=True)


def run_job(job: Mapping[str, Any], problems: Mapping[int, Problem], cubin: Callable[[str], bytes], noise: str, *,
            launches: int, timeout: float, say: Say) -> None:  # fmt: skip
    """All series of a job, each said as it ends: {"variant", "problem", "outcome", "says", counts}. Ends at the first
    outcome after which the context is lost or no better one can come."""
    bench = Bench(cubin(noise), timeout)
    for variant, sha in job["cubins"].items():
        for step in job["launches"]:
            number = step["problem"]
            ran: list[dict[str, Any]] = []
            chance = random.Random(f"{job['id']} {variant} {number}")
            trial = None
            try:
                trial = Trial(
                    bench, cubin(sha), step["plan"], problems[number], job["directions"], ragged=job["ragged"]
                )
                for i in range(launches):
                    ran.append(trial.launch(i, chance, variant == "delayed"))
                    if ran[-1]["state"] != "ran":
                        break
                if ran[-1]["state"] == "ran" and (changed := trial.inputs_changed()):
                    ran.append({"state": "outside", "says": f"the input {changed} was changed"})
            except Hang as hang:
                ran.append({"state": "hang", "says": f"launch {len(ran)}: {hang}"})
            except CakeError as fault:
                rule = fault.diagnostic.rule
                state = "refused" if rule in REFUSED else "fault"
                ran.append({"state": state, "says": f"launch {len(ran)}: {fault.diagnostic.message}"[:300]})
            end = series(ran, job["ordered"])
            say({"variant": variant, "problem": number, **end})
            if end["outcome"] in ("hang", "fault"):
                return
            if trial is not None:
                trial.close()


REFUSED = frozenset({"lowering/launch-refused", "lowering/bad-plan", "lowering/wrong-architecture"})
"""Rules of a launch that the driver (or our check in its place) does not take. The context lives on."""


def run_once(job: Mapping[str, Any], problem: Problem, plan: Mapping[str, Any], cubin: bytes) -> str:
    """One launch as a sanitizer wants it: outputs untouched before it, no guards, nothing else on the device. Returns the
    error's text, or empty."""
    device = Device(0)

    class Plain:
        pass

    bench: Any = Plain()
    bench.device, bench.stream = device, device.new_stream()
    try:
        trial = Trial(bench, cubin, plan, problem, job["directions"], ragged=job["ragged"], guard=0)
        trial.run.launch(bench.stream)
        device.synchronize()
    except CakeError as fault:
        return fault.diagnostic.message
    return ""
