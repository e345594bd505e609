"""Value semantics of single instruction forms against plain numpy, on one-warp and one-warpgroup kernels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from analyses import ValueFault, interpret
from analyses.value import formats
from analyses.value.compile import HANDLERS, SILENT
from analyses.value.exprs import fused
from analyses.value.ops_registers import ordered, running_sum
from cake_ir.dtypes import DTYPES, F32
from cake_ir.layouts import Layout, TileType
from cake_ir.ops import registry
from tests.analyses.value_programs import BF16, E4M3, bind_text, f64

RNG = np.random.default_rng(5)


def run(
    body: str, args: str, tensors: dict[str, np.ndarray], *, target: str = "sm_90a", unit: str = "warp", smem: str = "",
    scalars: dict[str, Any] | None = None, schedule: str = "greedy", ctas: str = "1",
) -> dict[str, np.ndarray]:  # fmt: skip
    """Interprets a one-role kernel whose role block is `body`."""
    block = "\n".join("        " + line for line in body.strip().splitlines())
    decls = "".join(f"    {line.strip()}\n" for line in smem.strip().splitlines())
    text = (
        f'@kernel(target="{target}")\ndef probe({args}):\n    launch(ctas={ctas})\n    u = role({unit})\n'
        f"{decls}    with u:\n{block}\n"
    )
    return interpret(bind_text(text), tensors, scalars or {}, schedule=schedule)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_every_op_has_value_semantics() -> None:
    assert set(registry()) == set(HANDLERS) | SILENT


# ---- formats ---------------------------------------------------------------------------------------------------------


def test_casts_round_to_nearest_even_and_saturate() -> None:
    x = np.array([1.00390625, 1.01171875, 449.0, -1e9, np.inf, np.nan, 2.0**-9, 0.4, 65520.0, 70000.0], np.float32)
    y = formats.cast(x, DTYPES["bf16"])
    assert np.array_equal(f64(y[:2]), [1.0, 1.015625])  # ties to even, down and up
    q = f64(formats.cast(x, DTYPES["e4m3"]))
    assert np.array_equal(q[2:5], [448.0, -448.0, 448.0])
    assert np.isnan(q[5])
    assert q[6] == 2.0**-9
    assert f64(formats.cast(x, DTYPES["e5m2"]))[3] == -57344.0
    assert np.isinf(f64(formats.cast(x, DTYPES["f16"]))[8])
    assert np.array_equal(
        formats.cast(np.array([2.7, -2.7, 3e9, np.nan], np.float32), DTYPES["i32"]), [2, -2, 2**31 - 1, 0]
    )


def test_every_bf16_widens_exactly() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    mine = formats.to_f32(bits.view(BF16))
    assert np.array_equal(mine.view(np.uint32), bits.view(BF16).astype(np.float32).view(np.uint32))


def test_products_round_once_per_instruction() -> None:
    a = np.zeros((1, 32), np.float32)
    b = np.zeros((1, 32), np.float32)
    a[0, 0], b[0, 0] = 2.0**24, 1.0
    a[0, 1:5] = b[0, 1:5] = 1.0  # lost when added one by one, kept together
    a[0, 16], b[0, 16] = 1.0, 1.0  # the second instruction: ties to even, lost
    got = formats.accumulate(None, a.astype(BF16), b.astype(BF16), 16)
    assert got[0, 0] == 2.0**24 + 4


def test_fma_rounds_once() -> None:
    from fractions import Fraction

    def nearest(x: Fraction) -> np.float32:
        y = np.float32(float(x))
        low, high = np.nextafter(y, np.float32(-np.inf)), np.nextafter(y, np.float32(np.inf))
        near = sorted((low, y, high), key=lambda v: (abs(Fraction(float(v)) - x), int(v.view(np.uint32)) & 1))
        return near[0]

    a, b, c = (f32(3000) for _ in range(3))
    # sums that end just beside the middle of two floats: a rounding to float64 in between would take the wrong one
    a[:1000] = 1 + np.float32(2.0**-12)
    b[:1000] = 1 + np.float32(2.0**-12)
    c[:1000] = np.float32(2.0**-70) * np.sign(c[:1000])
    got = fused(a, b, c)
    want = [
        nearest(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))) for x, y, z in zip(a, b, c, strict=True)
    ]
    assert np.array_equal(got, np.array(want))
    assert len(set(got[:1000].tolist())) == 2
    with np.errstate(all="ignore"):
        odd = fused(np.float32([np.inf, 3e38, np.nan, 0]), np.float32([1, 10, 1, -1]), np.float32([-np.inf, 1, 1, 0]))
    assert np.isnan(odd[[0, 2]]).all()
    assert np.isinf(odd[1])
    assert odd[3] == 0


def test_approximate_functions_flush_subnormals() -> None:
    out = run(
        "v = load(x[0:], vec(1).cols[32])\nstore(o[0, 0:], exp2(v))\nstore(o[1, 0:], rcp(v))\nstore(o[2, 0:], v * 2.0)",
        "x: In[f32, 32], o: Out[f32, 3, 32]",
        {"x": np.array([-130.0, 2.0**-130, 2.0**127, *[1.0] * 29], np.float32)},
    )["o"]
    assert out[0, 0] == 0
    assert np.isinf(out[1, 1])
    assert out[1, 2] == 0
    assert out[2, 1] == np.float32(2.0**-129)  # arithmetic keeps them


# ---- order of sums ---------------------------------------------------------------------------------------------------


def test_row_sums_add_in_thread_then_nearest_lanes_first() -> None:
    tile = TileType(F32, Layout("mma_d"), 16, 16, None, 32)
    x = f32(16, 16)
    got = ordered(x, tile, "row", np.add, np.float32(0))
    lanes = []
    for q in range(4):
        acc = x[:, 2 * q].copy()
        for col in (2 * q + 1, 8 + 2 * q, 8 + 2 * q + 1):
            acc = acc + x[:, col]
        lanes.append(acc)
    assert np.array_equal(got[:, 0], (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]))


def test_narrow_vectors_add_what_is_there() -> None:
    tile = TileType(F32, Layout("vec", 4), 1, 40, "cols", 32)
    x = f32(1, 40)
    assert np.isclose(ordered(x, tile, "row", np.add, np.float32(0))[0, 0], f64(x).sum(), rtol=1e-5)


@pytest.mark.parametrize(("layout", "along"), [("mma_d", "row"), ("mma_d", "col"), ("vec2", "row"), ("vec2", "col")])
def test_running_sums(layout: str, along: str) -> None:
    tile = TileType(F32, Layout("mma_d") if layout == "mma_d" else Layout("vec", 2, 8), 16, 32, None, 32)
    x = np.rint(f32(16, 32) * 8)  # small integers: every order is exact
    assert np.array_equal(running_sum(x, tile, along), np.cumsum(x, axis=1 if along == "row" else 0))


# ---- register ops ----------------------------------------------------------------------------------------------------


def test_elementwise_and_contraction() -> None:
    x, y, z = f32(16, 32), f32(16, 32), f32(16, 32)
    out = run(
        """
a = load(x[0:, 0:], vec(1)[16, 32])
b = load(y[0:, 0:], vec(1)[16, 32])
c = load(z[0:, 0:], vec(1)[16, 32])
store(o[0, 0:, 0:], a * b + c)
store(o[1, 0:, 0:], c - a * b)
store(o[2, 0:, 0:], a * b - c)
store(o[3, 0:, 0:], select(a < b, max(a, c), min(b, -c)))
store(o[4, 0:, 0:], abs(a) * rcp(b))
store(o[5, 0:, 0:], exp2(a))
""",
        "x: In[f32, 16, 32], y: In[f32, 16, 32], z: In[f32, 16, 32], o: Out[f32, 6, 16, 32]",
        {"x": x, "y": y, "z": z},
    )["o"]
    p = f64(x) * f64(y)
    for got, want in ((out[0], p + z), (out[1], z - p), (out[2], p - z)):
        assert np.array_equal(got, want.astype(np.float32))
    assert np.array_equal(out[3], np.where(x < y, np.maximum(x, z), np.minimum(y, -z)))
    assert np.array_equal(out[4], np.abs(x) * (1 / f64(y)).astype(np.float32))
    assert np.array_equal(out[5], np.exp2(f64(x)).astype(np.float32))


def test_integers_wrap_shift_and_bitcast() -> None:
    x = RNG.integers(-(2**31), 2**31, (8, 32), dtype=np.int64).astype(np.int32)
    out = run(
        """
a = load(x[0:, 0:], vec(1)[8, 32])
store(o[0, 0:, 0:], a * 3 + 7)
store(o[1, 0:, 0:], (a >> 3) ^ (a & -32))
store(o[2, 0:, 0:], bitcast(bitcast(a, f32), i32))
store(o[3, 0:, 0:], cast(cast(a, f32), i32))
""",
        "x: In[i32, 8, 32], o: Out[i32, 4, 8, 32]",
        {"x": x},
    )["o"]
    with np.errstate(over="ignore"):
        assert np.array_equal(out[0], x * np.int32(3) + np.int32(7))
    assert np.array_equal(out[1], (x >> 3) ^ (x & -32))
    assert np.array_equal(out[2], x)
    assert np.array_equal(out[3], np.clip(f64(x.astype(np.float32)), -(2.0**31), 2**31 - 1).astype(np.int32))


def test_reductions_and_scalars() -> None:
    x = f32(16, 32)
    x[3] = np.nan
    x[4, 5] = np.nan
    out = run(
        """
a = load(x[0:, 0:], mma_d[16, 32])
store(r[0, 0:], row_sum(a))
store(r[1, 0:], row_max(a))
store(r[2, 0:], row_min(a))
low, at = row_argmin(a, col_index(a))
store(r[3, 0:], low)
store(i[0:], at)
store(c[0:], col_max(a))
v = load(x[0, 0:], vec(1).cols[32])
store(s[0], row_sum(v))
store(s[1], pick(v, 7))
store(s[2], row_max(shift(v, 100.0)))
bits = row_bits(row_any(a < -1.5))
store(b[0], bits)
""",
        "x: In[f32, 16, 32], r: Out[f32, 4, 16], i: Out[i32, 16], c: Out[f32, 32], s: Out[f32, 3], b: Out[i32, 1]",
        {"x": x},
    )
    keep = np.delete(np.arange(16), [3, 4])
    assert np.allclose(out["r"][0, keep], x[keep].sum(1), atol=1e-5)
    assert np.isnan(out["r"][0, [3, 4]]).all()
    assert np.array_equal(out["r"][1], np.fmax.reduce(x, axis=1), equal_nan=True)
    assert np.array_equal(out["r"][2:4], np.tile(np.fmin.reduce(x, axis=1), (2, 1)), equal_nan=True)
    assert np.array_equal(np.delete(out["i"], 3), np.delete(np.nanargmin(np.where(np.isnan(x), np.inf, x), axis=1), 3))
    assert np.array_equal(out["c"], np.fmax.reduce(x, axis=0))
    assert np.allclose(out["s"], [x[0].sum(), x[0, 7], 100.0], atol=1e-5)
    assert out["b"][0] == sum(1 << r for r in range(16) if (x[r] < -1.5).any())


def test_argmin_ties_and_rows_of_inf() -> None:
    x = np.full((16, 8), np.inf, np.float32)
    x[1, [2, 6]] = 1.0
    out = run(
        """
a = load(x[0:, 0:], mma_d[16, 8])
low, at = row_argmin(a, 40 - col_index(a))
store(o[0:], at)
""",
        "x: In[f32, 16, 8], o: Out[i32, 16]",
        {"x": x},
    )["o"]
    assert out[1] == 34
    assert (np.delete(out, 1) == 33).all()


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_regions_clip_fill_transpose_and_scatter() -> None:
    x, who = f32(10, 40), np.array([*range(9, -1, -1), *[-1] * 22], np.int32)
    out = run(
        """
a = load(x[4:, 30:], vec(1)[8, 32], fill=9.0)
store(o[0:, 0:], a)
store(t[0:, 0:].T, load(x[0:7, 0:], vec(1)[8, 32], fill=-1.0))
rows = load(who[0:], vec(1).rows[32])
store(g[rows, 0:], load(x[0:, 0:], vec(1)[32, 32]), when=row_index(load(x[0:, 0:], vec(1)[32, 32])) < 10)
""",
        "x: In[f32, 10, 40], who: In[i32, 32], o: Out[f32, 8, 32], t: Out[f32, 32, 8], g: Out[f32, 10, 32]",
        {"x": x, "who": who},
    )
    want = np.full((8, 32), 9, np.float32)
    want[:6, :10] = x[4:, 30:]
    assert np.array_equal(out["o"], want)
    want = np.full((8, 32), -1, np.float32)
    want[:7] = x[:7, :32]
    assert np.array_equal(out["t"], want.T)
    assert np.array_equal(out["g"], x[::-1, :32])


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("dtype", ["bf16", "f32", "e4m3"])
def test_shared_tiles_keep_every_element_apart(swizzle: int, dtype: str) -> None:
    cols = 256 // (DTYPES[dtype].bits // 8)
    x = f32(16, cols).astype(formats.np_dtype(DTYPES[dtype]))
    out = run(
        f"""
store(s, load(x[0:, 0:], vec(1)[16, {cols}]))
sync(warp)
store(o[0:, 0:], load(s, vec(1)[16, {cols}]))
""",
        f"x: In[{dtype}, 16, {cols}], o: Out[{dtype}, 16, {cols}]",
        {"x": x},
        smem=f"s = smem({dtype}, 16, {cols}, swizzle={swizzle})",
    )["o"]
    assert np.array_equal(out.view(np.uint8), x.view(np.uint8))


def test_ldmatrix_stmatrix_and_their_transposes() -> None:
    x = f32(16, 32).astype(BF16)
    out = run(
        """
store(s, load(x[0:, 0:], vec(8, 4)[16, 32]))
sync(warp)
a = ldmatrix(s.T, mma_d[32, 16])
stmatrix(t, a)
sync(warp)
store(o[0:, 0:], load(t, vec(8, 2)[32, 16]))
stmatrix(s.T, a)
sync(warp)
store(p[0:, 0:], load(s, vec(8, 4)[16, 32]))
""",
        "x: In[bf16, 16, 32], o: Out[bf16, 32, 16], p: Out[bf16, 16, 32]",
        {"x": x},
        smem="s = smem(bf16, 16, 32, swizzle=64)\nt = smem(bf16, 32, 16, swizzle=32)",
    )
    assert np.array_equal(f64(out["o"]), f64(x).T)
    assert np.array_equal(f64(out["p"]), f64(x))


def test_ldmatrix_gives_an_accumulator_layout_from_panels_to_the_middle_of_one() -> None:
    x = f32(64, 128).astype(BF16)
    out = run(
        """
store(s, load(x[0:, 0:], vec(8, 16)[64, 128]))
sync(warpgroup)
rows = ldmatrix(s.cols(0, 112), wgmma_d[64, 112])
store(o[0:, 0:], rows)
total = row_sum(cast(rows, f32))
at = col_index(total[:, None] + fragment(f32, wgmma_d[64, 16], 0.0))
store(p[0:, 0:], select(at < 3, 1.0, select(at == 3, total[:, None], 0.0)))
""",
        "x: In[bf16, 64, 128], o: Out[bf16, 64, 112], p: Out[f32, 64, 16]",
        {"x": x},
        unit="warpgroup",
        smem="s = smem(bf16, 64, 128, swizzle=128)",
    )
    assert np.array_equal(f64(out["o"]), f64(x[:, :112]))
    total = f64(x[:, :112]).sum(-1)
    assert np.array_equal(out["p"][:, :3], np.ones((64, 3))) and not out["p"][:, 4:].any()
    assert np.allclose(out["p"][:, 3], total, rtol=1e-5, atol=1e-5)


def test_an_element_of_a_stage_is_stored_as_a_scalar() -> None:
    out = run(
        """
for n in range(3):
    store(s[n][1], cast(n, f32) + 0.5)
    sync(warp)
    store(o[n], load(s[n][1]))
    sync(warp)
""",
        "o: Out[f32, 3]",
        {},
        smem="s = smem(f32, 4, stages=2)",
    )["o"]
    assert out.tolist() == [0.5, 1.5, 2.5]


def test_padded_rows_alias_only_what_they_cover() -> None:
    out = run(
        """
store(a, fragment(f32, vec(1)[4, 32], 1.0))
sync(warp)
store(b.cols(0, 64), fragment(bf16, vec(2).cols[64], 2.0))
sync(warp)
store(o[0:, 0:], load(a, vec(1)[4, 32]))
""",
        "o: Out[f32, 4, 32]",
        {},
        smem="a = smem(f32, 4, 32, pad=4)\nb = smem(bf16, 64, over=a)",
    )["o"]
    two = np.full(64, 2.0, np.float32).astype(BF16).view(np.float32)
    assert np.array_equal(out[0].view(np.uint32), two.view(np.uint32))
    assert (out[1:] == 1).all()


def test_atomics_and_counts() -> None:
    who = np.array([0, 1, 1, 2] * 8, np.int32)
    out = run(
        """
rows = load(who[0:], vec(1).rows[32])
atomic_add(x[rows, 0:], fragment(f32, vec(1)[32, 32], 0.5))
atomic_max(y[0:, 0:], fragment(i32, vec(1)[4, 32], 3))
""",
        "who: In[i32, 32], x: InOut[f32, 3, 32], y: InOut[i32, 4, 32]",
        {"who": who, "x": np.ones((3, 32), np.float32), "y": np.tile(np.arange(32, dtype=np.int32), (4, 1))},
    )
    assert np.array_equal(out["x"][:, 0], [5, 9, 5])
    assert np.array_equal(out["y"][0], np.maximum(np.arange(32), 3))


def test_fetched_numbers_count_up_in_each_place_and_are_zero_where_nothing_is_added() -> None:
    who = np.array([0, 1, 1, 2] * 8, np.int32)
    body = """
rows = load(who[0:], vec(1).cols[32])
one = fragment(i32, vec(1).cols[32], 1)
store(o[0:], atomic_fetch_add(x[rows], one, when=col_index(one) < 30))
store(p[0:, 0:], atomic_fetch_add(y[0:, 0:], fragment(i32, vec(1)[4, 32], 3)))
"""
    args = "who: In[i32, 32], x: InOut[i32, 3], y: InOut[i32, 4, 16], o: Out[i32, 32], p: Out[i32, 4, 32]"
    start = np.array([100, 0, 7], np.int32)
    y = np.arange(64, dtype=np.int32).reshape(4, 16)
    out = run(
        body, args, {"who": who, "x": start, "y": y, "o": np.zeros(32, np.int32), "p": np.zeros((4, 32), np.int32)}
    )
    seen = start.copy()
    for i, r in enumerate(who):
        assert out["o"][i] == (seen[r] if i < 30 else 0)
        seen[r] += i < 30
    assert np.array_equal(out["x"], seen)
    assert np.array_equal(out["p"][:, :16], y)
    assert not out["p"][:, 16:].any()
    assert np.array_equal(out["y"], y + 3)


def test_a_name_filled_anew_in_a_block_is_filled_behind_it() -> None:
    out = run(
        """
acc = fragment(f32, vec(1).cols[32], 1.0)
for i in range(0, 4):
    if i == 2:
        acc = fragment(f32, vec(1).cols[32], 0.0)
    acc = acc + 1.0
store(o[0:], acc)
""",
        "o: Out[f32, 32]",
        {"o": np.zeros(32, np.float32)},
    )
    assert (out["o"] == 2).all()


# ---- matrix products -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "f16", "e4m3"])
def test_mma(dtype: str) -> None:
    k = 64 if dtype == "e4m3" else 32
    nd = formats.np_dtype(DTYPES[dtype])
    a, b, c = f32(32, k).astype(nd), f32(16, k).astype(nd), f32(32, 16)
    out = run(
        f"""
acc = load(c[0:, 0:], mma_d[32, 16])
mma(acc, load(a[0:, 0:], mma_a[32, {k}]), load(b[0:, 0:], mma_b[16, {k}]))
store(o[0:, 0:], acc)
""",
        f"a: In[{dtype}, 32, {k}], b: In[{dtype}, 16, {k}], c: In[f32, 32, 16], o: Out[f32, 32, 16]",
        {"a": a, "b": b, "c": c},
    )["o"]
    assert np.allclose(out, f64(c) + f64(a) @ f64(b).T, rtol=1e-6, atol=1e-5)


def test_register_operands_and_transpose() -> None:
    x = (f32(16, 16) * 4).astype(BF16)
    out = run(
        """
d = load(x[0:, 0:], mma_d[16, 16])
acc = fragment(f32, mma_d[16, 16], 0)
mma(acc, operand_a(d), operand_b(transpose(d)))
store(o[0:, 0:], acc)
""",
        "x: In[bf16, 16, 16], o: Out[f32, 16, 16]",
        {"x": x},
    )["o"]
    assert np.allclose(out, f64(x) @ f64(x), rtol=1e-6, atol=1e-4)


def test_wgmma_with_registers_and_a_transposed_operand() -> None:
    a, b = f32(64, 64).astype(BF16), f32(64, 64).astype(BF16)
    out = run(
        """
store(s, load(b[0:, 0:], vec(8, 8)[64, 64]))
fence_async()
sync(warpgroup)
acc = fragment(f32, wgmma_d[64, 64], 1.0)
left = load(a[0:, 0:], wgmma_a[64, 64])
wgmma(acc, left, s.T)
wgmma_commit()
wgmma_wait(0)
with warps() as w:
    part = warp_part(acc)
    store(o[16 * w:, 0:], part)
""",
        "a: In[bf16, 64, 64], b: In[bf16, 64, 64], o: Out[f32, 64, 64]",
        {"a": a, "b": b},
        unit="warpgroup",
        smem="s = smem(bf16, 64, 64, swizzle=128)",
    )["o"]
    assert np.allclose(out, 1 + f64(a) @ f64(b), rtol=1e-5, atol=1e-4)


def test_bulk_reduce_adds_rows_that_repeat() -> None:
    x = np.rint(f32(32, 64) * 4).astype(BF16)
    who = RNG.integers(-1, 5, 32).astype(np.int32)
    out = run(
        """
store(s, load(x[0:, 0:], vec(8, 8)[32, 64]))
fence_async()
sync(warp)
rows = load(who[0:], vec(1).cols[32])
bulk_reduce(o[rows, 0:], s, op=add, when=rows >= 0)
bulk_commit()
bulk_wait(0)
""",
        "x: In[bf16, 32, 64], who: In[i32, 32], o: InOut[bf16, 5, 64]",
        {"x": x, "who": who, "o": np.zeros((5, 64), BF16)},
        smem="s = smem(bf16, 32, 64, pad=8)",
    )["o"]
    want = np.zeros((5, 64))
    for r, t in enumerate(who):
        if t >= 0:
            want[t] += f64(x)[r]
    assert np.array_equal(f64(out), want)


def test_fp8_quantises_through_shared_memory() -> None:
    x = f32(16, 64) * 200
    out = run(
        """
store(s, cast(load(x[0:, 0:], vec(1)[16, 64]), e4m3))
sync(warp)
store(o[0:, 0:], load(s, vec(16, 4)[16, 64]))
""",
        "x: In[f32, 16, 64], o: Out[e4m3, 16, 64]",
        {"x": x},
        smem="s = smem(e4m3, 16, 64)",
    )["o"]
    assert np.array_equal(out.view(np.uint8), np.clip(x, -448, 448).astype(E4M3).view(np.uint8))
    assert out.dtype == np.dtype(ml_dtypes.float8_e4m3fn)


# ---- control ---------------------------------------------------------------------------------------------------------


def test_index_arithmetic_loops_and_branches() -> None:
    out = run(
        """
n = 0
total = 0
while n < N:
    if n % 3 == 1:
        total = total + n * n
    else:
        total = total - (n // 2)
    n += 1
store(o[0], total)
store(o[1], ceil_div(N, 4) * 8 + min(N, 7) - (N << 2))
store(o[2], select(N > 3, lsb(N), -1))
""",
        "x: In[f32, N], o: Out[i32, 3]",
        {"x": f32(12)},
    )["o"]
    want = sum(i * i if i % 3 == 1 else -(i // 2) for i in range(12))
    assert out.tolist() == [want, 3 * 8 + 7 - 48, 2]


def test_an_index_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueFault, match="range32"):
        run("store(o[0], n * 65536 * 65536)", "o: Out[i32, 1], n: i32", {}, scalars={"n": 5})


# ---- threads of one unit ---------------------------------------------------------------------------------------------

PASS_ON = """
store(s, load(x[0:, 0:], vec(4)[4, 128]))
SYNC
store(o[0:, 0:], load(s, LAYOUT[4, 128]))
"""


@pytest.mark.parametrize(
    ("sync", "layout", "right"),
    [("", "vec(4)", True), ("", "vec(1)", False), ("sync(warp)", "vec(1)", True)],
)
def test_lanes_see_each_other_only_after_a_sync(sync: str, layout: str, right: bool) -> None:
    x = f32(4, 128)
    body = PASS_ON.replace("SYNC\n", sync + "\n" if sync else "").replace("LAYOUT", layout)
    args, tensors, smem = "x: In[f32, 4, 128], o: Out[f32, 4, 128]", {"x": x}, "s = smem(f32, 4, 128)"
    if right:
        assert np.array_equal(run(body, args, tensors, smem=smem)["o"], x)
        return
    with pytest.raises(ValueFault) as caught:
        run(body, args, tensors, smem=smem)
    assert caught.value.kind == "poison"
    assert "other threads of its unit wrote" in caught.value.notes[0][0]


@pytest.mark.parametrize(("join", "shift", "right"), [("sync(warpgroup)", 1, True), ("", 1, False), ("", 0, True)])
def test_a_warp_sync_does_not_join_the_warps_of_a_warpgroup(join: str, shift: int, right: bool) -> None:
    body = f"""
with warps() as w:
    store(s.rows(16 * w, 16), load(x[16 * w:, 0:], vec(4)[16, 128]))
    sync(warp)
{join}
with warps() as w:
    r = 16 * ((w + {shift}) % 4)
    store(o[r:, 0:], load(s.rows(r, 16), vec(1)[16, 128]))
"""
    x = f32(64, 128)
    args, smem = "x: In[f32, 64, 128], o: Out[f32, 64, 128]", "s = smem(f32, 64, 128)"
    body = body.replace("\n\n", "\n")
    if right:
        assert np.array_equal(run(body, args, {"x": x}, unit="warpgroup", smem=smem)["o"], x)
        return
    with pytest.raises(ValueFault, match="poison"):
        run(body, args, {"x": x}, unit="warpgroup", smem=smem)


def test_one_lane_writes_and_all_read() -> None:
    body = """
store(s[3], 7)
SYNC
n = load(s[3])
store(o[0], n)
"""
    args, smem = "x: In[f32, N], o: Out[i32, 1]", "s = smem(i32, 8)"
    assert run(body.replace("SYNC", "sync(warp)"), args, {"x": f32(1)}, smem=smem)["o"][0] == 7
    with pytest.raises(ValueFault, match="poison"):
        run(body.replace("SYNC\n", ""), args, {"x": f32(1)}, smem=smem)


@pytest.mark.parametrize(
    ("old", "new"), [("", ""), ("wait(full[0])", "n = cta"), ("expect(full[0])", "arrive(full[0])")]
)
def test_a_peer_gets_registers(old: str, new: str) -> None:
    """Each CTA sends its half to the first, whose barrier counts the bytes of both; who does not wait for them reads poison."""
    body = """
if cluster_rank == 0:
    with elected():
        expect(full[0])
store_async(got.cols(32 * cluster_rank, 32).on(0), load(x[32 * cta:], vec(1).cols[32]), signal=full[0].on(0))
if cluster_rank == 0:
    wait(full[0])
    store(o[0:], load(got, vec(2).cols[64]))
"""
    body = body.replace(old, new)
    x = f32(64)
    args, smem, ctas = "x: In[f32, 64], o: Out[f32, 64]", "got = smem(f32, 64)\nfull = mbarrier()", "2, cluster=2"
    if not old:
        for schedule in ("greedy", "random:1", "random:2"):
            assert np.array_equal(run(body, args, {"x": x}, smem=smem, ctas=ctas, schedule=schedule)["o"], x)
        return
    with pytest.raises(ValueFault, match="poison"):
        run(body, args, {"x": x}, smem=smem, ctas=ctas)
