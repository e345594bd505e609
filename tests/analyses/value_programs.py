"""Programs, inputs and float64 references for the tests of the value reading. Not a test module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from analyses import ValueFault, interpret
from cake_ir import bind, parse
from cake_ir.bound import BoundKernel

ROOT = Path(__file__).parents[1]
SKETCHES = ROOT / "data" / "sketches"
KERNELS = ROOT.parent / "corpus" / "kernels"
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def bind_text(
    text: str, bindings: dict[str, Any] | None = None, kernel: str | None = None, target: str | None = None
) -> BoundKernel:
    """A bound kernel of a text; a finding fails the test."""
    parsed = parse(text)
    assert parsed.file is not None, [d.render() for d in parsed.diagnostics]
    result = bind(parsed.file, bindings or {}, target, kernel)
    assert result.bound is not None, [d.render() for d in result.diagnostics]
    return result.bound


def edited(path: Path, edits: Sequence[tuple[str, str]] = ()) -> str:
    """A file's text with exact replacements (each must occur)."""
    text = path.read_text()
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def f64(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


@dataclass
class Program:
    """A kernel with inputs and expected outputs. tolerance: |got - want| <= tolerance * (1 + |want|)."""

    path: Path
    tensors: dict[str, np.ndarray]
    want: dict[str, np.ndarray]
    scalars: dict[str, Any] = field(default_factory=dict)
    bindings: dict[str, Any] = field(default_factory=dict)
    kernel: str | None = None
    target: str | None = None
    tolerance: float = 8e-3

    def bound(self, edits: Sequence[tuple[str, str]] = ()) -> BoundKernel:
        return bind_text(edited(self.path, edits), self.bindings, self.kernel, self.target)

    def wrong(self, out: dict[str, np.ndarray]) -> int:
        """Number of elements outside the tolerance."""
        n = 0
        for name, want in self.want.items():
            n += int((~(np.abs(f64(out[name]) - want) <= self.tolerance * (1 + np.abs(want)))).sum())
        return n

    def outcome(self, bound: BoundKernel, schedule: str) -> str:
        """ "right", "wrong", or the kind of the fault."""
        try:
            out = interpret(bound, self.tensors, self.scalars, schedule=schedule)
        except ValueFault as fault:
            return fault.kind
        return "wrong" if self.wrong(out) else "right"


class Maker:
    """Random inputs in the kernels' formats."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)

    def bf16(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(BF16)

    def f32(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)


def gemm(path: Path, m: int, n: int, k: int, **bindings: Any) -> Program:
    make = Maker()
    a, b = make.bf16(m, k), make.bf16(n, k)
    return Program(path, {"a": a, "b": b}, {"d": f64(a) @ f64(b).T}, bindings=bindings)


def kmeans(path: Path, b: int, n: int, c: int, d: int, **bindings: Any) -> Program:
    make = Maker()
    x, centroids = make.bf16(b, n, d), make.bf16(b, c, d)
    sq = (f64(centroids) ** 2).sum(-1).astype(np.float32)
    score = f64(sq)[:, None, :] - 2 * np.einsum("bnd,bcd->bnc", f64(x), f64(centroids))
    tensors = {"x": x, "c": centroids, "c_sq": sq}
    return Program(path, tensors, {"label": score.argmin(-1).astype(np.float64)}, bindings=bindings, tolerance=0)


def rmsnorm(path: Path, m: int, d: int, **bindings: Any) -> Program:
    make = Maker()
    x, gain = make.bf16(m, d), make.bf16(d)
    y = f64(x) / np.sqrt((f64(x) ** 2).mean(-1, keepdims=True) + 1e-5) * f64(gain)
    return Program(path, {"x": x, "gain": gain}, {"y": y}, {"eps": 1e-5}, bindings, "rmsnorm", "sm_90a")


def softmax(path: Path, m: int, n: int, **bindings: Any) -> Program:
    x = Maker().f32(m, n) * 4
    e = np.exp(f64(x) - f64(x).max(-1, keepdims=True))
    return Program(
        path, {"x": x}, {"y": e / e.sum(-1, keepdims=True)}, {}, bindings, "softmax", "sm_90a", tolerance=1e-5
    )


def attention(causal: bool) -> Program:
    make = Maker()
    b, sq, h, hk, d, sk = 2, 150, 2, 1, 64, 230
    q, k, v = make.bf16(b, sq, h, d), make.bf16(b, sk, hk, d), make.bf16(b, sk, hk, d)
    length, scale = np.array([230, 77], np.int32), d**-0.5
    want = np.zeros((b, sq, h, d))
    for i in range(b):
        for j in range(h):
            n = length[i]
            s = f64(q)[i, :, j] @ f64(k)[i, :n, j * hk // h].T * scale
            if causal:
                s = np.where(np.arange(n)[None, :] <= np.arange(sq)[:, None] + n - sq, s, -np.inf)
            top = s.max(-1, keepdims=True)
            p = np.exp(s - np.where(np.isinf(top), 0, top))
            total = p.sum(-1, keepdims=True)
            want[i, :, j] = np.where(total == 0, 0, p / np.where(total == 0, 1, total)) @ f64(v)[i, :n, j * hk // h]
    return Program(
        SKETCHES / "06_attention_sm90.cake", {"q": q, "k": k, "v": v, "kv_len": length}, {"o": want}, {"scale": scale},
        {"D": 64, "BK": 64, "CAUSAL": causal}, tolerance=2e-2,
    )  # fmt: skip


def kda(kernel: str) -> Program:
    make = Maker(1)
    h, d, lens = 2, 128, [0, 37, 16]
    cu = np.cumsum([0, *lens]).astype(np.int32)
    t, seqs = int(cu[-1]), len(lens)
    q, k, v, g, beta = make.bf16(t, h, d), make.bf16(t, h, d), make.bf16(t, h, d), make.bf16(t, h, d), make.bf16(t, h)
    a_log, bias = make.f32(h) * np.float32(0.3), make.f32(h, d) * np.float32(0.3)
    state = make.f32(seqs, h, d, d) * np.float32(0.1)
    scale, lower = d**-0.5, -0.5

    def step(s: np.ndarray, at: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        kx, qx = f64(k)[at], f64(q)[at]
        kx, qx = kx / np.sqrt((kx * kx).sum() + 1e-6), qx / np.sqrt((qx * qx).sum() + 1e-6)
        gate = sigmoid(np.exp(f64(a_log)[at[1]]) * (f64(g)[at] + bias[at[1]])) * lower
        s = s * np.exp(gate)[None, :]
        u = (f64(v)[at] - s @ kx) * sigmoid(f64(beta)[at])
        s = s + u[:, None] * kx[None, :]
        return s, s @ qx * scale

    ends, out = f64(state), np.zeros((t, h, d))
    tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "a_log": a_log, "dt_bias": bias}
    # both kernels take exp(gate) as exp2(gate * log2 e), with lower already in units of e
    for j in range(h):
        for i in range(seqs):
            rows = range(cu[i], cu[i + 1]) if kernel == "kda_prefill" else range(i, i + 1)
            for row in rows:
                ends[i, j], out[row, j] = step(ends[i, j], (row, j))
    if kernel == "kda_prefill":
        tensors |= {"cu": cu, "state": state}
    else:
        tensors = {n: a[:seqs] if n not in ("a_log", "dt_bias") else a for n, a in tensors.items()} | {"state": state}
        out = out[:seqs]
    return Program(
        SKETCHES / "07_kda.cake", tensors, {"o": out, "state": ends}, {"scale": scale, "lower": lower}, kernel=kernel,
        tolerance=3e-2,
    )  # fmt: skip


def tinygemm(k: int = 1736) -> Program:
    make = Maker()
    x, w, bias = make.bf16(11, k), make.bf16(40, k), make.bf16(40)
    want = f64(x) @ f64(w).T + f64(bias)
    path = SKETCHES / "10_tinygemm_sm90.cake"
    return Program(path, {"x": x, "w": w, "bias": bias}, {"out": want}, bindings={"STAGES": 4})
