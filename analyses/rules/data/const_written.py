"""**Checks.** In a `@program`, a kernel with a `griddep_wait` gets no tensor as `Const` that a launch before it, which may still
run, writes.

**Why.** Such a kernel is launched while its predecessor still runs. `Const` says that it may read at once, so the values
would depend on timing.

**Limits.** Launches before one without `griddep_wait` are complete and are not looked at.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/const-written",
    severity="error",
    layer="binding",
    title="A constant of a dependent launch is written by its predecessor",
    source="CUDA C++ Programming Guide, 'Programmatic Dependent Launch and Synchronization'",
    line=22,
)

REJECTED = """
@kernel(target="sm_90a")
def first(x: In[f32, M, 128], s: Out[f32, M, 128]):
    launch(ctas=M)
    team = role(warp)
    with team:
        store(s[cta, :], load(x[cta, :], vec(4).cols[128]))


@kernel(target="sm_90a")
def second(s: Const[f32, M, 128], y: Out[f32, M, 128]):
    launch(ctas=M)
    team = role(warp)
    with team:
        griddep_wait()
        store(y[cta, :], load(s[cta, :], vec(4).cols[128]))


@program
def both(x: In[f32, M, 128], y: Out[f32, M, 128]):
    s = workspace(f32, M, 128)
    first(x, s)
    second(s, y)
"""

ACCEPTED = REJECTED.replace("s: Const[", "s: In[")
