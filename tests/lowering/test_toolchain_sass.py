"""Disassembly, promises, the mnemonic table (every row against machine code), resources and occupancy."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import anyio
import pytest

from cake_ir import targets
from cake_ir.diagnostics import CakeError, Span
from lowering import resources, sass
from lowering.building import build, build_async
from lowering.compile import compile_cuda
from lowering.plan import Manifest, Promise
from lowering.resources import Limits, Resources, elf_facts, occupancy, read_resources
from lowering.sass import check_promises, disassemble, histogram, mma_mnemonic, mnemonic, parse_sass, wgmma_mnemonic
from tests.lowering import toolchain_probes as probes


@cache
def machine_code(family: str, arch: str) -> sass.Sass:
    text = getattr(probes, family + "_forms")(arch)
    return parse_sass(disassemble(compile_cuda(text, arch).cubin))


AMPERE_FORMS = (
    "cp.async", "cp.async.cg", "cp.async.commit_group", "cp.async.wait_group", "cp.async.mbarrier.arrive", "ldmatrix",
    "ldmatrix.trans", "bar.sync", "bar.arrive", "mbarrier.arrive",
)  # fmt: skip
HOPPER_FORMS = (
    "stmatrix", "stmatrix.trans", "mbarrier.arrive", "mbarrier.try_wait", "elect.sync", "fence.proxy.async",
    "cluster.arrive", "cluster.wait", "griddepcontrol.wait",
    "griddepcontrol.launch_dependents", "tma.load", "tma.load.multicast", "tma.store", "tma.reduce", "tma.prefetch",
    "tensormap.prefetch", "bulk.commit_group", "bulk.load", "bulk.store", "bulk.peer", "bulk.reduce", "st.async",
)  # fmt: skip
REGISTER_FORMS = ("setmaxnreg.inc", "setmaxnreg.dec")
WGMMA_FORMS = ("wgmma.fence", "wgmma.wait_group")
BLACKWELL_FORMS = (
    "tcgen05.mma.f16", "tcgen05.mma.tf32", "tcgen05.mma.f8f6f4", "tcgen05.mma.mxf8f6f4", "tcgen05.mma.mxf4nvf4",
    "tcgen05.mma.i8", "tcgen05.cp", "tcgen05.ld", "tcgen05.st", "tcgen05.commit", "tcgen05.commit.multicast",
    "tcgen05.alloc", "tcgen05.dealloc",
)  # fmt: skip


def test_every_row_of_the_table_is_probed() -> None:
    assert set(sass.MNEMONICS) == {*AMPERE_FORMS, *HOPPER_FORMS, *REGISTER_FORMS, *WGMMA_FORMS, *BLACKWELL_FORMS}


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_ampere_forms(arch: str) -> None:
    code = machine_code("ampere", arch)
    for form in AMPERE_FORMS:
        assert code.count(mnemonic(form, arch)) >= 1, form
    for dtype, k, d in probes.MMA:
        assert code.count(mma_mnemonic(arch, k, dtype, dtype, d)) >= 1, dtype
    assert code.count(mma_mnemonic(arch, 32, "i8", "i8", "i32")) == 1
    if arch != "sm_80":
        for a, b in probes.FP8:
            assert code.count(mma_mnemonic(arch, 32, a, b, "f32")) >= 1, (a, b)


def test_fp8_mma_is_emulated_where_the_table_says() -> None:
    assert machine_code("ampere", "sm_89").count(r"QMMA\..*") == 3
    assert machine_code("ampere", "sm_90a").count(r"QMMA\..*") == 0


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
def test_hopper_forms(arch: str) -> None:
    code = machine_code("hopper", arch)
    for form in HOPPER_FORMS:
        if (form, arch) == ("tma.load.multicast", "sm_120a"):
            with pytest.raises(KeyError):
                mnemonic(form, arch)
            continue
        assert code.count(mnemonic(form, arch)) >= 1, form
    registers = machine_code("register", arch)
    for form in REGISTER_FORMS:
        assert registers.count(mnemonic(form, arch)) == 1, form


def test_wgmma_forms() -> None:
    code = machine_code("hopper", "sm_90a")
    for form in WGMMA_FORMS:
        assert code.count(mnemonic(form, "sm_90a")) >= 1, form
    for a, b, d, _ in probes.WGMMA:
        assert code.count(wgmma_mnemonic(8, a, b, d)) == 1, (a, b, d)
    assert code.count(wgmma_mnemonic(16, "bf16", "bf16", "f32")) == 0


@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
def test_blackwell_forms(arch: str) -> None:
    code = machine_code("blackwell", arch)
    for form in BLACKWELL_FORMS:
        if form == "tcgen05.mma.i8" and arch == "sm_103a":
            with pytest.raises(KeyError):
                mnemonic(form, arch)
            continue
        assert code.count(mnemonic(form, arch)) >= 1, form


def test_sass_lines_lead_to_the_program() -> None:
    code = parse_sass(disassemble(compile_cuda(probes.SMALL, "sm_90a").cubin))
    assert code.lines(r"STG\..*") == (9,)
    assert {i.function for i in code.instructions} == {"small"}
    assert [i.offset for i in code.instructions] == list(range(0, 16 * len(code.instructions), 16))
    assert histogram(code)["STG"] == 1 and "NOP" not in histogram(code)
    assert 'File "/' not in code.text


def test_lines_come_from_where_a_helper_was_inlined() -> None:
    helper = "__device__ __forceinline__ void put(float* y, float x) {\n  *(volatile float*)y = x;\n}\n"
    source = helper + probes.SMALL.replace("y[i] = x[i] * 2.0f", "put(y + i, x[i])")
    code = parse_sass(disassemble(compile_cuda(source, "sm_90a").cubin))
    assert code.lines(r"STG?\..*") == (9,)


def test_promises() -> None:
    code = machine_code("hopper", "sm_90a")
    at = Span(line=12, col=3)
    kept = Promise("wgmma", wgmma_mnemonic(8, "bf16", "bf16", "f32"), 1, at)
    broken = Promise("wgmma", wgmma_mnemonic(64, "bf16", "bf16", "f32"), 1, at)
    rare = Promise("tma_load", mnemonic("tma.load", "sm_90a"), 3, at)
    assert check_promises(code, [kept]) == []
    first, second = check_promises(code.text, [kept, broken, rare])
    assert (first.rule, first.severity, first.span) == ("lowering/promise-missing", "error", at)
    assert "HGMMA.64x8x16.F32.BF16" in first.message and "has 0" in first.message
    assert "has 2" in second.message


def test_broken_cubin_is_an_answer() -> None:
    with pytest.raises(CakeError) as fault:
        disassemble(b"not an ELF")
    assert fault.value.diagnostic.rule == "lowering/disassembly-failed"
    assert "/tmp" not in fault.value.diagnostic.message


def test_missing_disassembler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pathfinder = pytest.importorskip("cuda.pathfinder")
    monkeypatch.setattr(pathfinder, "find_nvidia_binary_utility", lambda _: None)
    with pytest.raises(CakeError, match="cake-mcp"):
        sass.find_nvdisasm.__wrapped__()


# ---- resources -----------------------------------------------------------------------------------------------------

SPILLING = """extern "C" __global__ void __launch_bounds__(1024) k(float* y) {
  __shared__ float s[1000];
  float a[96];
#pragma unroll
  for (int i = 0; i < 96; i++) a[i] = y[i * 1024 + threadIdx.x];
  s[threadIdx.x % 1000] = a[3];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; i++) y[i * 1024 + threadIdx.x] = a[i] * a[95 - i] + s[i];
}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_resources_of_a_spilling_kernel(arch: str) -> None:
    made = compile_cuda(SPILLING, arch)
    used = read_resources(made.log, made.cubin, "k", 2048)
    assert used.registers == 64 == elf_facts(made.cubin, "k").registers
    assert used.spill_store_bytes > 0 and used.spill_load_bytes > 0 and used.stack_bytes > 0
    assert (used.static_smem, used.dynamic_smem, used.barriers) == (4000, 2048, 1)
    reserved = 0 if arch == "sm_80" else 1024
    assert elf_facts(made.cubin, "k").shared_section == 4000 + reserved
    limits = Limits.of(targets.get(arch))
    found = resources.findings(used, occupancy(used, 1024, limits), 1024)
    assert [d.rule for d in found] == ["lowering/register-spill"]


def test_resources_of_an_unknown_symbol() -> None:
    made = compile_cuda(probes.SMALL, "sm_80")
    with pytest.raises(CakeError, match="no report for other"):
        read_resources(made.log, made.cubin, "other")
    with pytest.raises(CakeError, match="not a 64-bit ELF"):
        read_resources(made.log, b"", "small")


def used(registers: int, smem: int = 0) -> Resources:
    return Resources(registers, 0, 0, 0, 0, smem, 1)


@pytest.mark.parametrize(
    ("registers", "smem", "threads", "blocks", "bound"),
    [
        (32, 0, 256, 8, "registers"),  # 2048 threads at 32 registers: registers and threads bind alike
        (33, 0, 256, 6, "registers"),  # rounded up to 40 per thread: 51 warps, of which 48 in groups of four
        (168, 0, 384, 1, "registers"),  # 168 * 384 = 64512 registers
        (168, 0, 416, 0, "registers"),  # 12 warps fit, in groups of four
        (24, 232448, 128, 1, "smem"),
        (24, 232449, 128, 0, "smem"),  # above the opt-in limit
        (24, 113 * 1024, 128, 2, "smem"),  # 2 * (113 + 1) KiB is all of the SM
        (24, 113 * 1024 + 1, 128, 1, "smem"),
        (255, 0, 32, 8, "registers"),
        (16, 0, 32, 32, "blocks"),
        (16, 0, 1024, 2, "threads"),
    ],
)
def test_occupancy_on_hopper(registers: int, smem: int, threads: int, blocks: int, bound: str) -> None:
    found = occupancy(used(registers, smem), threads, Limits.of(targets.get("sm_90a")))
    assert (found.blocks_per_sm, found.limited_by) == (blocks, bound)
    assert found.warps_per_sm == blocks * -(-threads // 32)


def test_a_kernel_that_cannot_launch_is_an_error() -> None:
    too_much = used(168, 232449)
    found = resources.findings(too_much, occupancy(too_much, 128, Limits.of(targets.get("sm_90a"))), 128)
    assert [d.rule for d in found] == ["lowering/cannot-launch"]


# ---- the whole build -----------------------------------------------------------------------------------------------


class Emitted:
    """The least that a build needs."""

    cuda = probes.SMALL
    symbol = "small"
    arch = "sm_90a"
    manifest = Manifest("small", "sm_90a", 128, 1, 4096, 1, ())
    promised = (Promise("store", r"STG\..*", 1, Span(line=9, col=1)),)


def test_build_reports_and_caches_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(Emitted(), cache_dir=tmp_path)
    assert first.ok and first.diagnostics == () and not first.compiled.cached
    assert first.report()["resources"]["dynamic_smem"] == 4096 and first.report()["instructions"]["STG"] == 1
    monkeypatch.setattr(sass, "_disassemble", lambda *_: pytest.fail("disassembled again"))
    second = build(Emitted(), cache_dir=tmp_path)
    assert second.compiled.cached and second.sass == first.sass and second.sha256 == first.sha256
    json.dumps(second.report())


def test_build_with_a_broken_promise_is_not_ok(tmp_path: Path) -> None:
    class Broken(Emitted):
        promised = (Promise("wgmma", r"HGMMA\..*", 1, Span(line=9, col=1)),)

    built = anyio.run(lambda: build_async(Broken(), cache_dir=tmp_path))
    assert not built.ok and [d.rule for d in built.diagnostics] == ["lowering/promise-missing"]
