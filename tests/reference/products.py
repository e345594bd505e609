"""References of the matrix products: gemm and the split-K product with a bias."""

from __future__ import annotations

import numpy as np

from tests.reference import BF16, ULP_BF16, Problem, f64, normal, outside, sum_error


def gemm(m: int, n: int, k: int) -> Problem:
    """d[m, n] = a[m, k] b[n, k]^T, bf16 in and out, f32 sums."""
    rng = np.random.default_rng([1, m, n, k])
    a, b = normal(rng, m, k), normal(rng, n, k)
    want = f64(a) @ f64(b).T
    bound = ULP_BF16 * np.abs(want) + sum_error(k) * (np.abs(f64(a)) @ np.abs(f64(b)).T)
    return Problem({"a": a, "b": b}, lambda out: outside("d", out["d"], want, bound), {"d": want.astype(BF16)})


def tinygemm(m: int, n: int, k: int) -> Problem:
    """out[m, n] = x[m, k] w[n, k]^T + bias[n]."""
    rng = np.random.default_rng([2, m, n, k])
    x, w, bias = normal(rng, m, k), normal(rng, n, k), normal(rng, n, scale=8.0)
    want = f64(x) @ f64(w).T + f64(bias)
    bound = ULP_BF16 * np.abs(want) + sum_error(k + 1) * (np.abs(f64(x)) @ np.abs(f64(w)).T + np.abs(f64(bias)))
    return Problem(
        {"x": x, "w": w, "bias": bias}, lambda out: outside("out", out["out"], want, bound), {"out": want.astype(BF16)}
    )
