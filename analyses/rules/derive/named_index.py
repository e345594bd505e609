"""**Checks.** The index of a named barrier lies between 0 and the number that `named_barrier(n)` declares.

**Why.** Named barriers are numbered hardware barriers, not a ring: an index outside names a barrier of somebody else.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="derive/named-index",
    severity="error",
    layer="derivation",
    title="A named barrier that is not declared",
    source="PTX ISA, 'bar, barrier': the operand a is the barrier's number",
    line=8,
)

REJECTED = """
@kernel(target="sm_90a")
def turns(y: Out[f32, M, 32]):
    where(M % 2 == 0)
    launch(ctas=M // 2)
    team = role(warp, count=2)
    turn = named_barrier(2)
    with team as w:
        sync(turn[2 * w])
        store(y[2 * cta + w, :], fragment(f32, vec(1).cols[32], 1.0))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def turns(y: Out[f32, M, 32]):
    where(M % 2 == 0)
    launch(ctas=M // 2)
    team = role(warp, count=2)
    turn = named_barrier(2)
    with team as w:
        sync(turn[w])
        store(y[2 * cta + w, :], fragment(f32, vec(1).cols[32], 1.0))
"""
