"""Who writes an element, confirmed by watching the interpreter store: line, role instance and CTA of random elements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from analyses import interpret
from analyses.owners import BY_DATA, NOBODY, ONLY_OP, SEVERAL, owner
from analyses.value import ops_copy, ops_global
from analyses.value.memory import GlobalTensor
from cake_ir import bind, parse
from cake_ir.bound import BoundKernel
from tests.test_sketches import RUNS, bound_of, problem_of

SMS = 4


class Watched:
    """Every store to an output: the elements and who did it, `(line, 'math[1] of CTA 3')`."""

    def __init__(self) -> None:
        self.who: dict[str, list[tuple[np.ndarray, tuple[int, str]]]] = {}

    def note(self, t: GlobalTensor, index: tuple[Any, ...], line: int, agent: str, chosen: Any = None) -> None:
        mask = np.zeros(t.shape, bool)
        mask[index] = True if chosen is None else chosen
        self.who.setdefault(t.tensor.name, []).append((mask, (line, agent)))

    def writers(self, tensor: str, index: tuple[int, ...]) -> set[tuple[int, str]]:
        return {who for mask, who in self.who.get(tensor, ()) if mask[index]}


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    seen = Watched()
    write, update = GlobalTensor.write, ops_copy.update_part

    def spy_write(self: GlobalTensor, index: Any, data: Any, span: Any, agent: str) -> None:
        seen.note(self, index, span.line, agent)
        write(self, index, data, span, agent)

    def spy_update(part: Any, x: Any, undef: Any, how: str, ag: Any, op: Any, when: Any) -> None:
        if not part.empty:
            seen.note(part.tensor, part.index, op.span.line, ag.name, None if when is None else part.take(when))
        update(part, x, undef, how, ag, op, when)

    with monkeypatch.context() as m:
        m.setattr(GlobalTensor, "write", spy_write)
        m.setattr(ops_copy, "update_part", spy_update)
        m.setattr(ops_global, "update_part", spy_update)
        yield seen


def dims_of(bound: BoundKernel, tensors: dict[str, np.ndarray], scalars: dict[str, Any]) -> dict[str, int]:
    from cake_ir.bound import SVar

    dims = {n: int(scalars[n]) for n in bound.dims if n in scalars}
    for t in bound.tensors:
        for x, n in zip(t.extents, tensors[t.name].shape if t.name in tensors else (), strict=False):
            if isinstance(x, SVar):
                dims[x.var.name] = n
    return dims


def named(o: Any, bound: BoundKernel) -> tuple[int, str]:
    role = next(r for r in bound.roles if r.name == o.role)
    warp = f" warp {o.warp}" if o.warp is not None else ""
    return o.span.line, f"{o.role}{f'[{o.instance}]' if role.count > 1 else ''}{warp} of CTA {o.cta}"


QUICK = ("gemm sm_90a", "gemm sm_80 one", "gemm sm_100a pair", "kmeans", "rmsnorm", "softmax", "attention", "moe up", "moe down",
         "knn merge", "kda prefill")  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_owners_are_those_the_interpreter_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bound, problem = bound_of(RUNS[name]), problem_of(name)
    with watching(monkeypatch) as seen:
        out = interpret(bound, problem.tensors, problem.scalars, sms=SMS)
    dims = dims_of(bound, {**problem.tensors, **out}, problem.scalars)
    rng = np.random.default_rng(3)
    asked = 0
    for t in bound.tensors:
        if t.direction not in ("Out", "InOut"):
            continue
        for _ in range(12):
            index = tuple(int(rng.integers(n)) for n in out[t.name].shape)
            found = owner(bound, dims, problem.scalars, SMS, t.name, index, data=problem.tensors)
            watched = seen.writers(t.name, index)
            mine = {named(o, bound) for o in found.owners}
            if all(o.certain for o in found.owners):
                assert mine == watched, (t.name, index, found)
            else:
                assert watched <= mine, (t.name, index, found)
            for o in found.owners:
                assert all(b is None or b[0] <= i < b[1] for b, i in zip(o.box, index, strict=True))
            asked += bool(watched)
    assert asked


ROWS = """@kernel(target="sm_90a")
def rows(x: In[f32, M, N], y: Out[f32, M, N]):
    where(N % 4 == 0)
    launch(ctas=M)
    team = role(warp, count=4)
    with team as w:
        for c in range(w * 128, N, 512):
            v = load(x[cta, c:], vec(4).cols[128])
            store(y[cta, c:], v)
"""


def rows(old: str = "", new: str = "") -> BoundKernel:
    assert old in ROWS
    parsed = parse(ROWS.replace(old, new))
    assert parsed.file is not None, parsed.diagnostics
    done = bind(parsed.file)
    assert done.bound is not None, done.diagnostics
    return done.bound


DIMS = {"M": 70_000, "N": 4096}


def test_loop_variables_instance_and_thread_are_those_of_the_element() -> None:
    found = owner(rows(), DIMS, {}, 132, "y", (61_234, 2948))
    (o,) = found.owners
    # 2948 = 5 * 512 + 3 * 128 + 4: warp 3, sixth round, the second lane of vec(4)
    assert (o.op, o.span.line, o.role, o.instance, o.cta, o.tile) == ("store", 9, "team", 3, 61_234, {"c": 2944})
    assert o.box == ((61_234, 61_235), (2944, 3072)) and o.thread == 1 and o.certain
    assert found.text() == "written by store on line 9 (team[3] of CTA 61234, c=2944, thread 1)"
    assert found.to_json() == {
        "line": 9, "op": "store", "role": "team", "instance": 3, "cta": 61_234, "thread": 1, "tile": {"c": 2944},
        "box": [[61_234, 61_235], [2944, 3072]],
    }  # fmt: skip


def test_a_large_launch_is_searched_by_halving_then_as_far_as_the_limit_goes() -> None:
    assert not owner(rows(), DIMS, {}, 132, "y", (69_999, 0)).complete
    found = owner(rows("store(y[cta,", "store(y[M - 1 - cta,"), DIMS, {}, 132, "y", (10, 0), steps=500)
    assert found.note == ONLY_OP and not found.complete
    assert (
        found.text() == "written by store on line 9 (team); the only op that writes the tensor; which CTA was not found"
    )


def test_nobody_and_several_are_said() -> None:
    small = {"M": 5, "N": 1024}
    assert owner(rows("w * 128, N, 512", "w * 128, N, 1024"), small, {}, 4, "y", (3, 600)).text() == NOBODY
    twice = owner(rows("            store(y[cta, c:], v)", "            store(y[cta, c:], v)\n            store(y[cta, c:], v)"),
                  small, {}, 4, "y", (3, 600))  # fmt: skip
    assert twice.note == SEVERAL and [o.span.line for o in twice.owners] == [9, 10]
    assert "and by store on line 10" in twice.text() and len(twice.to_json()["others"]) == 1
    masked = owner(rows("v)", "v, when=v > 0.0)"), small, {}, 4, "y", (3, 600))
    assert masked.note == BY_DATA and not masked.owners[0].certain


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(KeyError, match="no tensor 'z'"):
        owner(rows(), DIMS, {}, 4, "z", (0, 0))
    with pytest.raises(ValueError, match=r"y\[0, 4096\] is outside its extents \[70000, 4096\]"):
        owner(rows(), DIMS, {}, 4, "y", (0, 4096))
    with pytest.raises(ValueError, match="where"):
        owner(rows(), {"M": 1, "N": 6}, {}, 4, "y", (0, 0))


def test_without_the_loaded_integers_only_the_op_is_named() -> None:
    bound, problem = bound_of(RUNS["moe up"]), problem_of("moe up")
    dims = dims_of(bound, problem.tensors, problem.scalars)
    found = owner(bound, {**dims, "I": 128}, problem.scalars, SMS, "h", (100, 5))
    assert found.note == ONLY_OP and found.owners[0].op == "store" and found.owners[0].cta is None


def test_what_a_copy_from_shared_memory_was_filled_by_is_said() -> None:
    bound = bound_of(RUNS["gemm sm_90a"])
    found = owner(bound, {"M": 300, "N": 136, "K": 200}, {}, SMS, "d", (299, 100))
    (o,) = found.owners
    assert o.op == "tma_store" and [op for op, _ in o.filled] == ["stmatrix"] and o.filled[0][1] < o.span.line
    assert found.text().endswith(f"filled by stmatrix on line {o.filled[0][1]}")
    through_registers = owner(
        bound_of(RUNS["gemm sm_80"]), {"M": 136, "N": 264, "K": 328}, {}, SMS, "d", (5, 5)
    ).owners[0]
    assert through_registers.op == "store" and [op for op, _ in through_registers.filled] == ["store"]
    assert owner(rows(), DIMS, {}, SMS, "y", (1, 1)).owners[0].filled == ()


def test_an_index_before_a_tensor_is_not_counted_from_its_end() -> None:
    from analyses.owners import _inside

    assert _inside([0, 3]) == (0, 3)
    with pytest.raises(IndexError):
        _inside([-1, 3])
