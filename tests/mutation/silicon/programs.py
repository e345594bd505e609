"""The programs of a GPU run: subjects for sm_90a, the launches of the judge, and larger ones that fill the device.

A small launch keeps the judge's number of SMs, so that few CTAs walk over many tiles and every ring turns several times; a
large one has more tiles than the device has SMs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from cake_ir.arithmetic import compile_sx
from cake_ir.bound import BoundKernel, SConst, SOp, SVar
from corpus.contract import contracts
from corpus.kernels import kernels
from tests.mutation import subjects as judged
from tests.mutation.subjects import Launch, Subject
from tests.reference import Problem
from tests.reference.attention import attention
from tests.reference.delta import decode, prefill
from tests.reference.experts import down, routing, up
from tests.reference.products import tinygemm
from tests.reference.rows import rmsnorm, softmax
from tests.reference.search import kmeans, neighbours

TARGET = "sm_90a"
SMS = 132
"""Multiprocessors of the H200."""


def _many_experts(hidden: int) -> Problem:
    route = routing((300, 1, 0, 129, 70, 260), 200)
    first = up(route, 128, hidden)
    return down(route, first.right["h"], first.right["sh"], 256, 200)


LARGE: dict[str, tuple[Callable[[], Problem], ...]] = {
    "sketch/02_kmeans_sm90/kmeans_assign": (lambda: kmeans(3, 9000, 330, 40),),
    "sketch/11_kmeans_a_sm90/kmeans_packed": (lambda: kmeans(3, 9000, 330, 40, packed=True),),
    "sketch/05_rows/rmsnorm": (lambda: rmsnorm(1500, 1000),),
    "sketch/05_rows/softmax": (lambda: softmax(700, 1100),),
    "sketch/06_attention_sm90/attention_fwd": (lambda: attention((600, 77, 513), 450, 600, 16, 4, 64, True),),
    "sketch/07_kda/kda_prefill": (lambda: prefill((90, 16, 130, 1, 64, 37), 8),),
    "sketch/07_kda/kda_decode": (lambda: decode(24, 8),),
    "sketch/08_knn_sm90/knn_partial": (lambda: neighbours(1500, 3000, 64, 4, 10)[0],),
    "sketch/08_knn_sm90/knn_merge": (lambda: neighbours(1500, 3000, 64, 4, 10)[1],),
    "sketch/09_moe_fp8_sm90/moe_up": (lambda: up(routing((300, 1, 0, 129, 70, 260), 200), 384, 512),),
    "sketch/09_moe_fp8_sm90/moe_down": (lambda: _many_experts(512),),
    "sketch/10_tinygemm_sm90/tinygemm": (lambda: tinygemm(13, 2200, 1240),),
}
"""Launches of a sketch on the whole device."""

SHAPES: dict[str, dict[str, int]] = {
    "corpus/kmeans_assign": {"B": 3, "N": 9000, "C": 330, "D": 40},
    "corpus/kmeans_packed": {"B": 3, "N": 9000, "C": 330, "D": 40},
    "corpus/gemm_sm90": {"M": 3100, "N": 1608, "K": 328},
    "corpus/gemm_sm80": {"M": 1700, "N": 1608, "K": 456},
    "corpus/rmsnorm": {"M": 1500, "D": 1000},
    "corpus/softmax": {"M": 700, "N": 1100},
}
"""The same for corpus kernels, judged by their contract."""


@cache
def programs() -> tuple[Subject, ...]:
    """Every subject that an sm_90a device runs, bound for it, with a large launch behind those of the judge."""
    return tuple(
        replace(s, target=TARGET, launches=(*s.launches, *_large(s)))
        for s in judged.subjects()
        if not s.target.startswith("sm_10")
    )


def program(name: str) -> Subject:
    """A subject by name; KeyError."""
    return {s.name: s for s in programs()}[name]


def _large(subject: Subject) -> list[Launch]:
    if subject.name in LARGE:
        return [Launch(cache(make), SMS) for make in LARGE[subject.name]]
    shape = SHAPES.get(subject.name)
    if shape is None:
        return []
    known = next(k for k in kernels() if f"corpus/{k.name}" == subject.name)

    def make() -> Problem:
        return judged.contracted(contracts()[known.contract], subject.bound(subject.bindings[0]), shape, "normal")

    return [Launch(cache(make), SMS)]


def dims_of(bound: BoundKernel, problem: Problem) -> dict[str, int]:
    """Extents of the launch by name, solved from the shapes of the problem's arrays and its scalars.

    Raises ValueError when they contradict each other or leave an extent open: the program is then not made for these arrays.
    """
    found = {n: int(v) for n, v in problem.scalars.items() if n in bound.dims}
    shapes = {n: a.shape for n, a in {**problem.right, **problem.tensors}.items()}
    for t in bound.tensors:
        shape = shapes.get(t.name)
        if shape is None or len(shape) != len(t.extents):
            raise ValueError(f"{t.name} has {len(t.extents)} dimensions, the array {shape}")
        for x, n in zip(t.extents, shape, strict=True):
            _solve(x, n, found)
    left = sorted(set(bound.dims) - set(found))
    if left:
        raise ValueError(f"extents {', '.join(left)} are not determined")
    env: list[Any] = [None] * len(bound.scalars)
    for name, v in bound.dims.items():
        env[v.slot] = found[name]
    for t in bound.tensors:
        wanted = tuple(compile_sx(x)(env) for x in t.extents)
        if wanted != shapes[t.name]:
            raise ValueError(f"{t.name} is {list(wanted)} by the kernel, the array {list(shapes[t.name])}")
    return found


def _solve(x: Any, n: int, found: dict[str, int]) -> None:
    """Gives the symbol of an extent its value, where the extent is the symbol or a linear form of it with one constant."""
    if isinstance(x, SVar):
        found.setdefault(x.var.name, n)
    elif isinstance(x, SOp) and x.op in ("*", "+", "-") and len(x.args) == 2:
        first, second = x.args
        if isinstance(first, SConst) and x.op != "-":
            first, second = second, first
        if isinstance(second, SConst):
            k = int(second.value)
            if x.op == "*" and (not k or n % k):
                return
            _solve(first, n // k if x.op == "*" else n - k if x.op == "+" else n + k, found)
