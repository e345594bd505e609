"""The in-kernel timeline: what an instrumented kernel records, its layout in memory, and the decoder.

`emit(bound, timeline=True)` makes the instrumented form (`lowering.emission.marks` places the marks,
`lowering.helpers.timeline` writes them). A role instance of a recorded CTA is a *track*; one thread of it records. CTA c is
recorded if c % stride == 0. Tracks are numbered CTA by CTA, in a CTA in the order of `table["tracks"]`.

The buffer, zeroed before the launch and aligned to a block, is one block of `capacity` 8-byte words per track (a power of two):

    0 .. capacity / 2 - 1            the ring
    capacity / 2 .. capacity - 4     overrun: at the head of a loop a writer that has come here goes back to word 0
    capacity - 3 .. capacity - 1     %globaltimer (of one track per CTA, else 0) and %clock64 at the start, %smid + 2^32

A record is %clock64 + 2^54 * mark id; id 0 is the end. So the latest records survive, and a hung track is one whose newest record
is no end. The time from one record to the next is a *span* of the earlier one's mark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NoReturn

from cake_ir.diagnostics import CakeError, error

Kind = Literal["wait", "issue", "compute", "store"]
KINDS: tuple[Kind, ...] = ("wait", "issue", "compute", "store")

MAX_MARKS = 1023
ID_SHIFT = 54
POINTER = "%timeline"
"""Key of the buffer among the pointers of a launch; no tensor can have this name."""

RECORD_BYTES = 8
HEADER_WORDS = 3
CLOCK_SKEW_NS = 2200
"""%globaltimer may tick as coarsely as about a microsecond (PTX ISA leaves its resolution open). Clocks of two SMs that agree to
two ticks are taken for one clock."""

KEPT_SPANS = 40_000
"""Spans kept in the JSON form: about 1 MB."""


@dataclass(frozen=True)
class Mark:
    """One mark of the text. `role` is "all" for a rendezvous behind the roles; `wait` says what a wait waits for."""

    id: int
    kind: str
    role: str
    line: int
    end_line: int
    ops: tuple[str, ...]
    wait: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        out = asdict(self) | {"ops": list(self.ops)}
        if self.wait is None:
            del out["wait"]
        return out


@dataclass(frozen=True)
class Shape:
    """What sizes a buffer. tracks: per CTA; capacity: words of a block."""

    tracks: int
    grid: int
    stride: int
    capacity: int

    @property
    def ctas(self) -> int:
        """Recorded CTAs."""
        return -(-self.grid // self.stride)

    @property
    def align(self) -> int:
        """Bytes to which the buffer is aligned."""
        return self.capacity * RECORD_BYTES

    @property
    def nbytes(self) -> int:
        """Size of the buffer."""
        return self.ctas * self.tracks * self.align


def fit(table: dict[str, Any], grid: int, budget: int, capacity: int, max_ctas: int = 4096) -> Shape:
    """The shape that records as many CTAs as `max_ctas` and `budget` bytes allow, with blocks of up to `capacity` words.

    Between two heads of loops each place of a mark is passed once, so the overrun must hold that many.
    """
    least = max(64, 1 << (2 * (table["sites"] + HEADER_WORDS + 1) - 1).bit_length())
    shape = Shape(len(table["tracks"]), grid, 1 << (-(-grid // max_ctas) - 1).bit_length(), max(capacity, least))
    while shape.nbytes > budget and shape.capacity > least:
        shape = replace(shape, capacity=shape.capacity // 2)
    while shape.nbytes > budget and shape.ctas > 1:
        shape = replace(shape, stride=shape.stride * 2)
    return shape


def sized(plan: dict[str, Any], shape: Shape) -> dict[str, Any]:
    """The JSON of an instrumented launch plan with the capacity and stride of a buffer."""
    values = {"timeline_capacity": shape.capacity, "timeline_stride": shape.stride}
    args = [{**a, "value": values[a["kind"]]} if a["kind"] in values else a for a in plan["args"]]
    return {**plan, "args": args}


# ---- reading -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Track:
    """The records of one role instance, oldest first: mark ids and clocks (arrays of int64; the last id is 0 if it has ended).

    time: %globaltimer at the start in ns, 0 where it was not read; start: the clock then. dropped: records that later ones have
    overwritten, estimated from the mean distance of those that are left.
    """

    cta: int
    role: str
    instance: int
    sm: int
    time: int
    start: int
    ids: Any
    clocks: Any
    dropped: int

    @property
    def ended(self) -> bool:
        """Whether it came to its end."""
        return bool(len(self.ids)) and not int(self.ids[-1])

    @property
    def last(self) -> int:
        """The clock of the newest record."""
        return int(self.clocks[-1]) if len(self.clocks) else self.start


def marks_of(table: dict[str, Any]) -> dict[int, Mark]:
    """The marks of a table by id; raises CakeError `lowering/bad-timeline` if it is malformed."""
    try:
        return {m["id"]: Mark(**{**m, "ops": tuple(m["ops"])}) for m in table["marks"]}
    except (KeyError, TypeError) as exc:
        _bad(f"the mark table is malformed: {exc}")


def tracks_of(buffer: Any, table: dict[str, Any], shape: Shape) -> Iterator[Track]:
    """Every track that has started. buffer: bytes-like, `shape.nbytes` long. Raises CakeError `lowering/bad-timeline`."""
    import numpy as np

    blocks = np.frombuffer(buffer, "<u8", count=shape.nbytes // 8).reshape(-1, shape.capacity)
    known = max(m["id"] for m in table["marks"])
    first: dict[str, int] = {}
    for m in table["marks"]:
        first[m["role"]] = min(first.get(m["role"], m["id"]), m["id"])
    for number in np.flatnonzero(blocks[:, -1]):
        time, start, sm = (int(w) for w in blocks[number, -HEADER_WORDS:])
        ring = blocks[number, :-HEADER_WORDS]
        there = np.flatnonzero(ring)
        words = ring[there]
        high = start >> ID_SHIFT << ID_SHIFT  # of a clock that has run for a hundred days
        clocks = (words & np.uint64((1 << ID_SHIFT) - 1)).astype(np.int64) + high
        ids = ((words >> np.uint64(ID_SHIFT)).astype(np.int64) - (start >> ID_SHIFT)) & MAX_MARKS
        if len(ids) and int(ids.max()) > known:
            _bad("the timeline's buffer holds what no mark wrote")
        order = np.argsort(clocks)
        kept = order[_unbroken(there[order], shape.capacity // 2) :]
        ids, clocks = ids[kept], clocks[kept]
        role, instance = table["tracks"][int(number) % shape.tracks]
        lost = 0
        if len(ids) and int(ids[0]) != first[role]:
            lost = max(
                1, round((int(clocks[0]) - start) / max(1.0, float(np.diff(clocks).mean() if len(clocks) > 1 else 1)))
            )
        cta = int(number) // shape.tracks * shape.stride
        yield Track(cta, role, instance, sm & 0xFFFFFFFF, time, start, ids, clocks, lost)


def starts(buffer: Any, shape: Shape) -> dict[int, tuple[int, int]]:
    """By SM, (nanoseconds, cycles) at the first start of a track on it; the marks are not read. buffer: as for `tracks_of`."""
    import numpy as np

    heads = np.frombuffer(buffer, "<u8", count=shape.nbytes // 8).reshape(-1, shape.capacity)[:, -HEADER_WORDS:]
    seen: dict[int, tuple[int, int]] = {}
    for time, start, sm in heads[heads[:, 0] != 0].tolist():
        at = int(sm) & 0xFFFFFFFF
        seen[at] = min(seen.get(at, (int(time), int(start))), (int(time), int(start)))
    return seen


def _unbroken(slots: Any, half: int) -> int:
    """Where the last run of records begins that were written one after another. slots: of the records in order of time."""
    import numpy as np

    if not len(slots):
        return 0
    step = np.diff(slots)
    again = (slots[1:] == 0) & (slots[:-1] >= half - 1)
    if int(slots[-1]) >= half:  # the lap that is running has overwritten all of the one before
        again[:] = False
    breaks = np.flatnonzero(~((step == 1) | again))
    return int(breaks[-1]) + 1 if len(breaks) else 0


def clock_ghz(tracks: Sequence[Track], earlier: Sequence[Track] = ()) -> float:
    """Cycles per nanosecond, from the longest stretch between two starts on one SM. `earlier`: tracks of a former launch, so that
    the stretch is long against the tick of %globaltimer. Raises CakeError `lowering/bad-timeline`."""
    seen: dict[int, list[tuple[int, int]]] = {}
    for t in (*earlier, *tracks):
        if t.time:
            seen.setdefault(t.sm, []).append((t.time, t.start))
    spans = [(max(s)[0] - min(s)[0], max(s)[1] - min(s)[1]) for s in seen.values()]
    time, clocks = max(spans, default=(0, 0))
    if time <= 0 or clocks <= 0:
        _bad("no track tells how fast the SM clock runs")
    return clocks / time


# ---- the decoded form ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timeline:
    """The decoded timeline of one launch; fields as in docs/measuring.md, times in microseconds from the first start."""

    kernel: str
    file: str
    grid: int
    recorded_ctas: int
    kernel_us: float
    marks: tuple[Mark, ...]
    roles: tuple[dict[str, Any], ...]
    lines: tuple[dict[str, Any], ...]
    tracks: tuple[dict[str, Any], ...]
    plain_us: float = 0.0
    instrumented_us: float = 0.0
    recorded_us: float = 0.0
    overhead: float = 0.0
    dropped: int = 0
    clock_ghz: float = 0.0
    slots: int = 0
    notes: tuple[str, ...] = field(default=())

    def timed(self, plain_us: float, instrumented_us: float, recorded_us: float) -> Timeline:
        """With event times: of the plain and the instrumented kernel in one run, and of the very launch that was recorded. What
        the roles cover is held against the last: it falls short where records are lost, and goes wrong with the conversion of
        clocks; another launch may run at another clock."""
        roles = tuple({**r, "covered": _rounded(sum(r["us"].values()) / recorded_us)} for r in self.roles)
        overhead = instrumented_us / plain_us - 1
        times = {"plain_us": plain_us, "instrumented_us": instrumented_us, "recorded_us": recorded_us}
        return replace(self, **times, overhead=overhead, roles=roles)

    def to_json(self) -> dict[str, Any]:
        """The object of docs/measuring.md."""
        out = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}
        out["marks"] = [m.to_json() for m in self.marks]
        return {k: _rounded(v) if isinstance(v, float) else v for k, v in out.items()}


def decode(
    buffer: Any, table: dict[str, Any], shape: Shape, *, slots: int | None = None, ghz: float | None = None
) -> Timeline:
    """A finished (or hung) launch. slots: CTAs that the device holds at once (default: those that overlapped); ghz: SM clock.

    Raises CakeError `lowering/bad-timeline` when nothing was recorded or the buffer is damaged.
    """
    tracks = list(tracks_of(buffer, table, shape))
    if not tracks:
        _bad("no track has started: the kernel did not run")
    return _Decoder(tracks, table, shape, ghz or clock_ghz(tracks)).result(slots)


class _Decoder:
    """Tracks on one axis of time."""

    def __init__(self, tracks: list[Track], table: dict[str, Any], shape: Shape, ghz: float) -> None:
        self.tracks, self.table, self.shape, self.ghz = tracks, table, shape, ghz
        self.marks = marks_of(table)
        self.origin = self._origins()
        self.zero = min(self._us(t, t.start) for t in tracks)
        self.begin = [self._us(t, t.start) - self.zero for t in tracks]
        self.finish = [self._us(t, t.last) - self.zero for t in tracks]

    def _origins(self) -> dict[int, float]:
        """Per SM the time (ns, on the timer's axis) of clock 0. The timer reads low by up to a tick, so the latest reading is best."""
        timed = [t for t in self.tracks if t.time]
        self._base = (timed[0].time, timed[0].start) if timed else (0, self.tracks[0].start)
        best: dict[int, float] = {}
        for t in timed:
            at = (t.time - self._base[0]) - (t.start - self._base[1]) / self.ghz
            best[t.sm] = max(best.get(t.sm, at), at)
        if not best or max(best.values()) - min(best.values()) <= CLOCK_SKEW_NS:
            return dict.fromkeys((t.sm for t in self.tracks), max(best.values(), default=0.0))
        return best

    def _us(self, t: Track, clock: int) -> float:
        return (self.origin[t.sm] + (clock - self._base[1]) / self.ghz) / 1000

    def result(self, slots: int | None) -> Timeline:
        import numpy as np

        shape = self.shape
        kernel_us = max(self.finish)
        scale = shape.grid / shape.ctas
        slots = min(slots or round(self._overlap() * scale), shape.grid)
        size = max(self.marks) + 1
        per_role: dict[str, Any] = {}
        for i, t in enumerate(self.tracks):
            edges = self._edges(i)
            sums = per_role.setdefault(t.role, np.zeros(size))
            if len(edges) > 1:
                sums += np.bincount(t.ids[: len(edges) - 1], weights=np.diff(edges), minlength=size)
        roles, lines = [], []
        for role, sums in per_role.items():
            instances = sum(1 for name, _ in self.table["tracks"] if name == role)
            mean = sums * scale / (slots * instances)
            kinds = {k: sum(float(mean[m.id]) for m in self.marks.values() if m.kind == k) for k in KINDS}
            busy = sum(kinds.values())
            lives = sum(b - a for t, a, b in zip(self.tracks, self.begin, self.finish, strict=True) if t.role == role)
            kinds["idle"] = max(0.0, kernel_us - lives * scale / (slots * instances))
            roles.append({"role": role, "instances": instances, "mean_us": _rounded(busy), "busy": _rounded(busy / kernel_us),
                          "covered": _rounded((busy + kinds["idle"]) / kernel_us),
                          "us": {k: _rounded(v) for k, v in kinds.items()}})  # fmt: skip
            lines += [
                {"line": m.line, "end_line": m.end_line, "role": role, "kind": m.kind, "ops": list(m.ops), "mark": m.id,
                 "us": _rounded(float(mean[m.id])), "share": _rounded(float(mean[m.id]) / kernel_us)}
                for m in self.marks.values() if mean[m.id] > 0
            ]  # fmt: skip
        lines.sort(key=lambda x: (-x["us"], x["line"]))
        return Timeline(
            kernel=self.table["kernel"], file=self.table["file"], grid=shape.grid, recorded_ctas=shape.ctas,
            kernel_us=_rounded(kernel_us), marks=tuple(self.marks.values()), roles=tuple(roles), lines=tuple(lines),
            tracks=tuple(self._kept()), dropped=sum(t.dropped for t in self.tracks), clock_ghz=_rounded(self.ghz), slots=slots,
        )  # fmt: skip

    def _edges(self, i: int) -> Any:
        """Times (us) of a track's records; a first record that is still there starts with the track."""
        import numpy as np

        t = self.tracks[i]
        edges = (self.origin[t.sm] + (t.clocks - self._base[1]).astype(np.float64) / self.ghz) / 1000 - self.zero
        if len(edges) and not t.dropped:
            edges[0] = self.begin[i]
        return edges

    def _overlap(self) -> int:
        """The most CTAs that ran at one time."""
        spans: dict[int, tuple[float, float]] = {}
        for t, a, b in zip(self.tracks, self.begin, self.finish, strict=True):
            low, high = spans.get(t.cta, (a, b))
            spans[t.cta] = (min(low, a), max(high, b))
        edges = sorted([(a, 1) for a, _ in spans.values()] + [(b, -1) for _, b in spans.values()])
        now = most = 0
        for _, step in edges:
            now += step
            most = max(most, now)
        return most

    def _kept(self) -> Iterator[dict[str, Any]]:
        """Tracks for the picture: the first CTAs and the one that ended last, as far as `KEPT_SPANS` goes."""
        ends: dict[int, float] = {}
        starts: dict[int, float] = {}
        for t, a, b in zip(self.tracks, self.begin, self.finish, strict=True):
            ends[t.cta] = max(ends.get(t.cta, b), b)
            starts[t.cta] = min(starts.get(t.cta, a), a)
        last = max(ends, key=lambda c: ends[c])
        wanted = list(dict.fromkeys((min(starts, key=lambda c: (starts[c], c)), last, *sorted(ends)[:8])))
        left = KEPT_SPANS
        kept: list[tuple[int, int, dict[str, Any]]] = []
        for cta in wanted:
            mine = [i for i, t in enumerate(self.tracks) if t.cta == cta]
            need = sum(len(self.tracks[i].ids) for i in mine)
            if need > left and kept:
                continue
            share = max(left // max(len(mine), 1), 1)
            left -= min(need, left)
            kept += [(cta, i, self._track(i, share)) for i in mine]
        yield from (track for _, _, track in sorted(kept, key=lambda k: k[:2]))

    def _track(self, i: int, limit: int) -> dict[str, Any]:
        t, edges = self.tracks[i], self._edges(i)
        count = len(t.ids) - (1 if t.ended else 0)
        spans = [[int(t.ids[j]), _rounded(float(edges[j])), _rounded(float(edges[j + 1] if j + 1 < len(edges) else edges[j]))]
                 for j in range(max(0, count - limit), count)]  # fmt: skip
        return {"cta": t.cta, "sm": t.sm, "role": t.role, "instance": t.instance, "start_us": _rounded(self.begin[i]),
                "end_us": _rounded(self.finish[i]), "spans": spans, "dropped": t.dropped + count - len(spans)}  # fmt: skip


# ---- Chrome trace ---------------------------------------------------------------------------------------------------------------


def chrome_trace(timeline: Timeline | dict[str, Any]) -> dict[str, Any]:
    """The Chrome trace event format (load it in Perfetto): a process per CTA, a thread per role instance, complete events in us."""
    data = timeline.to_json() if isinstance(timeline, Timeline) else timeline
    marks = {m["id"]: m for m in data["marks"]}
    events: list[dict[str, Any]] = []
    named: set[int] = set()
    threads: dict[int, int] = {}
    for t in data["tracks"]:
        pid = t["cta"]
        if pid not in named:
            named.add(pid)
            events.append(_meta("process_name", pid, 0, {"name": f"CTA {pid} on SM {t['sm']}"}))
            events.append(_meta("process_sort_index", pid, 0, {"sort_index": pid}))
        tid = threads[pid] = threads.get(pid, 0) + 1
        events.append(_meta("thread_name", pid, tid, {"name": f"{t['role']}[{t['instance']}]"}))
        events.append(_meta("thread_sort_index", pid, tid, {"sort_index": tid}))
        for mark, start, end in t["spans"]:
            m = marks[mark]
            events.append({
                "ph": "X", "name": f"{m['line']}: {', '.join(m['ops'])}", "cat": m["kind"], "pid": pid, "tid": tid, "ts": start,
                "dur": round(end - start, 4), "cname": _COLOURS[m["kind"]],
                "args": {"line": m["line"], "end_line": m["end_line"]},
            })  # fmt: skip
    other = {k: data[k] for k in ("kernel", "file", "grid", "recorded_ctas", "kernel_us", "overhead")}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


_COLOURS = {"wait": "terrible", "issue": "thread_state_iowait", "compute": "good", "store": "bad"}
"""Reserved colour names of the trace viewer."""


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _rounded(x: float) -> float:
    return round(x, 4)


def _bad(message: str) -> NoReturn:
    raise CakeError(
        error(
            "lowering/bad-timeline", "hardware", message,
            contract="A timeline's buffer is zeroed, launched on, and decoded with the mark table of the same build.",
        )
    )  # fmt: skip
