'''**Checks.** In a `@program`, no launch contradicts the `where` of its kernel for every shape.

**Why.** The launcher refuses it, so the program never runs. Shapes that only some launches admit are refused one by one, which is what
`where` is for.
'''

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="schedule/launch-not-admitted",
    severity="error",
    layer="binding",
    title="A launch that its kernel never admits",
    source="Cake language reference, '@program' and `where`",
    line=12,
)

REJECTED = """
@kernel(target="sm_90a")
def copy(a: In[f32, R, C], y: Out[f32, R, C]):
    where(C <= 128)
    launch(ctas=R)
    rows = role(warp)
    with rows:
        store(y[cta, :], load(a[cta, :], vec(4).cols[128]))


@program
def one(x: In[f32, M, 256], y: Out[f32, M, 256]):
    copy(x, y)
"""

ACCEPTED = REJECTED.replace("256", "128")
