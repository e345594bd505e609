"""References of the mixture of experts: grouped product with SwiGLU and requantisation, and grouped product with reduction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tests.reference import BF16, E4M3, Arrays, Problem, f64, narrow_error, normal, outside, sigmoid

BLOCK = 128
TOP = 448.0
"""Largest number of e4m3."""


@dataclass(frozen=True)
class Routing:
    """Rows sorted by expert: expert e owns rows offsets[e] .. offsets[e + 1]; token[r] is the row of the output or -1."""

    offsets: np.ndarray
    token: np.ndarray
    weight: np.ndarray


def routing(counts: tuple[int, ...], tokens: int) -> Routing:
    """Random tokens and weights; one row is dropped (-1)."""
    rng = np.random.default_rng([9, *counts])
    rows = sum(counts)
    token = rng.integers(0, tokens, rows).astype(np.int32)
    token[rows // 2] = -1
    offsets = np.cumsum([0, *counts]).astype(np.int32)
    return Routing(offsets, token, rng.uniform(0.1, 1.0, rows).astype(np.float32))


def _scaled(a: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Activations [rows, k] times scales [k / 128, rows]."""
    return f64(a) * np.repeat(f64(scale).T, BLOCK, axis=1)


def _blocks(w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Weights [e, n, k] times scales [e, n / 128, k / 128]."""
    return f64(w) * np.repeat(np.repeat(f64(scale), BLOCK, axis=1), BLOCK, axis=2)


def up(route: Routing, k: int, hidden: int) -> Problem:
    """h * sh = silu(gate) * up, requantised per row and 128 columns with scale max / 448."""
    rng = np.random.default_rng([10, k, hidden])
    rows, experts = int(route.offsets[-1]), len(route.offsets) - 1
    x, w = normal(rng, rows, k, dtype=E4M3), normal(rng, experts, 2 * hidden, k, dtype=E4M3, scale=0.5)
    sx = rng.uniform(0.5, 1.0, (k // BLOCK, rows)).astype(np.float32)
    sw = rng.uniform(0.05, 0.1, (experts, 2 * hidden // BLOCK, k // BLOCK)).astype(np.float32)
    a, b = _scaled(x, sx), _blocks(w, sw)
    y, loss = np.zeros((rows, hidden)), np.zeros((rows, hidden))
    for e in range(experts):
        mine = slice(route.offsets[e], route.offsets[e + 1])
        both = a[mine] @ b[e].T
        size = (np.abs(a[mine]) @ np.abs(b[e]).T) * narrow_error(BLOCK)
        gate, value = both[:, :hidden], both[:, hidden:]
        y[mine] = gate * sigmoid(gate) * value
        # |silu'| < 1.1
        loss[mine] = 1.1 * size[:, :hidden] * np.abs(value) + np.abs(gate) * size[:, hidden:]
    peak = np.abs(y).reshape(rows, hidden // BLOCK, BLOCK).max(-1).T
    unit = np.maximum(peak / TOP, 1e-10)
    wide = np.repeat(unit.T, BLOCK, axis=1)
    # e4m3 rounds to 2^-4 of the value, and to 2^-10 of the unit below 2^-6
    bound = np.maximum(np.abs(y) * 2.0**-4, wide * 2.0**-10) * 1.01 + loss + 1e-5 * np.abs(y)
    spread = loss.reshape(rows, hidden // BLOCK, BLOCK).max(-1).T / TOP + 1e-4 * unit

    def judge(out: Mapping[str, np.ndarray]) -> list[str]:
        bad = outside("sh", out["sh"], unit, spread)
        return bad or outside("h * sh", _scaled(out["h"], out["sh"]), y, bound)

    sh = unit.astype(np.float32)
    right: Arrays = {"sh": sh, "h": (y / np.repeat(f64(sh).T, BLOCK, axis=1)).clip(-TOP, TOP).astype(E4M3)}
    return Problem({"x": x, "sx": sx, "w": w, "sw": sw, "offsets": route.offsets}, judge, right)


def down(route: Routing, h: np.ndarray, sh: np.ndarray, k: int, tokens: int) -> Problem:
    """out[token[r]] += weight[r] * (h[r] * sh[r]) w[e]^T, added in bf16 in any order onto zeros."""
    rng = np.random.default_rng([11, k, tokens])
    hidden = h.shape[1]
    experts = len(route.offsets) - 1
    w = normal(rng, experts, k, hidden, dtype=E4M3, scale=0.5)
    sw = rng.uniform(0.05, 0.1, (experts, k // BLOCK, hidden // BLOCK)).astype(np.float32)
    a, b = _scaled(h, sh), _blocks(w, sw)
    want, size, terms, loss = (np.zeros((tokens, k)) for _ in range(4))
    for e in range(experts):
        for r in range(route.offsets[e], route.offsets[e + 1]):
            t = route.token[r]
            if t >= 0:
                part = float(route.weight[r]) * (b[e] @ a[r])
                want[t] += part
                size[t] += np.abs(part)
                terms[t] += 1
                loss[t] += float(route.weight[r]) * (np.abs(b[e]) @ np.abs(a[r])) * narrow_error(BLOCK)
    # every term is rounded once, and every sum once; a partial sum is at most `size`
    bound = (terms + 1) * 2.0**-8 * size + loss
    tensors = {
        "h": h,
        "sh": sh,
        "w": w,
        "sw": sw,
        "offsets": route.offsets,
        "token": route.token,
        "weight": route.weight,
    }
    return Problem(
        tensors | {"out": np.zeros((tokens, k), BF16)},
        lambda out: outside("out", out["out"], want, bound),
        {"out": want.astype(BF16)},
    )


def whole(route: Routing, k: int, hidden: int, tokens: int) -> Problem:
    """Both products: out[token[r]] += weight[r] * (silu(gate) * up)[r] w2[e]^T. The hidden rows lose 2^-4 to e4m3."""
    first = up(route, k, hidden)
    second = down(route, first.right["h"], first.right["sh"], k, tokens)
    t1, t2 = first.tensors, second.tensors
    tensors = {
        "x": t1["x"], "sx": t1["sx"], "w1": t1["w"], "s1": t1["sw"], "w2": t2["w"], "s2": t2["sw"], "offsets": route.offsets,
        "token": route.token, "weight": route.weight, "out": t2["out"],
    }  # fmt: skip
    a, b = _scaled(t1["x"], t1["sx"]), _blocks(t1["w"], t1["sw"])
    c = _blocks(t2["w"], t2["sw"])
    want, size = np.zeros((tokens, k)), np.zeros((tokens, k))
    for e in range(len(route.offsets) - 1):
        for r in range(route.offsets[e], route.offsets[e + 1]):
            t = route.token[r]
            if t < 0:
                continue
            both = b[e] @ a[r]
            y = both[:hidden] * sigmoid(both[:hidden]) * both[hidden:]
            want[t] += float(route.weight[r]) * (c[e] @ y)
            size[t] += float(route.weight[r]) * (np.abs(c[e]) @ np.maximum(np.abs(y), np.abs(y).max() * 2.0**-6))
    bound = (2.0**-4 + 2.0**-6) * size
    return Problem(tensors, lambda out: outside("out", out["out"], want, bound), {"out": want.astype(BF16)})
