"""**Checks.** Every row that cp_async copies starts at a multiple of 4 bytes, in global and in shared memory, for every shape that
`where` admits and by what the text says: constants, steps of loops, `where(D % 2 == 0)`.

**Why.** One instruction moves 4, 8 or 16 bytes between addresses that are multiples of its size; anything else faults.

**Limits.** Proofs are by divisors: a row that happens to be aligned for every value of its index variables, but not by a common
factor, is refused. The widest of 4, 8 and 16 bytes that is provable is used.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic
from cake_ir.facts import cp_async_piece, facts_of

RULE = Rule(
    id="hardware/cp-async-alignment",
    severity="error",
    layer="resources",
    title="Rows that start between the pieces of cp_async",
    source="PTX ISA, 'cp.async': both addresses are aligned to the size of the copy",
    line=8,
)

REJECTED = """
@kernel(target="sm_80")
def shifted(x: In[bf16, M, N], y: Out[bf16, M, 64]):
    where(N % 8 == 0)
    launch(ctas=M)
    team = role(warp)
    tile = smem(bf16, 1, 64)
    with team:
        cp_async(tile, x[cta:, 1:])
        cp_async_commit()
        cp_async_wait(0)
        sync(warp)
        store(y[cta:, :], load(tile, vec(2)[1, 64]))
"""

ACCEPTED = """
@kernel(target="sm_80")
def shifted(x: In[bf16, M, N], y: Out[bf16, M, 64]):
    where(N % 8 == 0)
    launch(ctas=M)
    team = role(warp)
    tile = smem(bf16, 1, 64)
    with team:
        cp_async(tile, x[cta:, 2:])
        cp_async_commit()
        cp_async_wait(0)
        sync(warp)
        store(y[cta:, :], load(tile, vec(2)[1, 64]))
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    facts = facts_of(ctx.bound)
    for op in ctx.named("cp_async"):
        view, region = op.operands["view"], op.operands["region"]
        piece, there, here = cp_async_piece(facts, view, region)
        if piece:
            continue
        side = f"rows of '{region.tensor.name}' start" if there % 4 else f"rows of '{view.buffer.name}' are written"
        inner = region.tensor.extents[-1]
        free = ctx.divisor(inner) * view.buffer.dtype.bytes % 4
        name = getattr(getattr(inner, "var", None), "name", "")
        hint = (
            f"; where({name} % {16 // view.buffer.dtype.bytes} == 0) makes them 16 B apart"
            if there % 4 and free and name and len(region.dims) > 1
            else ""
        )
        yield ctx.finding(
            RULE.id,
            "error",
            f"{side} at multiples of {min(there, here)} B as far as the text says; cp_async needs 4, 8 or 16{hint}",
            op.span,
            resource=view.buffer.name,
            role=op.role,
            op=op.name,
        )
