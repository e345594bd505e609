"""**Checks.** `ldmatrix` and `stmatrix` on an unswizzled tile: the eight 16-byte rows of a matrix lie in different
banks. With a row pitch that is a multiple of 128 bytes they all start in the same one.

**Why.** Each access takes up to eight passes instead of one. A swizzle or `pad=` of 16 bytes removes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="performance/bank-conflict",
    severity="advice",
    layer="performance",
    title="Matrix rows of a tile start in the same banks",
    source="CUDA C++ Programming Guide, 'Shared Memory': 32 banks of 4 bytes; PTX ISA, 'ldmatrix'",
    line=10,
)

REJECTED = """
@kernel(target="sm_80")
def load_matrix(x: In[bf16, 16, 64], d: Out[f32, 16, 8], b: In[bf16, 8, 16]):
    launch(ctas=1)
    math = role(warp)
    tile = smem(bf16, 16, 64)
    with math:
        store(tile, load(x[:, :], vec(8, 8)[16, 64]))
        sync(warp)
        acc = fragment(f32, mma_d[16, 8], 0)
        mma(acc, ldmatrix(tile.cols(0, 16), mma_a[16, 16]), load(b[:, :], mma_b[8, 16]))
        store(d[:, :], acc)
"""

ACCEPTED = """
@kernel(target="sm_80")
def load_matrix(x: In[bf16, 16, 64], d: Out[f32, 16, 8], b: In[bf16, 8, 16]):
    launch(ctas=1)
    math = role(warp)
    tile = smem(bf16, 16, 64, pad=8)
    with math:
        store(tile, load(x[:, :], vec(8, 8)[16, 64]))
        sync(warp)
        acc = fragment(f32, mma_d[16, 8], 0)
        mma(acc, ldmatrix(tile.cols(0, 16), mma_a[16, 16]), load(b[:, :], mma_b[8, 16]))
        store(d[:, :], acc)
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    for op in ctx.named("ldmatrix", "stmatrix"):
        b = op.operands["view"].buffer
        if b.swizzle == 0 and b.pitch % 32 == 0 and op.operands["view"].rows >= 8:
            ways = min(8, max(2, 8 * (b.pitch % 128 == 0) or 8 * 32 // max(32, b.pitch % 128)))
            yield ctx.finding(
                RULE.id,
                "advice",
                f"rows of '{b.name}' are {b.pitch} B apart, so the rows of a matrix share banks"
                f" ({ways} passes instead of one); use swizzle= or pad={16 // b.dtype.bytes}",
                op.span,
                related=((b.span, f"'{b.name}' is declared here"),),
                resource=b.name,
                op=op.name,
            )
