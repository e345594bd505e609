"""Float64 references of the sketches, written from the mathematics and sharing no code with the analyses.

A `Problem` holds the inputs of one launch and a judge: a function that gets the outputs and says in words what is wrong
with them. Bounds are absolute, per element, from the formats' rounding and the length of the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
ULP_BF16 = 2.0**-8
"""Largest relative error of one rounding to bf16 (8 bits of significand)."""

Arrays = dict[str, np.ndarray]
Judge = Callable[[Mapping[str, np.ndarray]], list[str]]


@dataclass(frozen=True)
class Problem:
    """One launch. tensors: inputs by name, never changed. right: outputs that the judge must accept, in the outputs'
    dtypes; tests perturb them to see that the judge can say no."""

    tensors: Arrays
    judge: Judge
    right: Arrays
    scalars: dict[str, Any] = field(default_factory=dict)


def f64(a: np.ndarray) -> np.ndarray:
    """The same numbers in float64."""
    return a.astype(np.float64)


def sum_error(length: int) -> float:
    """Relative error of an f32 sum of `length` terms in any order, in units of the sum of magnitudes; tensor cores may
    truncate, so one term costs a whole unit in the last place."""
    return (length + 4) * 2.0**-23


def narrow_error(length: int) -> float:
    """The same for products of 8-bit floats. Tensor cores add them aligned to the largest term with some 13 bits behind it (an
    H200 was off by 2^-14 of the sum of magnitudes)."""
    return 2.0**-13 + sum_error(length)


def outside(name: str, got: np.ndarray, want: np.ndarray, bound: np.ndarray | float) -> list[str]:
    """Empty if |got - want| <= bound everywhere; otherwise one sentence about the number and the worst element."""
    if got.shape != want.shape:
        return [f"{name} has shape {got.shape}, not {want.shape}"]
    error = np.abs(f64(got) - want)
    bad = ~(error <= bound)  # a NaN is bad
    if not bad.any():
        return []
    excess = np.where(bad, np.nan_to_num(error / np.maximum(bound, 1e-300), nan=np.inf), 0)
    at = np.unravel_index(int(excess.argmax()), error.shape)
    limit = float(np.broadcast_to(bound, error.shape)[at])
    where = [int(i) for i in at]
    return [
        f"{name}: {int(bad.sum())} of {bad.size} wrong; worst at {where}: {got[at]} for {want[at]:.6g} +- {limit:.3g}"
    ]


def normal(rng: np.random.Generator, *shape: int, dtype: Any = BF16, scale: float = 1.0) -> np.ndarray:
    """Normal numbers of a dtype."""
    return (rng.standard_normal(shape) * scale).astype(dtype)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x)."""
    return 1.0 / (1.0 + np.exp(-x))
