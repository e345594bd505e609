"""Softmax over rows, fully masked rows included."""

from __future__ import annotations

import math

import numpy as np

from corpus.arrays import Array, Math
from corpus.contract import Contract, Expected, Gen, Shape, TensorSpec, gamma
from corpus.distributions import BATTERY


def oracle(m: Math, t: dict[str, Array], s: dict[str, float]) -> dict[str, Expected]:
    """exp(x - max) / sum; a row of -inf everywhere gives zeros."""
    x = m.f64(t["x"])
    top = m.max(x, keepdims=True)
    masked = m.isinf(top)
    base = m.where(masked, 0.0, top)
    e = m.exp(x - base)
    total = m.sum(e, keepdims=True)
    y = e / m.where(total > 0.0, total, 1.0)
    # x log2(e) is rounded before the difference: an absolute error of the exponent, a relative one of the result
    exponent = (m.abs(m.where(m.isinf(x), 0.0, x)) + m.abs(base)) * 2.0**-23 + 2.0**-20
    return {"y": Expected(y, extra=y * (m.exp(2.0 * exponent) - 1.0 + gamma(x.shape[-1])))}


def generate(g: Gen) -> dict[str, np.ndarray]:
    """The battery, plus rows with some (`masked_some`) or all (`masked_rows`) entries -inf."""
    if g.distribution not in ("masked_some", "masked_rows"):
        return {"x": g.draw("x")}
    x = g.draw("x", "normal")
    r = g.rng("mask")
    if g.distribution == "masked_some":
        x[r.random(x.shape) < 0.5] = -math.inf
    else:
        # the last row always, so that the smallest shape has one too
        x[r.random(len(x)) < 0.5] = -math.inf
        x[-1:] = -math.inf
    return {"x": x}


def flops(shape: Shape) -> float:
    """Difference, exponential, sum, product."""
    return 4.0 * shape["M"] * shape["N"]


def _s(m: int, n: int) -> Shape:
    return {"M": m, "N": n}


CONTRACT = Contract(
    name="softmax",
    summary="y = softmax(x) over N in f32: x[M, N], y[M, N]. A row that is -inf everywhere gives zeros.",
    dims={"M": "rows", "N": "row length"},
    tensors=(
        TensorSpec("x", "in", "f32", ("M", "N"), "finite values up to 2**14 in magnitude, or -inf (masked)"),
        TensorSpec("y", "out", "f32", ("M", "N"), "rows that sum to 1, or are zero when fully masked"),
    ),
    oracle=oracle,
    generate=generate,
    flops=flops,
    flop_unit="f32",
    limit=2.0**14,
    nonfinite={"-inf": "ignored"},
    distributions=(*BATTERY, "masked_some", "masked_rows"),
    precision="f32 throughout; exp may be computed as exp2(x log2 e - max log2 e), whose rounding costs a relative "
    "error of 2 (|x| + |max|) 2**-23 in the result. Masked entries (-inf) give 0; a fully masked row gives zeros, not "
    "NaN.",
    shapes={
        "tuning": (_s(16384, 4096), _s(4096, 16384), _s(1024, 131072), _s(65536, 1024)),
        "heldout": (_s(8192, 2048), _s(1000, 1000), _s(333, 50000), _s(16383, 4100)),
        "boundary": (_s(1, 4), _s(3, 1020), _s(2, 1024), _s(2, 1028), _s(1, 8196), _s(8, 8)),
    },
    baselines=("torch_softmax",),
)  # fmt: skip
