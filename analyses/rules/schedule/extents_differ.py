'''**Checks.** In a `@program`, tensors that share a dimension of a kernel have equal extents there: by the same expression, by `where`, or
else a shape is shown for which they differ.

**Why.** A launch passes one value per dimension. A tensor that is shorter there is read or written behind its end.
'''

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="schedule/extents-differ",
    severity="error",
    layer="binding",
    title="Arguments that do not have the shape a launch assumes",
    source="Cake language reference, '@program'",
    line=12,
)

REJECTED = """
@kernel(target="sm_90a")
def total(a: In[f32, R, 128], b: In[f32, R, 128], y: Out[f32, R, 128]):
    launch(ctas=R)
    rows = role(warp)
    with rows:
        store(y[cta, :], load(a[cta, :], vec(4).cols[128]) + load(b[cta, :], vec(4).cols[128]))


@program
def both(x: In[f32, M, 128], z: In[f32, N, 128], y: Out[f32, M, 128]):
    where(M > 0)
    total(x, z, y)
"""

ACCEPTED = REJECTED.replace("where(M > 0)", "where(M == N)")
