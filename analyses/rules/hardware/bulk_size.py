"""**Checks.** The bytes of a row are a multiple of 16.

**Why.** The assembler rejects other sizes; nothing is clipped, so the row cannot be rounded up silently.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/bulk-size",
    severity="error",
    layer="binding",
    title="A bulk row that is not a multiple of 16 bytes",
    source="PTX ISA, 'cp.async.bulk': size % 16 == 0",
    line=10,
)

REJECTED = '''
@kernel(target="sm_90a")
def fetch(x: In[f32, M, 62], y: Out[f32, M, 62]):
    launch(ctas=M)
    producer = role(thread)
    reader = role(warp)
    line = smem(f32, 62)
    full = mbarrier()
    with producer:
        expect(full[0])
        bulk_load(line, x[cta, :], signal=full[0])
    with reader:
        wait(full[0])
        store(y[cta, :], load(line, vec(2).cols[62]))
'''

ACCEPTED = '''
@kernel(target="sm_90a")
def fetch(x: In[f32, M, 64], y: Out[f32, M, 64]):
    launch(ctas=M)
    producer = role(thread)
    reader = role(warp)
    line = smem(f32, 64)
    full = mbarrier()
    with producer:
        expect(full[0])
        bulk_load(line, x[cta, :], signal=full[0])
    with reader:
        wait(full[0])
        store(y[cta, :], load(line, vec(2).cols[64]))
'''
