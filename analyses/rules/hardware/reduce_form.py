"""**Checks.** `bulk_reduce` and `tma_reduce` add f32, f16, bf16, i32 and u32, and take the minimum or maximum of f16, bf16, i32
and u32.

**Why.** The assembler refuses the other types of a bulk reduction; of a tensor reduction it does not see the type, which stands in
the tensor map, and what reaches memory is undefined.

**Limits.** 64-bit integers exist in the hardware and are not offered.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="hardware/reduce-form",
    severity="error",
    layer="binding",
    title="A reducing copy of a type it does not have",
    source="PTX ISA, 'cp.reduce.async.bulk' and 'cp.reduce.async.bulk.tensor': types of each operation",
    line=11,
)

REJECTED = """
@kernel(target="sm_90a")
def least(x: In[f32, M, 64], y: InOut[f32, 1, 64]):
    launch(ctas=M)
    team = role(thread)
    row = smem(f32, 1, 64)
    full = mbarrier()
    with team:
        expect(full[0])
        tma_load(row, x[cta:, :], signal=full[0])
        wait(full[0])
        tma_reduce(y[0:, :], row, op=min)
        bulk_commit()
        bulk_wait(0)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def least(x: In[i32, M, 64], y: InOut[i32, 1, 64]):
    launch(ctas=M)
    team = role(thread)
    row = smem(i32, 1, 64)
    full = mbarrier()
    with team:
        expect(full[0])
        tma_load(row, x[cta:, :], signal=full[0])
        wait(full[0])
        tma_reduce(y[0:, :], row, op=min)
        bulk_commit()
        bulk_wait(0)
"""
