"""Sums kept in less than f32: an accumulator of 16 or 8 bits, or a partial sum that is rounded before it is summed further.

Works on the text: a graph of named values (registers, scalars, on-chip buffers, InOut tensors) whose edges say whether the
value is rounded to a narrow float on the way, multiplied, or summed. A finding is a sum, then a narrow rounding, then a
sum again. Operands of products are no continuation of a sum, nor is what passes through a non-linear function; a value
that is multiplied is one only in its own recurrence (`total = total * decay + x`). What the text cannot show (a sum that
another kernel continues) is left to the comparison with the oracle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cake_ir.bound import (
    BoundKernel,
    For,
    Fragment,
    Let,
    Op,
    Region,
    ScalarVar,
    SetScalar,
    SOp,
    SVar,
    VExpand,
    VFrag,
    View,
    VOp,
    VSplat,
    While,
)
from cake_ir.diagnostics import Diagnostic, Related, Span, Subject, error
from cake_ir.dtypes import DTYPES

RULE = "contract/narrow-sum"
LAW = "Sums are kept in f32 until they are complete; the only rounding to a narrower type is the one of the result."
NARROW = {n for n, d in DTYPES.items() if d.kind == "f" and d.bits < 32}
PRODUCTS = ("wgmma", "mma", "tcgen05_mma")
SUMS = ("row_sum", "col_sum")
PASSES = ("shift", "transpose", "warp_part")


@dataclass(frozen=True)
class _Path:
    """How a named value enters an expression."""

    name: Any
    narrow: str = ""
    scaled: bool = False
    added: bool = False


@dataclass(frozen=True, eq=False)
class _Edge:
    """A value flows from one name to another. narrow: the type it is rounded to on the way. own: the names's own recurrence."""

    src: Any
    dst: Any
    span: Span
    what: str
    narrow: str = ""
    scaled: bool = False
    sums: bool = False
    own: bool = False


def narrow_sums(bound: BoundKernel) -> list[Diagnostic]:
    """One finding per place where a sum goes on from less than f32."""
    edges = _marked([*_edges(bound.body, False)])
    out: dict[Any, list[_Edge]] = {}
    for e in edges:
        out.setdefault(e.src, []).append(e)
    found: dict[str, Diagnostic] = {}
    for e in edges:
        if e.own and e.narrow:
            found.setdefault(str(e.span), _finding(bound, f"{e.what} keeps its sum in {e.narrow}", e.span, ()))
    for start in edges:
        if start.sums:
            for rounded, sink in _continued(start, out):
                text = f"{sink.what} goes on with a partial sum that was rounded to {rounded.narrow}"
                related = (
                    Related(span=start.span, message="the sum"),
                    Related(span=rounded.span, message=f"rounded to {rounded.narrow}"),
                )
                found.setdefault(str(rounded.span), _finding(bound, text, rounded.span, related))
    return list(found.values())


def _continued(start: _Edge, out: dict[Any, list[_Edge]]) -> Iterator[tuple[_Edge, _Edge]]:
    """(edge that rounds, edge that sums on) on the ways that a sum takes."""
    todo: list[tuple[Any, _Edge | None]] = [(start.dst, None)]
    seen = set()
    while todo:
        name, rounded = todo.pop()
        if (name, rounded is not None) in seen:
            continue
        seen.add((name, rounded is not None))
        for e in out.get(name, ()):
            if e.scaled and not e.own:
                continue
            now = rounded or (e if e.narrow else None)
            if e.sums and now is not None:
                yield now, e
            else:
                todo.append((e.dst, now))


def _finding(bound: BoundKernel, text: str, span: Span, related: tuple[Related, ...]) -> Diagnostic:
    return error(RULE, "numeric", text, span, contract=LAW, related=related, subject=Subject(kernel=bound.name))


def _marked(edges: list[tuple[_Edge, bool, bool]]) -> list[_Edge]:
    """Additions inside a loop that come back to the same name are sums."""
    from dataclasses import replace

    reach: dict[Any, set[Any]] = {}
    for e, _, _ in edges:
        reach.setdefault(e.src, set()).add(e.dst)
    closed = {n: _closure(n, reach) for n in reach}
    back = {id(e): e.src in closed.get(e.dst, ()) or e.src is e.dst for e, _, _ in edges}
    grows = {e.dst for e, added, loop in edges if added and loop and back[id(e)]}
    return [
        replace(e, sums=e.sums or (added and loop and e.dst in grows), own=e.own or (added and loop and back[id(e)]))
        for e, added, loop in edges
    ]


def _closure(start: Any, reach: dict[Any, set[Any]]) -> set[Any]:
    seen: set[Any] = set()
    todo = [start]
    while todo:
        for n in reach.get(todo.pop(), ()):
            if n not in seen:
                seen.add(n)
                todo.append(n)
    return seen


def _edges(body: tuple[Any, ...], loop: bool) -> Iterator[tuple[_Edge, bool, bool]]:
    """(edge, whether it adds, whether in a loop) of every statement."""
    for s in body:
        if isinstance(s, (Let, SetScalar)):
            to = s.frag if isinstance(s, Let) else s.var
            for p in _paths(s.value):
                yield _Edge(p.name, to, s.span, to.name, p.narrow or _narrow(_dtype(to)), p.scaled), p.added, loop
        elif isinstance(s, Op):
            yield from ((e, e.sums, loop) for e in _of_op(s))
        for part in ("prelude", "body", "then", "orelse"):
            yield from _edges(getattr(s, part, None) or (), loop or isinstance(s, (For, While)))


def _of_op(op: Op) -> Iterator[_Edge]:
    if op.name in PRODUCTS:
        acc = op.operands["acc"]
        name = _memory(acc) if isinstance(acc, View) else acc.frag if isinstance(acc, VFrag) else acc
        dtype = acc.buffer.dtype.name if isinstance(acc, View) else acc.type.dtype.name
        yield _Edge(name, name, op.span, op.name, _narrow(dtype), sums=True, own=True)
        return
    adds = op.name in SUMS or op.name == "atomic_add" or op.attrs.get("op") == "add"
    if op.name not in (*SUMS, *PASSES) and not op.decl.accesses:
        return
    into: list[tuple[Any, str]] = [(r, "") for r in op.results]
    sources: list[_Path] = []
    for name, value in op.operands.items():
        mode = next((a.mode for a in op.decl.accesses if a.operand == name), "")
        if isinstance(value, (View, Region)):
            node, kind = _memory(value), _narrow((value.buffer if isinstance(value, View) else value.tensor).dtype.name)
            if node is not None and mode == "read":
                sources.append(_Path(node, kind))
            elif node is not None:
                into.append((node, kind))
                if mode == "update" and adds and kind:
                    yield _Edge(node, node, op.span, op.name, kind, sums=True, own=True)
        elif name == "x":
            sources += _paths(value)
    if op.name in SUMS:
        yield from (_Edge(op, r, op.span, op.name, sums=True) for r in op.results)  # a sum, whatever its terms are
    for p in sources:
        for to, kind in into:
            yield _Edge(p.name, to, op.span, op.name, p.narrow or kind, p.scaled, sums=adds)


def _memory(x: View | Region) -> Any:
    """The node of a memory operand: buffers, and tensors that are both read and written."""
    if isinstance(x, View):
        return x.buffer
    return x.tensor if x.tensor.direction == "InOut" else None


def _dtype(name: Fragment | ScalarVar) -> str:
    return name.type.dtype.name if isinstance(name, Fragment) else name.dtype


def _narrow(dtype: str) -> str:
    return dtype if dtype in NARROW else ""


def _paths(x: Any, narrow: str = "", scaled: bool = False, added: bool = False) -> list[_Path]:
    """The named values that an expression passes on linearly, with what happens to each on the way."""
    if isinstance(x, VFrag):
        return [_Path(x.frag, narrow, scaled, added)]
    if isinstance(x, SVar):
        return [_Path(x.var, narrow, scaled, added)]
    if isinstance(x, (VSplat, VExpand)):
        return _paths(x.x, narrow, scaled, added)
    if not isinstance(x, (VOp, SOp)):
        return []
    args = [(a, scaled, added) for a in x.args]
    if x.op == "cast":
        narrow = narrow or _narrow(x.type.dtype.name if isinstance(x, VOp) else x.dtype)
    elif x.op in ("+", "-"):
        args = [(a, scaled, True) for a in x.args]
    elif x.op in ("*", "/"):
        args = [(a, True, added) for a in x.args]
    elif x.op in ("fma", "fnma", "fms"):
        args = [(x.args[0], True, True), (x.args[1], True, True), (x.args[2], scaled, True)]
    elif x.op == "select":
        args = args[1:]
    elif x.op not in ("neg", "min", "max"):
        return []
    return [p for a, s, d in args for p in _paths(a, narrow, s, d)]
