"""Eleven programs end to end: text, acceptance, the right numbers under adversarial schedules, machine code.

The programs span what the language is for: warp-specialised products on three tensor-core generations, clusters, ragged and
data-dependent trip counts, named barriers, FP8 with reductions into global memory. Their references share no code with the
analyses (tests/reference).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyses import ValueFault, interpret, verify
from analyses.value.program import interpret_program
from cake_ir import bind, bind_program, content_id, from_json, parse, print_file, to_json
from cake_ir.binding.program import BoundProgram
from cake_ir.bound import BoundKernel
from lowering import Build, emit
from tests.compiled import compiled
from tests.reference import Problem
from tests.reference.attention import attention
from tests.reference.delta import decode, prefill
from tests.reference.experts import down, routing, up, whole
from tests.reference.products import gemm, tinygemm
from tests.reference.rows import rmsnorm, softmax
from tests.reference.search import kmeans, neighbours

SKETCHES = Path(__file__).parent / "data" / "sketches"
FILES = sorted(SKETCHES.glob("*.cake"))
ROUTE = routing((130, 0, 70), 50)
KNN = (70, 300, 64, 2, 10)


def _mid() -> Problem:
    """The second grouped product on what a right first one gives."""
    first = up(ROUTE, 256, 128)
    return down(ROUTE, first.right["h"], first.right["sh"], 256, 50)


@dataclass(frozen=True)
class Run:
    """A kernel on one problem. ordered: the result has the same bits under every schedule."""

    file: str
    kernel: str
    problem: Callable[[], Problem]
    bindings: Mapping[str, Any] = field(default_factory=dict)
    target: str = "sm_90a"
    ordered: bool = True


RUNS: dict[str, Run] = {
    "gemm sm_90a": Run("01_gemm_sm90", "gemm_sm90", lambda: gemm(300, 136, 200), {"BN": 128, "STAGES": 2}),
    "gemm sm_90a one": Run("01_gemm_sm90", "gemm_sm90", lambda: gemm(1, 8, 8)),
    "kmeans": Run("02_kmeans_sm90", "kmeans_assign", lambda: kmeans(2, 150, 300, 72), {"STAGES": 2}),
    "kmeans three": Run("02_kmeans_sm90", "kmeans_assign", lambda: kmeans(1, 193, 65, 8), {"WG": 3, "DP": 64, "BC": 64}),
    "gemm sm_80": Run("03_gemm_sm80", "gemm_sm80", lambda: gemm(136, 264, 328), {"STAGES": 3}, "sm_80"),
    "gemm sm_80 one": Run("03_gemm_sm80", "gemm_sm80", lambda: gemm(1, 8, 8), {}, "sm_80"),
    "gemm sm_100a": Run("04_gemm_sm100", "gemm_sm100", lambda: gemm(130, 264, 328), {"CG": 1, "BN": 128}, "sm_100a"),
    "gemm sm_100a pair": Run(
        "04_gemm_sm100", "gemm_sm100", lambda: gemm(300, 136, 200), {"CG": 2, "BN": 128, "STAGES": 2}, "sm_100a"
    ),
    "rmsnorm": Run("05_rows", "rmsnorm", lambda: rmsnorm(7, 1000), {"DMAX": 1024, "ROWS": 2}),
    "rmsnorm f16": Run("05_rows", "rmsnorm", lambda: rmsnorm(5, 248, dtype=np.float16), {"DT": "f16", "DMAX": 256}, "sm_80"),
    "softmax": Run("05_rows", "softmax", lambda: softmax(2, 1100), {"WARPS": 4, "CHUNK": 512}),
    "softmax long": Run("05_rows", "softmax", lambda: softmax(1, 4100), {"WARPS": 4, "CHUNK": 512}, "sm_100a"),
    "attention causal": Run(
        "06_attention_sm90", "attention_fwd", lambda: attention((200, 77), 150, 200, 2, 1, 64, True), {"D": 64, "BK": 64}
    ),
    "attention": Run(
        "06_attention_sm90", "attention_fwd", lambda: attention((130, 0, 1), 40, 130, 2, 2, 64, False),
        {"D": 64, "BK": 64, "CAUSAL": False},
    ),
    "attention wide": Run(
        "06_attention_sm90", "attention_fwd", lambda: attention((200,), 100, 260, 1, 1, 128, True), {"STAGES": 3}
    ),
    "kda prefill": Run("07_kda", "kda_prefill", lambda: prefill((37, 0, 16), 2), {"STAGES": 2}),
    "kda decode": Run("07_kda", "kda_decode", lambda: decode(2, 2)),
    "kda decode sm_100a": Run("07_kda", "kda_decode", lambda: decode(1, 2), {"ROWS": 16}, "sm_100a"),
    "knn partial": Run("08_knn_sm90", "knn_partial", lambda: neighbours(*KNN)[0], {"D": 64}),
    "knn merge": Run("08_knn_sm90", "knn_merge", lambda: neighbours(*KNN)[1]),
    "moe up": Run("09_moe_fp8_sm90", "moe_up", lambda: up(ROUTE, 256, 128)),
    "moe down": Run("09_moe_fp8_sm90", "moe_down", _mid, ordered=False),
    "tinygemm": Run("10_tinygemm_sm90", "tinygemm", lambda: tinygemm(11, 40, 1736), {"STAGES": 4}),
    "tinygemm alone": Run("10_tinygemm_sm90", "tinygemm", lambda: tinygemm(8, 16, 72), {"SPLIT": 1, "BK": 64, "WARPS": 8}),
    "kmeans packed": Run("11_kmeans_a_sm90", "kmeans_packed", lambda: kmeans(1, 300, 300, 72, packed=True)),
}  # fmt: skip


@dataclass(frozen=True)
class Compiled:
    """A kernel with its default bindings (or the given ones) for one target, and machine code that it must contain.

    code: SASS mnemonic patterns, by hand from the program's ops. flaws: known findings of the build, by rule.
    """

    file: str
    kernel: str
    target: str
    code: tuple[str, ...]
    bindings: Mapping[str, Any] = field(default_factory=dict)
    flaws: frozenset[str] = frozenset()


HOPPER = (r"UTMALDG\..*", r"HGMMA\.64x128x16\.F32\.BF16.*", r"SYNCS\.PHASECHK\..*", r"USETMAXREG\..*")
# two accumulators, two operands and the squares are all alive: the verifier's register budget warns of it
SPILLS = frozenset({"lowering/register-spill"})
BUILDS: dict[str, Compiled] = {
    "gemm sm_90a": Compiled(
        "01_gemm_sm90", "gemm_sm90", "sm_90a",
        (r"UTMALDG\..*MULTICAST.*", r"HGMMA\.64x256x16\.F32\.BF16.*", r"STSM\..*", r"UTMASTG\..*", r"UCGABAR_ARV.*"),
    ),
    "kmeans": Compiled("02_kmeans_sm90", "kmeans_assign", "sm_90a", HOPPER),
    "gemm sm_80": Compiled("03_gemm_sm80", "gemm_sm80", "sm_80", (r"LDGSTS\..*", r"LDSM\..*", r"HMMA\.16816\.F32\.BF16.*")),
    "gemm sm_100a pair": Compiled(
        "04_gemm_sm100", "gemm_sm100", "sm_100a", (r"UTCHMMA\.2CTA.*", r"LDTM.*", r"UTCBAR.*MULTICAST.*", r"UTMASTG\..*")
    ),
    "gemm sm_100a": Compiled("04_gemm_sm100", "gemm_sm100", "sm_100a", (r"UTCHMMA.*", r"LDTM.*", r"UTCBAR.*"), {"CG": 1}),
    **{
        f"{kernel} {target}": Compiled("05_rows", kernel, target, code)
        for kernel, code in (("rmsnorm", (r"LDG\.E\.128.*", r"MUFU\.RSQ")), ("softmax", (r"MUFU\.EX2", r"BAR\.SYNC.*")))
        for target in ("sm_80", "sm_90a", "sm_100a")
    },
    "attention": Compiled("06_attention_sm90", "attention_fwd", "sm_90a", HOPPER),
    "attention full": Compiled("06_attention_sm90", "attention_fwd", "sm_90a", HOPPER, {"CAUSAL": False}),
    "kda prefill": Compiled("07_kda", "kda_prefill", "sm_90a", (r"UTMALDG\..*", r"HMMA\.16816\.F32\.BF16.*", r"LDSM\..*T.*")),
    "kda decode sm_90a": Compiled("07_kda", "kda_decode", "sm_90a", (r"LDG\.E.*\.128.*", r"ACQBULK")),
    "kda decode sm_100a": Compiled("07_kda", "kda_decode", "sm_100a", (r"LDG\.E.*\.128.*", r"ACQBULK")),
    "knn partial": Compiled("08_knn_sm90", "knn_partial", "sm_90a", (*HOPPER, r"VOTE.*")),
    "knn merge": Compiled("08_knn_sm90", "knn_merge", "sm_90a", (r"SHFL\..*", r"ACQBULK")),
    "moe up": Compiled("09_moe_fp8_sm90", "moe_up", "sm_90a", (r"QGMMA\.64x128x32\.F32\.E4M3\.E4M3.*", r"MUFU\.EX2")),
    "moe down": Compiled("09_moe_fp8_sm90", "moe_down", "sm_90a", (r"QGMMA\.64x128x32\.F32\.E4M3\.E4M3.*", r"UBLKRED\..*")),
    "tinygemm": Compiled("10_tinygemm_sm90", "tinygemm", "sm_90a", (r"UTMALDG\..*", r"HMMA\.16816\.F32\.BF16.*", r"PREEXIT")),
    "kmeans packed": Compiled("11_kmeans_a_sm90", "kmeans_packed", "sm_90a", (*HOPPER, r"LDSM\..*"), flaws=SPILLS),
}  # fmt: skip


@cache
def _bound(file: str, kernel: str, target: str, bindings: tuple[tuple[str, Any], ...]) -> BoundKernel:
    parsed = parse((SKETCHES / f"{file}.cake").read_text(), file)
    assert parsed.file is not None, [d.render() for d in parsed.diagnostics]
    result = bind(parsed.file, dict(bindings), target, kernel)
    assert result.bound is not None, [d.render() for d in result.diagnostics]
    return result.bound


def bound_of(case: Run | Compiled) -> BoundKernel:
    """The bound kernel of a case, made once."""
    return _bound(case.file, case.kernel, case.target, tuple(sorted(case.bindings.items())))


@cache
def problem_of(name: str) -> Problem:
    return RUNS[name].problem()


@cache
def greedy(name: str) -> dict[str, np.ndarray]:
    """The result under the first schedule, with which the others are compared."""
    p = problem_of(name)
    return interpret(bound_of(RUNS[name]), p.tensors, p.scalars, schedule="greedy")


# ---- text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_text_round_trip(path: Path) -> None:
    parsed = parse(path.read_text(), path.name)
    assert parsed.file is not None, [d.render() for d in parsed.diagnostics]
    text = print_file(parsed.file)
    again = parse(text)
    assert again.file is not None, [d.render() for d in again.diagnostics]
    assert print_file(again.file) == text
    assert content_id(again.file) == content_id(parsed.file)
    from_tree = from_json(to_json(parsed.file))
    assert from_tree.file is not None, [d.render() for d in from_tree.diagnostics]
    assert print_file(from_tree.file) == text


def test_every_kernel_of_every_sketch_is_covered() -> None:
    assert len(FILES) == 11
    kernels = {(path.stem, k.name, t) for path in FILES for k in _kernels(path) for t in k.targets}
    assert kernels == {(c.file, c.kernel, c.target) for c in BUILDS.values()}
    assert {k[:2] for k in kernels} == {(r.file, r.kernel) for r in RUNS.values()}


def _kernels(path: Path) -> tuple[Any, ...]:
    file = parse(path.read_text()).file
    assert file is not None
    return file.kernels


# ---- acceptance ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*RUNS, *(f"default: {n}" for n in BUILDS)])
def test_is_accepted(name: str) -> None:
    case = BUILDS[name.removeprefix("default: ")] if name.startswith("default: ") else RUNS[name]
    report = verify(bound_of(case))
    assert report.accepted, [d.render() for d in report.diagnostics if d.severity == "error"]
    assert all(p.verdict in ("proved", "checked") for p in report.properties), report.properties


def test_a_ring_shorter_than_its_readers_take_turns_is_refused() -> None:
    """With 2 stages for 4 warps, warp 2 first waits for use 2 without having seen use 0: parity would let it pass."""
    bound = _bound("10_tinygemm_sm90", "tinygemm", "sm_90a", (("STAGES", 2),))
    assert "sync/wait-ahead" in {d.rule for d in verify(bound).diagnostics if d.severity == "error"}
    with pytest.raises(ValueFault, match=r"parity of an earlier use") as fault:
        interpret(bound, tinygemm(11, 40, 1736).tensors)
    assert fault.value.kind == "lag"


@pytest.mark.parametrize("bindings", [{"DMAX": 4096}, {"DMAX": 2048, "ROWS": 4}])
def test_wide_rows_in_16_bit_registers_are_accepted(bindings: dict[str, int]) -> None:
    """Their f32 forms do not fit 255 registers, but ptxas converts where it reads and spills nothing."""
    bound = _bound("05_rows", "rmsnorm", "sm_90a", tuple(bindings.items()))
    report = verify(bound)
    assert report.accepted, [d.render() for d in report.diagnostics]
    pytest.importorskip("cuda.bindings.nvrtc")
    assert compiled(emit(bound)).resources.spill_store_bytes == 0


# ---- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_is_right(name: str) -> None:
    problem = problem_of(name)
    before = {n: a.tobytes() for n, a in problem.tensors.items()}
    assert not problem.judge(greedy(name))
    assert {n: a.tobytes() for n, a in problem.tensors.items()} == before


def _agrees(name: str, schedule: str) -> None:
    run, problem = RUNS[name], problem_of(name)
    out = interpret(bound_of(run), problem.tensors, problem.scalars, schedule=schedule)
    assert not problem.judge(out), schedule
    if run.ordered:
        same = {n for n, a in greedy(name).items() if a.tobytes() == out[n].tobytes()}
        assert same == set(out), f"{schedule} gives other bits in {sorted(set(out) - same)}"


@pytest.mark.parametrize("name", RUNS)
def test_is_right_under_a_random_schedule(name: str) -> None:
    _agrees(name, "random:11")


@pytest.mark.parametrize("name", RUNS)
def test_is_right_when_any_role_starves(name: str) -> None:
    for role in bound_of(RUNS[name]).roles:
        _agrees(name, f"starve:{role.name}")


def test_knn_kernels_in_sequence() -> None:
    first, second = neighbours(*KNN)
    part = interpret(bound_of(RUNS["knn partial"]), first.tensors, first.scalars, schedule="starve:math")
    assert not second.judge(interpret(bound_of(RUNS["knn merge"]), part))


def test_moe_kernels_in_sequence() -> None:
    problem = up(ROUTE, 256, 128)
    mid = interpret(bound_of(RUNS["moe up"]), problem.tensors)
    second = down(ROUTE, mid["h"], mid["sh"], 256, 50)
    assert not second.judge(interpret(bound_of(RUNS["moe down"]), second.tensors, schedule="late:store"))


def _program(file: str, **bindings: Any) -> BoundProgram:
    parsed = parse((SKETCHES / f"{file}.cake").read_text(), file)
    assert parsed.file is not None
    done = bind_program(parsed.file, bindings)
    assert done.program is not None, [d.render() for d in done.diagnostics]
    return done.program


@pytest.mark.parametrize("schedule", ["greedy", "random:11", "starve:math", "starve:producer"])
def test_program_of_experts(schedule: str) -> None:
    """fill, two products, workspaces: from routed rows to the summed output."""
    problem = whole(ROUTE, 256, 128, 50)
    assert not problem.judge(interpret_program(_program("09_moe_fp8_sm90"), problem.tensors, schedule=schedule))


def test_the_judge_of_the_program_can_say_no() -> None:
    problem = whole(ROUTE, 256, 128, 50)
    assert not problem.judge(problem.right)
    without = problem.right["out"].copy()
    without[int(ROUTE.token[0])] = 0
    assert problem.judge({"out": without})
    assert problem.judge({"out": -problem.right["out"]})


def test_program_of_neighbours() -> None:
    queries, _, width, parts, k = KNN
    first, second = neighbours(*KNN)
    program = _program("08_knn_sm90", D=width, PARTS=parts, KNN=k)
    out = interpret_program(program, {**first.tensors, "nearest": np.zeros((queries, k), np.int32)})
    assert not second.judge(out)


@pytest.mark.parametrize("name", RUNS)
def test_the_judge_can_say_no(name: str) -> None:
    """It accepts the rounded reference and rejects one wrong element and a result that was never written."""
    problem = problem_of(name)
    assert not problem.judge(problem.right)
    for output, array in problem.right.items():
        wrong = array.copy()
        at = tuple(n // 2 for n in wrong.shape)
        if wrong.dtype.kind in "iu":  # a label in range, but not the right one
            wrong[at] = (wrong[at] + 1) % (int(wrong.max()) + 1)
        else:
            wrong[at] = (
                0 if abs(float(wrong[at])) > 0.05 * float(np.nanmax(np.abs(_finite(array)))) else _finite(array).max()
            )
        assert problem.judge({**problem.right, output: wrong}), output
        assert problem.judge({**problem.right, output: np.zeros_like(array)}), output


def _finite(a: np.ndarray) -> np.ndarray:
    wide = a.astype(np.float64)
    return np.where(np.isfinite(wide), wide, 0.0)


# ---- machine code --------------------------------------------------------------------------------------------------


@cache
def built(name: str) -> Build:
    pytest.importorskip("cuda.bindings.nvrtc")
    return compiled(emit(bound_of(BUILDS[name])))


@pytest.mark.parametrize("name", BUILDS)
def test_compiles_to_what_it_says(name: str) -> None:
    case, made = BUILDS[name], built(name)
    assert made.ok, [d.render() for d in made.diagnostics]
    assert {d.rule for d in made.diagnostics} == case.flaws, [d.render() for d in made.diagnostics]
    missing = [p for p in case.code if made.sass.count(p) == 0]
    assert not missing, sorted(made.sass.counts)
    assert "warning #" not in made.log, made.log
    assert made.occupancy.blocks_per_sm >= 1
    if "lowering/register-spill" not in case.flaws:
        assert made.resources.spill_store_bytes == made.resources.spill_load_bytes == 0
    if "lowering/wgmma-serialized" not in case.flaws:
        assert "(C75" not in made.log, made.log
