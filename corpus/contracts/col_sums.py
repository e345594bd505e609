"""Column sums added to what is there: the gradient of a bias, gathered over micro-batches."""

from __future__ import annotations

from corpus.arrays import Array, Math
from corpus.contract import Contract, Expected, Shape, TensorSpec


def oracle(m: Math, t: dict[str, Array], s: dict[str, float]) -> dict[str, Expected]:
    """y + sum of x over M: M + 1 terms of either sign, so the magnitude is the sum of what they are without it."""
    x, y = m.f64(t["x"]), m.f64(t["y"])
    magnitude = m.abs(y) + m.sum(m.abs(x), axis=0)
    return {"y": Expected(y + m.sum(x, axis=0), magnitude, length=x.shape[0] + 1)}


def flops(shape: Shape) -> float:
    """A sum per element."""
    return float(shape["M"] * shape["N"])


def _s(m: int, n: int) -> Shape:
    return {"M": m, "N": n}


CONTRACT = Contract(
    name="col_sums",
    summary="y[n] += sum of x[:, n] in f32: x[M, N] in bf16 or f16, y[N]; the bias gradient of a linear layer.",
    dims={"M": "rows", "N": "columns"},
    dtypes={"DT": ("bf16", "f16")},
    tensors=(
        TensorSpec("x", "in", "DT", ("M", "N"), "rows"),
        TensorSpec("y", "inout", "f32", ("N",), "what the sums of the columns are added to"),
    ),
    oracle=oracle,
    flops=flops,
    flop_unit="f32",
    limit=2.0**50,
    precision="Sums are f32, in any order. Inputs are finite and at most 2**50 in magnitude, so that sums stay finite.",
    shapes={
        "tuning": (_s(8192, 4096), _s(16384, 1024), _s(65536, 512), _s(4096, 16384), _s(32768, 128)),
        "heldout": (_s(16384, 4096), _s(2048, 8192), _s(100003, 256), _s(1000, 1000)),
        "boundary": (_s(1, 8), _s(3, 264), _s(33, 64), _s(65, 328), _s(100, 40)),
    },
    baselines=("torch_col_sums",),
)  # fmt: skip
