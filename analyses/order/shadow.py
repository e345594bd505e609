"""Shadow memory: who last wrote and who has since read every box of on-chip memory.

Boxes are half-open (r0, r1, c0, c1). Buffers that share storage (`over=`) share one shadow in byte coordinates: lines
of the swizzle span when all agree on it, byte ranges otherwise.
"""

from __future__ import annotations

import math
from typing import Any

from cake_ir.bound import Buffer
from cake_ir.derive import Derived
from cake_ir.derive.memory import stage_stride
from cake_ir.skeleton import ViewAt

Box = tuple[int, int, int, int]


class Access:
    """One recorded access. comp/epoch: the clock component that tells when it is over; fence: the component that
    tells when it is visible to the async proxy (-1: needs no fence). lanes: equal keys mean the same lane touches
    each element. ticks: (all lanes, first thread) of the unit when it was issued; above: first thread's tick of
    its warpgroup, inside `warps()`. blank: a read of what nothing had
    written by then."""

    __slots__ = (
        "above",
        "blank",
        "box",
        "comp",
        "engine",
        "epoch",
        "event",
        "fence",
        "lanes",
        "thread",
        "ticks",
        "unit",
        "view",
    )

    def __init__(
        self,
        box: Box,
        comp: int,
        epoch: int,
        fence: int,
        unit: Any,
        event: Any,
        lanes: Any,
        engine: str,
        ticks: tuple[int, int],
        view: ViewAt,
        thread: bool,
    ) -> None:
        self.box, self.comp, self.epoch, self.fence, self.unit = box, comp, epoch, fence, unit
        self.event, self.lanes, self.engine, self.ticks = event, lanes, engine, ticks
        self.view, self.thread = view, thread
        self.above = unit.parent.tick_l if unit.parent is not None else 0
        self.blank = False

    @property
    def use(self) -> int:
        """The use number that the view names."""
        return self.view.use


class Cell:
    """Accesses of one slot: the writes that still show, and the reads since."""

    __slots__ = ("filled", "masked", "reads", "shared", "sure", "writers", "writes")

    def __init__(self, shared: bool) -> None:
        self.shared = shared  # several buffers lie here
        self.writes: dict[tuple[int, Box], Access] = {}
        self.reads: dict[tuple[int, Box], Access] = {}
        self.filled: set[Box] = set()
        self.masked = False  # some store had a mask
        self.sure: set[Box] = set()  # boxes without holes that masks leave
        self.writers: set[Buffer] = set()  # of shared cells: the buffers through which they were ever written

    def note_read(self, a: Access) -> None:
        self.reads[(a.comp, a.box)] = a

    def note_write(self, a: Access, whole: bool) -> None:
        """Record a write; what it covers entirely has been checked against it and is forgotten."""
        if self.shared:
            self.writers.add(a.view.view.buffer)
        if whole:
            r0, r1, c0, c1 = a.box
            for store in (self.writes, self.reads):
                gone = [k for k in store if k[1][0] >= r0 and k[1][1] <= r1 and k[1][2] >= c0 and k[1][3] <= c1]
                for k in gone:
                    del store[k]
        else:
            self.masked = True
        self.writes.pop((a.comp, a.box), None)  # in order of time
        self.writes[(a.comp, a.box)] = a

    def holes(self, box: Box) -> bool:
        """Whether part of the box was written under masks only."""
        if not self.masked or box in self.sure:
            return False
        rest = [box]
        for (_, w), a in self.writes.items():
            if a.event.node.operands.get("when") is None:
                rest = [piece for r in rest for piece in subtract(r, w)]
        if not rest:
            self.sure.add(box)
        return bool(rest)

    def uncovered(self, box: Box) -> bool:
        """Whether part of the box was never written. What is once filled stays filled."""
        if box in self.filled:
            return False
        rest = [box]
        for _, w in self.writes:
            if w[0] <= box[0] and w[1] >= box[1] and w[2] <= box[2] and w[3] >= box[3]:
                self.filled.add(box)
                return False
        for _, w in self.writes:
            rest = [piece for r in rest for piece in subtract(r, w)]
            if not rest:
                self.filled.add(box)
                return False
        return True


def subtract(a: Box, b: Box) -> list[Box]:
    """The parts of a outside b."""
    r0, r1, c0, c1 = max(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), min(a[3], b[3])
    if r0 >= r1 or c0 >= c1:
        return [a]
    out = []
    if a[0] < r0:
        out.append((a[0], r0, a[2], a[3]))
    if r1 < a[1]:
        out.append((r1, a[1], a[2], a[3]))
    if a[2] < c0:
        out.append((r0, r1, a[2], c0))
    if c1 < a[3]:
        out.append((r0, r1, c1, a[3]))
    return out


class Storage:
    """Maps views to cells and boxes."""

    def __init__(self, buffers: tuple[Buffer, ...], derived: Derived) -> None:
        self.derived = derived
        self.root: dict[Buffer, Buffer] = {}
        groups: dict[Buffer, list[Buffer]] = {}
        for b in buffers:
            root = b
            while root.over is not None:
                root = root.over
            self.root[b] = root
            groups.setdefault(root, []).append(b)
        self.shared: set[Any] = {root for root, members in groups.items() if len(members) > 1}
        if any(root.space == "tmem" for root in self.shared):
            self.shared.add("tmem")  # all of tensor memory is one cell
        self.mode: dict[Buffer, str] = {}
        self.chunk: dict[Buffer, int] = {}  # lines mode: lines per cell
        for root, members in groups.items():
            if len({(b.dims, b.dtype.bits, b.stages, b.swizzle, b.pad) for b in members}) == 1:
                mode = "plain"
            elif (
                len({b.swizzle for b in members}) == 1
                and root.swizzle
                and all(b.row_bytes % b.swizzle == 0 for b in members)
            ):
                mode = "lines"
                chunk = math.gcd(*(n for b in members for n in (b.rows, stage_stride(b) // b.swizzle)))
                self.chunk.update(dict.fromkeys(members, chunk))
            else:
                mode = "bytes"
            for b in members:
                self.mode[b] = "tmem" if b.space == "tmem" else mode
        self.cells: dict[tuple[int, Any, int], Cell] = {}

    def locate(self, v: ViewAt) -> list[tuple[Cell, Box]]:
        """The cells and boxes of an evaluated view."""
        b = v.view.buffer
        mode = self.mode[b]
        if mode == "plain":
            return [(self._cell(v.cta, self.root[b], v.slot), (v.row0, v.row1, v.col0, v.col1))]
        if mode == "tmem":
            bits = b.dtype.bits
            per = -(-b.cols * bits // 32)
            first = self.derived.tmem[b] + v.slot * per
            return [
                (
                    self._cell(v.cta, "tmem", 0),
                    (v.row0, v.row1, first + v.col0 * bits // 32, first - (-v.col1 * bits // 32)),
                )
            ]
        base = v.slot * self.derived.stage_stride[b]
        lo, hi = v.col0 * b.dtype.bits // 8, -(-v.col1 * b.dtype.bits // 8)
        if mode == "lines":
            span, chunk = b.swizzle, self.chunk[b]
            out = []
            for panel in range(lo // span, -(-hi // span)):
                line = base // span + panel * b.rows
                first, last = line + v.row0, line + v.row1
                c0, c1 = max(lo - panel * span, 0), min(hi - panel * span, span)
                for k in range(first // chunk, -(-last // chunk)):
                    rows = max(first - k * chunk, 0), min(last - k * chunk, chunk)
                    out.append((self._cell(v.cta, self.root[b], k), (*rows, c0, c1)))
            return out
        cell = self._cell(v.cta, self.root[b], 0)
        return [(cell, (a, z, 0, 1)) for a, z in _ranges(b, v, base, lo, hi)]

    def _cell(self, cta: int, root: Any, slot: int) -> Cell:
        key = (cta, root, slot)
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell(root in self.shared)
        return cell


def _merged(chunks: list[int]) -> list[tuple[int, int]]:
    """Sorted 16-byte chunks as ranges."""
    found: list[tuple[int, int]] = []
    for at in chunks:
        if found and found[-1][1] == at:
            found[-1] = (found[-1][0], at + 16)
        else:
            found.append((at, at + 16))
    return found


def _ranges(b: Buffer, v: ViewAt, base: int, lo: int, hi: int) -> list[tuple[int, int]]:
    """Byte ranges of a view, adjacent ones merged. Inside a swizzle line the 16-byte chunks move: parts of rows are looked up
    chunk by chunk."""
    if b.swizzle:
        span = min(b.swizzle, b.row_bytes)
        found = []
        for p in range(lo // span, -(-hi // span)):
            first = base + p * b.rows * span
            c0, c1 = max(lo - p * span, 0), min(hi - p * span, span)
            if c1 - c0 == span:
                found.append((first + v.row0 * span, first + v.row1 * span))
                continue
            chunks = []
            for line in range(first + v.row0 * span, first + v.row1 * span, span):
                for at in range(line + c0 // 16 * 16, line + c1, 16):
                    chunks.append(at ^ ((at >> 7 & (b.swizzle // 16 - 1)) << 4))
            found += _merged(sorted(chunks))
        return found
    if lo == 0 and hi == b.pitch:
        return [(base + v.row0 * b.pitch, base + v.row1 * b.pitch)]
    return [(base + r * b.pitch + lo, base + r * b.pitch + hi) for r in range(v.row0, v.row1)]
