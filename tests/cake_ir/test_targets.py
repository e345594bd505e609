"""Target tables: sources, consistency, exact matching, and the assembler's own opinion on features and matrix forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from cake_ir import ops, targets
from cake_ir.diagnostics import CakeError
from cake_ir.targets import FEATURES, MmaSyncForm, Target, WgmmaForm
from tests.cake_ir.ptx_probe import assemble, compiles

ALL = [targets.get(name) for name in targets.names()]
EXPECTED = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")

REQUIRED = """smem_per_block smem_per_sm smem_reserved registers_per_sm max_registers_per_thread register_unit
max_threads_per_block threads_per_sm blocks_per_sm named_barriers cluster_max_portable cluster_max sm_count clock_hz
hbm_bytes_per_s l2_bytes l2_bytes_per_clk_per_sm smem_bytes_per_clk tc_bf16 tc_tf32 fp32_lanes alu_per_clk sfu_per_clk
mbarrier_count_max""".split()

PTX_TYPE = {"i8": "s8", "i32": "s32", "e8m0": "ue8m0", "e4m3_scale": "ue4m3"}


def test_names_are_the_six_targets() -> None:
    assert targets.names() == EXPECTED
    assert [t.name for t in ALL] == list(EXPECTED)


@pytest.mark.parametrize("target", ALL, ids=lambda t: t.name)
def test_every_fact_has_unit_source_and_known_check(target: Target) -> None:
    for key, fact in target.facts.items():
        assert fact.unit and len(fact.source) > 5, key
        assert fact.checked in targets.CHECKED_MEANING, key
        values = fact.value if isinstance(fact.value, tuple) else (fact.value,)
        assert all(v >= 0 for v in values), key
    for key in REQUIRED:
        assert key in target.facts, f"{target.name} lacks {key}"


def test_features_have_sources_and_known_targets() -> None:
    for name, feature in FEATURES.items():
        assert feature.name == name and feature.source.startswith("PTX ISA") and feature.meaning
        assert feature.targets and feature.targets <= set(EXPECTED)
    for target in ALL:
        assert target.features == {n for n, x in FEATURES.items() if target.name in x.targets}


@pytest.mark.parametrize(
    ("target", "per_block"),
    [
        ("sm_80", 166912),
        ("sm_89", 101376),
        ("sm_90a", 232448),
        ("sm_100a", 232448),
        ("sm_103a", 232448),
        ("sm_120a", 101376),
    ],
)
def test_shared_memory_of_one_block(target: str, per_block: int) -> None:
    t = targets.get(target)
    assert t.value("smem_per_block") == per_block
    assert t.value("smem_per_sm") == per_block + t.value("smem_reserved")


@pytest.mark.parametrize(
    ("target", "key", "tflops"),
    [
        ("sm_80", "tc_bf16", 312),
        ("sm_90a", "tc_bf16", 989),
        ("sm_90a", "tc_fp8", 1979),
        ("sm_100a", "tc_bf16", 2250),
        ("sm_100a", "tc_fp4", 9000),
        ("sm_103a", "tc_fp4", 15000),
        ("sm_89", "tc_fp8", 733),
        ("sm_120a", "tc_bf16", 209.5),
    ],
)
def test_rates_reproduce_the_data_sheet_peak(target: str, key: str, tflops: float) -> None:
    t = targets.get(target)
    peak = t.rate(key) * t.rate("sm_count") * t.rate("clock_hz") / 1e12
    assert peak == pytest.approx(tflops, rel=0.08)


def test_facts_only_where_the_hardware_is() -> None:
    for target in ALL:
        assert ("tmem_columns" in target.facts) == target.has("tmem")
        assert ("tma_box_max" in target.facts) == target.has("tma")
        assert (target.value("cluster_max") > 1) == target.has("cluster")
        assert bool(target.wgmma) == target.has("wgmma")
        assert bool(target.tcgen05) == target.has("tcgen05")
        assert ("tc_fp8" in target.facts) == target.has("mma_sync_fp8")


def test_ops_ask_for_known_features_only() -> None:
    asked = {d.feature for d in ops.registry().values() if d.feature}
    assert "wgmma" in asked and asked <= set(FEATURES)


def test_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(CakeError) as info:
        targets.get("sm_90")
    d = info.value.diagnostic
    assert d.rule == "hardware/unknown-target"
    assert all(name in d.message for name in EXPECTED) and "write 'sm_90a'" in d.message
    with pytest.raises(CakeError) as info:
        targets.get("x\n" * 5000 + "<evil>")
    assert len(info.value.diagnostic.message) < 200 and "\n" not in info.value.diagnostic.message


def test_require_names_op_and_alternatives() -> None:
    targets.get("sm_90a").require("wgmma")
    with pytest.raises(CakeError) as info:
        targets.get("sm_100a").require("wgmma", "wgmma(acc, a, b)")
    assert info.value.diagnostic.rule == "hardware/target-lacks-feature"
    assert "wgmma(acc, a, b)" in info.value.diagnostic.message and "sm_90a" in info.value.diagnostic.message
    with pytest.raises(CakeError, match="not a feature"):
        targets.get("sm_80").has("wgmmma")
    with pytest.raises(CakeError, match="no fact"):
        targets.get("sm_80").fact("tmem_columns")
    assert targets.get("sm_80").get("tmem_columns") is None


def test_form_lookups() -> None:
    h, b, r = targets.get("sm_90a"), targets.get("sm_100a"), targets.get("sm_120a")
    bf16 = h.wgmma_form("bf16", "bf16", "f32")
    assert bf16 is not None and bf16.k == 16 and bf16.d_regs(256) == 128 and bf16.mn_major
    assert bf16.allows_n(8) and bf16.allows_n(248) and not bf16.allows_n(4) and not bf16.allows_n(264)
    assert h.wgmma_form("bf16", "bf16", "bf16") is None and h.wgmma_form("f16", "bf16", "f32") is None
    i8 = h.wgmma_form("i8", "u8", "i32")
    assert i8 is not None and i8.allows_n(24) and i8.allows_n(48) and not i8.allows_n(40)
    assert [f.k for f in h.mma_sync_forms("bf16", "bf16", "f32")] == [16, 8]
    assert targets.get("sm_80").mma_sync_forms("e4m3", "e4m3", "f32") == ()
    f16 = b.tcgen05_form("bf16", "bf16", "f32")
    assert f16 is not None and f16.kind == "f16"
    assert f16.allows(128, 256, 1) and f16.allows(256, 256, 2) and f16.allows(64, 8, 1)
    assert (
        not f16.allows(256, 128, 1)
        and not f16.allows(64, 128, 2)
        and not f16.allows(256, 24, 2)
        and not f16.allows(128, 264, 1)
    )
    assert b.tcgen05_form("f16", "bf16", "f32") is None
    mx = b.tcgen05_form("e4m3", "e2m1", "f32", scale="e8m0")
    assert mx is not None and mx.kind == "mxf8f6f4" and not mx.allows(64, 64, 1)
    assert b.tcgen05_form("e4m3", "e2m1", "f32").kind == "f8f6f4"  # type: ignore[union-attr]
    assert (
        b.tcgen05_form("i8", "i8", "i32") is not None and targets.get("sm_103a").tcgen05_form("i8", "i8", "i32") is None
    )
    assert r.tcgen05 == () and any(f.kind == "mxf4nvf4" for f in r.mma_sync)


@pytest.mark.parametrize("target", ALL, ids=lambda t: t.name)
def test_fragment_registers_hold_the_matrices(target: Target) -> None:
    bits = {"f64": 64, "f32": 32, "i32": 32, "tf32": 32, "f16": 16, "bf16": 16}
    for f in target.mma_sync:
        # 4- and 6-bit types travel in 8-bit containers, except in the pure 4-bit kinds.
        a = 4 if f.kind in ("mxf4", "mxf4nvf4") else bits.get(f.a, 8)
        assert f.a_regs * 32 * 32 == f.m * f.k * a, f
        assert f.b_regs * 32 * 32 == f.n * f.k * a, f
        assert f.d_regs * 32 * 32 == f.m * f.n * bits[f.d], f


# ---- the assembler's opinion ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", EXPECTED)
def test_assembler_accepts_every_feature_of_the_target(target: str) -> None:
    probes = [x.probe for x in FEATURES.values() if target in x.targets]
    ok, log = assemble(probes, target)
    assert ok, log


# One neighbour each that must not have it: the boundary that matters most.
BOUNDARY = [
    ("mma_sync_fp8", "sm_80"),
    ("mbarrier_try_wait", "sm_89"),
    ("tma", "sm_89"),
    ("bulk_copy", "sm_89"),
    ("cluster", "sm_89"),
    ("elect", "sm_89"),
    ("stmatrix", "sm_89"),
    ("griddepcontrol", "sm_89"),
    ("setmaxnreg", "sm_89"),
    ("wgmma", "sm_89"),
    ("wgmma", "sm_100a"),
    ("wgmma", "sm_120a"),
    ("clc", "sm_90a"),
    ("tmem", "sm_90a"),
    ("tcgen05", "sm_90a"),
    ("tcgen05", "sm_120a"),
    ("tcgen05_i8", "sm_103a"),
    ("tma_gather4", "sm_90a"),
    ("tma_cta_group2", "sm_120a"),
    ("ldmatrix_b8", "sm_90a"),
    ("stmatrix_b8", "sm_90a"),
    ("mma_mxf8f6f4", "sm_100a"),
    ("mma_mxf4nvf4", "sm_100a"),
    ("redux_f32", "sm_120a"),
    ("min3", "sm_90a"),
    ("fma_f32x2", "sm_90a"),
]


@pytest.mark.parametrize(("feature", "target"), BOUNDARY)
def test_assembler_rejects_the_feature(feature: str, target: str) -> None:
    assert target not in FEATURES[feature].targets
    ok, _ = assemble([FEATURES[feature].probe], target)
    assert not ok


def test_assembler_enforces_the_limits_tagged_so() -> None:
    h = targets.get("sm_90a")
    low, high, step = (h.value(f"setmaxnreg_{x}") for x in ("min", "max", "step"))
    good, _ = assemble(
        [f"setmaxnreg.dec.sync.aligned.u32 {low};", f"setmaxnreg.inc.sync.aligned.u32 {high};"], "sm_90a"
    )
    assert good
    for bad in (low - step, high + step, low + step // 2):
        assert not assemble([f"setmaxnreg.dec.sync.aligned.u32 {bad};"], "sm_90a")[0]
    top = h.value("named_barriers")
    assert assemble([f"barrier.sync {top - 1}, 64;"], "sm_90a")[0]
    assert not assemble([f"barrier.sync {top}, 64;"], "sm_90a")[0]
    assert not assemble(["barrier.sync 1, 48;"], "sm_90a")[0]
    bulk = ".reg .b32 a, b; .reg .b64 x; mov.b32 a, 0; mov.b32 b, 0; mov.b64 x, 0; cp.async.bulk.shared::cluster.global"
    bulk += ".mbarrier::complete_tx::bytes [a], [x], %d, [b];"
    assert assemble([bulk % 32], "sm_90a")[0] and not assemble([bulk % 24], "sm_90a")[0]
    copy = ".reg .b32 a; .reg .b64 x; mov.b32 a, 0; mov.b64 x, 0; cp.async.%s.shared.global [a], [x], %d;"
    assert assemble([copy % ("ca", n) for n in h.facts["cp_async_sizes"].value], "sm_80")[0]  # type: ignore[union-attr]
    assert not assemble([copy % ("cg", 8)], "sm_80")[0] and not assemble([copy % ("ca", 32)], "sm_80")[0]


def test_assembler_enforces_ranks_and_tensor_memory_sizes() -> None:
    rank = targets.get("sm_90a").value("tma_rank_max")
    tma = ".reg .b32 a, d, c; .reg .b64 x; mov.b32 a, 0; mov.b32 c, 0; mov.b32 d, 0; mov.b64 x, 0; "
    tma += "cp.async.bulk.tensor.%dd.shared::cluster.global.tile.mbarrier::complete_tx::bytes [a], [x, {%s}], [d];"
    assert assemble([tma % (n, ", ".join("c" * n)) for n in range(1, rank + 1)], "sm_90a")[0]
    assert not assemble([tma % (rank + 1, ", ".join("c" * (rank + 1)))], "sm_90a")[0]
    b = targets.get("sm_100a")
    alloc = ".reg .b32 a; mov.b32 a, 0; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [a], %d;"
    least, most = b.value("tmem_alloc_min"), b.value("tmem_columns")
    assert assemble([alloc % least, alloc % most], "sm_100a")[0]
    for bad in (least // 2, most * 2, 96):
        assert not assemble([alloc % bad], "sm_100a")[0], bad


def test_limits_agree_with_the_vendor_header(tmp_path: Path) -> None:
    """The CCCL header that NVRTC carries states the limits of each architecture; compare ours in static assertions."""
    members = {
        "max_shared_memory_per_multiprocessor": "smem_per_sm",
        "max_shared_memory_per_block_optin": "smem_per_block",
        "reserved_shared_memory_per_block": "smem_reserved",
        "max_blocks_per_multiprocessor": "blocks_per_sm",
        "max_threads_per_multiprocessor": "threads_per_sm",
        "max_threads_per_block": "max_threads_per_block",
        "max_registers_per_multiprocessor": "registers_per_sm",
        "max_registers_per_block": "registers_per_block",
        "max_registers_per_thread": "max_registers_per_thread",
        "max_shared_memory_per_block": "smem_without_opt_in",
        "warp_size": "warp_size",
    }
    lines = ["#include <cuda/__device/arch_traits.h>"]
    for t in ALL:
        major, minor = t.compute_capability
        traits = f"cuda::arch_traits<cuda::arch_id::sm_{major}{minor}>()"
        lines += [f'static_assert({traits}.{m} == {t.value(k)}, "{t.name} {k}");' for m, k in members.items()]
    source = "\n".join(lines) + "\n"
    unpack = f"--use-bundled-headers={tmp_path}"
    include = f"-I{tmp_path / 'cccl'}"
    ok, log = compiles("#include <cuda_bf16.h>\n", "sm_90a", unpack)
    if not ok:
        pytest.skip(f"this NVRTC carries no headers: {log[:100]}")
    ok, log = compiles(source, "sm_90a", unpack, include)
    assert ok, log
    wrong, _ = compiles(source.replace(" == 232448,", " == 232449,"), "sm_90a", unpack, include)
    assert not wrong


def _wgmma_ptx(form: WgmmaForm, n: int) -> str:
    regs = form.d_regs(n)
    kind = "f" if form.d == "f32" else "r"
    decl = f".reg .{'f32' if kind == 'f' else 'b32'} d<{regs}>; .reg .b64 x, y; mov.b64 x, 0; mov.b64 y, 0; "
    d = ", ".join(f"d{i}" for i in range(regs))
    imm = "1, 1, 1, 0, 0" if form.mn_major else "1, 1, 1" if form.d != "i32" else "1"
    t = PTX_TYPE
    shape = f"m{form.m}n{n}k{form.k}.{t.get(form.d, form.d)}.{t.get(form.a, form.a)}.{t.get(form.b, form.b)}"
    fill = "".join(f"mov.b32 d{i}, 0; " for i in range(regs))
    return (
        f"{decl}{fill}wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.{shape} {{{d}}}, x, y, {imm};"
        " wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    )


def test_assembler_accepts_every_wgmma_form_at_its_smallest_and_an_odd_n() -> None:
    forms = targets.get("sm_90a").wgmma
    ok, log = assemble([_wgmma_ptx(f, n) for f in forms for n in (8, 24)], "sm_90a")
    assert ok, log
    i8 = targets.get("sm_90a").wgmma_form("i8", "i8", "i32")
    assert i8 is not None and not assemble([_wgmma_ptx(i8, 40)], "sm_90a")[0]


def _mma_ptx(f: MmaSyncForm) -> str:
    t = PTX_TYPE
    wide = f.a == "f64"
    acc = {"f32": "f32", "f64": "f64"}.get(f.d, "b32")
    a_n, b_n, d_n = (f.a_regs // 2, f.b_regs // 2, f.d_regs // 2) if wide else (f.a_regs, f.b_regs, f.d_regs)
    ab = "f64" if wide else "b32"
    regs = f".reg .{ab} a<{a_n}>, b<{b_n}>; .reg .{acc} d<{d_n}>; .reg .b32 sa, sb; mov.b32 sa, 0; mov.b32 sb, 0; "
    zero = "0d0000000000000000" if wide else "0"
    fill = "".join(
        f"mov.{'f64' if wide else 'b32'} {r}{i}, {zero}; "
        for r, n in (("a", a_n), ("b", b_n), ("d", d_n))
        for i in range(n)
    )
    lists = [
        "{" + ", ".join(f"{r}{i}" for i in range(n)) + "}" for r, n in (("d", d_n), ("a", a_n), ("b", b_n), ("d", d_n))
    ]
    types = ".".join(t.get(x, x) for x in (f.d, f.a, f.b, f.d))
    kind = f".kind::{f.kind}" if f.kind else ""
    if f.scale:
        scale = "ue4m3" if f.scale == "e4m3" else "ue8m0"
        kind += f".block_scale.scale_vec::{f.scale_vec}X"
        tail, suffix = f".{scale}", ", sa, {0, 0}, sb, {0, 0}"
    else:
        tail, suffix = "", ""
    return f"{regs}{fill}mma.sync.aligned{kind}.m{f.m}n{f.n}k{f.k}.row.col.{types}{tail} {', '.join(lists)}{suffix};"


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_120a"])
def test_assembler_accepts_every_mma_sync_form(target: str) -> None:
    ok, log = assemble([_mma_ptx(f) for f in targets.get(target).mma_sync], target)
    assert ok, log
