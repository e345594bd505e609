"""CTAs of a cluster that do the same are simulated once: the same time as when all of them are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analyses.cost import program
from analyses.cost.estimate import estimate_on
from analyses.cost.machine import Machine
from analyses.cost.program import Program
from cake_ir import bind, parse
from cake_ir.bound import BoundKernel

KERNELS = Path(__file__).parents[2] / "corpus" / "kernels"


def kernel(name: str, **bindings: Any) -> BoundKernel:
    parsed = parse((KERNELS / f"{name}.cake").read_text())
    assert parsed.file is not None
    bound = bind(parsed.file, bindings, "sm_90a").bound
    assert bound is not None
    return bound


@pytest.mark.parametrize(("bound", "shape", "distinct"), [
    (kernel("gemm_sm90_cluster", CM=2, CN=2), {"M": 2048, "N": 2048, "K": 1024}, 1),
    (kernel("kmeans_split", S=5), {"B": 1, "N": 4096, "C": 1280, "D": 128}, 3),  # the first gathers, the last has a short slice
])  # fmt: skip
def test_one_of_the_ctas_that_do_the_same_stands_for_them(
    bound: BoundKernel, shape: dict[str, int], distinct: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = Machine.of(bound.target, None)
    traced: list[program.Trace] = []
    original = Program.trace

    def trace(self: Program, *args: Any, **named: Any) -> program.Trace:
        traced.append(original(self, *args, **named))
        return traced[-1]

    monkeypatch.setattr(Program, "trace", trace)
    found = estimate_on(bound, shape, m, explain=False)
    assert {len({a.rank for a in t.simulated}) for t in traced} == {distinct}
    traced.clear()
    monkeypatch.setattr(program, "_alike", list)  # every rank by itself
    whole = estimate_on(bound, shape, m, explain=False)
    assert {len({a.rank for a in t.simulated}) for t in traced} == {bound.launch.cluster}
    assert found.time_us == pytest.approx(whole.time_us, rel=0.015)
    assert found.bounds_us == pytest.approx(whole.bounds_us, rel=1e-9)
