"""**Checks.** On sm_89 and sm_90a an 8-bit product does not accumulate in a loop without promotion: the accumulator
starts anew (`init=True`) at least every 128 elements of K and is added to an f32 fragment.

**Why.** The tensor core keeps fewer bits than f32 for 8-bit inputs; over a long K the error grows beyond what the
format alone costs.

**Limits.** A contract with a wide tolerance may not need it; that is why it is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.bound import For, Op, SConst, View, While, walk
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="numeric/fp8-promotion",
    severity="warning",
    layer="performance",
    title="fp8 products are accumulated in the tensor core over a long K",
    source="DeepGEMM issues 37 and 50; NVIDIA/cutlass pull request 3149 (fp8 accumulation has fewer mantissa bits)",
    line=22,
)

REJECTED = """
@kernel(target="sm_90a")
def product(a: In[e4m3, M, K], b: In[e4m3, 64, K], d: Out[f32, M, 64]):
    where(K > 0, K % 16 == 0)
    launch(ctas=ceil_div(M, 64))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(e4m3, 64, 128, stages=2, swizzle=128)
    b_s = smem(e4m3, 64, 128, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
        total = fragment(f32, wgmma_d[64, 64], 0)
    for n in range(ceil_div(K, 128)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], a[64 * cta:, 128 * n:], signal=full[n])
            tma_load(b_s[n], b[:, 128 * n:], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n], b_s[n], init=n == 0)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
            total = total + acc
    with math:
        store(d[64 * cta:, :], total)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def product(a: In[e4m3, M, K], b: In[e4m3, 64, K], d: Out[f32, M, 64]):
    where(K > 0, K % 16 == 0)
    launch(ctas=ceil_div(M, 64))
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(e4m3, 64, 128, stages=2, swizzle=128)
    b_s = smem(e4m3, 64, 128, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with math:
        acc = fragment(f32, wgmma_d[64, 64])
        total = fragment(f32, wgmma_d[64, 64], 0)
    for n in range(ceil_div(K, 128)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], a[64 * cta:, 128 * n:], signal=full[n])
            tma_load(b_s[n], b[:, 128 * n:], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n], b_s[n], init=True)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
            total = total + acc
    with math:
        store(d[64 * cta:, :], total)
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    if ctx.bound.target.name not in ("sm_89", "sm_90a"):
        return
    inside = {
        s for loop in ctx.statements if isinstance(loop, (For, While)) for s in walk(loop.body) if isinstance(s, Op)
    }
    for op in ctx.named("wgmma", "mma"):
        a = op.operands["a"]
        dtype = a.buffer.dtype if isinstance(a, View) else a.type.dtype
        init = op.operands.get("init")
        anew = isinstance(init, SConst) and bool(init.value)
        k = op.operands["b"].shape[1] if isinstance(op.operands["b"], View) else op.operands["b"].type.cols
        if dtype.name in ("e4m3", "e5m2") and ((op in inside and not anew) or k > 128):
            yield ctx.finding(
                RULE.id,
                "warning",
                f"{dtype} products accumulate in the tensor core over more than 128 elements of K;"
                " add each 128 to an f32 fragment",
                op.span,
                role=op.role,
                op=op.name,
            )
