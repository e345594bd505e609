"""The programs of a k-means iteration: accepted, one text for each kernel, right under schedules, compiled without spills."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from analyses import estimate, verify
from analyses.program import check_program
from analyses.value.program import interpret_program
from cake_ir import bind_program, parse, print_file
from cake_ir.binding import Binding
from cake_ir.binding.program import BoundProgram, KernelLaunch
from cake_ir.syntax import File
from corpus import contracts
from corpus.arrays import Math, numpy_dtype
from corpus.compare import Verdict, judge
from corpus.contract import Case
from corpus.kernels import programs
from lowering import emit
from tests.compiled import compiled

NAMES = [p.name for p in programs()]
MATH = Math()


@cache
def text(name: str) -> File:
    parsed = parse(next(p for p in programs() if p.name == name).text())
    assert parsed.file is not None, [d.render() for d in parsed.diagnostics]
    return parsed.file


@cache
def bound(name: str, dtype: str = "bf16", copies: int | None = None) -> BoundProgram:
    bindings: dict[str, Binding] = {"DT": dtype}
    if copies is not None:
        bindings["R"] = copies
    done = bind_program(text(name), bindings, "sm_90a")
    assert done.program is not None, [d.render() for d in done.diagnostics]
    return done.program


def launches(program: BoundProgram) -> list[KernelLaunch]:
    return [s for s in program.steps if isinstance(s, KernelLaunch)]


def verdict(program: BoundProgram, contract: str, case: Case, schedule: str = "greedy") -> Verdict:
    c = contracts()[contract]
    inputs = c.inputs(case)
    out = interpret_program(program, {**inputs, **c.outputs_poisoned(case, 0)}, schedule=schedule)
    return judge(MATH, c, case, inputs, out)


@pytest.mark.parametrize("name", NAMES)
def test_is_accepted(name: str) -> None:
    program = bound(name)
    assert check_program(program) == []
    for i, step in enumerate(launches(program)):
        report = verify(step.kernel)
        assert [d.render() for d in report.diagnostics if d.severity == "error"] == []
        verdicts = {p.name: p.verdict for p in report.properties}
        assert verdicts["global bounds"] == "proved", f"{step.kernel.name}: whatever the labels are"
        assert step.dependent or i == 0, f"{step.kernel.name} starts only when its predecessor is done"


def test_texts_are_canonical_and_a_kernel_has_one_text() -> None:
    known: dict[str, object] = {}
    for p in programs():
        assert print_file(text(p.name)) == p.text()
        for k in text(p.name).kernels:
            assert known.setdefault(k.name, k) == k, f"{k.name} differs between {p.file} and an earlier file"


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", NAMES)
def test_boundary_shapes(name: str, dtype: str) -> None:
    """Every boundary shape with a distribution of its own: hot, skewed, sorted, unowned and converged among them."""
    family = next(p.contract for p in programs() if p.name == name)
    contract = contracts()[family]  # the f16 twin differs in the element type alone
    kinds = ["normal", "uniform", "sorted", "ones", "outlier", "small_int"]
    if dtype == "f16":
        contract = contracts()[f"{family}_f16"]
    for i, shape in enumerate(contract.shapes["boundary"]):
        for kind in (kinds[i % len(kinds)], "alternating" if shape["B"] > 1 else kinds[(i + 3) % len(kinds)]):
            found = verdict(bound(name, dtype), contract.name, Case(shape, kind, seed=i))
            assert found.ok, (shape, kind, found)


@pytest.mark.parametrize("schedule", ["random:3", "newest"])
@pytest.mark.parametrize("copies", [1, 4])
def test_copies_of_the_counters_and_schedules(copies: int, schedule: str) -> None:
    """Several CTAs share a copy, and C passes one round of the scan's eight warps: 8 * 256."""
    case = Case({"B": 1, "N": 2100, "C": 2050, "D": 8}, "normal", seed=copies)
    found = verdict(bound("kmeans_update_sorted", "bf16", copies), "kmeans_update", case, schedule)
    assert found.ok, found


def test_the_judge_refuses_small_faults() -> None:
    c = contracts()["kmeans_update"]
    case = Case({"B": 2, "N": 300, "C": 3, "D": 24}, "normal", seed=1)
    inputs = c.inputs(case)
    right = c.solution(inputs)  # type: ignore[misc]
    assert judge(MATH, c, case, inputs, right).ok
    wrong = {
        "size": lambda a: a + (np.arange(a.size).reshape(a.shape) == 4),
        "mean": lambda a: (a.astype(np.float32) * (1 + 2.0**-6)).astype(a.dtype),
        "mean_sq": lambda a: a * np.float32(1 + 2.0**-12),
        "shift": lambda a: np.minimum(a, a.min()) if a.min() < a.max() else a * np.float32(0.5),
    }
    for name, change in wrong.items():
        assert not judge(MATH, c, case, inputs, {**right, name: change(right[name])}).ok, name


@pytest.mark.parametrize("name,kernel,sass", [
    ("kmeans_update_direct", "kmeans_add", r"REDG\.E\.ADD\.F32.*"), ("kmeans_update_sorted", "kmeans_runs", r"REDG\.E\.ADD\.F32.*"),
    ("kmeans_update_sorted", "kmeans_rank", r"ATOMG\.E\.ADD.*"), ("kmeans_inertia", "kmeans_distances", r"REDG\.E\.ADD\.F32.*"),
])  # fmt: skip
def test_machine_code(name: str, kernel: str, sass: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    built = compiled(emit(next(s.kernel for s in launches(bound(name)) if s.kernel.name == kernel)))
    assert built.ok and built.resources.spill_store_bytes == 0
    assert built.sass.count(sass) >= 1


@pytest.mark.parametrize("old,want", [(1.0, 1.0), (1.0078125, 1.0078125), (1.015625, 1.0), (0.5, 1.0)])
def test_a_mean_between_two_roundings_stays_what_it_was(old: float, want: float) -> None:
    """1.00390625 is as near to 1 as to 1.0078125: noise of f32 sums must not move a centroid to and fro."""
    kind = numpy_dtype("bf16")
    x = np.array([1.0, 1.0078125], kind)[None, :, None] * np.ones((1, 2, 8), kind)
    tensors = {
        "x": x.astype(kind), "label": np.zeros((1, 2), np.int32), "c": np.full((1, 1, 8), old, kind),
        "before": np.full(1, 9.0, np.float32), "tol": np.zeros(1, np.float32),
        "mean": np.zeros((1, 1, 8), kind), "mean_sq": np.zeros((1, 1), np.float32), "size": np.zeros((1, 1), np.int32),
        "shift": np.zeros(1, np.float32),
    }  # fmt: skip
    out = interpret_program(bound("kmeans_update_direct"), tensors)
    assert (out["mean"].astype(np.float64) == want).all()
    assert out["shift"][0] == pytest.approx(abs(want - old) * np.sqrt(8.0))


@pytest.mark.parametrize("name,kernel,shape,measured", [
    ("kmeans_update_direct", "kmeans_add", {"B": 1, "N": 1000000, "C": 1024, "D": 128, "S": 1028}, 362),
    ("kmeans_update_direct", "kmeans_add", {"B": 32, "N": 65536, "C": 1024, "D": 128, "S": 1028}, 620),
    ("kmeans_update_sorted", "kmeans_rank", {"B": 1, "N": 1000000, "S": 1028}, 21),
    ("kmeans_update_sorted", "kmeans_runs", {"B": 1, "N": 1000000, "C": 1024, "D": 128}, 70),
])  # fmt: skip
def test_the_cost_of_atomics_is_that_of_an_h200(name: str, kernel: str, shape: dict[str, int], measured: float) -> None:
    """Microseconds of a trial run. What is predicted from bytes alone is a fifth of it."""
    predicted = estimate(next(s.kernel for s in launches(bound(name)) if s.kernel.name == kernel), shape)
    assert predicted.device == "NVIDIA H200" and measured / 1.4 < predicted.time_us < measured * 1.4
