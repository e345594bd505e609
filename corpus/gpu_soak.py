"""Soak: one small shape launched thousands of times, every result compared.

A race that goes wrong in one launch of a thousand passes three repeats of every case. Launches here follow each other on
one stream, in turn on two buffer sets, each from poison (the pattern changes with the round) and each with its outputs
copied aside on the device; the copies come to the host in bunches and are compared bit by bit with a result that met
the contract. Where floats are added in no fixed order, every distinct result is judged within the tolerance instead.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from corpus import compare as cmp
from corpus.arrays import POISON_BYTES, bits
from corpus.check import shape_text

if TYPE_CHECKING:
    from corpus.gpu_check import Trial

SECONDS = 0.5
"""How long launches are added."""
LARGEST = 128 << 10
"""Output bytes of the shape that is taken: the largest shape up to this, so that there are several CTAs to race."""
ASIDE_BYTES = 8 << 20
BUNCH = 256
"""Launches between two waits. Each enqueues a few operations, and the driver blocks, unseen by the watchdog, when about
a thousand are pending."""
FIRST = 4
"""Launches of the first bunch, which says how many fit the time."""


@dataclass(frozen=True)
class Soaked:
    """launches: how many ran. verdict: ok, or what the first that differed did. text: what was seen, for the result."""

    launches: int
    verdict: cmp.Verdict
    text: str


class _Lane:
    """One buffer set: what every launch needs before and after it, as operations on the stream."""

    def __init__(self, trial: Trial, slots: int) -> None:
        self.trial, self.slots = trial, slots
        b, self.env = trial.buffers, trial.buffers.env
        inout = [t.name for t in trial.contract.outputs if t.direction != "out"]
        fresh = [*(t.name for t in trial.contract.outputs if t.name not in inout), *trial.launch.workspaces]
        self.poisoned = [(b.all[n].memory.pointer, b.all[n].memory.nbytes) for n in fresh]
        self.outputs = [t.name for t in trial.contract.outputs]
        self.first = {n: b.on_host(trial.first[n]) for n in self.outputs}
        self.owned: list[Any] = []
        self.restored = []
        for n in inout:
            saved = self._alloc(b.all[n].memory.nbytes)
            saved.write(np.ascontiguousarray(trial.inputs[n]).reshape(-1).view(np.uint8))
            self.restored.append((b.all[n].memory.pointer, saved.pointer, saved.nbytes))
        self.aside = {n: self._alloc(slots * b.all[n].memory.nbytes) for n in self.outputs}

    def _alloc(self, nbytes: int) -> Any:
        self.owned.append(self.env.device.alloc(nbytes, guard=0))
        return self.owned[-1]

    def enqueue(self, slot: int, pattern: int) -> None:
        """Poison, launch, keep."""
        device, stream = self.env.device, self.env.stream
        for pointer, nbytes in self.poisoned:
            device.fill(pointer, nbytes, pattern, stream=stream)
        for to, source, nbytes in self.restored:
            device.copy_device(to, source, nbytes, stream)
        self.trial.run(stream)
        for n in self.outputs:
            memory = self.trial.buffers.all[n].memory
            device.copy_device(self.aside[n].pointer + slot * memory.nbytes, memory.pointer, memory.nbytes, stream)

    def kept(self, count: int) -> dict[str, np.ndarray]:
        """What the last `count` launches wrote: per output an array with a row of bytes per launch."""
        out = {}
        for n in self.outputs:
            raw = np.zeros(self.aside[n].nbytes, np.uint8)
            self.aside[n].read_into(raw)
            out[n] = raw.reshape(self.slots, -1)[:count]
        return out

    def differ(self, rows: dict[str, np.ndarray]) -> np.ndarray:
        """Which of the launches wrote other bytes than the result that met the contract."""
        odd = [(rows[n] != bits(self.first[n]).reshape(-1).view(np.uint8)).any(axis=1) for n in self.outputs]
        return np.flatnonzero(np.any(odd, axis=0))

    def result(self, rows: dict[str, np.ndarray], i: int) -> dict[str, np.ndarray]:
        """What launch i wrote."""
        return {n: rows[n][i].copy().view(self.first[n].dtype).reshape(self.first[n].shape) for n in self.outputs}

    def close(self) -> None:
        """Free what this lane allocated; never raises."""
        for memory in self.owned:
            memory.free(ignore_errors=True)


def soak(trials: Sequence[Trial], launches: int, seconds: float = SECONDS) -> Soaked:
    """Launch each of the trials (judged already, of one case) in turn, at most `launches` times in all and as many as
    fit `seconds`, and compare every result. Driver failures pass through as CakeError."""
    size = sum(t.memory.nbytes for n, t in trials[0].buffers.all.items() if n in trials[0].first)
    slots = max(1, min(BUNCH, launches, ASIDE_BYTES // max(size, 1)) // len(trials))
    lanes: list[_Lane] = []
    try:
        for trial in trials:
            lanes.append(_Lane(trial, slots))
        return _Soak(lanes, launches, seconds).run()
    finally:
        for lane in lanes:
            lane.close()


class _Soak:
    def __init__(self, lanes: Sequence[_Lane], launches: int, seconds: float) -> None:
        self.lanes, self.launches, self.seconds = lanes, launches, seconds
        self.unordered = lanes[0].trial.launch.unordered
        self.until = time.monotonic() + seconds
        self.done = 0
        self.other = 0

    def run(self) -> Soaked:
        """Bunch after bunch."""
        begin, rounds = time.monotonic(), min(FIRST // len(self.lanes), self.lanes[0].slots)
        while rounds:
            verdict = self._bunch(rounds)
            if not verdict.ok:
                return Soaked(self.done, verdict, verdict.message)
            spent = time.monotonic() - begin
            fits = int((self.seconds - spent) / (spent / self.done)) if spent else self.launches
            rounds = max(0, min(self.launches - self.done, fits) // len(self.lanes))
            rounds = min(rounds, self.lanes[0].slots)
        trouble = self._memory()
        if not trouble.ok:
            return Soaked(self.done, trouble, trouble.message)
        return Soaked(self.done, trouble, self._text())

    def _memory(self) -> cmp.Verdict:
        """What was written beside the outputs."""
        for lane in self.lanes:
            trouble = lane.trial.side_effects()
            if trouble is not None:
                return replace(trouble, message=f"in {self.done} launches back to back: {trouble.message}")
        return cmp.Verdict(True, "none differed")

    def _bunch(self, rounds: int) -> cmp.Verdict:
        env = self.lanes[0].env
        for slot in range(rounds):
            for lane in self.lanes:
                lane.enqueue(slot, POISON_BYTES[slot % 2])
        env.sync()
        self.done += rounds * len(self.lanes)
        odd = [(lane, rows, lane.differ(rows)) for lane in self.lanes for rows in (lane.kept(rounds),)]
        count = sum(len(found) for _, _, found in odd)
        trouble = self._memory() if count else None
        if trouble is not None and not trouble.ok:
            return trouble  # the cause, where an input was changed
        for lane, rows, found in odd:
            for i in found:
                got = lane.result(rows, int(i))
                verdict = self._judged(lane, got) if self.unordered else self._different(lane, got, count)
                if not verdict.ok:
                    return verdict
                self.other += 1
                if time.monotonic() > self.until:
                    self.done = self.other  # only what was judged counts
                    return verdict
        return cmp.Verdict(True, "none differed")

    def _different(self, lane: _Lane, got: dict[str, np.ndarray], count: int) -> cmp.Verdict:
        found = cmp.difference(lane.first, got)
        assert found is not None
        text = f"{count} of {self.done} launches back to back gave another result: {found[0]}"
        return cmp.Verdict(False, text, "repeat", at=found[1])

    def _judged(self, lane: _Lane, got: dict[str, np.ndarray]) -> cmp.Verdict:
        verdict = lane.trial.judge_values(got)
        return (
            verdict
            if verdict.ok
            else replace(verdict, message=f"one of {self.done} launches back to back: {verdict.message}")
        )

    def _text(self) -> str:
        case = self.lanes[0].trial.case
        seen = "none differed"
        if self.unordered:
            seen = f"all within the tolerance ({self.other} differed bitwise, which {'; '.join(self.unordered)} allows)"
        # rule of three: nothing seen in n trials bounds the rate by 3 / n with 95 %
        return (
            f"{self.done} launches of {shape_text(case.shape)} {case.distribution} back to back, {seen}: an error in more than "
            f"{300 / self.done:.2g} % of launches would have been seen with 95 %"
        )
