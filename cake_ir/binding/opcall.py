"""One op call: arguments by the declaration's parameters, unit and target checks, then the op's own typing."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir import syntax as S
from cake_ir.binding import expr as E
from cake_ir.binding.context import Context
from cake_ir.binding.scalars import ZERO, const, sop
from cake_ir.binding.scope import LayoutShape, OnChip, Symbol
from cake_ir.ops import OpDecl, Param, registry
from cake_ir.ops.typing import CHECKS, Call

UNIT_NAMES = {"T": "one thread", "W": "a warp", "G": "a warpgroup", "K": "kernel level"}
# ops whose text name covers two declarations: rank 0 is a scalar access, a named barrier is not an mbarrier
_SPLIT = {"load": "load_scalar", "store": "store_scalar", "arrive": "named_arrive"}
INTERNAL = set(_SPLIT.values())


def is_op(name: str) -> bool:
    """True for names that the text may call as ops."""
    return name in registry() and name not in INTERNAL


def call_op(c: Context, node: S.Call, names: tuple[str, ...] = ()) -> tuple[Any, ...]:
    """Bind one op, emit it, and return its results (Fragments / ScalarVars). `names`: names of fresh results."""
    name = node.func.id  # type: ignore[union-attr]
    if not is_op(name):
        known = [n for n in registry() if n not in INTERNAL] + sorted(E.ELEMENTWISE)
        import difflib

        close = difflib.get_close_matches(name, known, 1)
        c.fail(
            "language/unknown-op",
            f"unknown op or function '{name}'" + (f"; did you mean '{close[0]}'?" if close else ""),
            node.span,
            contract="The vocabulary is closed: `cake ops` lists it.",
        )
    decl = _select(c, name, node)
    if c.unit not in decl.units:
        legal = ", ".join(UNIT_NAMES[u] for u in decl.units)
        c.fail(
            "hardware/illegal-unit",
            f"{name} is executed by {legal}; here the unit is {UNIT_NAMES[c.unit]}"
            + ("; put it into `with elected():`" if "T" in decl.units and c.unit in ("W", "G") else ""),
            node.span,
            op=name,
            contract=f"{decl.source}: every op lists the units that may execute it.",
        )
    if decl.feature and not c.target.has(decl.feature):
        c.fail(
            "hardware/feature-missing",
            f"{name} ({decl.form}) does not exist on {c.target.name}",
            node.span,
            op=name,
            contract=f"{decl.source}: targets are matched exactly; nothing is stepped down.",
        )
    args, nodes = _arguments(c, decl, node)
    call = Call(c, decl, args, nodes, node.span, names)
    results = CHECKS[decl.name](call)
    op = B.Op(
        decl,
        call.operands,
        call.attrs,
        tuple(results),
        c.unit,
        c.role.name if c.role else None,
        node.span,
        c.new_site(),
    )
    c.emit(op)
    return op.results


def _select(c: Context, name: str, node: S.Call) -> OpDecl:
    table = registry()
    if name in ("load", "store") and node.args:
        keys = {k.name for k in node.keywords}
        second = len(node.args) > 1
        scalar_load = name == "load" and not second and "layout" not in keys
        if scalar_load:
            return table["load_scalar"]
        if name == "store" and second:
            target = node.args[0]
            if isinstance(target, S.Call) and isinstance(target.func, S.Attribute) and target.func.name == "on":
                target = target.func.value  # an element in another CTA
            # rank 0 destination: every index is a plain one
            if isinstance(target, S.Index) and _rank_zero(c, target):
                return table["store_scalar"]
    if name == "arrive" and node.args:
        base = node.args[0]
        while isinstance(base, (S.Call, S.Attribute, S.Index)):
            base = base.func if isinstance(base, S.Call) else base.value
        found = c.lookup(base.id) if isinstance(base, S.Name) else None
        if found is not None and isinstance(found.value, B.Barrier) and found.value.kind == "named":
            return table["named_arrive"]
    return table[name]


def _rank_zero(c: Context, node: S.Index) -> bool:
    if isinstance(node.value, S.Index) and isinstance(node.value.value, S.Name):  # an element of a stage: x_s[n][i]
        staged = c.lookup(node.value.value.id)
        plain = not any(isinstance(i, (S.Slice, S.NewAxis)) for i in node.items)
        buffer = staged.value if staged is not None else None
        return plain and isinstance(buffer, B.Buffer) and buffer.staged and len(node.items) == len(buffer.dims)
    found = c.lookup(node.value.id) if isinstance(node.value, S.Name) else None
    if found is None or any(isinstance(i, (S.Slice, S.NewAxis)) for i in node.items):
        return False
    if isinstance(found.value, B.Tensor):
        return not any(_is_vector(c, i) for i in node.items)
    if isinstance(found.value, B.Buffer):
        return not found.value.staged and len(node.items) == len(found.value.dims)
    if isinstance(found.value, OnChip):
        return len(node.items) == len(found.value.dims)
    return False


def _is_vector(c: Context, node: Any) -> bool:
    found = c.lookup(node.id) if isinstance(node, S.Name) else None
    return found is not None and isinstance(found.value, B.Fragment)


def _arguments(c: Context, decl: OpDecl, node: S.Call) -> tuple[dict[str, Any], dict[str, Any]]:
    positional = [p for p in decl.params if not p.keyword]
    if len(node.args) > len(positional):
        c.fail(
            "language/arguments",
            f"{decl.name}() takes {len(positional)} positional argument(s), {len(node.args)} given",
            node.span,
        )
    nodes: dict[str, Any] = {p.name: a for p, a in zip(positional, node.args, strict=False)}
    for k in node.keywords:
        if all(k.name != p.name for p in decl.params):
            known = ", ".join(p.name for p in decl.params)
            c.fail("language/unknown-argument", f"{decl.name}() has no argument '{k.name}'; known: {known}", k.span)
        if k.name in nodes:
            c.fail("language/arguments", f"argument '{k.name}' is given twice", k.span)
        nodes[k.name] = k.value
    for p in decl.params:
        if p.required and p.name not in nodes:
            c.fail("language/arguments", f"{decl.name}() needs argument '{p.name}'", node.span)
    return {p.name: resolve(c, decl, p, nodes[p.name]) for p in decl.params if p.name in nodes}, nodes


def resolve(c: Context, decl: OpDecl, p: Param, node: Any) -> Any:
    """One argument, by its parameter kind."""
    kind = p.kind
    if kind == "static":
        value = E.expr(c, node)
        if not isinstance(value, B.SConst):
            c.fail("language/not-static", f"{p.name} of {decl.name} must be static", node.span)
        return int(value.value)
    if kind == "name":
        if not isinstance(node, S.Name) or node.id not in p.choices:
            c.fail("language/arguments", f"{p.name}= is one of {', '.join(p.choices)}", node.span)
        return node.id
    if kind == "cond":
        return E.condition(c, node)
    if kind == "scalar":
        return E.scalar(c, node)
    if kind == "scope":
        return _scope(c, node)
    if kind == "ranks":
        return _ranks(c, node)
    value = E.expr(c, node)
    if isinstance(value, B.Buffer) and kind in ("view", "memory", "frag_or_view"):
        value = E.on_chip(c, value, node)
    if isinstance(value, B.Tensor) and kind in ("region", "memory"):
        c.fail(
            "language/type",
            f"'{value.name}' needs indices: {value.name}[{', '.join(':' for _ in value.extents)}]",
            node.span,
        )
    ok = {
        "view": isinstance(value, OnChip),
        "region": isinstance(value, B.Region),
        "memory": isinstance(value, (OnChip, B.Region)),
        "barrier": isinstance(value, B.BarUse),
        "frag": isinstance(value, B.VFrag),
        "value": E.is_vx(value),
        "mask": E.is_vx(value),
        "layout": isinstance(value, LayoutShape),
        "frag_or_view": isinstance(value, (OnChip, B.VFrag)),
    }[kind]
    if not ok:
        want = {
            "view": "an on-chip view",
            "region": "a global region",
            "memory": "a region or a view",
            "barrier": "a barrier use (bar[n])",
            "frag": "a named fragment",
            "value": "a register tile",
            "mask": "a mask",
            "layout": "a layout with its shape",
            "frag_or_view": "a view or a fragment",
        }[kind]
        hint = "; a barrier is always indexed: bar[0]" if isinstance(value, B.Barrier) else ""
        c.fail(
            "language/type",
            f"{p.name} of {decl.name} is {want}, got {E.describe(value)}{hint}",
            node.span,
            op=decl.name,
        )
    return value.view() if isinstance(value, OnChip) else value


def _scope(c: Context, node: Any) -> Any:
    if (
        isinstance(node, S.Name)
        and node.id in ("warp", "warpgroup", "cluster", "grid", "cta")
        and (node.id in ("cta",) or c.lookup(node.id) is None)
    ):
        return Symbol(node.id)
    value = E.expr(c, node)
    if isinstance(value, (B.Role, B.BarUse)):
        return value
    c.fail(
        "language/type",
        f"sync() takes warp, warpgroup, a role, a named barrier, cta, cluster or grid; got {E.describe(value)}",
        node.span,
    )


def _ranks(c: Context, node: Any) -> Any:
    cluster = c.launch.cluster if c.launch else 1
    if isinstance(node, S.Name) and node.id == "cluster":
        return "cluster" if cluster > 1 else None
    if isinstance(node, S.Call) and isinstance(node.func, S.Name) and node.func.id == "range":
        ranks = _rank_range(c, node)
        items = (node,) * len(ranks)
    else:
        items = node.items if isinstance(node, S.Tuple) else (node,)
        ranks = tuple(E.index(c, i, "a cluster rank") for i in items)
    for r, i in zip(ranks, items, strict=True):
        if isinstance(r, B.SConst) and not 0 <= r.value < cluster:
            c.fail("hardware/cluster-rank", f"rank {r.value} in a cluster of {cluster}", i.span)
    return ranks if cluster > 1 else None


def _rank_range(c: Context, node: S.Call) -> tuple[B.SX, ...]:
    """The ranks of range(a, b, s): as many as b - a and s say, both static; a itself may be known at run time only."""
    if node.keywords or not 1 <= len(node.args) <= 3:
        c.fail("language/arguments", "ranks are range(stop), range(start, stop) or range(start, stop, step)", node.span)
    values = [E.index(c, a, "a cluster rank") for a in node.args]
    start, stop = (ZERO, values[0]) if len(values) == 1 else values[:2]
    step = values[2] if len(values) == 3 else const(1)
    length = sop("-", stop, start)
    if isinstance(stop, B.SOp) and stop.op == "+" and _same(stop.args[0], start):
        length = stop.args[1]
    if not (isinstance(length, B.SConst) and isinstance(step, B.SConst) and int(step.value) > 0):
        c.fail(
            "language/not-static",
            "how many ranks a copy reaches is static: write the end as the start plus a number, as in range(r, r + 4, 2)",
            node.span,
        )
    offsets = range(0, int(length.value), int(step.value))
    cluster = c.launch.cluster if c.launch else 1
    if not 1 <= len(offsets) <= cluster:
        c.fail("hardware/cluster-rank", f"{len(offsets)} ranks in a cluster of {cluster}", node.span)
    return tuple(sop("+", start, const(i)) for i in offsets)


def _same(a: B.SX, b: B.SX) -> bool:
    """Whether two expressions are written alike."""
    if isinstance(a, B.SOp) and isinstance(b, B.SOp):
        return a.op == b.op and len(a.args) == len(b.args) and all(map(_same, a.args, b.args))
    if isinstance(a, B.SVar) and isinstance(b, B.SVar):
        return a.var is b.var
    return isinstance(a, B.SConst) and isinstance(b, B.SConst) and a.value == b.value
