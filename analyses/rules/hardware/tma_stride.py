"""**Checks.** Strides of tensors that TMA, bulk copies or cp.async move, in bytes, are multiples of 16 when the text or
`where` makes them static; those in tensor maps are less than 2^40.
Symbolic strides become a launch guard, unless `where(K % 8 == 0)` proves them.

**Why.** The map cannot be encoded, or (for copies without a map) the access faults as misaligned.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.bound import SConst
from cake_ir.derive.maps import TMA_OPS, stride
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="hardware/tma-stride",
    severity="error",
    layer="resources",
    title="A tensor map would have a stride that is not a multiple of 16 bytes",
    source="CUDA Driver API, 'Tensor Map Object Management': globalStrides",
    line=13,
)

REJECTED = """
@kernel(target="sm_90a")
def stream(x: In[bf16, M, 60], y: Out[f32, M, 64]):
    launch(ctas=1)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 16, 64, stages=2)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    for n in range(ceil_div(M, 16)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(tile[n], x[16 * n:, :], signal=full[n])
        with reader:
            wait(full[n])
            v = load(tile[n], vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * n:, :], cast(v, f32))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def stream(x: In[bf16, M, 56], y: Out[f32, M, 64]):
    launch(ctas=1)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 16, 64, stages=2)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    for n in range(ceil_div(M, 16)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(tile[n], x[16 * n:, :], signal=full[n])
        with reader:
            wait(full[n])
            v = load(tile[n], vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * n:, :], cast(v, f32))
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    for g in ctx.derived.guards:
        if g.kind != "stride" or not isinstance(g.value, SConst):
            continue
        size = int(g.value.value) * g.tensor.dtype.bits // 8
        if size % g.modulus:
            step = g.modulus * 8 // g.tensor.dtype.bits
            yield ctx.finding(
                RULE.id,
                "error",
                f"dimension {g.dim} of '{g.tensor.name}' has a stride of {size} B; {g.reason},"
                f" so it must be a multiple of {g.modulus} B ({step} elements of {g.tensor.dtype})",
                g.span,
                contract="Global strides (all dimensions but the last) are multiples of the access width.",
                related=((g.tensor.span, f"'{g.tensor.name}' is declared here"),),
                resource=g.tensor.name,
            )
    yield from _too_far(ctx)


def _too_far(ctx: Context) -> Iterator[Diagnostic]:
    """Strides that do not fit into a tensor map; where only the shape decides, encoding the map refuses them."""
    seen: set[tuple[str, int]] = set()
    for op in ctx.named(*TMA_OPS):
        tensor = op.operands["region"].tensor
        most = ctx.bound.target.value("tma_stride_max")
        for dim in range(len(tensor.extents) - 1):
            value = stride(tensor, dim)
            if not isinstance(value, SConst) or (tensor.name, dim) in seen:
                continue
            size = int(value.value) * tensor.dtype.bits // 8
            if size > most:
                seen.add((tensor.name, dim))
                yield ctx.finding(
                    RULE.id,
                    "error",
                    f"dimension {dim} of '{tensor.name}' has a stride of {size} B; a tensor map takes at most {most} B",
                    op.span,
                    contract="Driver API, tensor map: strides are less than 2^40 bytes.",
                    related=((tensor.span, f"'{tensor.name}' is declared here"),),
                    resource=tensor.name,
                    op=op.name,
                )
