"""**Checks.** The innermost coordinate at which a tensor copy starts is a multiple of 16 bytes, for every shape that `where` admits
and by what the text says: constants, steps of loops, `where(D % 8 == 0)`.

**Why.** The copy engine fetches pieces of 16 bytes. A start between them ends the kernel with an illegal instruction, for every
element size, box and swizzle, inside the tensor or not; the other dimensions start anywhere.

**Limits.** Proofs are by divisors: a loaded offset has none. Load such an offset in units (`4 * load(quads[e])`), or read the
tile with plain loads.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.bound import Op
from cake_ir.diagnostics import Diagnostic
from cake_ir.facts import facts_of

RULE = Rule(
    id="hardware/tma-coordinate",
    severity="error",
    layer="resources",
    title="A tensor copy that starts between 16-byte pieces",
    source="measured on an H200 (driver 580): cp.async.bulk.tensor, 70 starts of 1-, 2- and 4-byte elements, all four swizzles",
    line=10,
)

REJECTED = """
@kernel(target="sm_90a")
def fetch(x: In[f32, M, N], y: Out[f32, M, 64]):
    launch(ctas=M)
    producer = role(thread)
    reader = role(warp)
    line = smem(f32, 64)
    full = mbarrier()
    with producer:
        expect(full[0])
        tma_load(line, x[cta, 2:], signal=full[0])
    with reader:
        wait(full[0])
        store(y[cta, :], load(line, vec(2).cols[64]))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def fetch(x: In[f32, M, N], y: Out[f32, M, 64]):
    launch(ctas=M)
    producer = role(thread)
    reader = role(warp)
    line = smem(f32, 64)
    full = mbarrier()
    with producer:
        expect(full[0])
        tma_load(line, x[cta, 4:], signal=full[0])
    with reader:
        wait(full[0])
        store(y[cta, :], load(line, vec(2).cols[64]))
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    facts = facts_of(ctx.bound)
    for op in ctx.named("tma_load", "tma_store", "tma_reduce"):
        region = op.operands["region"]
        start, dtype = region.dims[-1].start, region.tensor.dtype
        known = facts.divisor(start)
        if known * dtype.bits % 128:
            yield _finding(ctx, op, known, 128 // dtype.bits)


def _finding(ctx: Context, op: Op, known: int, step: int) -> Diagnostic:
    tensor = op.operands["region"].tensor
    return ctx.finding(
        RULE.id,
        "error",
        f"the start in the innermost dimension of '{tensor.name}' is a multiple of {known} element{'s' if known != 1 else ''} as far as"
        f" the text says; {op.name} needs a multiple of {step} ({tensor.dtype}: 16 B)",
        op.span,
        resource=tensor.name,
        role=op.role,
        op=op.name,
    )
