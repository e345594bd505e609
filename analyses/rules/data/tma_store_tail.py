"""**Checks.** The inner extent of a tensor that `tma_store` writes is a multiple of 16 bytes, by its text or by
`where`.

**Why.** A report shows bytes behind a ragged inner extent overwritten up to the next 16-byte boundary. With a
declared row stride those bytes may belong to something else.

**Limits.** For a dense matrix the stride rule (`hardware/tma-stride`) already asks for this.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="data/tma-store-tail",
    severity="warning",
    layer="resources",
    title="A tensor store may write past the end of a row",
    source="triton-lang/triton issue 11583 (open: bytes up to the next 16-byte boundary of the inner extent were written)",
    line=13,
)

REJECTED = """
@kernel(target="sm_90a")
def out(x: In[bf16, M, 64], y: Out[bf16, M:64, N]):
    where(N <= 64)
    launch(ctas=ceil_div(M, 16))
    team = role(warp)
    tile = smem(bf16, 16, 64)
    with team:
        v = load(x[16 * cta:, :], vec(8, 8)[16, 64])
        store(tile, v)
        fence_async()
        sync(warp)
        with elected():
            tma_store(y[16 * cta:, :], tile)
            bulk_commit()
            bulk_wait_read(0)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def out(x: In[bf16, M, 64], y: Out[bf16, M:64, N]):
    where(N % 8 == 0, N <= 64)
    launch(ctas=ceil_div(M, 16))
    team = role(warp)
    tile = smem(bf16, 16, 64)
    with team:
        v = load(x[16 * cta:, :], vec(8, 8)[16, 64])
        store(tile, v)
        fence_async()
        sync(warp)
        with elected():
            tma_store(y[16 * cta:, :], tile)
            bulk_commit()
            bulk_wait_read(0)
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    seen = set()
    for op in ctx.named("tma_store", "tma_reduce"):
        t = op.operands["region"].tensor
        dense = len(t.extents) > 1 and t.strides[len(t.extents) - 2] is None
        d = ctx.divisor(t.extents[-1])
        if dense or t in seen or d == 0 or d * t.dtype.bits % 128 == 0:
            continue
        seen.add(t)
        step = 128 // t.dtype.bits
        yield ctx.finding(
            RULE.id,
            "warning",
            f"the inner extent of '{t.name}' is not provably a multiple of 16 B;"
            f" state where(... % {step} == 0) or store the tail by threads",
            op.span,
            resource=t.name,
            op=op.name,
        )
