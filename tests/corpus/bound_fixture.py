"""Bound kernels built by hand, so that evaluation is tested without parser, binder or interpreter."""

from __future__ import annotations

from typing import Any

from cake_ir.bound import BoundKernel, Launch, Role, ScalarVar, SConst, SOp, SVar, Tensor, Where
from cake_ir.diagnostics import Span
from cake_ir.dtypes import DTYPES


def span(line: int) -> Span:
    return Span(line=line, col=1, end_line=line, end_col=2)


def make_bound(
    tensors: list[tuple[str, str, str, tuple[str | int, ...]]],
    scalars: list[tuple[str, str]] = (),
    where: Any = None,
    roles: tuple[str, ...] = ("rows",),
) -> BoundKernel:
    """tensors: (name, direction, dtype, extents); extents are dimension names or ints; where: dims -> SX."""
    variables: list[ScalarVar] = []
    dims: dict[str, ScalarVar] = {}

    def dim(name: str) -> ScalarVar:
        if name not in dims:
            dims[name] = ScalarVar(name, "dim", "i32", len(variables), "grid")
            variables.append(dims[name])
        return dims[name]

    built = []
    for i, (name, direction, dtype, extents) in enumerate(tensors):
        sizes = tuple(SVar(dim(e)) if isinstance(e, str) else SConst(e) for e in extents)
        built.append(Tensor(name, direction, DTYPES[dtype], sizes, (None,) * len(sizes), span(10 + i)))
    args = []
    for i, (name, dtype) in enumerate(scalars):
        args.append(ScalarVar(name, "scalar", dtype, len(variables), "grid", span(30 + i)))
        variables.append(args[-1])
    conds = (Where(where(dims), span(50)),) if where else ()
    return BoundKernel(
        name="k", target=None, tunables={}, tensors=tuple(built), args=tuple(args), dims=dims, builtins={},  # type: ignore[arg-type]
        where=conds, launch=Launch(SConst(1), 1, 1, span(60)),
        roles=tuple(Role(r, "warp", 1, 1, i, None) for i, r in enumerate(roles)),
        buffers=(), barriers=(), body=(), scalars=tuple(variables), sites=0, span=span(9),
    )  # fmt: skip


def divisible(name: str, by: int) -> Any:
    """A `where(name % by == 0)` builder."""
    return lambda dims: SOp("==", (SOp("%", (SVar(dims[name]), SConst(by))), SConst(0)), "bool")


def gemm(**kw: Any) -> BoundKernel:
    """The gemm_bf16 signature, with other dimension names than the contract's."""
    rows = [("a", "In", "bf16", ("P", "Q")), ("b", "In", "bf16", ("R", "Q")), ("d", "Out", "bf16", ("P", "R"))]
    return make_bound(rows, **kw)
