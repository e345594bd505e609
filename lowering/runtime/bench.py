"""The timing protocol: interleaved candidates, one mode per result, raw samples kept.

Modes, never mixed:
* warm: many launches back to back inside one pair of events, replayed as a CUDA graph where everything can be captured
  (then host cost is outside the time), else enqueued one by one.
* cold: before each single launch more than twice the size of L2 is written and read; one launch per event pair.

Rounds go through all candidates, in alternating direction, so that drift of clocks and temperature hits all alike.
Candidates are callables `(stream: int) -> None` that only enqueue on that stream; torch code wraps the handle in
`torch.cuda.ExternalStream`. A candidate with several launches rotates through them, one per repetition: give each its
own buffers, so that no repetition finds its inputs in cache or its outputs already written.

Times are microseconds per launch. The event resolution is about half a microsecond: cold times of tiny kernels are
upper bounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cake_ir.diagnostics import CakeError, error
from lowering.runtime import telemetry
from lowering.runtime.device import Device, Event, Graph
from lowering.runtime.stats import Comparison, Summary, compare, median, summarise

Launch = Callable[[int], None]
Mode = Literal["warm", "cold"]
Method = Literal["graph", "events"]

FLUSH_FACTOR = 2.2
"""Flush buffer in units of L2 size: more than 2, because both partitions of L2 may hold a copy of a line."""


FLUSH_CHUNK = 4 << 20
"""Bytes of one copy while flushing: large enough for full bandwidth, small beside L2."""


@dataclass(frozen=True)
class Candidate:
    """Something to time. `launches` are equivalent, on distinct buffers; `floor_us` is a physical bound if known.

    `before_round` is called with the round number before each of this candidate's samples, outside the timed part.
    """

    name: str
    launches: Sequence[Launch]
    floor_us: float | None = None
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
    seed: int = 0
    monitor: bool = True


@dataclass(frozen=True)
class Timing:
    """One candidate's samples (µs per launch, in round order) and their summary. `batch` launches per sample."""

    name: str
    summary: Summary
    samples_us: tuple[float, ...]
    batch: int
    warmup_launches: int


@dataclass(frozen=True)
class BenchResult:
    """Everything one run measured. `valid` is False when `faults` (throttling, sharing, below the floor) say so."""

    mode: Mode
    method: Method
    timings: tuple[Timing, ...]
    comparisons: tuple[Comparison, ...]
    faults: tuple[str, ...]
    notes: tuple[str, ...]
    device: dict[str, Any]
    telemetry: dict[str, Any] | None
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
        self._flush_word = 0
        info = device.info()
        self._info = info
        self._flush = device.alloc(int(info.l2_bytes * FLUSH_FACTOR) // 4 * 4, guard=0) if self._cold else None

    @property
    def _cold(self) -> bool:
        return self._settings.mode == "cold"

    def result(self) -> BenchResult:
        warmups = [self._warm_up(c) for c in self._candidates]
        batches = [1 if self._cold else self._batch(single) for single, _ in warmups]
        # A graph must hold each candidate's whole rotation, so round batches up to a multiple of it.
        batches = [-(-b // len(c.launches)) * len(c.launches) if not self._cold else 1
                   for b, c in zip(batches, self._candidates, strict=True)]  # fmt: skip
        method = self._make_graphs(batches)
        monitor = telemetry.Monitor(f"GPU-{_uuid(self._info.uuid)}") if self._settings.monitor else None
        if monitor:
            monitor.start()
        samples: list[list[float]] = [[] for _ in self._candidates]
        order = list(range(len(self._candidates)))
        for number in range(self._settings.rounds):
            for which in order if number % 2 == 0 else reversed(order):
                samples[which].append(self._sample(which, batches[which], number))
            if self._settings.gap_s:
                time.sleep(self._settings.gap_s)
        seen = monitor.stop() if monitor else None
        self._device.synchronize()
        return self._report(samples, batches, [n for _, n in warmups], method, seen)

    def close(self) -> None:
        for graph in self._graphs:
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

    def _batch(self, single_us: float) -> int:
        return max(1, min(self._settings.max_batch, round(self._settings.batch_ms * 1000 / max(single_us, 0.1))))

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
        for graph in self._graphs:  # the first replay uploads the graph
            graph.launch(self._stream)
        self._device.wait_stream(self._stream)
        return "graph"

    def _sample(self, which: int, batch: int, number: int) -> float:
        candidate = self._candidates[which]
        if candidate.before_round:
            candidate.before_round(number)
        if self._cold:
            self._overwrite_l2()
            # Rotate over rounds: within a sample there is only one launch.
            launch = candidate.launches[number % len(candidate.launches)]
            return self._timed([launch], 1)
        if self._graphs:
            return self._timed([self._graphs[which].launch], 1) / batch
        return self._timed(candidate.launches, batch)

    def _timed(self, launches: Sequence[Launch], repeats: int) -> float:
        """µs per launch over `repeats` launches between two events."""
        stream = self._stream
        self._start.record(stream)
        for i in range(repeats):
            launches[i % len(launches)](stream)
        self._end.record(stream)
        self._end.wait()
        return self._end.ms_since(self._start) * 1000 / repeats

    def _overwrite_l2(self) -> None:
        """Enqueued, not awaited: while it runs the host gets ahead, which hides launch cost from the time."""
        assert self._flush is not None
        self._flush_word = (self._flush_word + 1) & 0xFFFFFFFF
        self._device.fill(self._flush.pointer, self._flush.nbytes, self._flush_word, 4, self._stream)
        # The fill leaves dirty lines, whose write-back would be charged to the kernel. Reading the buffer again,
        # through copies into one small place, leaves clean ones.
        place = self._flush.pointer
        for at in range(FLUSH_CHUNK, self._flush.nbytes - FLUSH_CHUNK + 1, FLUSH_CHUNK):
            self._device.copy_device(place, self._flush.pointer + at, FLUSH_CHUNK, self._stream)

    def _report(
        self,
        samples: list[list[float]],
        batches: list[int],
        warmups: list[int],
        method: Method,
        seen: telemetry.Telemetry | None,
    ) -> BenchResult:
        timings = tuple(
            Timing(c.name, summarise(s, self._settings.seed), tuple(s), b, w)
            for c, s, b, w in zip(self._candidates, samples, batches, warmups, strict=True)
        )
        faults = list(seen.faults) if seen else []
        for candidate, timing in zip(self._candidates, timings, strict=True):
            if candidate.floor_us is not None and timing.summary.median < candidate.floor_us:
                faults.append(
                    f"{candidate.name} took {timing.summary.median:.3f} µs, below its physical floor of "
                    f"{candidate.floor_us:.3f} µs: it cannot have done the work"
                )
        compared = tuple(compare(t.name, t.samples_us, timings[0].samples_us, self._settings.seed) for t in timings[1:])
        return BenchResult(
            mode=self._settings.mode,
            method=method,
            timings=timings,
            comparisons=compared,
            faults=tuple(faults),
            notes=tuple(self._notes),
            device=self._info.to_json(),
            telemetry=seen.to_json() if seen else None,
            settings=asdict(self._settings),
        )


def event_overhead_us(device: Device, stream: int, repeats: int = 20) -> float:
    """Median time between two events with nothing in between: the least a cold sample can show."""
    first, second = Event(device), Event(device)
    times: list[float] = []
    for _ in range(repeats):
        first.record(stream)
        second.record(stream)
        second.wait()
        times.append(second.ms_since(first) * 1000)
    first.close()
    second.close()
    return median(times)


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


def _uuid(digits: str) -> str:
    """nvidia-smi's spelling of a device id."""
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
