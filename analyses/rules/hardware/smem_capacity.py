"""**Checks.** The bytes of all tiles (each stage rounded up to its swizzle period), barriers and the slack that aligns
the base are at most the block limit of the target; with `ctas_per_sm=n` also n times that amount plus 1 KiB per
block fits into one SM.

**Why.** A launch that asks for more fails, and with `ctas_per_sm` the second block silently does not become
resident.

**Limits.** Tiles declared with `over=` share bytes; other lifetimes are not overlapped for you.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="hardware/smem-capacity",
    severity="error",
    layer="resources",
    title="Shared memory exceeds what the target has",
    source="CUDA C++ Programming Guide, 'Technical Specifications per Compute Capability'",
    line=8,
)

REJECTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, 64, K], d: Out[f32, M, 64]):
    where(K > 0, K % 8 == 0)
    launch(ctas=ceil_div(M, 64))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=30, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
    for n in range(ceil_div(K, 64)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], a[64 * cta:, 64 * n:], signal=full[n])
            tma_load(b_s[n], b[:, 64 * n:], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n], b_s[n], init=n == 0)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math:
        store(d[64 * cta:, :], acc)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, 64, K], d: Out[f32, M, 64]):
    where(K > 0, K % 8 == 0)
    launch(ctas=ceil_div(M, 64))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
    for n in range(ceil_div(K, 64)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], a[64 * cta:, 64 * n:], signal=full[n])
            tma_load(b_s[n], b[:, 64 * n:], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n], b_s[n], init=n == 0)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math:
        store(d[64 * cta:, :], acc)
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    d, target, launch = ctx.derived, ctx.bound.target, ctx.bound.launch
    tiles = [b for b in d.smem if b.over is None]
    if not tiles:
        return
    largest = max(tiles, key=lambda b: d.stage_stride[b] * b.stages)
    limit = target.value("smem_per_block")
    rest = tuple((b.span, f"{d.stage_stride[b] * b.stages} B") for b in tiles if b is not largest)
    contract = f"A block has {limit} B of shared memory on {target.name}; 1 KiB more per block is reserved in the SM."
    if d.smem_bytes > limit:
        yield ctx.finding(
            RULE.id,
            "error",
            f"the kernel needs {d.smem_bytes} B of shared memory, {d.smem_bytes - limit} B more than a block has;"
            f" '{largest.name}' is the largest tile ({largest.stages} x {d.stage_stride[largest]} B)",
            largest.span,
            contract=contract,
            related=rest,
            resource=largest.name,
        )
        return
    per_sm, reserved = target.value("smem_per_sm"), target.value("smem_reserved")
    need = launch.ctas_per_sm * (d.smem_bytes + reserved)
    if launch.ctas_per_sm > 1 and need > per_sm:
        yield ctx.finding(
            RULE.id,
            "error",
            f"ctas_per_sm={launch.ctas_per_sm} needs {need} B of shared memory per SM, the SM has {per_sm} B",
            launch.span,
            contract=contract,
            related=rest,
        )
