"""The timing protocol: interleaved candidates, one mode per result, raw samples kept.

Modes, never mixed:
* warm: many launches back to back inside one pair of events, replayed as a CUDA graph where everything can be captured
  (then host cost is outside the time), else enqueued one by one. The same batch runs once untimed before each sample:
  clocks and caches are then those of this candidate, not of an idle gap or of whoever ran before.
* cold: before each launch more than twice the size of L2 is written and read; one launch per event pair, and a sample is
  the mean over the buffer sets, once or twice each. One untimed launch on each comes before, behind a flush too: what it
  warms besides L2 (address translation, the instruction caches) made the second of two samples 5 % quicker.

Rounds go through all candidates, in alternating direction, so that drift of clocks and temperature hits all alike.
Candidates are callables `(stream: int) -> None` that only enqueue on that stream; torch code wraps the handle in
`torch.cuda.ExternalStream`. A candidate with several launches rotates through them, one per repetition: give each its
own buffers, so that no repetition finds its inputs in cache or its outputs already written.

What runs between the events is ours: the launches of a candidate and nothing else. Where they are recorded in a graph,
its nodes are counted and must be the kernels that the candidate declares.

Times are microseconds per launch. The step and the overhead of event times are measured on the device at hand; cold
times of tiny kernels are upper bounds.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cake_ir.diagnostics import CakeError, error
from lowering.runtime import telemetry
from lowering.runtime.device import Device, Event, Graph
from lowering.runtime.stats import MIN_ROUNDS, Comparison, Summary, compare, median, summarise

Launch = Callable[[int], None]
Mode = Literal["warm", "cold"]
Method = Literal["graph", "events"]

FLUSH_FACTOR = 2.2
"""Flush buffer in units of L2 size: more than 2, because both partitions of L2 may hold a copy of a line."""


FLUSH_CHUNK = 4 << 20
"""Bytes of one copy while flushing: large enough for full bandwidth, small beside L2."""

MIN_STEPS = 100
"""A time must span this many steps of the event clock, so that one step is no more than the smallest difference called."""

DOCUMENTED_STEP_US = 0.5
"""What the CUDA driver API promises of event times; taken where no finer step is seen."""

LEAD_LIMIT_MS = 20.0
"""A longer batch runs without an untimed one before it: what it inherits is over long before it ends."""

COLD_PASSES = 2
"""Launches on each buffer set in a cold sample, as far as they take no longer than LEAD_LIMIT_MS."""

RULE = (
    f"below the physical floor, shorter than {MIN_STEPS} steps of the event clock, kernels other than the declared ones, "
    f"fewer than {MIN_ROUNDS} rounds beside a baseline, {telemetry.RULE}"
)
"""What makes a timing invalid."""


@dataclass(frozen=True)
class Candidate:
    """Something to time. `launches` are equivalent, on distinct buffers; `floor_us` is a physical bound if known.

    `kernels`: how many kernels (and nothing else) one launch enqueues, if that is declared. `before_round` is called with
    the round number before each of this candidate's samples, outside the timed part.
    """

    name: str
    launches: Sequence[Launch]
    floor_us: float | None = None
    kernels: int | None = None
    before_round: Callable[[int], None] | None = None


@dataclass(frozen=True)
class Settings:
    """How long and how often. `batch_ms` sizes a warm sample; `gap_s` idles between rounds."""

    mode: Mode = "warm"
    rounds: int = 21
    batch_ms: float = 5.0
    max_batch: int = 512
    warmup_ms: float = 200.0
    warmup_limit_s: float = 5.0
    stable: float = 0.02
    gap_s: float = 0.0
    graph: bool = True
    monitor: bool = True


@dataclass(frozen=True)
class Timing:
    """One candidate's samples (µs per launch, in round order) and their summary. `batch` launches per sample.

    `sm_mhz`: mean SM clock while its samples ran, if read. `nodes`: what one launch enqueues, by kind of graph node.
    """

    name: str
    summary: Summary
    samples_us: tuple[float, ...]
    batch: int
    warmup_launches: int
    sm_mhz: float | None = None
    nodes: dict[str, float] | None = None


@dataclass(frozen=True)
class BenchResult:
    """Everything one run measured. `valid` is False when there are `faults` (see `RULE`).

    `step_us`: resolution of event times; `overhead_us`: time between two events with nothing in between.
    """

    mode: Mode
    method: Method
    timings: tuple[Timing, ...]
    comparisons: tuple[Comparison, ...]
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    device: dict[str, Any]
    telemetry: dict[str, Any] | None
    step_us: float = 0.0
    overhead_us: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        """Whether the numbers may be used."""
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, raw samples included."""
        return asdict(self) | {"valid": self.valid}


def bench(
    device: Device, candidates: Sequence[Candidate], settings: Settings | None = None, stream: int | None = None
) -> BenchResult:
    """Time all candidates together; the first is compared with each of the others.

    Raises CakeError when a launch fails. `stream=None` makes one for the run.
    """
    settings = settings or Settings()
    _check(candidates, settings)
    own_stream = stream is None
    handle = device.new_stream() if stream is None else stream
    run = _Run(device, candidates, settings, handle)
    try:
        return run.result()
    finally:
        run.close()
        if own_stream:
            device.close_stream(handle)


class _Run:
    """State of one run: events, graphs, the flush buffer, samples."""

    def __init__(self, device: Device, candidates: Sequence[Candidate], settings: Settings, stream: int) -> None:
        self._device, self._candidates, self._settings, self._stream = device, candidates, settings, stream
        self._start, self._end = device.event(), device.event()
        self._graphs: list[Graph] = []
        self._notes: list[str] = []
        self._faults: list[str] = []
        info = device.info()
        self._info = info
        self._flush = device.alloc(int(info.l2_bytes * FLUSH_FACTOR) // 4 * 4, guard=0) if self._cold else None
        self._flusher = self._record_flush() if self._cold else None
        self._overhead, self._step = event_timer(device, stream)
        self._monitor = telemetry.Monitor(info.uuid) if settings.monitor else None
        self._clocks: list[list[float]] = [[] for _ in candidates]
        self._lead = [False] * len(candidates)
        self._nodes: dict[str, dict[str, float]] = {}

    @property
    def _cold(self) -> bool:
        return self._settings.mode == "cold"

    def result(self) -> BenchResult:
        warmups = [self._warm_up(c) for c in self._candidates]
        batches = [
            self._batch(single, len(c.launches)) for (single, _), c in zip(warmups, self._candidates, strict=True)
        ]
        method = self._make_graphs(batches)
        self._lead = [b * s <= LEAD_LIMIT_MS * 1000 for b, (s, _) in zip(batches, warmups, strict=True)]
        if self._monitor:
            self._monitor.start()
        samples: list[list[float]] = [[] for _ in self._candidates]
        order = list(range(len(self._candidates)))
        for number in range(self._settings.rounds):
            for which in order if number % 2 == 0 else reversed(order):
                samples[which].append(self._sample(which, batches[which], number))
            if self._settings.gap_s:
                time.sleep(self._settings.gap_s)
        seen = self._monitor.stop() if self._monitor else None
        self._device.synchronize()
        return self._report(samples, batches, [n for _, n in warmups], method, seen)

    def close(self) -> None:
        for graph in (*self._graphs, *([self._flusher] if self._flusher else [])):
            graph.close()
        self._start.close()
        self._end.close()
        if self._flush:
            self._flush.free(ignore_errors=True)

    def _warm_up(self, candidate: Candidate) -> tuple[float, int]:
        """Run until two successive batches agree; (µs of one launch, launches made)."""
        settings, count, previous, spent = self._settings, 0, 0.0, 0.0
        deadline = time.monotonic() + settings.warmup_limit_s
        single = self._timed(candidate.launches, 1)
        count += 1
        while time.monotonic() < deadline:
            repeats = max(1, min(settings.max_batch, int(settings.warmup_ms * 250 / max(single, 1.0))))
            single = self._timed(candidate.launches, repeats)
            count += repeats
            spent += single * repeats / 1000
            if spent >= settings.warmup_ms and previous and abs(single - previous) <= settings.stable * previous:
                return single, count
            previous = single
        self._notes.append(f"{candidate.name} did not settle within {settings.warmup_limit_s:g} s of warm-up")
        return single, count

    def _batch(self, single_us: float, rotation: int) -> int:
        """Launches of a sample: whole rotations, and long enough for the event clock."""
        single = max(single_us, 0.1)
        if self._cold:
            return rotation * (COLD_PASSES if COLD_PASSES * rotation * single <= LEAD_LIMIT_MS * 1000 else 1)
        wanted = min(self._settings.max_batch, round(self._settings.batch_ms * 1000 / single))
        wanted = max(1, wanted, math.ceil(2 * MIN_STEPS * self._step / single))
        return -(-wanted // rotation) * rotation

    def _make_graphs(self, batches: list[int]) -> Method:
        """Graphs for all or for none: two methods in one comparison would not be comparable."""
        if self._cold or not self._settings.graph:
            return "events"
        for candidate, batch in zip(self._candidates, batches, strict=True):
            try:
                with self._device.capture(self._stream) as graph:
                    for i in range(batch):
                        candidate.launches[i % len(candidate.launches)](self._stream)
            except Exception as exc:  # libraries refuse capture each in its own way; a bad launch fails again below
                self._notes.append(f"{candidate.name} cannot be captured in a graph ({str(exc)[:120]})")
                for made in self._graphs:
                    made.close()
                self._graphs = []
                return "events"
            self._graphs.append(graph)
            self._count(candidate, graph, batch)
        for graph in self._graphs:  # the first replay uploads the graph
            graph.launch(self._stream)
        self._device.wait_stream(self._stream)
        return "graph"

    def _count(self, candidate: Candidate, graph: Graph, batch: int) -> None:
        """Exactly the declared kernels, in every repetition alike, because a graph cannot change between replays."""
        declared = candidate.kernels
        nodes = graph.nodes()
        self._nodes[candidate.name] = {kind: n / batch for kind, n in nodes.items()}
        if declared is not None and nodes != {"kernel": declared * batch}:
            held = ", ".join(f"{n} {kind} nodes" for kind, n in nodes.items()) or "nothing"
            self._faults.append(
                f"{candidate.name} enqueued {held} in {batch} launches; {declared} kernels each are declared"
            )

    def _sample(self, which: int, batch: int, number: int) -> float:
        """Mean µs per launch of one batch."""
        candidate = self._candidates[which]
        if candidate.before_round:
            candidate.before_round(number)
        if self._cold:
            lead = len(candidate.launches) if self._lead[which] else 0
            return statistics.fmean([self._cold_launch(which, i) for i in range(-lead, batch)][lead:])
        launches, repeats = ([self._graphs[which].launch], 1) if self._graphs else (candidate.launches, batch)
        if self._lead[which]:
            self._enqueue(launches, repeats)
        return self._timed(launches, repeats, which) * repeats / batch

    def _cold_launch(self, which: int, number: int) -> float:
        """µs of one launch behind a flush; numbers below 0 are lead-in."""
        assert self._flusher is not None
        launches = self._candidates[which].launches
        self._flusher.launch(self._stream)
        return self._timed([launches[number % len(launches)]], 1, which if number >= 0 else None)

    def _enqueue(self, launches: Sequence[Launch], repeats: int) -> None:
        for i in range(repeats):
            launches[i % len(launches)](self._stream)

    def _timed(self, launches: Sequence[Launch], repeats: int, clock_of: int | None = None) -> float:
        """µs per launch over `repeats` launches between two events; the SM clock is read while they run."""
        self._start.record(self._stream)
        self._enqueue(launches, repeats)
        self._end.record(self._stream)
        if clock_of is not None and self._monitor:
            mhz = self._monitor.sm_mhz()
            if mhz is not None:
                self._clocks[clock_of].append(mhz)
        self._end.wait()
        return self._end.ms_since(self._start) * 1000 / repeats

    def _record_flush(self) -> Graph:
        """Overwrite L2, as one graph: the host enqueues it faster than the device runs it and so gets ahead, which hides the
        cost of the launch that follows.
        """
        flush, copy = self._flush, self._device.copy_device
        assert flush is not None
        with self._device.capture(self._stream) as graph:
            self._device.fill(flush.pointer, flush.nbytes, 0xA5A5A5A5, 4, self._stream)
            # The fill leaves dirty lines, whose write-back would be charged to the kernel. Reading the buffer again,
            # through copies into one small place, leaves clean ones.
            for at in range(FLUSH_CHUNK, flush.nbytes - FLUSH_CHUNK + 1, FLUSH_CHUNK):
                copy(flush.pointer, flush.pointer + at, FLUSH_CHUNK, self._stream)
        return graph

    def _report(
        self,
        samples: list[list[float]],
        batches: list[int],
        warmups: list[int],
        method: Method,
        seen: telemetry.Telemetry | None,
    ) -> BenchResult:
        clocks = [statistics.fmean(c) if c else None for c in self._clocks]
        timings = tuple(
            Timing(c.name, summarise(s), tuple(s), b, w, mhz, self._nodes.get(c.name))
            for c, s, b, w, mhz in zip(self._candidates, samples, batches, warmups, clocks, strict=True)
        )
        faults = [*self._faults, *(seen.faults if seen else ())]
        for candidate, timing in zip(self._candidates, timings, strict=True):
            faults += self._doubts(candidate, timing)
        if len(self._candidates) > 1 and self._settings.rounds < MIN_ROUNDS:
            faults.append(f"{self._settings.rounds} rounds are too few for a comparison; {MIN_ROUNDS} give an interval")
        compared = tuple(_compare(timings[0], t) for t in timings[1:])
        return BenchResult(
            mode=self._settings.mode,
            method=method,
            timings=timings,
            comparisons=compared,
            faults=tuple(faults),
            notes=(*self._notes, *(seen.notes if seen else ("conditions not recorded: the monitor is off",))),
            device=self._info.to_json(),
            telemetry=seen.to_json() if seen else None,
            step_us=self._step,
            overhead_us=self._overhead,
            settings=asdict(self._settings),
        )

    def _doubts(self, candidate: Candidate, timing: Timing) -> list[str]:
        """Why a time cannot be right."""
        us, out = timing.summary.median, []
        if candidate.floor_us is not None and us < candidate.floor_us:
            out.append(
                f"{candidate.name} took {us:.3f} µs, below its physical floor of {candidate.floor_us:.3f} µs: it cannot have "
                "done the work"
            )
        spanned = us if self._cold else us * timing.batch
        if spanned < MIN_STEPS * self._step:
            out.append(
                f"{candidate.name}: {spanned:.3f} µs between two events is less than {MIN_STEPS} steps of {self._step:.3g} µs, the "
                "resolution of event times here"
            )
        if self._cold and self._overhead > 0.02 * us:
            self._notes.append(
                f"cold times of {candidate.name} include up to {self._overhead:.2f} µs of event overhead"
            )
        return out


def event_timer(device: Device, stream: int, repeats: int = 40) -> tuple[float, float]:
    """(overhead, step) of event times in µs: the median time between two events with nothing in between, and the smallest
    difference seen between two such times (`DOCUMENTED_STEP_US` when they are all equal).
    """
    first, second = Event(device), Event(device)
    times: list[float] = []
    for _ in range(repeats):
        first.record(stream)
        second.record(stream)
        second.wait()
        times.append(second.ms_since(first) * 1000)
    first.close()
    second.close()
    seen = sorted({round(t, 3) for t in times})
    return median(times), min((b - a for a, b in itertools.pairwise(seen)), default=DOCUMENTED_STEP_US)


def _compare(candidate: Timing, baseline: Timing) -> Comparison:
    mine, theirs = candidate.sm_mhz, baseline.sm_mhz
    return compare(baseline.name, baseline.samples_us, candidate.samples_us, mine / theirs if mine and theirs else None)


def _check(candidates: Sequence[Candidate], settings: Settings) -> None:
    if not candidates or any(not c.launches for c in candidates):
        raise ValueError("every candidate needs a launch")
    if len({c.name for c in candidates}) != len(candidates):
        raise ValueError("candidates need distinct names")
    if settings.rounds < 5:
        raise CakeError(
            error(
                "lowering/too-few-rounds",
                "hardware",
                f"{settings.rounds} rounds give no interval; at least 5 are needed",
                contract="A timing states its spread.",
            )
        )
