"""d = a @ b.T in bf16 with f32 accumulation."""

from __future__ import annotations

from corpus.arrays import Array, Math
from corpus.contract import Contract, Expected, Shape, TensorSpec
from corpus.distributions import BATTERY


def oracle(m: Math, t: dict[str, Array], s: dict[str, float]) -> dict[str, Expected]:
    """Exact products of the bf16 inputs; magnitude is sum |a||b|."""
    a, b = m.f64(t["a"]), m.f64(t["b"])
    return {"d": Expected(m.matmul(a, m.t(b)), m.matmul(m.abs(a), m.t(m.abs(b))), length=a.shape[-1])}


def flops(shape: Shape) -> float:
    """Multiply and add per product term."""
    return 2.0 * shape["M"] * shape["N"] * shape["K"]


def _s(m: int, n: int, k: int) -> Shape:
    return {"M": m, "N": n, "K": k}


CONTRACT = Contract(
    name="gemm_bf16",
    summary="d = a @ b.T: a[M, K] and b[N, K] bf16, d[M, N] bf16, accumulated in f32.",
    dims={"M": "rows of a and d", "N": "rows of b, columns of d", "K": "reduction length"},
    tensors=(
        TensorSpec("a", "in", "bf16", ("M", "K"), "left operand, K contiguous"),
        TensorSpec("b", "in", "bf16", ("N", "K"), "right operand, transposed, K contiguous"),
        TensorSpec("d", "out", "bf16", ("M", "N"), "product"),
    ),
    oracle=oracle,
    flops=flops,
    distributions=(*BATTERY, "nan_some", "inf_some"),
    nonfinite={"nan": "propagates", "inf": "propagates", "-inf": "propagates"},
    precision="bf16 products are exact in f32 and are accumulated in f32; one rounding to bf16 at the end. Splitting K "
    "is allowed, accumulating in bf16 or f16 is not.",
    shapes={
        "tuning": (_s(4096, 4096, 4096), _s(8192, 4096, 14336), _s(8192, 8192, 8192), _s(2048, 2048, 2048)),
        "heldout": (_s(4096, 14336, 4096), _s(3000, 4096, 5120), _s(1000, 1032, 1048), _s(127, 8192, 8192),
                    _s(16384, 1280, 8192)),
        "boundary": (_s(1, 8, 8), _s(127, 128, 64), _s(128, 120, 72), _s(129, 136, 8), _s(1, 264, 200),
                     _s(130, 72, 648), _s(257, 520, 72), _s(64, 64, 64)),
    },
    baselines=("torch_matmul",),
    flop_unit="bf16",
)  # fmt: skip
