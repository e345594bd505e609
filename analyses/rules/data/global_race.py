"""**Checks.** On the witness shapes accesses of one element of an `InOut` tensor, one of them a write, are ordered: by program
order, a sync, or an arrive and wait. What a polled flag announces has been written by all lanes when the flag is set.

**Why.** Whether the old or the new value is read, and which of two writes stays, depends on the schedule.

Between clusters nothing but a grid sync, a polled flag or the value of an atomic orders accesses: without them no two clusters touch
one element of which one changes it.

**Limits.** Reductions may meet. Rows chosen by data are not followed, nor, in kernels that poll flags, the order between units: the
property *global races* is *undecided* there.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/global-race",
    severity="error",
    layer="data",
    title="Unordered accesses to one element of a tensor",
    source="PTX ISA, 'Memory Consistency Model': data races",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(state: InOut[f32, M, 64]):
    launch(ctas=M)
    team = role(warp, count=2)
    with team as w:
        v = load(state[cta, :], vec(1).cols[64])
        store(state[cta, :], v + v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(state: InOut[f32, M, 64]):
    launch(ctas=M)
    team = role(warp, count=2)
    with team as w:
        v = load(state[cta, 32 * w:], vec(1).cols[32])
        store(state[cta, 32 * w:], v + v)
"""
