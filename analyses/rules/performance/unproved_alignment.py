"""**Checks.** Loads and stores of global memory whose `vec` layout asks for wide accesses start, and end, at multiples of that
width by what the text says: constants, steps of loops, `where(D % 8 == 0)`.

**Why.** The width of an access is chosen from what is provable. `vec(8)` of bf16 at `x[row, w * PART + 1:]`, or in rows of an
unconstrained D, moves 2 bytes at a time (or tests the address at run time); nothing else shows it.

**Limits.** Proofs are by divisors, as in the compiler: both ask the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.bound import SX, Fragment, Region, SConst, SOp, SVar
from cake_ir.diagnostics import Diagnostic
from cake_ir.facts import Facts, facts_of, row_alignment

RULE = Rule(
    id="performance/unproved-alignment",
    severity="advice",
    layer="performance",
    title="Global accesses are narrower than their layout, for want of a provable alignment",
    source="CUDA C++ Programming Guide, 'Device Memory Accesses': an access of 4, 8 or 16 bytes is aligned to its size",
    line=7,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[bf16, M, D], y: Out[bf16, M, D]):
    where(D <= 256)
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(8).cols[256])
        store(y[cta, :], v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[bf16, M, D], y: Out[bf16, M, D]):
    where(D % 8 == 0, D <= 256)
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(8).cols[256])
        store(y[cta, :], v)
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    facts = facts_of(ctx.bound)
    seen = set()
    for op in ctx.named("load", "store"):
        region = op.operands.get("src" if op.name == "load" else "dst")
        tile = next((r.type for r in op.results if isinstance(r, Fragment)), None) or getattr(
            op.operands.get("x"), "type", None
        )
        if not isinstance(region, Region) or tile is None or op.span in seen:
            continue
        bits = tile.dtype.bits
        want = min(tile.layout.v, 128 // bits) if tile.layout.name == "vec" and tile.axis != "rows" else 1
        stride = region.tensor.strides[-1]
        unit = stride is None or (isinstance(stride, SConst) and stride.value == 1)
        if want <= 1 or want * bits <= 32 or region.transposed or region.dims[-1].kind != "slice" or not unit:
            continue
        got = math.gcd(want, row_alignment(facts, region), *_ends(facts, region))
        if got < want:
            seen.add(op.span)
            moved = f"{op.name} moves {got * bits // 8} B per access where {tile.layout} asks for {want * bits // 8}"
            yield ctx.finding(
                RULE.id, "advice", f"{moved}: {_why(facts, region, want)}", op.span, role=op.role, op=op.name
            )


def _ends(facts: Facts, region: Region) -> list[int]:
    """Divisors of what clips the last dimension, none when the range lies inside."""
    d, extent = region.dims[-1], region.tensor.extents[-1]
    ends = [e for e in (extent, d.stop) if e is not None]
    inside = isinstance(d.start, SConst) and all(
        isinstance(e, SConst) and int(d.start.value) + d.size <= int(e.value) for e in ends
    )
    return [] if inside else [facts.divisor(e) for e in ends]


def _why(facts: Facts, region: Region, want: int) -> str:
    """The first thing that is not a multiple of `want` elements, and what to write."""
    start = region.dims[-1].start
    if facts.divisor(start) % want:
        rest = _remainder(facts, start, want)
        if rest:
            return f"the start of the last dimension is {rest} more than a multiple of {want} elements, so never aligned"
        return f"the start of the last dimension is not provably a multiple of {want} elements" + _add(facts, start, want)
    for x in (*region.tensor.extents[1:], *(s for s in region.tensor.strides if s is not None), region.dims[-1].stop):
        if x is not None and facts.divisor(x) % want:
            name = x.var.name if isinstance(x, SVar) else "an extent or stride"
            return f"{name} is not provably a multiple of {want}" + _add(facts, x, want)
    return f"the end of a row is not provably a multiple of {want} elements" + _add(
        facts, region.tensor.extents[-1], want
    )


def _add(facts: Facts, x: SX, want: int) -> str:
    """'; add where(D % 8 == 0)' for the first extent in x that would help."""
    if isinstance(x, SVar):
        return f"; add where({x.var.name} % {want} == 0)" if x.var.kind == "dim" and facts.divisor(x) % want else ""
    parts = (_add(facts, a, want) for a in getattr(x, "args", ()))
    return next((p for p in parts if p), "")


def _remainder(facts: Facts, x: SX, m: int) -> int | None:
    """x modulo m where the text fixes it."""
    if facts.divisor(x) % m == 0:
        return 0
    if isinstance(x, SConst):
        return int(x.value) % m
    if isinstance(x, SOp) and x.op in ("+", "-", "*"):
        a, b = (_remainder(facts, y, m) for y in x.args)
        if a is not None and b is not None:
            return {"+": a + b, "-": a - b, "*": a * b}[x.op] % m
    return None
