"""Shared-memory addresses in the emitted text: the same bytes as the buffer's own offset rule, for every thread."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from cake_ir import bound as B
from cake_ir.arithmetic import compile_sx
from cake_ir.dtypes import DTYPES
from cake_ir.layouts import Layout, TileType, base_of, placement
from lowering.emission.context import Context, possible_bits
from lowering.emission.scalars import add, const, var
from lowering.emission.writer import Writer
from tests.lowering.emit_helpers import bind_text

KERNEL = """
@kernel(target="sm_90a")
def k(x: In[bf16, M], y: Out[bf16, M]):
    launch(ctas=1)
    r = role(warpgroup)
    with r:
        store(y[:], load(x[:], vec(8).cols[1024]))
"""


def context() -> Context:
    return Context(bind_text(KERNEL), SimpleNamespace(), Writer("k.cake"))


def evaluator(c: Context, x: B.SX) -> Callable[[int], int]:
    """The value of an expression in a thread."""
    expanded = c.expand(x)
    run, variables = compile_sx(expanded), B.sx_vars(expanded)
    size = max((v.slot for v in variables), default=0) + 1

    def value(thread: int) -> int:
        values = {"lane": thread % 32, "warp": thread // 32, "wwarp": thread // 32 % 4, "wtid": thread % 128}
        env: list[int | None] = [None] * size
        for v in variables:
            env[v.slot] = values[v.name]
        return run(env)

    return value


def evaluate(c: Context, x: B.SX, thread: int) -> int:
    return evaluator(c, x)(thread)


CASES = [
    ("bf16", 128, 64, 128), ("bf16", 64, 256, 128), ("bf16", 128, 32, 64), ("bf16", 64, 128, 64), ("bf16", 64, 64, 32),
    ("f32", 64, 64, 128), ("e4m3", 64, 128, 128), ("bf16", 64, 72, 0),
]  # fmt: skip
LAYOUTS = [
    (Layout("wgmma_d"), 128), (Layout("mma_d"), 32), (Layout("mma_a"), 32), (Layout("vec", 4, 8), 128), (Layout("vec", 1, 32), 32),
    (Layout("vec", 2, 16), 128),
]  # fmt: skip


@pytest.mark.parametrize("dtype,rows,cols,swizzle", CASES)
@pytest.mark.parametrize("layout,threads", LAYOUTS)
def test_every_thread_and_slot_hits_the_element_of_the_buffer(dtype, rows, cols, swizzle, layout, threads):
    buffer = B.Buffer("s", "smem", DTYPES[dtype], (rows, cols), 1, False, swizzle)
    tile_rows, tile_cols = min(rows, 64), min(cols, 64)
    tile = TileType(DTYPES[dtype], layout, tile_rows, tile_cols, None, threads)
    row0, col0 = rows - tile_rows, cols - tile_cols
    if swizzle == 0:
        col0 = 0
    view = B.View(buffer, None, const(row0), tile_rows, const(col0), tile_cols, (tile_rows, tile_cols))
    c = context()
    row, col = c.base(tile)
    checked = 0
    for slot in range(placement(tile).slots):
        ro, co = placement(tile).offsets[slot]
        c.shared.clear()
        address = evaluator(c, c.element(view, add(row, ro), add(col, co)))
        for thread in range(0, threads, 5):
            br, bc = base_of(layout, tile.dtype, None, threads, thread)
            if br + ro >= tile_rows or bc + co >= tile_cols:
                continue
            assert address(thread) == buffer.offset(row0 + br + ro, col0 + bc + co), (slot, thread)
            checked += 1
    assert checked > 50


@pytest.mark.parametrize("name", ["mma_d", "mma_a", "mma_b", "wgmma_d", "wgmma_a", "tmem_d"])
@pytest.mark.parametrize("axis", [None, "rows", "cols"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "e4m3"])
def test_base_coordinates_are_those_of_the_layout_table(name, axis, dtype):
    threads = 128 if name in ("wgmma_d", "wgmma_a", "tmem_d") else 32
    tile = TileType(
        DTYPES[dtype], Layout(name), 128 if axis != "cols" else 1, 64 if axis != "rows" else 1, axis, threads
    )
    c = context()
    row, col = c.base(tile)
    row_of, col_of = evaluator(c, row), evaluator(c, col)
    for thread in range(threads):
        assert (row_of(thread), col_of(thread)) == base_of(tile.layout, tile.dtype, axis, threads, thread)


@pytest.mark.parametrize("v,lanes", [(1, 32), (8, 0), (4, 8), (8, 16), (2, 4)])
@pytest.mark.parametrize("threads", [32, 128])
def test_vec_base_coordinates(v, lanes, threads):
    tile = TileType(DTYPES["bf16"], Layout("vec", v, lanes), 64, 256, None, threads)
    c = context()
    row, col = c.base(tile)
    row_of, col_of = evaluator(c, row), evaluator(c, col)
    for thread in range(threads):
        assert (row_of(thread), col_of(thread)) == base_of(tile.layout, tile.dtype, None, threads, thread)


def test_possible_bits_never_misses_a_bit():
    lane = var("lane", 0)
    from lowering.emission.scalars import div, mod, mul

    for x in (
        mul(mod(lane, 4), 4),
        div(lane, 8),
        mul(mod(div(lane, 8), 2), 16),
        add(mul(mod(lane, 4), 2), 64),
        mod(mul(lane, 12), 8),
    ):
        mask = possible_bits(x)
        assert mask is not None
        for value in range(32):
            assert compile_sx(x)([value]) & ~mask == 0
