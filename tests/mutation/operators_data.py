"""Mutations of data movement, control and declarations: offsets, extents, predicates, loops, operands, storage, forms, roles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cake_ir.syntax import (
    Attribute,
    Binary,
    Bool,
    Call,
    CallStmt,
    Compare,
    For,
    If,
    Index,
    Keyword,
    Name,
    Num,
    Slice,
    Unary,
    While,
    With,
)
from tests.mutation.operators import Editor, Mutation, is_sync, short
from tests.mutation.operators_sync import _call, _leaf, _values, uses
from tests.mutation.tree import (
    Path,
    Place,
    called,
    declared,
    get,
    keyword,
    num,
    op_of,
    plus,
    put,
    remade,
    splice,
    without_keyword,
)

LAYOUTS = ("wgmma_d", "wgmma_a", "mma_d", "mma_a", "mma_b", "tmem_d", "vec")
FLIPPED = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=", "<="), "!=": ("==",)}
WAYS = (1, -1, 8, 16, 64)


def _scaled(x: Any, factor: int) -> Any:
    """x * factor, or x // 2 for factor 0."""
    if isinstance(x, Num) and isinstance(x.value, int):
        return Num(value=x.value * factor if factor else x.value // 2)
    return Binary(op="*" if factor else "//", left=x, right=Num(value=factor or 2))


def _parts(node: Any) -> tuple[str, str] | None:
    """(buffer or other, "rows" or "cols") for a call of that method."""
    if isinstance(node, Call) and isinstance(node.func, Attribute) and node.func.name in ("rows", "cols"):
        return "view", node.func.name
    return None


def offsets(ed: Editor) -> Iterator[Mutation]:
    """Starts of regions, of views and of register slices; row numbers of unstaged buffers and tensors."""
    for p in ed.places:
        for path, node in _leaf(p):
            if isinstance(node, Index) and isinstance(node.value, Name) and node.value.id in ed.tensors:
                for i, item in enumerate(node.items):
                    here = (*path, "items", i)
                    if isinstance(item, Slice):
                        start = item.start or num(0)
                        for by in WAYS:
                            yield from ed.edit(
                                "offset", p, f"{short(p.node)}: {node.value.id} dimension {i} starts {by:+d}",
                                lambda here=here, item=item, start=start, by=by: put(
                                    ed.kernel, here, remade(item, start=plus(start, by))),
                            )  # fmt: skip
                        if item.start is not None:
                            yield from ed.edit(
                                "offset", p, f"{short(p.node)}: {node.value.id} dimension {i} starts at 0",
                                lambda here=here, item=item: put(ed.kernel, here, remade(item, start=None)),
                            )  # fmt: skip
                    else:
                        for by in (1, -1):
                            yield from ed.edit(
                                "offset", p, f"{short(p.node)}: {node.value.id} index {i} {by:+d}",
                                lambda here=here, item=item, by=by: put(ed.kernel, here, plus(item, by)),  # type: ignore[arg-type]
                            )  # fmt: skip
            elif _parts(node) and len(node.args) == 2:  # type: ignore[attr-defined]
                start = node.args[0]  # type: ignore[attr-defined]
                for x in (*(plus(start, by) for by in WAYS), num(0)):
                    yield from ed.edit(
                        "offset", p, f"{short(p.node)}: start of .{node.func.name}()",  # type: ignore[attr-defined]
                        lambda path=path, x=x: put(ed.kernel, (*path, "args", 0), x),
                    )  # fmt: skip


def extents(ed: Editor) -> Iterator[Mutation]:
    """Lengths of views and register slices, ends of regions, extents of tile spaces, facts of `where`."""
    for p in ed.places:
        for path, node in _leaf(p):
            if _parts(node) and len(node.args) == 2:  # type: ignore[attr-defined]
                count = node.args[1]  # type: ignore[attr-defined]
                for x in (_scaled(count, 2), _scaled(count, 0), plus(count, 8), plus(count, -8)):
                    yield from ed.edit(
                        "extent", p, f"{short(p.node)}: length of .{node.func.name}()",  # type: ignore[attr-defined]
                        lambda path=path, x=x: put(ed.kernel, (*path, "args", 1), x),
                    )  # fmt: skip
            elif isinstance(node, Index) and isinstance(node.value, Name) and node.value.id in ed.tensors:
                for i, item in enumerate(node.items):
                    here = (*path, "items", i, "stop")
                    if isinstance(item, Slice) and item.stop is not None:
                        for x in (None, plus(item.stop, 1), plus(item.stop, -1)):
                            yield from ed.edit(
                                "extent", p, f"{short(p.node)}: end of {node.value.id} dimension {i}",
                                lambda here=here, x=x: put(ed.kernel, here, x),
                            )  # fmt: skip
            elif isinstance(node, Call) and called(node) == "ceil_div" and len(node.args) == 2:
                floor = Binary(op="//", left=node.args[0], right=node.args[1])
                for what, x in (
                    ("rounded down", floor), ("one more", plus(node, 1)),
                    ("of one more", remade(node, args=(plus(node.args[0], 1), node.args[1]))),
                    ("by one less", remade(node, args=(node.args[0], plus(node.args[1], -1)))),
                ):  # fmt: skip
                    yield from ed.edit(
                        "extent", p, f"{short(p.node)}: ceil_div {what}",
                        lambda path=path, x=x: put(ed.kernel, path, x), sync=False,
                    )  # fmt: skip
        yield from _facts(ed, p)


def _facts(ed: Editor, p: Place) -> Iterator[Mutation]:
    if op_of(p.node) not in ("where", "assume"):
        return
    args = p.node.call.args
    for i in range(len(args)):
        if len(args) > 1:
            rest = (*args[:i], *args[i + 1 :])
            yield from ed.edit(
                "extent", p, f"{op_of(p.node)} without fact {i}",
                lambda rest=rest: put(ed.kernel, (*p.path, "call", "args"), rest),
            )  # fmt: skip
        else:
            yield from ed.edit(
                "extent", p, f"no {op_of(p.node)}", lambda: splice(ed.kernel, p.block, p.at, p.at + 1, ()),
                marks=((*p.block, p.at),),
            )  # fmt: skip


def predicates(ed: Editor) -> Iterator[Mutation]:
    """`init=`, `when=`, `fill=`, conditions of if and while, comparisons."""
    for p in ed.places:
        call, at = _call(p)
        for i, k in enumerate(call.keywords if call is not None else ()):
            assert call is not None
            if k.name in ("init", "when"):
                here = (*at, "keywords", i, "value")
                for x in (
                    Bool(value=True),
                    Bool(value=False),
                    Unary(op="not" if k.name == "init" else "~", operand=k.value),
                ):
                    if x != k.value:
                        yield from ed.edit(
                            "predicate", p, f"{short(p.node)}: other {k.name}=",
                            lambda here=here, x=x: put(ed.kernel, here, x),
                        )  # fmt: skip
                yield from ed.edit(
                    "predicate", p, f"{short(p.node)}: without {k.name}=",
                    lambda at=at, call=call, k=k: put(ed.kernel, at, without_keyword(call, k.name)),
                )  # fmt: skip
        for path, node in _leaf(p):
            if isinstance(node, Compare) and op_of(p.node) not in ("where", "assume"):
                for i, op in enumerate(node.ops):
                    for other in FLIPPED[op]:
                        yield from ed.edit(
                            "predicate", p, f"{short(p.node)}: {other} for {op}",
                            lambda path=path, i=i, other=other: put(ed.kernel, (*path, "ops", i), other),
                        )  # fmt: skip
                    for by in (1, -1):
                        yield from ed.edit(
                            "predicate", p, f"{short(p.node)}: bound {by:+d}",
                            lambda path=path, i=i, by=by, node=node: put(
                                ed.kernel, (*path, "rest", i), plus(node.rest[i], by)),
                        )  # fmt: skip
        yield from _branches(ed, p)


def _branches(ed: Editor, p: Place) -> Iterator[Mutation]:
    s = p.node
    if isinstance(s, If):
        inner = tuple((*p.block, p.at + i) for i in range(len(s.body)))
        yield from ed.edit(
            "predicate", p, "if: always", lambda: splice(ed.kernel, p.block, p.at, p.at + 1, s.body), marks=inner
        )
        yield from ed.edit("predicate", p, "if: negated", lambda: put(ed.kernel, (*p.path, "cond"), _negated(s.cond)))
        if s.orelse:
            yield from ed.edit(
                "predicate", p, "if: always else", lambda: splice(ed.kernel, p.block, p.at, p.at + 1, s.orelse),
                marks=tuple((*p.block, p.at + i) for i in range(len(s.orelse))),
            )  # fmt: skip
    if isinstance(s, While):
        yield from ed.edit(
            "predicate", p, "while: negated", lambda: put(ed.kernel, (*p.path, "cond"), _negated(s.cond))
        )


def _negated(x: Any) -> Any:
    return x.operand if isinstance(x, Unary) and x.op == "not" else Unary(op="not", operand=x)


def loops(ed: Editor) -> Iterator[Mutation]:
    """Bounds and steps of range() and unroll(), in loops and tile spaces."""
    for p in ed.places:
        if not isinstance(p.node, For) or called(p.node.iter) not in ("range", "unroll"):
            continue
        args = p.node.iter.args  # type: ignore[union-attr]
        for i, x in enumerate(args):
            options = [plus(x, 1), plus(x, -1), plus(x, 2), plus(x, -2), _scaled(x, 2), _scaled(x, 0), num(1)]
            yield from _values(
                ed, p, (*p.path, "iter", "args", i), options, f"{called(p.node.iter)} argument {i}", "loop", False
            )
        if len(args) == 1:
            late = remade(p.node.iter, args=(num(1), args[0]))
            if called(p.node.iter) == "range":
                yield from ed.edit(
                    "loop",
                    p,
                    "range from 1",
                    lambda p=p, late=late: put(ed.kernel, (*p.path, "iter"), late),
                    sync=False,
                )


def swaps(ed: Editor) -> Iterator[Mutation]:
    """Operands of products and of two-operand ops exchanged; another tensor, another buffer, another tensor's region."""
    for p in ed.places:
        call, at = _call(p)
        if call is not None and called(call) and len(call.args) >= 2:
            op = called(call)
            for i in range(len(call.args) - 1):
                args = (*call.args[:i], call.args[i + 1], call.args[i], *call.args[i + 2 :])
                if args[i] != call.args[i] and op not in ("where", "launch", "role"):
                    yield from ed.edit(
                        "swap", p, f"{op}: arguments {i} and {i + 1} exchanged",
                        lambda at=at, args=args: put(ed.kernel, (*at, "args"), args), sync=False,
                    )  # fmt: skip
        for path, node in _leaf(p):
            if isinstance(node, Name) and path[-1] != "func":
                group = next((g for g in (ed.tensors, ed.buffers) if node.id in g), ())
                if p.node.__class__.__name__ == "Assign" and op_of(p.node) in ("smem", "tmem"):
                    group = ()  # over= is an alias
                for other in group:
                    if other != node.id:
                        yield from ed.edit(
                            "swap", p, f"{short(p.node)}: {other} for {node.id}",
                            lambda path=path, other=other: put(ed.kernel, path, Name(id=other)),
                            sync=False, more=frozenset({other}),
                        )  # fmt: skip


def storage(ed: Editor) -> Iterator[Mutation]:
    """Swizzle, padding, tile dimensions, element type and alias of on-chip tiles."""
    for p in ed.places:
        call, at = _call(p)
        op = op_of(p.node)
        if call is None or op not in ("smem", "tmem"):
            continue
        own = p.node.targets[0].id
        i = keyword(call, "swizzle")
        for n in (0, 32, 64, 128) if op == "smem" else ():
            value = Num(value=n)
            if i is not None:
                new = put(call, ("keywords", i, "value"), value)
            elif n == 0:
                continue
            else:  # a padded tile has no swizzle
                plain = without_keyword(call, "pad")
                new = remade(plain, keywords=(*plain.keywords, Keyword(name="swizzle", value=value)))
            if new != call:
                yield from ed.edit("swizzle", p, f"{own}: swizzle {n}", lambda at=at, new=new: put(ed.kernel, at, new))
        j = keyword(call, "pad")
        for n in (0, 4, 8, 16) if op == "smem" else ():
            value = Num(value=n)
            if j is not None:
                new = put(call, ("keywords", j, "value"), value)
            elif n == 0:
                continue
            else:
                new = remade(call, keywords=(*call.keywords, Keyword(name="pad", value=value)))
            if new != call:
                yield from ed.edit("box", p, f"{own}: pad {n}", lambda at=at, new=new: put(ed.kernel, at, new))
        for d in range(1, len(call.args)):
            x = call.args[d]
            options = [_scaled(x, 2), _scaled(x, 0), plus(x, 8), plus(x, -8), plus(x, 1)]
            yield from _values(ed, p, (*at, "args", d), options, f"{own}: dimension {d}", "box", False)
        for dtype in ("bf16", "f32", "e4m3"):
            if call.args[0] != Name(id=dtype):
                yield from ed.edit(
                    "form", p, f"{own}: {dtype}",
                    lambda at=at, dtype=dtype: put(ed.kernel, (*at, "args", 0), Name(id=dtype)),
                )  # fmt: skip
        if op == "smem":
            yield from _aliases(ed, p, call, at, own)


def _aliases(ed: Editor, p: Place, call: Call, at: Path, own: str) -> Iterator[Mutation]:
    if keyword(call, "over") is not None:
        gone = without_keyword(call, "over")
        yield from ed.edit("alias", p, f"{own}: without over=", lambda: put(ed.kernel, at, gone))
        call = gone
    for other in declared(ed.kernel, "smem"):
        if other == own:
            continue
        new = remade(call, keywords=(*call.keywords, Keyword(name="over", value=Name(id=other))))
        if new != get(ed.kernel, at):
            yield from ed.edit(
                "alias", p, f"{own} over {other}", lambda new=new: put(ed.kernel, at, new), more=frozenset({other, own})
            )


def forms(ed: Editor) -> Iterator[Mutation]:
    """Layouts and their shapes, `.T`, `cta_group=`, cache hints, the instruction of a copy."""
    for p in ed.places:
        for path, node in _leaf(p):
            if isinstance(node, Index) and _layout(node.value):
                yield from _shapes(ed, p, path, node)
            elif isinstance(node, Call) and called(node) == "vec":
                for i, x in enumerate(node.args):
                    options = [_scaled(x, 2), _scaled(x, 0), num(1), num(2), num(4), num(8), num(16), num(32)]
                    yield from _values(
                        ed, p, (*path, "args", i), options, f"{short(p.node)}: vec argument {i}", "form", False
                    )
            elif isinstance(node, Attribute) and node.name == "T":
                yield from ed.edit(
                    "form",
                    p,
                    f"{short(p.node)}: not transposed",
                    lambda path=path, node=node: put(ed.kernel, path, node.value),
                )
        yield from _transposed(ed, p)
        call, at = _call(p)
        if call is not None:
            i = keyword(call, "cta_group")
            if i is not None:
                options = [num(1), num(2)]
                yield from _values(ed, p, (*at, "keywords", i, "value"), options, "cta_group", "form", False)
            other = {"ldmatrix": "load", "stmatrix": "store", "tma_store": "bulk_store", "tma_load": "bulk_load", "cp_async": "store",
                     "load": "ldmatrix", "store": "stmatrix", "wgmma": "mma", "mma": "wgmma"}.get(called(call))  # fmt: skip
            if other:
                yield from ed.edit(
                    "form", p, f"{called(call)} to {other}",
                    lambda at=at, other=other: put(ed.kernel, (*at, "func"), Name(id=other)),
                )  # fmt: skip


def _layout(x: Any) -> bool:
    base = x.value if isinstance(x, Attribute) and x.name in ("rows", "cols") else x
    return called(base) == "vec" or (isinstance(base, Name) and base.id in LAYOUTS)


def _shapes(ed: Editor, p: Place, path: Path, node: Index) -> Iterator[Mutation]:
    for i, x in enumerate(node.items):
        options = [_scaled(x, 2), _scaled(x, 0), plus(x, 8), plus(x, -8)]
        yield from _values(ed, p, (*path, "items", i), options, f"{short(p.node)}: tile dimension {i}", "form", False)
    base = node.value
    if isinstance(base, Name):
        for other in LAYOUTS[:-1]:
            if other != base.id:
                yield from ed.edit(
                    "form", p, f"{short(p.node)}: {other} for {base.id}",
                    lambda other=other: put(ed.kernel, (*path, "value"), Name(id=other)),
                )  # fmt: skip
    elif isinstance(base, Attribute):
        other = "cols" if base.name == "rows" else "rows"
        yield from ed.edit(
            "form", p, f"{short(p.node)}: {other} for {base.name}",
            lambda: put(ed.kernel, (*path, "value", "name"), other),
        )  # fmt: skip


def _transposed(ed: Editor, p: Place) -> Iterator[Mutation]:
    """`.T` behind each on-chip view or region that is an argument."""
    call, at = _call(p)
    if call is None or not called(call) or op_of(p.node) in ("launch", "where"):
        return
    for i, x in enumerate(call.args):
        root = x
        while isinstance(root, (Index, Attribute, Call)):
            root = root.value if isinstance(root, (Index, Attribute)) else root.func
        if (
            isinstance(root, Name)
            and root.id in {*ed.buffers, *ed.tensors}
            and not (isinstance(x, Attribute) and x.name == "T")
        ):
            yield from ed.edit(
                "form", p, f"{short(p.node)}: argument {i} transposed",
                lambda i=i, x=x: put(ed.kernel, (*at, "args", i), Attribute(value=x, name="T")),
            )  # fmt: skip


def roles(ed: Editor) -> Iterator[Mutation]:
    """Units, counts, warps and registers of roles; blocks given to another role; elected() and warps() gone or added."""
    for p in ed.places:
        call, at = _call(p)
        if call is not None and op_of(p.node) == "role":
            own = p.node.targets[0].id
            for unit in ("thread", "warp", "warpgroup"):
                if call.args[0] != Name(id=unit):
                    yield from ed.edit(
                        "role", p, f"{own}: {unit}",
                        lambda at=at, unit=unit: put(ed.kernel, (*at, "args", 0), Name(id=unit)),
                    )  # fmt: skip
            for i, k in enumerate(call.keywords):
                options = [
                    plus(k.value, 1),
                    plus(k.value, -1),
                    _scaled(k.value, 2),
                    _scaled(k.value, 0),
                    plus(k.value, 8),
                    plus(k.value, -8),
                ]
                yield from _values(ed, p, (*at, "keywords", i, "value"), options, f"{own} {k.name}=", "role", False)
                yield from ed.edit(
                    "role", p, f"{own}: without {k.name}=",
                    lambda at=at, call=call, k=k: put(ed.kernel, at, without_keyword(call, k.name)),
                )  # fmt: skip
            for name, n in (("count", 2), ("warps", 4), ("registers", 24), ("registers", 40)):
                if keyword(call, name) is None:
                    new = remade(call, keywords=(*call.keywords, Keyword(name=name, value=Num(value=n))))
                    yield from ed.edit(
                        "role", p, f"{own}: {name}={n} added", lambda at=at, new=new: put(ed.kernel, at, new)
                    )
        if isinstance(p.node, With):
            yield from _blocks(ed, p)
        if call is not None and op_of(p.node) == "tmem":
            i = keyword(call, "owner")
            if i is not None:
                options = [Name(id=r) for r in ed.roles]
                yield from _values(ed, p, (*at, "keywords", i, "value"), options, "owner", "role", False)
        if isinstance(p.node, CallStmt) and p.role is not None and op_of(p.node) not in ("where", "launch"):
            yield from _wrapped(ed, p)


def _blocks(ed: Editor, p: Place) -> Iterator[Mutation]:
    s = p.node
    if isinstance(s.context, Name) and s.context.id in ed.roles:
        for other in ed.roles:
            if other != s.context.id:
                yield from ed.edit(
                    "role", p, f"block of {s.context.id} to {other}",
                    lambda other=other: put(ed.kernel, (*p.path, "context"), Name(id=other)), sync=False,
                )  # fmt: skip
    elif called(s.context) in ("elected", "warps"):
        inner = tuple((*p.block, p.at + i) for i in range(len(s.body)))
        yield from ed.edit(
            "role", p, f"without {called(s.context)}()", lambda: splice(ed.kernel, p.block, p.at, p.at + 1, s.body),
            marks=inner, sync=is_sync(s),
        )  # fmt: skip


def _wrapped(ed: Editor, p: Place) -> Iterator[Mutation]:
    """One statement put under elected()."""
    role = declared(ed.kernel, "role")[p.role or ""]
    if role.args[0] == Name(id="thread"):
        return
    parent = ed.by_path.get(p.parent)
    if parent is not None and isinstance(parent.node, With) and called(parent.node.context) == "elected":
        return
    block = With(context=Call(func=Name(id="elected")), body=(p.node,))
    yield from ed.edit(
        "role", p, f"{short(p.node)} by one thread", lambda: put(ed.kernel, p.path, block),
        marks=(p.path, (*p.path, "body", 0)),
    )  # fmt: skip


def data(ed: Editor) -> Iterator[Mutation]:
    """All mutations of this module."""
    for make in (offsets, extents, predicates, storage, forms, roles, swaps, loops):
        yield from make(ed)


__all__ = ["data", "uses"]
