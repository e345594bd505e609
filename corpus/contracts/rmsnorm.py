"""Root-mean-square normalisation of rows."""

from __future__ import annotations

from corpus.arrays import Array, Math
from corpus.contract import Contract, Expected, ScalarSpec, Shape, TensorSpec, gamma


def oracle(m: Math, t: dict[str, Array], s: dict[str, float]) -> dict[str, Expected]:
    """y = x / sqrt(mean(x^2) + eps) * gain."""
    x, gain = m.f64(t["x"]), m.f64(t["gain"])
    scale = 1.0 / m.sqrt(m.mean(x * x, keepdims=True) + s["eps"])
    y = x * scale * gain[None, :]
    # x^2 sums over D terms of one sign, then one rsqrt and two products: all relative to |y|
    return {"y": Expected(y, extra=m.abs(y) * (gamma(x.shape[-1]) + 2.0**-21))}


def flops(shape: Shape) -> float:
    """Square and add, then two products per element."""
    return 4.0 * shape["M"] * shape["D"]


def _s(m: int, d: int) -> Shape:
    return {"M": m, "D": d}


CONTRACT = Contract(
    name="rmsnorm",
    summary="y = x * rsqrt(mean(x^2 over D) + eps) * gain: x[M, D], gain[D], y[M, D] in bf16 or f16.",
    dims={"M": "rows", "D": "features"},
    dtypes={"DT": ("bf16", "f16")},
    tensors=(
        TensorSpec("x", "in", "DT", ("M", "D"), "rows"),
        TensorSpec("gain", "in", "DT", ("D",), "per-feature gain"),
        TensorSpec("y", "out", "DT", ("M", "D"), "normalised rows"),
    ),
    scalars=(ScalarSpec("eps", "f32", 2.0**-20, "added to the mean square"),),
    oracle=oracle,
    flops=flops,
    flop_unit="f32",
    limit=2.0**50,
    precision="All arithmetic in f32, one rounding to the output type. Inputs are finite and at most 2**50 in "
    "magnitude, so that the sum of squares stays finite in f32.",
    shapes={
        "tuning": (_s(16384, 4096), _s(16384, 2048), _s(4096, 4096), _s(65536, 1024)),
        "heldout": (_s(8192, 2048), _s(16383, 4096), _s(1000, 1000), _s(128, 4096), _s(100003, 512)),
        "boundary": (_s(1, 8), _s(3, 256), _s(5, 1000), _s(4, 2040), _s(2, 2048)),
    },
    baselines=("torch_rms_norm", "device_copy"),
)  # fmt: skip
