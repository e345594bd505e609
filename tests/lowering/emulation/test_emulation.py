"""Corpus kernels and single ops on the host emulation, against references in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from lowering import emit
from tests.lowering.emit_helpers import bind_text, corpus_kernel
from tests.lowering.emulation import COMPILER, run

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")
BF16 = ml_dtypes.bfloat16


def random(seed: int, *shape: int, dtype=BF16) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


GEMM = [
    ("gemm_sm80", {}, (136, 152, 200), 4), ("gemm_sm80", {"STAGES": 3, "GROUP": 1}, (8, 128, 64), 1),
    ("gemm_sm90", {}, (264, 256, 136), 2), ("gemm_sm90", {"BN": 128, "STAGES": 3, "GROUP": 1}, (512, 136, 328), 2),
    ("gemm_sm100", {"CG": 1}, (136, 264, 200), 1), ("gemm_sm100", {"CG": 2}, (264, 256, 328), 2),
]  # fmt: skip


@pytest.mark.parametrize("name,bindings,shape,sms", GEMM)
def test_gemm(name, bindings, shape, sms):
    m, n, k = shape
    a, b = random(1, m, k), random(2, n, k)
    d = np.full((m, n), np.nan, BF16)
    run(emit(corpus_kernel(name, **bindings)), {"a": a, "b": b, "d": d}, {"M": m, "N": n, "K": k}, None, sms)
    want = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(d.astype(np.float64), want, rtol=2e-2, atol=2e-2 * np.sqrt(k))


KMEANS = [
    ("kmeans_assign", {}), ("kmeans_packed", {}), ("kmeans_assign", {"WG": 2, "STAGES": 2, "DP": 64}),
    ("kmeans_split", {"DP": 80, "STAGES": 2}),
    ("kmeans_split", {"DP": 128, "BC": 64, "WG": 1, "G": 2, "S": 2, "STAGES": 4, "AREG": False, "ANY": True}),
    ("kmeans_split", {"DP": 128, "BC": 64, "WG": 2, "STAGES": 2, "TURN": True, "AHEAD": 1}),
    ("kmeans_bias", {}), ("kmeans_bias", {"DP": 80, "WG": 2, "XS": 2, "STAGES": 3, "TURN": False}),
]  # fmt: skip


@pytest.mark.parametrize("name,bindings", KMEANS)
def test_kmeans(name, bindings):
    batch, points, centres, width = 2, 200, 149, 64
    x, c = random(3, batch, points, width), random(4, batch, centres, width)
    c_sq = (c.astype(np.float32) ** 2).sum(-1)
    label = np.full((batch, points), -7, np.int32)
    dims = {"B": batch, "N": points, "C": centres, "D": width}
    run(emit(corpus_kernel(name, **bindings)), {"x": x, "c": c, "c_sq": c_sq, "label": label}, dims, None, 2)
    scores = c_sq[:, None, :].astype(np.float64) - 2.0 * np.einsum(
        "bnd,bcd->bnc", x.astype(np.float64), c.astype(np.float64)
    )
    chosen = np.take_along_axis(scores, label[:, :, None].astype(np.int64), 2)[:, :, 0]
    assert (label >= 0).all() and (label < centres).all()
    assert (chosen - scores.min(-1) < 1e-2).all()


@pytest.mark.parametrize("width", [8, 72, 4096])
def test_rmsnorm(width):
    x, gain = random(5, 3, width), random(6, width)
    y = np.full_like(x, np.nan)
    run(
        emit(corpus_kernel("rmsnorm", "sm_90a")),
        {"x": x, "gain": gain, "y": y},
        {"M": 3, "D": width},
        {"eps": 1e-5},
        4,
    )
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * gain.astype(np.float64)
    np.testing.assert_allclose(y.astype(np.float64), want, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("width", [4, 1000, 9000])
def test_softmax(width):
    x = 4 * random(7, 2, width, dtype=np.float32)
    x[0, : width // 2] = -np.inf
    y = np.full_like(x, np.nan)
    run(emit(corpus_kernel("softmax", "sm_80")), {"x": x, "y": y}, {"M": 2, "N": width}, None, 4)
    wide = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    np.testing.assert_allclose(y, wide / wide.sum(-1, keepdims=True), rtol=1e-5, atol=1e-7)


ROW_OPS = """
@kernel(target="sm_90a")
def k(x: In[f32, 16, 64], low: Out[f32, 16], at: Out[i32, 16], high: Out[f32, 64], running: Out[f32, 16, 64], bits: Out[i32, 1]):
    launch(ctas=1)
    r = role(warp)
    with r:
        v = load(x[:, :], mma_d[16, 64])
        least, place = row_argmin(v, col_index(v))
        store(low[:], least)
        store(at[:], place)
        store(high[:], col_max(v))
        store(running[:, :], row_cumsum(v))
        word = row_bits(row_any(v > 2.0))
        store(bits[0], word)
"""


def test_row_ops_of_an_mma_tile():
    x = random(8, 16, 64, dtype=np.float32)
    x[3, 10] = x[3, 40] = -9.0
    out = {
        "low": np.zeros(16, np.float32), "at": np.zeros(16, np.int32), "high": np.zeros(64, np.float32),
        "running": np.zeros((16, 64), np.float32), "bits": np.zeros(1, np.int32),
    }  # fmt: skip
    run(emit(bind_text(ROW_OPS)), {"x": x, **out}, {}, None, 1)
    assert (out["at"] == x.argmin(-1)).all() and (out["low"] == x.min(-1)).all()
    assert (out["high"] == x.max(0)).all()
    np.testing.assert_allclose(out["running"], np.cumsum(x.astype(np.float64), -1), atol=1e-4)
    assert out["bits"][0] == sum(1 << i for i in range(16) if (x[i] > 2.0).any())


VECTOR_OPS = """
@kernel(target="sm_80")
def k(x: In[f32, 128], moved: Out[f32, 128], one: Out[f32, 1], table: In[f32, M, 64], rows: In[i32, 8], y: Out[f32, 8, 64], s: i32):
    launch(ctas=1)
    r = role(warp)
    with r:
        v = load(x[:], vec(2).cols[128])
        store(moved[:], shift(v, 7.0))
        store(one[0], pick(v, s))
        who = load(rows[:], vec(4, 16).rows[8])
        store(y[:, :], load(table[who, 0:], vec(4, 16)[8, 64]))
"""


def test_vector_ops_and_gathered_rows():
    x, table = random(9, 128, dtype=np.float32), random(10, 20, 64, dtype=np.float32)
    rows = np.array([3, 19, 0, 7, 7, 12, 1, 5], np.int32)
    out = {"moved": np.zeros(128, np.float32), "one": np.zeros(1, np.float32), "y": np.zeros((8, 64), np.float32)}
    run(emit(bind_text(VECTOR_OPS)), {"x": x, "table": table, "rows": rows, **out}, {"M": 20}, {"s": 77}, 1)
    assert (out["moved"] == np.concatenate([[np.float32(7.0)], x[:-1]])).all()
    assert out["one"][0] == x[77] and (out["y"] == table[rows]).all()


TRANSPOSED = """
@kernel(target="sm_90a")
def k(x: In[bf16, 64, 64], a: In[bf16, 64, 64], y: Out[bf16, 64, 64], d: Out[f32, 64, 64]):
    launch(ctas=1)
    loader = role(thread, warps=4)
    math = role(warpgroup)
    x_s = smem(bf16, 64, 64, swizzle=128)
    a_s = smem(bf16, 64, 64, swizzle=128)
    full = mbarrier()
    with loader:
        expect(full[0])
        tma_load(x_s, x[:, :], signal=full[0])
        tma_load(a_s, a[:, :], signal=full[0])
    with math:
        wait(full[0])
        acc = fragment(f32, wgmma_d[64, 64])
        wgmma(acc, a_s.T, x_s.T, init=True)
        wgmma_commit()
        wgmma_wait(0)
        store(d[:, :], acc)
        sync(math)
        part = ldmatrix(x_s.T, wgmma_a[64, 64])
        more = fragment(f32, wgmma_d[64, 64])
        wgmma(more, part, a_s, init=True)
        wgmma_commit()
        wgmma_wait(0)
        store(y[:, :], cast(more, bf16))
"""


def test_transposed_operands():
    x, a = random(11, 64, 64), random(12, 64, 64)
    y, d = np.zeros((64, 64), BF16), np.zeros((64, 64), np.float32)
    run(emit(bind_text(TRANSPOSED)), {"x": x, "a": a, "y": y, "d": d}, {}, None, 1)
    fx, fa = x.astype(np.float64), a.astype(np.float64)
    np.testing.assert_allclose(d, fa.T @ fx, atol=1e-3)
    np.testing.assert_allclose(y.astype(np.float64), fx.T @ fa.T, rtol=2e-2, atol=5e-2)


NARROW = """
@kernel(target="sm_90a")
def k(x: In[T, M, 68], y: Out[T, M, 68], part: Out[T, M, 64], *, T: (u8, i64, f16) = u8, V: (1, 2) = 1):
    launch(ctas=M)
    r = role(warp)
    s = smem(T, 64)
    with r:
        v = load(x[cta, :], vec(1).cols[68])
        store(y[cta, :], v)
        store(s, load(x[cta, 3:], vec(V).cols[64]))
        sync(warp)
        store(part[cta, :], load(s, vec(V).cols[64]))
"""


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("dtype,numpy", [("u8", np.uint8), ("i64", np.int64), ("f16", np.float16)])
def test_accesses_of_less_than_a_register(dtype, numpy, width):
    x = np.random.default_rng(13).integers(0, 200, (3, 68)).astype(numpy)
    y, part = np.zeros_like(x), np.zeros((3, 64), numpy)
    bound = bind_text(NARROW, T=dtype, V=width)
    run(emit(bound), {"x": x, "y": y, "part": part}, {"M": 3}, None, 1)
    assert (y == x).all() and (part == x[:, 3:67]).all()


SIGNED = """
@kernel(target="sm_90a")
def k(x: In[i8, M, 64], y: Out[i32, M, 64]):
    launch(ctas=M)
    r = role(warp)
    with r:
        store(y[cta, :], cast(load(x[cta, :], vec(2).cols[64]), i32))
"""


def test_bytes_keep_their_sign():
    x = np.random.default_rng(14).integers(-128, 128, (3, 64)).astype(np.int8)
    y = np.zeros((3, 64), np.int32)
    run(emit(bind_text(SIGNED)), {"x": x, "y": y}, {"M": 3}, None, 1)
    assert (y == x).all()
