"""**Checks.** The bytes that all copies of one use bring are at most 2^20 - 1.

**Why.** The assembler does not check it; the count wraps and the phase completes early or never.

**Limits.** Shared memory holds less than that on every target, so this needs copies that overwrite each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="hardware/tx-limit",
    severity="error",
    layer="resources",
    title="One use of a barrier announces more bytes than it can count",
    source="PTX ISA, 'mbarrier: Tx-Count'",
    line=9,
)

REJECTED = """
@kernel(target="sm_90a")
def stream(x: In[bf16, M, 64], y: Out[f32, 16, 64]):
    launch(ctas=1)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 256, 64, swizzle=128)
    full = mbarrier()
    with producer:
        expect(full[0])
        for i in range(33):
            tma_load(tile, x[256 * i:, :], signal=full[0])
    with reader:
        wait(full[0])
        store(y[:, :], cast(load(tile.rows(0, 16), vec(8, 8)[16, 64]), f32))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def stream(x: In[bf16, M, 64], y: Out[f32, 16, 64]):
    launch(ctas=1)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 256, 64, swizzle=128)
    full = mbarrier()
    with producer:
        expect(full[0])
        tma_load(tile, x[:, :], signal=full[0])
    with reader:
        wait(full[0])
        store(y[:, :], cast(load(tile.rows(0, 16), vec(8, 8)[16, 64]), f32))
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    if not ctx.derived.expect_bytes:
        return
    limit = ctx.bound.target.value("mbarrier_tx_max")
    for op in ctx.named("expect"):
        size = ctx.derived.expect_bytes.get(op.site, 0)
        if size > limit:
            yield ctx.finding(
                RULE.id,
                "error",
                f"this expect announces {size} B; a barrier counts at most {limit} B per use",
                op.span,
                contract="The transaction count of an mbarrier is at most 2^20 - 1.",
                role=op.role,
                resource=op.operands["bar"].barrier.name,
                op="expect",
            )
