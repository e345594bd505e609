'''**Checks.** In a `@program`, no two launches write the same output as `Out`.

**Why.** `Out` means that every element is written, so the second launch discards all that the first one did.
'''

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="schedule/output-overwritten",
    severity="error",
    layer="binding",
    title="An output that a later launch writes over",
    source="Cake language reference, '@program'; 'A file': Out is written exactly once per element",
    line=12,
)

REJECTED = """
@kernel(target="sm_90a")
def copy(a: In[f32, R, 128], y: Out[f32, R, 128]):
    launch(ctas=R)
    rows = role(warp)
    with rows:
        store(y[cta, :], load(a[cta, :], vec(4).cols[128]))


@program
def two(x: In[f32, M, 128], y: Out[f32, M, 128]):
    copy(x, y)
    copy(x, y)
"""

ACCEPTED = REJECTED.replace("    copy(x, y)\n    copy(x, y)\n", "    z = workspace(f32, M, 128)\n    copy(x, z)\n    copy(z, y)\n")
