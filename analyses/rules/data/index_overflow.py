"""**Checks.** Every index expression fits 32 bits, for every shape that `where` admits. Extents, tile counts and loop bounds that the
extents alone decide are evaluated before each launch, which is refused; what the kernel computes from `cta`, loop variables and
loaded indices is proved from there, or refuted with a shape whose tensors fit into 1 TiB.

**Why.** Index expressions are computed in `int`. Past 2^31 - 1 they become negative and address memory of someone else. Offsets of
elements are formed in 64 bits and do not overflow.

**Repair.** A fact in `where` bounds the product, `where(M * N < 2147483648)`, or the tensor gets its real rank: `x[row, col]` instead
of `x[row * N + col]`.

**Limits.** Counters (`n += 1`) and sums of loaded numbers are not followed. What is neither proved nor refuted is named in the
property *index arithmetic*.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="data/index-overflow",
    severity="error",
    layer="data",
    title="An index expression leaves 32 bits",
    source="Cake language reference, 'Values': an index is exact in 32 bits; CUDA C++: `int` arithmetic",
    line=7,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[bf16, M, 256], y: Out[bf16, M, 256]):
    launch(ctas=ceil_div(M, 8))
    team = role(warp, count=8)
    with team as w:
        row = 8 * cta + w
        at = row * 256
        if at < 256 * M:
            store(y[at // 256, :], load(x[at // 256, :], vec(8).cols[256]))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[bf16, M, 256], y: Out[bf16, M, 256]):
    where(256 * M < 2147483648)
    launch(ctas=ceil_div(M, 8))
    team = role(warp, count=8)
    with team as w:
        row = 8 * cta + w
        at = row * 256
        if at < 256 * M:
            store(y[at // 256, :], load(x[at // 256, :], vec(8).cols[256]))
"""
