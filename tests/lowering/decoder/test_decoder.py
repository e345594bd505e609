"""The decoder checked from first principles: hardware paths that must meet, bijections, hand-worked values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.lowering.decoder import (
    barrier,
    fragments,
    instruction_descriptor,
    matrix_descriptor,
    swizzle,
    tensor_map,
    tensor_memory,
)

SPANS = (32, 64, 128)
_CODE90 = {0: 0, 128: 1, 64: 2, 32: 3}
_CODE100 = {0: 0, 128: 2, 64: 4, 32: 6}


def sm90(start: int, leading: int, stride: int, span: int) -> int:
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | _CODE90[span] << 62


def sm100(start: int, leading: int, stride: int, span: int) -> int:
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | _CODE100[span] << 61


def read_elements(shared: bytearray, addresses: np.ndarray, size: int) -> np.ndarray:
    data = np.frombuffer(bytes(shared), dtype=np.uint8)
    parts = np.stack([data[addresses + i] for i in range(size)], axis=-1)
    return np.ascontiguousarray(parts).view({1: np.uint8, 2: np.uint16, 4: np.uint32}[size])[..., 0]


# ---- swizzle -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("span", SPANS)
def test_swizzle_permutes_chunks_within_a_period(span: int) -> None:
    period = swizzle.PERIOD[span]
    chunks = swizzle.apply(np.arange(0, period, 16), span)
    assert sorted(chunks.tolist()) == list(range(0, period, 16))
    assert np.array_equal(swizzle.apply(chunks, span), np.arange(0, period, 16))
    assert np.array_equal(
        swizzle.apply(np.arange(period) + 7 * period, span), swizzle.apply(np.arange(period), span) + 7 * period
    )


def test_swizzle_128_spreads_a_column_of_chunks_over_all_banks() -> None:
    """Eight rows of the same chunk: 128 bytes in all 32 banks once, which is what the swizzle is for."""
    for chunk in range(8):
        column = swizzle.apply(np.arange(8) * 128 + chunk * 16, 128)
        assert sorted((column % 128 // 16).tolist()) == list(range(8))


def test_swizzle_hand_values() -> None:
    assert swizzle.apply(0x80, 128) == 0x90  # row 1 chunk 0 goes to chunk 1
    assert swizzle.apply(0x3F0, 128) == 0x380  # row 7 chunk 7 goes to chunk 0
    assert swizzle.apply(0x180, 64) == 0x1B0  # only two row bits take part
    assert swizzle.apply(0x80, 32) == 0x90
    assert swizzle.apply(0x123, 0) == 0x123


# ---- tensor map and matrix descriptor: two tables that must meet ---------------------------------------------------


@pytest.mark.parametrize(
    ("span", "size", "rows", "encode"),
    [(s, e, r, f) for s, e, r in itertools.product(SPANS, (1, 2, 4), (64, 128)) for f in ("sm90", "sm100")],
)
def test_tma_tile_read_back_k_major(span: int, size: int, rows: int, encode: str) -> None:
    """A row-major tile that TMA wrote is what a K-major descriptor reads, for every K step inside the span."""
    cols, k, base = span // size, 32 // size, 4 * swizzle.PERIOD[span]
    kind = {1: "u8", 2: "bf16", 4: "f32"}[size]
    pattern = np.random.default_rng(1).integers(0, 256, (rows, cols * size), dtype=np.uint8)
    values = pattern.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[size])
    shared = bytearray(base + rows * span)
    copied = tensor_map.copy(kind, [cols, rows], [cols * size], [cols, rows], span, [0, 0], base)
    tensor_map.load(copied, pattern.tobytes(), shared, size)
    for step in range(span // 32):
        if encode == "sm90":
            decoded = matrix_descriptor.decode_sm90(sm90(base + 32 * step, 16, 8 * span, span))
        else:
            decoded = matrix_descriptor.decode_sm100(sm100(base + 32 * step, 16, 8 * span, span))
        got = read_elements(shared, decoded.addresses(rows, k, size, "K"), size)
        assert np.array_equal(got, values[:, step * k : (step + 1) * k])


@pytest.mark.parametrize(("span", "panels"), list(itertools.product(SPANS, (1, 2, 4))))
def test_tma_tile_read_back_mn_major(span: int, panels: int) -> None:
    """A [K, MN] tile stored as panels of one span is what an MN-major descriptor reads."""
    size, k_rows, width, base = 2, 32, span // 2, 8 * swizzle.PERIOD[span]
    mn = panels * width
    values = np.arange(k_rows * mn, dtype=np.uint16).reshape(k_rows, mn)
    panel_bytes = k_rows * span
    shared = bytearray(base + panels * panel_bytes)
    for panel in range(panels):
        at = base + panel * panel_bytes
        copied = tensor_map.copy("bf16", [mn, k_rows], [mn * 2], [width, k_rows], span, [panel * width, 0], at)
        tensor_map.load(copied, values.tobytes(), shared, size)
    for step in range(k_rows // 16):
        start = base + step * 16 * span
        decoded = matrix_descriptor.decode_sm90(sm90(start, panel_bytes, 8 * span, span))
        got = read_elements(shared, decoded.addresses(mn, 16, size, "MN"), size)
        assert np.array_equal(got, values[16 * step : 16 * step + 16].T)


def test_unswizzled_core_matrices() -> None:
    """Without swizzle the unit is a core matrix: 8 rows of 16 bytes, contiguous. Neighbours lie at LBO and SBO."""
    decoded = matrix_descriptor.decode_sm90(sm90(0x400, 128, 256, 0))
    k_major = decoded.addresses(16, 16, 2, "K")
    assert k_major[3, 2] == 0x400 + 3 * 16 + 2 * 2
    assert k_major[3, 9] == 0x400 + 128 + 3 * 16 + 1 * 2
    assert k_major[11, 9] == 0x400 + 256 + 128 + 3 * 16 + 1 * 2
    assert len(set(k_major.ravel().tolist())) == 256
    mn_major = decoded.addresses(16, 16, 2, "MN")
    assert mn_major[9, 3] == 0x400 + 256 + 3 * 16 + 1 * 2
    assert mn_major[1, 11] == 0x400 + 128 + 3 * 16 + 1 * 2
    assert len(set(mn_major.ravel().tolist())) == 256


def test_a_wrong_stride_or_swizzle_is_seen() -> None:
    """Negative control: the comparison above would notice each single wrong field."""
    right = matrix_descriptor.decode_sm90(sm90(0x2000, 16, 1024, 128)).addresses(64, 16, 2, "K")
    for other in (sm90(0x2000, 16, 512, 128), sm90(0x2000, 16, 1024, 0), sm90(0x2020, 16, 1024, 128)):
        assert not np.array_equal(right, matrix_descriptor.decode_sm90(other).addresses(64, 16, 2, "K"))
    unused = matrix_descriptor.decode_sm90(sm90(0x2000, 4096, 1024, 128)).addresses(64, 16, 2, "K")
    assert np.array_equal(right, unused)


@pytest.mark.parametrize(
    ("bits", "decode"),
    [
        (1 << 14, matrix_descriptor.decode_sm90),
        (1 << 46, matrix_descriptor.decode_sm90),
        (1 << 49, matrix_descriptor.decode_sm90),
        (sm90(0x2080, 16, 1024, 128), matrix_descriptor.decode_sm90),
        (sm90(0x2000, 16, 1024, 128), matrix_descriptor.decode_sm100),  # constant missing
        (sm100(0x2000, 16, 1024, 128) | 1 << 52, matrix_descriptor.decode_sm100),
        (sm100(0x2000, 16, 1024, 0) | 1 << 61, matrix_descriptor.decode_sm100),
        (1 << 64, matrix_descriptor.decode_sm100),
    ],
)
def test_illegal_descriptors_are_refused(bits: int, decode: object) -> None:
    with pytest.raises(matrix_descriptor.DescriptorError):
        decode(bits)  # type: ignore[operator]


def test_k_wider_than_the_span_is_refused() -> None:
    with pytest.raises(matrix_descriptor.DescriptorError, match="wider"):
        matrix_descriptor.decode_sm90(sm90(0, 16, 256, 32)).addresses(64, 32, 2, "K")


def test_tensor_map_bounds_and_bytes() -> None:
    copied = tensor_map.copy("f32", [10, 3], [48], [8, 4], 0, [4, -1], 0x100)
    assert copied.transaction_bytes == 8 * 4 * 4
    inside = copied.inside.reshape(4, 8)
    assert inside.tolist() == [[False] * 8] + [[True] * 6 + [False] * 2] * 3
    assert copied.tensor.reshape(4, 8)[1, 0] == 4 * 4
    assert copied.tensor.reshape(4, 8)[3, 5] == 2 * 48 + 9 * 4
    assert copied.shared.tolist() == list(range(0x100, 0x100 + 128, 4))
    shared = bytearray(b"\xff" * 0x200)
    tensor = np.arange(36, dtype=np.float32).reshape(3, 12)
    tensor_map.load(copied, tensor.tobytes(), shared, 4)
    tile = np.frombuffer(bytes(shared[0x100:0x180]), dtype=np.float32).reshape(4, 8)
    assert tile[0].tolist() == [0.0] * 8
    assert tile[1].tolist() == [4, 5, 6, 7, 8, 9, 0, 0]


def test_tensor_map_of_rank_3_flattens_outer_rows() -> None:
    copied = tensor_map.copy("bf16", [64, 5, 2], [128, 640], [64, 4, 2], 128, [0, 0, 0], 0x400)
    rows = copied.shared.reshape(2, 4, 64)
    assert rows[1, 2, 0] == swizzle.apply(0x400 + 6 * 128, 128)
    assert copied.tensor.reshape(2, 4, 64)[1, 2, 3] == 640 + 2 * 128 + 6


@pytest.mark.parametrize(
    ("dims", "strides", "box", "span"),
    [
        ([64, 8], [120], [64, 8], 128),
        ([64, 8], [128], [72, 8], 128),
        ([64, 8], [128], [64, 257], 128),
        ([64, 8], [128], [4, 8], 0),
        ([0, 8], [128], [64, 8], 128),
        ([64, 8], [], [64, 8], 128),
    ],
)
def test_illegal_tensor_maps_are_refused(dims: list[int], strides: list[int], box: list[int], span: int) -> None:
    with pytest.raises(tensor_map.MapError):
        tensor_map.check("bf16", dims, strides, box, span)


# ---- instruction descriptor ----------------------------------------------------------------------------------------


def test_instruction_descriptor_hand_value() -> None:
    """bf16 x bf16 -> f32, 128 x 256, both K-major: 1<<4 | 1<<7 | 1<<10 | 32<<17 | 8<<24."""
    found = instruction_descriptor.decode(0x08400490, "f16")
    assert (found.m, found.n, found.k, found.a, found.b, found.d) == (128, 256, 16, "bf16", "bf16", "f32")
    assert (found.a_major, found.b_major, found.negate_a, found.saturate) == ("K", "K", False, False)
    transposed = instruction_descriptor.decode(0x08400490 | 1 << 16, "f16")
    assert (transposed.a_major, transposed.b_major) == ("K", "MN")
    fp8 = instruction_descriptor.decode(1 << 4 | 0 << 7 | 1 << 10 | 8 << 17 | 4 << 24, "f8f6f4")
    assert (fp8.m, fp8.n, fp8.k, fp8.a, fp8.b) == (64, 64, 32, "e4m3", "e5m2")


@pytest.mark.parametrize(
    ("bits", "kind", "group"),
    [
        (0x08400490 & ~(0x3F << 17), "f16", 1),  # N = 0
        (0x08400490 & ~(0x1F << 24), "f16", 1),  # M = 0
        (0x08400490 & ~(1 << 4), "f16", 1),  # bf16 into f16
        (0x08400490 & ~(1 << 7), "f16", 1),  # f16 x bf16
        (0x08400490 | 1 << 23, "f16", 1),
        (0x08400490 | 1 << 2, "f16", 1),
        (0x08400490, "tf32", 1),
        (0x08400490, "i8", 1),
        (1 << 4 | 1 << 7 | 1 << 10 | 1 << 17 | 8 << 24, "f16", 2),  # N = 8 in a pair
    ],
)
def test_illegal_instruction_descriptors_are_refused(bits: int, kind: str, group: int) -> None:
    with pytest.raises(instruction_descriptor.InstructionError):
        instruction_descriptor.decode(bits, kind, group)  # type: ignore[arg-type]


# ---- barriers ------------------------------------------------------------------------------------------------------


def test_fresh_barrier_passes_parity_1_only() -> None:
    fresh = barrier.Mbarrier(1)
    assert fresh.test_parity(1)
    assert not fresh.test_parity(0)


def test_phase_needs_arrivals_and_bytes() -> None:
    full = barrier.Mbarrier(1)
    full.complete_tx(64)  # data may come before the announcement
    full.arrive_expect_tx(128)
    assert not full.test_parity(0)
    full.complete_tx(64)
    assert full.test_parity(0) and full.phase == 1
    with pytest.raises(barrier.BarrierError):
        barrier.Mbarrier(2).arrive(3)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
def test_ring_parities_of_a_pipeline(stages: int) -> None:
    """Producer and consumer over 2S+1 uses in every legal lag: parities let exactly the right ones through."""
    full = [barrier.Mbarrier(1) for _ in range(stages)]
    free = [barrier.Mbarrier(1) for _ in range(stages)]
    uses = 4 * stages + 3
    produced = consumed = 0
    while consumed < uses:
        if produced < uses:
            ready = produced < stages
            if not ready:
                slot, parity = barrier.ring(produced - stages, stages)
                ready = free[slot].test_parity(parity)
                assert ready == (produced - stages < consumed)
                assert ready == free[slot].wait_for((produced - stages) // stages)
            if ready:
                full[produced % stages].arrive()
                produced += 1
                continue
        slot, parity = barrier.ring(consumed, stages)
        assert full[slot].test_parity(parity) == (consumed < produced)
        free[slot].arrive()
        consumed += 1
    assert all(f.phase == g.phase for f, g in zip(full, free, strict=True))


def test_parity_two_behind_aliases() -> None:
    late = barrier.Mbarrier(1)
    late.arrive()
    late.arrive()
    with pytest.raises(barrier.BarrierError, match="aliases"):
        late.wait_for(0)
    with pytest.raises(barrier.BarrierError):
        barrier.ring(-1, 4)


# ---- tensor memory and fragments -----------------------------------------------------------------------------------


def test_tensor_memory_windows() -> None:
    assert tensor_memory.decode(0x00400020) == (64, 32)
    cells = tensor_memory.load_32x32b(0x00400020, 4, warp=6)
    assert cells[5, 3].tolist() == [69, 35]
    with pytest.raises(tensor_memory.TensorMemoryError, match="reaches lanes"):
        tensor_memory.load_32x32b(0x00400020, 4, warp=1)
    with pytest.raises(tensor_memory.TensorMemoryError):
        tensor_memory.decode(0x00800000)
    with pytest.raises(tensor_memory.TensorMemoryError):
        tensor_memory.load_32x32b(508, 8, warp=0)
    with pytest.raises(tensor_memory.TensorMemoryError):
        tensor_memory.check_alloc(96)


def test_four_warps_read_the_accumulator_once() -> None:
    seen = set()
    for warp in range(4):
        cells = tensor_memory.load_32x32b(warp << 21, 64, warp)
        seen |= {tuple(c) for c in cells.reshape(-1, 2).tolist()}
    assert seen == {tensor_memory.accumulator_cell(0, 128, r, c) for r in range(128) for c in range(64)}
    rows64 = {tensor_memory.accumulator_cell(0, 64, r, 0)[0] for r in range(64)}
    assert rows64 == {32 * q + i for q in range(4) for i in range(16)}


@pytest.mark.parametrize(
    ("cells", "shape"),
    [
        (fragments.mma_d(8), (16, 8)),
        (fragments.mma_d(32), (16, 32)),
        (fragments.mma_a(2), (16, 16)),
        (fragments.mma_a(1), (16, 32)),
        (fragments.mma_b(2), (16, 8)),
        (fragments.mma_b(1), (32, 8)),
        (fragments.wgmma_d(64), (64, 64)),
        (fragments.wgmma_a(2), (64, 16)),
        (fragments.ldmatrix(), (8, 8)),
        (fragments.ldmatrix(True), (8, 8)),
    ],
)
def test_fragments_hold_every_element_once(cells: np.ndarray, shape: tuple[int, int]) -> None:
    flat = [tuple(c) for c in cells.reshape(-1, 2).tolist()]
    assert sorted(flat) == [(r, c) for r in range(shape[0]) for c in range(shape[1])]


def test_fragment_hand_values() -> None:
    """Lane 5 is group 1, quad 1."""
    assert fragments.mma_d()[5].tolist() == [[1, 2], [1, 3], [9, 2], [9, 3]]
    assert fragments.mma_a()[5].tolist() == [[1, 2], [1, 3], [9, 2], [9, 3], [1, 10], [1, 11], [9, 10], [9, 11]]
    assert fragments.mma_b()[5].tolist() == [[2, 1], [3, 1], [10, 1], [11, 1]]
    assert fragments.wgmma_d(16)[37, 4].tolist() == [17, 10]


def test_ldmatrix_x4_feeds_mma_a() -> None:
    """Four 8x8 matrices in the order rows 0-7, 8-15, then the next 8 columns are the four A registers."""
    quads = [(0, 0), (8, 0), (0, 8), (8, 8)]
    joined = np.concatenate([fragments.ldmatrix() + np.array(q) for q in quads], axis=1)
    assert np.array_equal(joined, fragments.mma_a())
