"""The programs that are mutated, and the launches on which the value reading judges a mutant.

Launches are small, so that one run takes tens of milliseconds, and cover: several tiles per CTA, K loops of more than two
rounds of the ring, ragged tails, an idle expert or sequence, clusters side by side. Corpus kernels are judged by their
contract's oracle, the sketches by the float64 references of tests/reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cake_ir import bind, content_id, parse
from cake_ir.bound import BoundKernel
from cake_ir.syntax import File, Kernel
from corpus import compare
from corpus.arrays import Math
from corpus.contract import Case, Contract, contracts
from corpus.kernels import kernel as corpus_kernel
from corpus.signature import match, scalar_values
from tests.mutation.tree import alone
from tests.reference import Problem
from tests.reference.attention import attention
from tests.reference.delta import decode, prefill
from tests.reference.experts import down, routing, up
from tests.reference.products import tinygemm
from tests.reference.rows import rmsnorm, softmax
from tests.reference.search import kmeans, neighbours

SKETCHES = Path(__file__).parents[1] / "data" / "sketches"
ROUTE = routing((130, 0, 70), 50)
FEW = routing((0, 3, 1), 2)
KNN = (70, 300, 64, 2, 10)


@dataclass(frozen=True)
class Launch:
    """One launch: a problem made on first use, and the number of SMs."""

    problem: Callable[[], Problem]
    sms: int = 4


@dataclass(frozen=True)
class Subject:
    """One kernel under one binding. ordered: the result has the same bits under every schedule. ragged: loaded data say
    which rows of the outputs are written."""

    name: str
    text: str = field(repr=False)
    kernel: str
    target: str
    bindings: tuple[Mapping[str, Any], ...]
    launches: tuple[Launch, ...] = field(repr=False)
    ordered: bool = True
    ragged: bool = False

    @property
    def tree(self) -> Kernel:
        return _tree(self.text, self.kernel)

    @property
    def id(self) -> str:
        """Content id of the kernel alone."""
        return content_id(alone(self.tree))

    def bound(self, bindings: Mapping[str, Any]) -> BoundKernel:
        """The unmutated kernel."""
        result = bind(alone(self.tree), dict(bindings), self.target)
        if result.bound is None:
            raise ValueError(f"{self.name}: {[d.render() for d in result.diagnostics]}")
        return result.bound


@cache
def _tree(text: str, kernel: str) -> Kernel:
    file: File | None = parse(text).file
    if file is None:
        raise ValueError(f"the text of {kernel} does not parse")
    return next(k for k in file.kernels if k.name == kernel)


def contracted(contract: Contract, bound: BoundKernel, shape: dict[str, int], distribution: str) -> Problem:
    """A problem judged by a corpus contract. Outputs start as the contract's poison."""
    fit = match(bound, contract)
    case = Case(shape, distribution, seed=7, secret=11, dtypes=fit.dtypes)
    inputs = contract.inputs(case)
    m = Math()
    expected = compare.run_oracle(m, contract, inputs) if contract.judge is None else None

    def judge(out: Mapping[str, np.ndarray]) -> list[str]:
        outputs = {t.name: np.asarray(out[t.name]) for t in contract.outputs}
        verdict = compare.judge(m, contract, case, inputs, outputs, expected)
        return [] if verdict.ok else [verdict.message]

    poisoned = contract.outputs_poisoned(case, 0)
    return Problem({**inputs, **poisoned}, judge, {}, dict(scalar_values(bound, contract, shape)))


def _corpus(
    name: str,
    bindings: tuple[Mapping[str, Any], ...],
    *shapes: tuple[dict[str, int], str, int],
    target: str | None = None,
) -> Subject:
    k = corpus_kernel(name)
    text = k.text()
    contract = contracts()[k.contract]
    file = parse(text).file
    assert file is not None
    target = target or k.targets[0]

    def launch(shape: dict[str, int], distribution: str, sms: int) -> Launch:
        def make() -> Problem:
            bound = bind(file, dict(bindings[0]), target, k.kernel).bound
            assert bound is not None
            return contracted(contract, bound, shape, distribution)

        return Launch(cache(make), sms)

    return Subject(
        f"corpus/{name}", text, k.kernel or file.kernels[0].name, target, bindings, tuple(launch(*s) for s in shapes)
    )


def _sketch(
    file: str, kernel: str, bindings: Mapping[str, Any], *problems: tuple[Callable[[], Problem], int],
    target: str = "sm_90a", ordered: bool = True, ragged: bool = False,
) -> Subject:  # fmt: skip
    text = (SKETCHES / f"{file}.cake").read_text(encoding="utf-8")
    launches = tuple(Launch(cache(make), sms) for make, sms in problems)
    return Subject(f"sketch/{file}/{kernel}", text, kernel, target, (bindings,), launches, ordered, ragged)


def _mid(hidden: int) -> Problem:
    first = up(ROUTE, 128, hidden)
    return down(ROUTE, first.right["h"], first.right["sh"], 256, 50)


def _gemm(m: int, n: int, k: int, sms: int) -> tuple[dict[str, int], str, int]:
    return {"M": m, "N": n, "K": k}, "normal", sms


def _means(b: int, n: int, c: int, d: int, sms: int) -> tuple[dict[str, int], str, int]:
    return {"B": b, "N": n, "C": c, "D": d}, "normal", sms


@cache
def subjects() -> tuple[Subject, ...]:
    """All subjects; a sketch kernel that is a corpus kernel (equal content id) is left out."""
    rings: dict[str, Any] = {"DP": 64, "WG": 2, "BC": 64, "STAGES": 2}
    found = [
        _corpus("kmeans_assign", (rings,), _means(2, 150, 330, 40, 2), _means(1, 300, 65, 64, 4),
                _means(3, 130, 20, 8, 2)),
        _corpus("kmeans_packed", (rings,), _means(2, 150, 330, 40, 2), _means(1, 300, 65, 64, 4),
                _means(3, 130, 20, 8, 2)),
        _corpus("gemm_sm90", ({"BN": 128, "STAGES": 2, "GROUP": 1},), _gemm(300, 136, 328, 2),
                _gemm(530, 264, 72, 4), _gemm(300, 264, 8, 2)),
        _corpus("gemm_sm80", ({"STAGES": 3, "GROUP": 1},), _gemm(136, 136, 456, 4), _gemm(1, 264, 8, 4),
                _gemm(130, 8, 192, 2), _gemm(130, 8, 0, 2)),
        _corpus(
            "gemm_sm100", ({"CG": 2, "BN": 128, "STAGES": 2}, {"CG": 1, "BN": 128, "STAGES": 2}),
            _gemm(300, 136, 328, 2), _gemm(530, 264, 72, 4), _gemm(300, 264, 8, 2),
        ),
        _corpus("rmsnorm", ({"DMAX": 1024, "WARPS": 4},), ({"M": 5, "D": 1000}, "normal", 2),
                ({"M": 1, "D": 8}, "normal", 2), target="sm_90a"),
        _corpus("softmax", ({"WARPS": 4, "CHUNK": 512},), ({"M": 2, "N": 1100}, "normal", 2),
                ({"M": 1, "N": 4100}, "normal", 2), ({"M": 5, "N": 4}, "normal", 2),
                target="sm_90a"),
        _sketch("02_kmeans_sm90", "kmeans_assign", {"STAGES": 2, "DP": 64, "BC": 64},
                (lambda: kmeans(2, 150, 330, 40), 2), (lambda: kmeans(1, 193, 65, 8), 4),
                (lambda: kmeans(3, 130, 20, 8), 2)),
        _sketch("05_rows", "rmsnorm", {"DMAX": 1024, "ROWS": 2}, (lambda: rmsnorm(19, 1000), 2),
                (lambda: rmsnorm(1, 8), 2)),
        _sketch("05_rows", "softmax", {"WARPS": 4, "CHUNK": 512}, (lambda: softmax(2, 1100), 2),
                (lambda: softmax(1, 4100), 2), (lambda: softmax(5, 4), 2)),
        _sketch("06_attention_sm90", "attention_fwd", {"D": 64, "BK": 64},
                (lambda: attention((200, 77), 150, 200, 2, 1, 64, True), 4),
                (lambda: attention((330,), 128, 330, 1, 1, 64, True), 4),
                (lambda: attention((1, 64, 0), 1, 64, 1, 1, 64, True), 2),
                (lambda: attention((40, 9), 1, 40, 4, 2, 64, True), 4)),
        _sketch("07_kda", "kda_prefill", {"STAGES": 2}, (lambda: prefill((37, 0, 16), 2), 4),
                (lambda: prefill((90,), 1), 4), (lambda: prefill((1, 17), 1), 2), ragged=True),
        _sketch("07_kda", "kda_decode", {}, (lambda: decode(2, 2), 4), (lambda: decode(3, 1), 2)),
        _sketch("08_knn_sm90", "knn_partial", {"D": 64, "STAGES": 1}, (lambda: neighbours(70, 300, 64, 1, 10)[0], 4),
                (lambda: neighbours(3, 20, 64, 2, 10)[0], 4), (lambda: neighbours(140, 5, 64, 1, 10)[0], 2),
                (lambda: neighbours(2, 300, 64, 2, 10)[0], 2)),
        _sketch("08_knn_sm90", "knn_merge", {}, (lambda: neighbours(*KNN)[1], 4),
                (lambda: neighbours(3, 20, 64, 1, 10)[1], 4), (lambda: neighbours(2, 5, 64, 2, 10)[1], 2)),
        _sketch("09_moe_fp8_sm90", "moe_up", {"STAGES": 2}, (lambda: up(ROUTE, 256, 128), 2),
                (lambda: up(ROUTE, 768, 128), 4), (lambda: up(FEW, 128, 256), 2), ragged=True),
        _sketch("09_moe_fp8_sm90", "moe_down", {"STAGES": 2}, (lambda: _mid(384), 2),
                (lambda: _mid(128), 4), ordered=False),
        _sketch("10_tinygemm_sm90", "tinygemm", {"STAGES": 4, "SPLIT": 2, "BK": 64},
                (lambda: tinygemm(11, 24, 1240), 4), (lambda: tinygemm(3, 40, 72), 4), (lambda: tinygemm(3, 24, 320), 4)),
        _sketch("11_kmeans_a_sm90", "kmeans_packed", {"STAGES": 2, "DP": 64},
                (lambda: kmeans(2, 150, 330, 40, packed=True), 2), (lambda: kmeans(3, 130, 20, 8, packed=True), 2),
                (lambda: kmeans(1, 300, 20, 8, packed=True), 2)),
    ]  # fmt: skip
    seen: dict[str, Subject] = {}
    for s in found:
        seen.setdefault(s.id, s)
    return tuple(seen.values())
