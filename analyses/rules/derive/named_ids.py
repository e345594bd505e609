"""**Checks.** Named barriers, `sync(ROLE)` and one id per warpgroup instance add up to at most 15.

**Why.** Id 0 is the block's own; the assembler does not check ids in registers.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="derive/named-ids",
    severity="error",
    layer="derivation",
    title="More named barriers than the hardware has",
    source="PTX ISA, 'bar, barrier': ids 0 .. 15",
    line=9,
)

REJECTED = """
@kernel(target="sm_90a")
def many(y: Out[f32, M, 32]):
    where(M % 2 == 0)
    launch(ctas=M // 2)
    team = role(warp, count=2)
    turns = named_barrier(16)
    with team as w:
        for i in unroll(16):
            sync(turns[i])
        store(y[2 * cta + w, :], fragment(f32, vec(1).cols[32], 1.0))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def many(y: Out[f32, M, 32]):
    where(M % 2 == 0)
    launch(ctas=M // 2)
    team = role(warp, count=2)
    turns = named_barrier(15)
    with team as w:
        for i in unroll(15):
            sync(turns[i])
        store(y[2 * cta + w, :], fragment(f32, vec(1).cols[32], 1.0))
"""
