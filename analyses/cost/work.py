"""What one op or elementwise statement asks of the machine, in clocks of the SM resource it occupies.

Resources: tensor, smem, issue (the four schedulers together), fma, alu, sfu, shuffle; and bytes: l2 (asked of L2), port (what comes
into the SM from it or leaves it: multicast brings more than was asked for); and flop, of products. Elementwise work is counted per
warp instruction, as `ptxas` emits it on the epilogues of this corpus; what the counts leave out (moves, address arithmetic) is
in `OVERHEAD`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from analyses.cost.machine import SCHEDULERS, Machine
from cake_ir import bound as B
from cake_ir.dtypes import F32
from cake_ir.layouts import placement

Work = dict[str, float]
Folded = frozenset[int]
"""Fragments (by id) whose values every thread knows at compile time."""

PIPES = ("issue", "fma", "alu", "sfu", "shuffle")
"""Resources that a unit's own instructions occupy one after the other."""
SHARED = ("tensor", "smem", *PIPES)

_FMA = frozenset({"+", "-", "*", "fma", "fnma", "fms"})
_LOGIC = frozenset({"&", "|", "^", "~"})
_SPECIAL = frozenset({"exp2", "rcp", "rsqrt", "log2", "sqrt", "tanh"})
_FREE = frozenset({"neg", "abs", "bitcast"})
"""Operand modifiers of the instruction that reads the value, or nothing at all."""
ATOMIC, ATOMIC_GATHERED, ATOMIC_RETURNED = 2.45, 2.85, 2.0
"""An atomic on global memory keeps L2 as long as writing its 32-byte sectors so many times; one that returns the old value, which takes
the way of reads, as long as reading them so many times more. On an H200 that writes 4.6 TB/s to L2 and reads 9.3, sums into rows that other
CTAs add to run at 1.7 to 1.8 TB/s (red.f32, whatever its width; into rows of one's own at 3.8), into rows that data choose at 1.4 to
1.7."""
OVERHEAD = 1.3
"""Instructions that the counts leave out, as a factor on issue slots."""
ACCUMULATORS = ("mma_d", "wgmma_d")
"""Layouts whose lanes hold two neighbours of a row, and four lanes eight."""
COPY_ISSUE = 12
BARRIER_ISSUE = 6
"""Warp instructions of a bulk copy (addresses, predicate, the copy) and of a barrier op, as the machine code of corpus kernels has them."""


class Count:
    """Adds warp instructions to a `Work`."""

    def __init__(self, machine: Machine, out: Work, folded: Folded = frozenset()) -> None:
        self.out, self.folded = out, folded
        self.done: set[Any] = set()  # values that are there already
        self._slots = {"alu": machine.alu_slots}
        self._lanes = {"fma": machine.fma, "alu": machine.alu, "sfu": machine.special, "shuffle": machine.shuffle}

    def add(self, pipe: str, instructions: float) -> None:
        """`instructions` warp instructions on a pipe (`issue`: on none of the counted ones)."""
        self.out["issue"] += instructions * self._slots.get(pipe, 1.0) * OVERHEAD / SCHEDULERS
        if pipe != "issue":
            self.out[pipe] += instructions * 32.0 / self._lanes[pipe]


def elementwise(x: Any, slots: float, warps: int, count: Count) -> None:
    """Add the instructions of an elementwise expression: `slots` elements a thread in `warps` warps."""
    if not isinstance(x, B.VOp):
        if isinstance(x, B.VExpand):
            elementwise(x.x, placement(x.x.type).slots, warps, count)
        return
    if known(x, count.folded):
        return  # the compiler folds it
    key = value_key(x)
    if key in count.done:
        return  # it computes a value once
    count.done.add(key)
    times = slots * warps
    floating = x.type.dtype is F32
    if x.op == "select" and known(x.args[0], count.folded):
        for a in x.args[1:]:
            elementwise(a, slots / 2, warps, count)  # each slot takes one of the two
        return
    if x.op in _LOGIC and x.type.dtype.name != "bool":
        leaves = list(_leaves(x))
        count.add("alu", times * max(1, math.ceil((len(leaves) - 1) / 2)))  # LOP3 takes three inputs
        for a in leaves:
            elementwise(a, slots, warps, count)
        return
    if x.op == "cast":
        _cast(x, times, count)
    elif x.op in _FMA and floating:
        count.add("fma", times)
    elif x.op in _SPECIAL:
        count.add("sfu", times)
        if x.op in ("log2", "sqrt"):
            count.add("fma", times)
    elif x.op in ("*", "fma", "fms", "fnma"):
        count.add("fma", 2 * times)  # IMAD runs at half the rate
    elif x.op not in _FREE:
        count.add("alu", times)
    for a in x.args:
        elementwise(a, slots, warps, count)


def value_key(x: Any) -> Any:
    """What tells the values of two expressions of one statement apart."""
    if isinstance(x, B.VOp):
        return x.op, x.type, *map(value_key, x.args)
    if isinstance(x, B.VExpand):
        return "expand", x.type, value_key(x.x)
    return (id(x.frag), x.row0, x.col0) if isinstance(x, B.VFrag) else id(x)


def known(x: Any, folded: Folded) -> bool:
    """Whether every thread knows a value per slot at compile time: constants, and coordinates along an axis that threads do not divide."""
    if isinstance(x, B.VSplat):
        return isinstance(x.x, B.SConst)
    if isinstance(x, B.VCoord):
        layout = x.type.layout
        return layout.name == "vec" and layout.l == 1 and x.axis == "col"
    if isinstance(x, B.VExpand):
        return known(x.x, folded)
    if isinstance(x, B.VFrag):
        return id(x.frag) in folded
    return isinstance(x, B.VOp) and all(known(a, folded) for a in x.args)


def folded(bound: B.BoundKernel) -> Folded:
    """The fragments of a kernel that are only ever given such values."""
    given: dict[int, list[Any]] = defaultdict(list)
    for s in B.walk(bound.body):
        if isinstance(s, B.Let):
            given[id(s.frag)].append(s.value)
        elif isinstance(s, B.Op):
            for r in s.results:
                given[id(r)].append(None)
            for x in s.operands.values():
                if isinstance(x, B.VFrag) and s.name in ("wgmma", "mma"):
                    given[id(x.frag)].append(None)
    found: set[int] = set()
    while True:
        more = {
            f
            for f, values in given.items()
            if f not in found and all(v is not None and known(v, frozenset(found)) for v in values)
        }
        if not more:
            return frozenset(found)
        found |= more


def _leaves(x: Any) -> Iterator[Any]:
    for a in x.args:
        if isinstance(a, B.VOp) and a.op in _LOGIC and a.type.dtype.name != "bool":
            yield from _leaves(a)
        else:
            yield a


def _cast(x: B.VOp, times: float, count: Count) -> None:
    to, of = x.type.dtype, x.args[0].type.dtype
    if to.bits == 16 and of is F32:
        count.add("alu", times / 2)  # one F2FP packs two
    elif to is F32 and of.bits <= 16:
        count.add("alu", times)
    elif to.bits == of.bits == 32 and to is not of:
        count.add("sfu", times)  # I2F, F2I
    else:
        count.add("alu", times)


def tile_bytes(view: B.View) -> float:
    """Bytes of an on-chip view."""
    return view.rows * view.cols * view.buffer.dtype.bits / 8


def region_bytes(region: B.Region) -> float:
    """Bytes of a global region, the parts that may not exist included."""
    return math.prod(region.shape) * region.tensor.dtype.bits / 8


def receivers(op: B.Op, cluster: int) -> int:
    """CTAs that one copy writes to."""
    ranks = op.operands.get("multicast")
    return cluster if ranks == "cluster" else len(ranks) if ranks else 1


def op_work(op: B.Op, m: Machine, cluster: int, warps: int, folded: Folded = frozenset()) -> Work:
    """The work of one execution of an op by one unit of `warps` warps."""
    w: Work = defaultdict(float)
    count = Count(m, w, folded)
    name, o = op.name, op.operands
    if name in ("tma_load", "bulk_load"):
        w["smem"] += tile_bytes(o["view"]) * receivers(op, cluster) / m.smem
        w["l2"] += tile_bytes(o["view"])
        w["port"] += tile_bytes(o["view"]) * receivers(op, cluster)
        count.add("issue", COPY_ISSUE)
    elif name == "cp_async":
        w["smem"] += tile_bytes(o["view"]) / m.smem
        w["l2"] += tile_bytes(o["view"])
        w["port"] += tile_bytes(o["view"])
        count.add("alu", 2 * tile_bytes(o["view"]) / 512)  # 16 bytes a lane; address and predicate
    elif name in ("tma_store", "tma_reduce", "bulk_store", "bulk_reduce"):
        w["smem"] += tile_bytes(o["view"]) / m.smem
        w["l2"] += tile_bytes(o["view"])
        w["port"] += tile_bytes(o["view"])
        count.add("issue", COPY_ISSUE)
    elif name == "wgmma":
        _wgmma(o, m, w, count)
    elif name == "mma":
        t, a = o["acc"].type, o["a"].type
        w["flop"] += 2.0 * t.rows * t.cols * a.cols
        w["tensor"] += w["flop"] / m.flop[a.dtype.bits] / m.mma_sync
        count.add("issue", t.rows / 16 * t.cols / 8 * a.cols * a.dtype.bits / 256)
    elif name == "tcgen05_mma":
        n, k = o["acc"].shape[1], o["a"].shape[1]
        # of a pair's product each SM computes its 128 rows
        w["flop"] += 2.0 * 128 * n * k * op.attrs["cta_group"]
        w["tensor"] += 2.0 * 128 * n * k / m.flop[o["a"].buffer.dtype.bits]
        w["smem"] += (tile_bytes(o["a"]) + tile_bytes(o["b"])) / m.smem
    elif name == "store_async":
        w["smem"] += max(tile_bytes(o["view"]), 32.0) / m.far
        slots = placement(o["x"].type).slots
        count.add("issue", warps * max(1.0, slots / 4))
        elementwise(o["x"], slots, warps, count)
    elif name in ("load", "store", "ldmatrix", "stmatrix", "load_scalar", "store_scalar"):
        _access(op, m, warps, w, count)
    elif name.startswith("atomic_"):
        gathered = any(d.kind == "gather" for d in o["region"].dims)
        moved = (ATOMIC_GATHERED if gathered else ATOMIC) * _sectors(o["region"]) * pieces(op)
        if op.results:
            moved *= ATOMIC_RETURNED
            w["port"] += moved
        w["l2"] += moved
        count.add("alu", 3 * max(1.0, region_bytes(o["region"]) / 128))
    elif name.split("_")[0] in ("row", "col") or name in ("pick", "shift", "transpose"):
        _reduction(op, warps, count)
    elif name in ("tmem_load", "tmem_store"):
        count.add("issue", warps * o["view"].cols / 4)
    elif name in ("wait", "arrive", "expect", "sync", "named_arrive", "fence_async", "wgmma_wait", "wgmma_commit"):
        count.add("issue", BARRIER_ISSUE * warps)
    return w


def pieces(op: B.Op) -> float:
    """Instructions of an atomic op that touch the same sector: a lane adds 16 bytes at a time, so wider lanes come to it again."""
    kind = getattr(op.operands.get("x"), "type", None) if op.name.startswith("atomic_") else None
    if kind is None or kind.layout.name != "vec":
        return 1.0
    return max(1.0, kind.layout.v * kind.dtype.bits / 128)


def _sectors(region: B.Region) -> float:
    """Bytes of the 32-byte sectors of a region: elements that an index vector picks lie apart, rows begin where they like."""
    last = region.dims[-1]
    n = 1.0
    for size in region.shape:
        n *= size
    if last.kind != "slice":
        return 32.0 * n
    return max(32.0 * n / last.size, region_bytes(region))


def _wgmma(o: dict[str, Any], m: Machine, w: Work, count: Count) -> None:
    t, a, b = o["acc"].type, o["a"], o["b"]
    k, bits = b.shape[1], b.buffer.dtype.bits
    from_registers = not isinstance(a, B.View)
    w["tensor"] += m.product_clk(t.rows, t.cols, k, bits, from_registers)
    w["flop"] += 2.0 * t.rows * t.cols * k
    w["smem"] += (tile_bytes(b) * (t.rows // 64) + (0.0 if from_registers else tile_bytes(a))) / m.smem
    count.add("issue", 4.0 * (t.rows // 64) * k * bits / 256)


def _access(op: B.Op, m: Machine, warps: int, w: Work, count: Count) -> None:
    o = op.operands
    memory = next(o[k] for k in ("src", "dst", "view") if k in o)
    tile = op.results[0] if op.results else o.get("x")
    kind = getattr(tile, "type", None)
    if kind is None:  # one element for the whole unit
        instructions, unique = float(warps), 32.0
    else:
        slots = placement(kind).slots
        width = kind.dtype.bits / 8 * (kind.layout.v if kind.layout.name == "vec" else 2)
        instructions = warps * max(1.0, slots * kind.dtype.bits / 8 / min(16.0, max(4.0, width)))
        unique = kind.dtype.bits / 8 * _elements(kind, warps)
    if op.name in ("ldmatrix", "stmatrix"):
        instructions = max(1.0, unique / 512)
    if isinstance(memory, B.View):
        far = memory.rank is not None  # of another CTA of the cluster
        rate = m.smem if not far else m.far_pieces if kind is not None and kind.layout.name in ACCUMULATORS else m.far
        w["smem"] += max(instructions, unique / rate)
        count.add("issue", instructions)
    else:
        # lanes of an accumulator store 16 bytes of a row each time when elements have 16 bits: half a sector, which costs four times more
        halves = (
            op.name == "store"
            and kind is not None
            and kind.layout.name in ACCUMULATORS
            and kind.dtype.bits == 16
        )
        moved = max(unique, 32.0) * (4.0 if halves else 1.0)
        w["l2"] += moved
        w["port"] += moved
        if (
            kind is not None and kind.layout.name != "vec"
        ):  # the tensor may end anywhere, so every element has a guard of its own
            instructions = float(warps * placement(kind).slots)
        count.add("alu", 2 * instructions)  # where it lies, whether it exists
        count.add("issue", instructions)
        if op.name == "load" and kind is not None:
            count.add("issue", warps * placement(kind).slots * kind.dtype.bits / 32)  # what it is if it does not
    if "x" in o and kind is not None and not isinstance(o["x"], (B.SConst, B.SVar, B.SOp)):
        elementwise(o["x"], placement(o["x"].type).slots, warps, count)


def _elements(kind: Any, warps: int) -> float:
    """Distinct elements that the warps of a unit touch: every warp of them touches a .cols vector whole."""
    if kind.axis == "cols":
        return float(kind.cols * (warps if kind.layout.name != "vec" else 1))
    return float(kind.rows if kind.axis == "rows" else kind.rows * kind.cols)


def _reduction(op: B.Op, warps: int, count: Count) -> None:
    """In-thread steps, then a butterfly over the lanes that share a result: a shuffle and a combination each."""
    x = op.operands["x"]
    slots = placement(x.type).slots
    if op.name.endswith("_sum") and isinstance(x, B.VOp) and x.op == "*" and x.type.dtype is F32:
        for a in x.args:  # multiplied and added in one
            elementwise(a, slots, warps, count)
    else:
        elementwise(x, slots, warps, count)
    results = [r for r in op.results if isinstance(r, B.Fragment)]
    kept = placement(results[0].type).slots if results else 1
    pairs = 2 if op.name.startswith(("row_arg", "col_arg")) else 1
    pipe = "fma" if op.name.endswith(("sum", "cumsum")) and x.type.dtype is F32 else "alu"
    count.add(pipe, warps * max(0, slots - kept) * (3 if pairs == 2 else 1))
    steps = lanes_sharing(op, warps)
    count.add("shuffle", warps * kept * steps * pairs)
    count.add(pipe, warps * kept * steps * (4 if pairs == 2 else 1))


def lanes_sharing(op: B.Op, warps: int) -> float:
    """Butterfly steps of a reduction: log2 of the lanes of a warp that share one result."""
    results = [r for r in op.results if isinstance(r, B.Fragment)]
    if not results:
        return 5.0
    kind = results[0].type
    n = kind.rows if kind.axis == "rows" else kind.cols
    per_warp = n / warps if kind.axis == "rows" else n
    return max(0.0, math.log2(max(1.0, 32.0 * placement(kind).slots / max(1.0, per_warp))))


def let_work(let: B.Let, m: Machine, warps: int, folded: Folded = frozenset()) -> Work:
    """The work of an elementwise statement."""
    w: Work = defaultdict(float)
    if let.value is not None:
        elementwise(let.value, placement(let.frag.type).slots, warps, Count(m, w, folded))
    return w
