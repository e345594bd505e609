"""Every corpus kernel on every target of its index entry: text, acceptance, numbers under schedules, machine code."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import pytest

from analyses import estimate, interpret, verify
from cake_ir import bind, parse, print_file
from cake_ir.bound import BoundKernel
from corpus import check_cpu, contracts, kernels, results
from corpus.check import CheckResult
from corpus.contract import Shape
from corpus.edges import DISTRIBUTIONS, gate_shapes
from corpus.kernels import CorpusKernel
from lowering import Build, emit
from tests.compiled import compiled

ENTRIES = {(k.name, t): k for k in kernels() for t in k.targets}
IDS = [f"{n} {t}" for n, t in ENTRIES]

# bindings under which boundary shapes give several tiles, ring turns and chunks in little time
SMALL: dict[str, dict[str, int]] = {
    "kmeans_assign": {"STAGES": 2},
    "kmeans_packed": {"STAGES": 2},
    "kmeans_bias": {"WG": 2, "STAGES": 2},
    "kmeans_split": {"DP": 128, "STAGES": 2},
    "kmeans_split_cluster": {"DP": 128, "BC": 64, "STAGES": 4},
    "kmeans_split_f16": {"DP": 128, "STAGES": 3},
    "gemm_sm90": {"STAGES": 2},
    "gemm_sm90_cluster": {"STAGES": 2, "WGS": 1, "BN": 64},
    "gemm_sm90_split": {"STAGES": 4, "BN": 128, "KS": 4, "CM": 2},
    "gemm_sm90_nn": {"STAGES": 2, "BN": 128, "CN": 2},
    "gemm_sm80": {"STAGES": 2},
    "gemm_sm100": {"STAGES": 2, "BN": 128},
    "gemm_sm100_single": {"STAGES": 2, "BN": 128},
    "rmsnorm": {"DMAX": 2048},
    "rmsnorm_ring": {"STAGES": 2, "BULK": 1},
    "rmsnorm_rows": {"WARPS": 2, "CHUNK": 256, "STAY": 1},
    "softmax": {"CHUNK": 512, "WARPS": 4},
    "softmax_held": {"NMAX": 2048, "WARPS": 4},
    "softmax_ring": {"WARPS": 2, "STAGES": 2, "CHUNK": 1024},
    "softmax_rows": {"WARPS": 1, "HELD": 2, "STAY": 1},
    "row_norms": {"WARPS": 4},
    "col_sums": {"WARPS": 2},
    "col_sums_split": {"WARPS": 2, "ROWS": 4, "SPLIT": 4, "MEET": 0},
    "col_sums_cluster": {"WARPS": 2, "ROWS": 4, "COLS": 128},
}

CODE: dict[str, tuple[str, ...]] = {
    "kmeans_assign": (r"UTMALDG\..*", r"HGMMA\.64x128x16\.F32\.BF16.*", r"SYNCS\.PHASECHK\..*", r"USETMAXREG\..*"),
    "kmeans_packed": (r"UTMALDG\..*", r"HGMMA\.64x128x16\.F32\.BF16.*", r"LDSM\..*", r"USETMAXREG\..*"),
    "kmeans_bias": (r"UTMALDG\..*", r"HGMMA\.64x128x16\.F32\.BF16.*", r"LDSM\..*", r"VIMNMX3.*", r"USETMAXREG\..*"),
    "kmeans_split": (r"UTMALDG\..*", r"HGMMA\.64x128x16\.F32\.BF16.*", r"LDSM\..*", r"USETMAXREG\..*"),
    "kmeans_split_cluster": (r"UCGABAR_WAIT.*", r"HGMMA\.64x128x16\.F32\.BF16.*", r"STAS.*", r"ACQBULK"),
    "kmeans_split_f16": (r"UTMALDG\..*", r"HGMMA\.64x64x16\.F32", r"UCGABAR_WAIT.*"),
    "gemm_sm90": (r"UTMALDG\..*MULTICAST.*", r"HGMMA\.64x256x16\.F32\.BF16.*", r"STSM\..*", r"UTMASTG\..*"),
    "gemm_sm90_cluster": (r"UTMALDG\..*MULTICAST.*", r"HGMMA\.64x128x16\.F32\.BF16.*", r"ACQBULK", r"PREEXIT"),
    "gemm_sm90_split": (r"UCGABAR_WAIT.*", r"HGMMA\.64x128x16\.F32\.BF16.*", r"STSM\..*", r"UTMASTG\..*"),
    "gemm_sm90_nn": (r"UTMALDG\..*MULTICAST.*", r"HGMMA\.64x256x16\.F32\.BF16.*", r"STSM\..*", r"UTMASTG\..*"),
    "gemm_sm80": (r"LDGSTS\..*", r"LDSM\..*", r"HMMA\.16816\.F32\.BF16.*"),
    "gemm_sm100": (r"UTCHMMA\.2CTA.*", r"LDTM.*", r"UTCBAR.*MULTICAST.*", r"UTMASTG\..*"),
    "gemm_sm100_single": (r"UTCHMMA.*", r"LDTM.*", r"UTCBAR.*", r"UTMASTG\..*"),
    "rmsnorm": (r"LDG\.E\.128.*", r"MUFU\.RSQ", r"STG\.E\.128.*"),
    "softmax": (r"LDG\.E\.128.*", r"MUFU\.EX2", r"STG\.E\.128.*"),
    "rmsnorm_ring": (r"UTMALDG\..*", r"SYNCS\.PHASECHK\..*", r"MUFU\.RSQ", r"STG\.E\.128.*"),
    "rmsnorm_rows": (r"LDG\.E\.128.*", r"MUFU\.RSQ", r"STG\.E\.128.*"),
    "softmax_held": (r"LDG\.E\.128.*", r"MUFU\.EX2", r"STG\.E\.128.*"),
    "softmax_ring": (r"UTMALDG\..*", r"SYNCS\.PHASECHK\..*", r"MUFU\.EX2", r"STG\.E\.128.*"),
    "softmax_rows": (r"LDG\.E\.128.*", r"MUFU\.EX2", r"STG\.E\.128.*"),
    "row_norms": (r"LDG\.E\.128.*", r"SHFL\..*", r"FMUL.*"),
    "col_sums": (r"LDG\.E\.128.*", r"FADD.*", r"STS.*"),
    "col_sums_split": (r"LDG\.E\.128.*", r"REDG\.E\.ADD\.F32.*"),
    "col_sums_cluster": (r"LDG\.E\.128.*", r"UCGABAR_WAIT.*", r"ST\.E.*"),
}
"""SASS mnemonics that a kernel must show, by hand from what it is for."""


def bound_of(entry: CorpusKernel, target: str, **more: Any) -> BoundKernel:
    """The kernel bound as its index entry says, with further tunables."""
    parsed = parse(entry.text(), entry.file)
    assert parsed.file is not None, [d.render() for d in parsed.diagnostics]
    done = bind(parsed.file, {**entry.bindings, **more}, target, entry.kernel)
    assert done.bound is not None, [d.render() for d in done.diagnostics]
    return done.bound


def test_the_index_is_covered() -> None:
    assert {n for n, _ in ENTRIES} == set(CODE) == set(SMALL)


@pytest.mark.parametrize("path", sorted({k.path for k in kernels()}), ids=lambda p: p.stem)
def test_text_is_canonical(path) -> None:
    text = path.read_text()
    parsed = parse(text, path.name)
    assert parsed.file is not None, [d.render() for d in parsed.diagnostics]
    assert print_file(parsed.file) == text


@pytest.mark.parametrize("small", [False, True], ids=["index", "small"])
@pytest.mark.parametrize("at", ENTRIES, ids=IDS)
def test_is_accepted(at: tuple[str, str], small: bool) -> None:
    report = verify(bound_of(ENTRIES[at], at[1], **(SMALL[at[0]] if small else {})))
    assert report.accepted, [d.render() for d in report.diagnostics if d.severity == "error"]
    assert all(p.verdict in ("proved", "checked") for p in report.properties), report.properties


def program(bound: BoundKernel) -> str:
    """Everything of a bound kernel but its target: what the value reading reads."""
    return repr([getattr(bound, f.name) for f in fields(bound) if f.name not in ("target", "notes")])


READ: dict[tuple[str, str], CheckResult] = {}


def interpreted(bound: BoundKernel, contract: str, shapes: Sequence[Shape], schedules: Sequence[str]) -> CheckResult:
    """The check by interpretation, once for programs that differ in nothing but their target."""
    key = (program(bound), contract)
    if key not in READ:
        READ[key] = check_cpu(
            bound, contracts()[contract], shapes, interpret=interpret, distributions=("normal",), seed=7, secret=11,
            schedules=schedules,
        )  # fmt: skip
    return READ[key]


@pytest.mark.parametrize("at", ENTRIES, ids=IDS)
def test_is_right_on_boundary_shapes(at: tuple[str, str]) -> None:
    """Greedy, one random schedule, and each role starved."""
    bound = bound_of(ENTRIES[at], at[1], **SMALL[at[0]])
    schedules = ("greedy", "random:5", *(f"starve:{r.name}" for r in bound.roles))
    shapes: tuple[Shape, ...] = contracts()[ENTRIES[at].contract].shapes["boundary"]
    result = interpreted(bound, ENTRIES[at].contract, shapes, schedules)
    assert result.passed, result.summary
    passed = [c for c in result.cases if c.verdict == "passed"]
    # a shape may be refused by `where` (a width above the bound tile), but not most of them
    assert sum(not c.edge for c in passed) >= len(shapes) - 1, result.summary
    assert all(set(c.schedules) == set(schedules) for c in passed if not c.edge)
    assert sum(c.edge for c in passed) >= 8, "shapes at the edges of its tiles, which it all admits"
    assert any(0 in c.shape.values() for c in passed if c.edge)


@pytest.mark.parametrize("entry", kernels(), ids=lambda k: k.name)
def test_is_right_with_the_bindings_of_the_index(entry: CorpusKernel) -> None:
    """Another random schedule; of the shapes at the edges of its tiles those that the small bindings have not."""
    bound, small = (bound_of(entry, entry.targets[0], **more) for more in ({}, SMALL[entry.name]))
    contract = contracts()[entry.contract]
    shapes = contract.shapes["boundary"]
    edges = [s for s in gate_shapes(bound, contract, shapes) if s not in gate_shapes(small, contract, shapes)]
    exact = tuple(d for d in DISTRIBUTIONS if d in contract.distributions)[:1]
    for group, distributions in ((shapes[::-1], ("normal",)), (edges, exact)):
        result = check_cpu(
            bound, contract, group, interpret=interpret, distributions=distributions, seed=3, schedules=("random:4",)
        )
        assert result.passed or not group, result.summary
        assert len(group) < 3 or sum(c.verdict == "passed" for c in result.cases) >= 3


@cache
def built(at: tuple[str, str]) -> Build:
    pytest.importorskip("cuda.bindings.nvrtc")
    return compiled(emit(bound_of(ENTRIES[at], at[1])))


@pytest.mark.parametrize("at", ENTRIES, ids=IDS)
def test_compiles_to_what_it_says(at: tuple[str, str]) -> None:
    made = built(at)
    assert not made.diagnostics, [d.render() for d in made.diagnostics]
    assert "(C75" not in made.log, made.log
    assert made.resources.spill_store_bytes == made.resources.spill_load_bytes == made.resources.stack_bytes == 0
    assert made.occupancy.blocks_per_sm >= 1
    missing = [p for p in CODE[at[0]] if made.sass.count(p) == 0]
    assert not missing, sorted(made.sass.counts)


def test_verified_kernels_are_freed() -> None:
    """A server verifies thousands of variants: nothing that it computed about one may keep it."""
    entry = next(iter(ENTRIES.values()))
    alive = []
    for _ in range(3):
        bound = bound_of(entry, entry.targets[0])
        verify(bound)
        emit(bound)
        alive.append(weakref.ref(bound))
        del bound
    gc.collect()
    assert [r() for r in alive] == [None] * 3


def test_no_measurement_beats_the_floor() -> None:
    """Committed times lie above what the device could do at best, and near the estimate."""
    rows = [r for r in results() if r.stale is None]
    assert rows
    by_name = {k.name: k for k in kernels()}
    for row in rows:
        entry = by_name[row.kernel]
        done = estimate(bound_of(entry, row.target or entry.targets[0], **row.bindings), dict(row.shape))
        assert done.floor_us <= min(done.time_us, row.time_us), (row.kernel, row.shape, row.time_us)
        assert 0.7 <= done.time_us / row.time_us <= 1.4, (row.kernel, row.shape, row.time_us)
