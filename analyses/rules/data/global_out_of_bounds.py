"""**Checks.** Every index of a global region lies inside its dimension, every slice starts at 0 or later, and what a bulk copy moves
ends inside: proved for all shapes that `where` admits, from loops, conditions, masks, `where` and `assume`, or refuted with a shape.

**Why.** Only the end of a slice is clipped, and that not by bulk copies. An index outside addresses another row, or memory of someone
else.

**Repair.** A condition around the access, a mask (`when=`) for gathered rows, or a fact in `where`.

**Limits.** A gathered index that neither `assume` nor a mask bounds is *undecided*. What the text alone does not bound is run on the
witness shapes and *checked*.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/global-out-of-bounds",
    severity="error",
    layer="data",
    title="A global index outside its tensor",
    source="Cake language reference, 'Memory operands'",
    line=7,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=ceil_div(M, 4))
    team = role(warp, count=4)
    with team as w:
        r = 4 * cta + w
        v = load(x[r, :], vec(1).cols[32])
        store(y[r, :], v + v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=ceil_div(M, 4))
    team = role(warp, count=4)
    with team as w:
        r = 4 * cta + w
        if r < M:
            v = load(x[r, :], vec(1).cols[32])
            store(y[r, :], v + v)
"""
