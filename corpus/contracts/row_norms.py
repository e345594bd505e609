"""Squared norms of rows: what k-means and nearest neighbours add to a product to get distances."""

from __future__ import annotations

from corpus.arrays import Array, Math
from corpus.contract import Contract, Expected, Shape, TensorSpec


def oracle(m: Math, t: dict[str, Array], s: dict[str, float]) -> dict[str, Expected]:
    """y = sum of x^2 over D: terms of one sign, so that the sum is its own magnitude."""
    x = m.f64(t["x"])
    y = m.sum(x * x, axis=-1)
    return {"y": Expected(y, length=x.shape[-1])}


def flops(shape: Shape) -> float:
    """A product and a sum per element."""
    return 2.0 * shape["M"] * shape["D"]


def _s(m: int, d: int) -> Shape:
    return {"M": m, "D": d}


CONTRACT = Contract(
    name="row_norms",
    summary="y[m] = sum of x[m, :]^2 in f32: x[M, D] in bf16 or f16.",
    dims={"M": "rows", "D": "features"},
    dtypes={"DT": ("bf16", "f16")},
    tensors=(
        TensorSpec("x", "in", "DT", ("M", "D"), "rows"),
        TensorSpec("y", "out", "f32", ("M",), "squared norms"),
    ),
    oracle=oracle,
    flops=flops,
    flop_unit="f32",
    limit=2.0**50,
    precision="Products are exact in f32, sums are f32. Inputs are finite and at most 2**50 in magnitude, so that the sum stays finite.",
    shapes={
        "tuning": (_s(1024, 128), _s(8192, 128), _s(8192, 480), _s(65536, 128)),
        "heldout": (_s(4096, 256), _s(1000, 120), _s(100003, 64)),
        "boundary": (_s(1, 8), _s(7, 256), _s(9, 264), _s(5, 1000), _s(33, 16)),
    },
    baselines=(),
)  # fmt: skip
