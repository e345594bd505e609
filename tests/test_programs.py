"""`@program`: several kernels bound, checked against each other, and interpreted as one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analyses import interpret_program
from analyses.value import ValueFault
from cake_ir import bind_program, parse
from cake_ir.binding.program import BoundProgram, Fill, KernelLaunch
from tests.reference.search import neighbours

SKETCHES = Path(__file__).parent / "data" / "sketches"

TWO = '''@kernel(target="sm_90a")
def double(x: In[f32, N], y: Out[f32, N]):
    launch(ctas=ceil_div(N, 128))
    rows = role(warp)
    with rows as w:
        store(y[128 * cta:], load(x[128 * cta:], vec(4).cols[128]) * 2.0)


@kernel(target=("sm_90a", "sm_80"))
def shifted(x: In[f32, N], y: Out[f32, N], by: f32):
    launch(ctas=ceil_div(N, 128))
    rows = role(warp)
    with rows as w:
        store(y[128 * cta:], load(x[128 * cta:], vec(4).cols[128]) + by)


@program
def both(x: In[f32, N], y: Out[f32, N], by: f32):
    where(N > 0)
    half = workspace(f32, N)
    double(x, half)
    shifted(half, y, by)
'''


def program(text: str, **bindings: int) -> BoundProgram:
    file = parse(text).file
    assert file is not None
    result = bind_program(file, dict(bindings))
    assert result.program is not None, [d.render() for d in result.diagnostics]
    return result.program


def rules(text: str) -> list[tuple[str, int]]:
    parsed = parse(text)
    if parsed.file is None:
        return [(d.rule, d.span.line) for d in parsed.diagnostics]
    return [(d.rule, d.span.line) for d in bind_program(parsed.file).diagnostics]


@pytest.mark.parametrize("schedule", ["greedy", "newest", "starve:rows"])
def test_steps_run_in_order(schedule: str) -> None:
    x = np.arange(300, dtype=np.float32)
    out = interpret_program(program(TWO), {"x": x, "y": np.zeros(300, np.float32)}, {"by": 1.0}, schedule=schedule)
    assert np.array_equal(out["y"], 2 * x + 1)


EDITS = [
    ("    double(x, half)\n", "", "data/workspace-uninitialised"),
    ("    double(x, half)", "    double(x, x)", "data/write-to-input"),
    ("    double(x, half)", "    double(x)", "language/arguments"),
    ("    double(x, half)", "    triple(x, half)", "language/unknown-op"),
    ("    half = workspace(f32, N)", "    half = workspace(bf16, N)", "language/type"),
    ("    half = workspace(f32, N)", "    half = workspace(f32, N, 2)", "language/rank"),
    ("    shifted(half, y, by)\n", "", "schedule/output-not-written"),
    ("    double(x, half)", "    fill(x, 0)\n    double(x, half)", "data/write-to-input"),
    ("    shifted(half, y, by)", "    shifted(half, y, by, WARPS=4)", "language/unknown-tunable"),
    ("    double(x, half)", "    for i in range(N):\n        double(x, half)", "language/program"),
]


@pytest.mark.parametrize(("old", "new", "rule"), EDITS, ids=[e[2] + str(i) for i, e in enumerate(EDITS)])
def test_one_edit_gives_the_rule(old: str, new: str, rule: str) -> None:
    assert TWO.count(old) == 1
    found = rules(TWO.replace(old, new))
    assert {f[0] for f in found} == {rule}, found


def test_kernels_that_share_no_target_are_refused() -> None:
    text = TWO.replace('("sm_90a", "sm_80")', '"sm_80"')
    assert [f[0] for f in rules(text)] == ["hardware/target-mismatch"]


def test_a_file_without_a_program_says_so() -> None:
    assert [f[0] for f in rules(TWO.split("@program")[0])] == ["language/program"]


def test_where_of_the_program_is_checked() -> None:
    with pytest.raises(ValueFault):
        interpret_program(program(TWO), {"x": np.zeros(0, np.float32), "y": np.zeros(0, np.float32)}, {"by": 1.0})


def test_search_program_finds_the_neighbours() -> None:
    bound = program((SKETCHES / "08_knn_sm90.cake").read_text(), D=64, PARTS=2)
    assert [s.dependent for s in bound.steps if isinstance(s, KernelLaunch)] == [False, True]
    first, second = neighbours(70, 300, 64, 2, 10)
    out = interpret_program(bound, {**first.tensors, "nearest": np.zeros((70, 10), np.int32)})
    assert not second.judge(out)


def test_expert_program_binds_its_fill_before_the_reduction() -> None:
    bound = program((SKETCHES / "09_moe_fp8_sm90.cake").read_text())
    assert [type(s) for s in bound.steps] == [Fill, KernelLaunch, KernelLaunch]
    assert [w.name for w in bound.workspaces] == ["h", "sh"]


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("y: Out[f32, N], by: f32):\n    where", "y: Out[f32, M], by: f32):\n    where", "schedule/extents-differ"),
        ("half = workspace(f32, N)", "half = workspace(f32, N + 1)", "schedule/extents-differ"),
        ("half = workspace(f32, N)", "half = workspace(f32, 2 * N - N)", None),
        ("    double(x, half)\n", "    double(x, half)\n    double(x, y)\n", "schedule/output-overwritten"),
        ("y: Out[f32, N]):\n", "y: Out[f32, N]):\n    where(N < 0)\n", "schedule/launch-not-admitted"),
        ("where(N > 0)", "where(N % 128 == 0)", None),
    ],
)  # fmt: skip
def test_launches_of_a_program_fit_together(old: str, new: str, rule: str | None) -> None:
    from analyses import verify_text

    assert old in TWO
    found = [d.rule for d in verify_text(TWO.replace(old, new)).diagnostics if d.severity == "error"]
    assert found[:1] == ([rule] if rule else [])
