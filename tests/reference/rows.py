"""References of the row kernels: RMSNorm and softmax."""

from __future__ import annotations

import numpy as np

from tests.reference import BF16, ULP_BF16, Problem, f64, normal, outside


def rmsnorm(rows: int, width: int, eps: float = 1e-5, dtype: type = BF16) -> Problem:
    """y = x / sqrt(mean(x^2) + eps) * gain; bf16 or f16 with f32 inside."""
    rng = np.random.default_rng([5, rows, width])
    x, gain = normal(rng, rows, width, dtype=dtype), normal(rng, width, dtype=dtype)
    want = f64(x) / np.sqrt((f64(x) ** 2).mean(-1, keepdims=True) + eps) * f64(gain)
    step = ULP_BF16 if dtype is BF16 else 2.0**-11
    bound = (step + 2.0**-19) * np.abs(want) + 2.0**-24  # the last term: subnormal f16 results
    return Problem(
        {"x": x, "gain": gain}, lambda out: outside("y", out["y"], want, bound), {"y": want.astype(dtype)}, {"eps": eps}
    )


def softmax(rows: int, width: int) -> Problem:
    """y = e^x / sum e^x per row, f32; masked columns (-inf) give zero."""
    rng = np.random.default_rng([6, rows, width])
    x = normal(rng, rows, width, dtype=np.float32, scale=4.0)
    x[:, 3::7] = -np.inf
    e = np.exp(f64(x) - f64(x).max(-1, keepdims=True))
    want = e / e.sum(-1, keepdims=True)
    # exp2 of a difference up to 40 bits in f32: the argument's rounding is an error of the result
    bound = want * 2.0**-16 + 1e-30
    return Problem({"x": x}, lambda out: outside("y", out["y"], want, bound), {"y": want.astype(np.float32)})
