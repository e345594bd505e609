"""Every corpus kernel, interpreted, is right on its contract's boundary shapes."""

from __future__ import annotations

import pytest

from analyses import interpret
from cake_ir import parse
from cake_ir.binding import bind
from corpus.check import check_cpu
from corpus.contract import contracts
from corpus.kernels import CorpusKernel, kernels


@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: k.name)
def test_boundary_shapes(kernel: CorpusKernel) -> None:
    parsed = parse(kernel.text(), kernel.file)
    assert parsed.file is not None
    done = bind(parsed.file, kernel.bindings, kernel.targets[0], kernel.kernel)
    assert done.bound is not None, done.diagnostics
    contract = contracts()[kernel.contract]
    # the order reading explores schedules; here two are enough
    result = check_cpu(
        done.bound,
        contract,
        interpret=interpret,
        distributions=("normal",),
        seed=3,
        schedules=("greedy", "random:4"),
    )
    assert result.passed, result.summary
    assert sum(c.verdict == "passed" for c in result.cases) >= 3
