"""A recipe gives the launches that `plan` gives, and refuses the shapes that `plan` refuses, without the compiler at hand."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cake_ir import bind, bind_program, parse
from cake_ir.diagnostics import CakeError
from corpus.kernels import kernel, kernels
from lowering import Emitted, emit, plan
from lowering.emission.recipe import program_recipe, recipe
from lowering.recipe import WORKSPACE_ALIGN, Fill, Launch, chained, concrete, fill_pattern

NAMES = [k.name for k in kernels() if "sm_90a" in k.targets and k.kernel is None]
_made: dict[str, tuple[Emitted, dict[str, Any]] | None] = {}


def made(name: str) -> tuple[Emitted, dict[str, Any]] | None:
    """A corpus kernel with its recipe, through JSON as a table would hold it; None for a program."""
    if name not in _made:
        entry = kernel(name)
        file = parse(entry.text()).file
        assert file is not None
        bound = None if file.program else bind(file, dict(entry.bindings), "sm_90a").bound
        emitted = emit(bound) if bound else None
        _made[name] = (emitted, json.loads(json.dumps(recipe(emitted)))) if emitted else None
    return _made[name]


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_recipe_plans_what_the_compiler_plans(data: st.DataObject) -> None:
    found = made(data.draw(st.sampled_from(NAMES)))
    if found is None:
        return
    emitted, text = found
    size = st.one_of(st.integers(1, 40), st.integers(1, 64).map(lambda n: 64 * n), st.integers(1, 1 << 31))
    dims = {name: data.draw(size, label=name) for name in emitted.bound.dims}
    scalars = {v.name: 0.5 for v in emitted.bound.args}
    sms = data.draw(st.sampled_from([114, 132]))
    try:
        expected = plan(emitted, dims, dict(scalars), sms)
    except CakeError as refused:
        with pytest.raises(CakeError) as also:
            concrete(text, dims, scalars, sms)
        assert also.value.diagnostic.rule in (refused.diagnostic.rule, "lowering/shape-not-admitted")
        return
    got = concrete(text, dims, scalars, sms)
    assert got.workspace_bytes == 0 and len(got.steps) == 1
    step = got.steps[0]
    # Const tensors are read before the wait, and what runs before a call in its stream may be writing them.
    early = expected.pdl and all(t.direction != "Const" for t in emitted.bound.tensors)
    assert isinstance(step, Launch) and step.plan == replace(expected, pdl=early)
    assert got.shapes == {
        t.name: tuple(dims[e.var.name] if hasattr(e, "var") else e.value for e in t.extents)  # type: ignore[attr-defined]
        for t in emitted.bound.tensors
    }


def test_a_tensor_beyond_every_address_is_refused_by_both() -> None:
    found = made("col_sums")
    assert found is not None
    emitted, text = found
    dims = {"M": 14_103_084, "N": 9_979_200}  # 2**48 bytes and some
    with pytest.raises(CakeError, match="can address") as planned:
        plan(emitted, dims, {}, 132)
    with pytest.raises(CakeError, match="can address") as concreted:
        concrete(text, dims, {}, 132)
    assert {e.value.diagnostic.rule for e in (planned, concreted)} == {"lowering/shape-not-admitted"}
    (step,) = concrete(text, {**dims, "M": 14_000_000}, {}, 132).steps
    assert isinstance(step, Launch) and step.plan == plan(emitted, {**dims, "M": 14_000_000}, {}, 132)


PROGRAM = '''"""Two kernels, one of them launched early, a workspace and a fill."""


@kernel(target="sm_90a")
def partial(x: In[f32, M, N], part: Out[f32, P, N]):
    where(M >= P)
    launch(ctas=P)
    all = role(warp, count=4)
    with all as w:
        for j in range(ceil_div(N, 128)):
            v = load(x[cta, 128 * j:], vec(1).cols[128])
            store(part[cta, 128 * j:], v)


@kernel(target="sm_90a")
def total(part: In[f32, P, N], y: Out[f32, N], scale: f32):
    launch(ctas=1)
    all = role(warp, count=1)
    with all:
        griddep_wait()
        v = load(part[0, 0:], vec(1).cols[32])
        store(y[0:], v * scale)


@program
def both(x: In[f32, R, C], count: InOut[i32, R], y: Out[f32, C], factor: f32, *, PARTS: (2, 4) = 4):
    where(C % 4 == 0)
    part = workspace(f32, PARTS, C)
    spare = workspace(f32, PARTS, C)
    fill(count, -1)
    fill(y, 0.5)
    partial(x, part)
    partial(x, spare)
    total(part, y, 2.0 * factor)
'''


def program() -> dict[str, Any]:
    file = parse(PROGRAM).file
    assert file is not None
    result = bind_program(file, {}, "sm_90a")
    assert result.program is not None, result.diagnostics
    launched = [emit(s.kernel) for s in result.program.steps if hasattr(s, "kernel")]  # type: ignore[attr-defined]
    return json.loads(json.dumps(program_recipe(result.program, launched)))


def test_a_program_is_told_in_the_callers_extents_and_tensors() -> None:
    text = program()
    got = concrete(text, {"R": 100, "C": 260}, {"factor": 3.0}, 132)
    assert got.shapes == {"x": (100, 260), "count": (100,), "y": (260,)}
    aligned = -(-4 * 260 * 4 // WORKSPACE_ALIGN) * WORKSPACE_ALIGN
    assert got.offsets == {"part": 0, "spare": aligned} and got.workspace_bytes == 2 * aligned
    count, y, first, second, last = got.steps
    assert count == Fill("count", 0xFFFFFFFF, 4, 100)
    assert y == Fill("y", struct.unpack("<I", struct.pack("<f", 0.5))[0], 4, 260)
    assert isinstance(first, Launch) and isinstance(second, Launch) and isinstance(last, Launch)
    assert first.plan.tensors == ("x", "part") and second.plan.tensors == ("x", "spare") and first.plan.grid == 4
    assert first.cubin_key == second.cubin_key != last.cubin_key
    assert last.plan.tensors == ("part", "y") and 6.0 in [a.value for a in last.plan.args]
    assert [s.plan.pdl for s in (first, second, last)] == [False, False, True]


@pytest.mark.parametrize(("direction", "early"), [("In", True), ("Const", False)])
def test_a_first_kernel_starts_early_only_where_nothing_is_read_before_its_wait(direction: str, early: bool) -> None:
    text = PROGRAM[PROGRAM.index("@kernel", PROGRAM.index("@kernel") + 1) : PROGRAM.index("@program")]
    file = parse(text.replace("part: In", f"part: {direction}")).file
    assert file is not None
    bound = bind(file, {}, "sm_90a").bound
    assert bound is not None
    assert recipe(emit(bound))["launches"][0]["manifest"]["pdl"] is early


@pytest.mark.parametrize(
    ("dims", "words"), [({"R": 100, "C": 3}, "both"), ({"R": 3, "C": 4}, "partial asks for"), ({"R": 0, "C": 4}, "extent 0 of x")]
)  # fmt: skip
def test_a_program_says_whose_condition_fails(dims: dict[str, int], words: str) -> None:
    with pytest.raises(CakeError, match=words) as caught:
        concrete(program(), dims, {"factor": 1.0}, 132)
    assert caught.value.diagnostic.rule == "lowering/shape-not-admitted"


@pytest.mark.parametrize(
    ("dtype", "value", "pattern", "width", "times"),
    [
        ("f32", 1.0, 0x3F800000, 4, 1), ("bf16", 1.0, 0x3F80, 2, 1), ("f16", 1.0, 0x3C00, 2, 1), ("i64", -1, 0xFFFFFFFF, 4, 2),
        ("u8", 7, 7, 1, 1), ("e4m3", 0, 0, 1, 1), ("i32", -2, 0xFFFFFFFE, 4, 1), ("bf16", float("inf"), 0x7F80, 2, 1), ("f64", 0, 0, 4, 2),
    ],
)  # fmt: skip
def test_fill_patterns(dtype: str, value: float, pattern: int, width: int, times: int) -> None:
    assert fill_pattern(dtype, value) == (pattern, width, times)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("bf16", 1.001), ("f16", 1e9), ("u8", 300), ("i64", 5), ("f64", 1.0), ("e4m3", 1), ("i32", 2**40)],
)
def test_a_fill_that_no_memset_can_make_is_refused(dtype: str, value: float) -> None:
    with pytest.raises(CakeError, match=rf"fill\(.*\) of {dtype}"):
        fill_pattern(dtype, value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("launches", 0, "cubin_key"), "../../etc/passwd"), (("launches", 0, "manifest", "symbol"), "a b"),
        (("launches", 0, "manifest", "threads"), 7), (("launches", 0, "manifest", "grid"), "M.bit_length()"),
        (("launches", 0, "manifest", "tensor_maps", "a_map", "tensor"), "nobody"), (("launches", 0, "manifest"), None),
        (("tensors", 0, "extents"), 5), (("launches",), {"a": 1}), (("admits", 0), ["1"]),
        (("launches", 0, "manifest", "tensor_maps", "a_map", "box"), [512, 128]), (("scalars",), ["eps"]),
    ],
)  # fmt: skip
def test_a_damaged_recipe_is_a_diagnostic(path: tuple[Any, ...], value: Any) -> None:
    found = made("gemm_sm90")
    assert found is not None
    text = json.loads(json.dumps(found[1]))
    here: Any = text
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    with pytest.raises(CakeError) as caught:
        concrete(text, {"M": 256, "N": 256, "K": 64}, {}, 132)
    assert caught.value.diagnostic.rule in ("lowering/bad-recipe", "lowering/bad-plan", "lowering/bad-expression")


def test_a_recipe_before_another_makes_its_input() -> None:
    found = made("row_norms"), made("kmeans_packed")
    assert found[0] and found[1]
    norms = concrete(found[0][1], {"M": 2 * 100, "D": 64}, {}, 132)
    assign = concrete(found[1][1], {"B": 2, "N": 500, "C": 100, "D": 64}, {}, 132)
    both = chained(norms, assign, {"x": "c", "y": "c_sq"}, {"c_sq": 2 * 100 * 4})
    first, second = both.steps
    assert isinstance(first, Launch) and isinstance(second, Launch)
    assert first.plan.tensors == ("c", "c_sq") and second.plan == assign.steps[0].plan  # type: ignore[union-attr]
    assert both.offsets == {"c_sq": 0} and both.workspace_bytes == 1024 and set(both.shapes) == {"x", "c", "label"}
