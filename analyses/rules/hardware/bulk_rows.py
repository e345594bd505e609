"""**Checks.** Bulk copies move unswizzled, untransposed rows whose last dimension is kept.

**Why.** The instruction moves a linear run of bytes; anything else is a tensor copy.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/bulk-rows",
    severity="error",
    layer="binding",
    title="A bulk copy of something that is not linear rows",
    source="PTX ISA, 'cp.async.bulk'",
    line=11,
)

REJECTED = '''
@kernel(target="sm_90a")
def fetch(x: In[f32, M, 64], y: Out[f32, M, 64]):
    where(M % 8 == 0)
    launch(ctas=M // 8)
    producer = role(thread)
    reader = role(warp)
    line = smem(f32, 8, 64, swizzle=128)
    full = mbarrier()
    with producer:
        expect(full[0])
        bulk_load(line, x[8 * cta:, :], signal=full[0])
    with reader:
        wait(full[0])
        store(y[8 * cta:, :], load(line.rows(0, 8), vec(2)[8, 64]))
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def fetch(x: In[f32, M, 64], y: Out[f32, M, 64]):
    where(M % 8 == 0)
    launch(ctas=M // 8)
    producer = role(thread)
    reader = role(warp)
    line = smem(f32, 8, 64)
    full = mbarrier()
    with producer:
        expect(full[0])
        bulk_load(line, x[8 * cta:, :], signal=full[0])
    with reader:
        wait(full[0])
        store(y[8 * cta:, :], load(line.rows(0, 8), vec(2)[8, 64]))
'''
