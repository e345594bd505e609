"""**Checks.** Static integers fit 64 bits, and shifts are 0 .. 63.

**Why.** Folding has no natural bound: `1 << 10**11` would take the memory of the machine before any size is checked.
"""

from analyses.rules import Rule

RULE = Rule(
    id="language/static-range",
    severity="error",
    layer="binding",
    title="A static integer leaves 64 bits",
    source="Cake language: static values (docs/language.md)",
    line=3,
)

REJECTED = '''
@kernel(target="sm_90a")
def fill(y: Out[f32, N]):
    HUGE = 1 << 100000000000
    launch(ctas=ceil_div(N, 128))
    rows = role(warp)
    with rows as w:
        store(y[128 * cta:], fragment(f32, vec(4).cols[128], 0))
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def fill(y: Out[f32, N]):
    STEP = 1 << 7
    launch(ctas=ceil_div(N, STEP))
    rows = role(warp)
    with rows as w:
        store(y[STEP * cta:], fragment(f32, vec(4).cols[STEP], 0))
'''
