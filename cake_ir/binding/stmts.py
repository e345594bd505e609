"""Statements: assignment, loops, branches, role blocks."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir import syntax as S
from cake_ir.binding import decls
from cake_ir.binding import expr as E
from cake_ir.binding.context import Context
from cake_ir.binding.opcall import call_op, is_op
from cake_ir.binding.scalars import ZERO, StaticRange, const, interval, sop
from cake_ir.binding.scope import OnChip, Poison, SilentError, Symbol, TileSpace
from cake_ir.binding.tiles import coordinates
from cake_ir.diagnostics import CakeError
from cake_ir.dtypes import DType
from cake_ir.layouts import registers

RESERVED = (
    E.ELEMENTWISE
    | E.SYMBOLS
    | decls.DECLARATIONS
    | {
        "vec",
        "fragment",
        "where",
        "assume",
        "launch",
        "range",
        "unroll",
        "elected",
        "warps",
        "device",
        "inf",
        "kernel",
        "program",
        "workspace",
        "fill",
    }
)


def block(c: Context, body: tuple[Any, ...]) -> tuple[B.Stmt, ...]:
    """Bind a statement list into a list of its own; a faulty statement is reported and skipped."""
    with c.collect() as out:
        for stmt in body:
            statement(c, stmt)
    return tuple(out)


def statement(c: Context, stmt: Any) -> None:
    """Bind one statement; collects faults instead of stopping at the first."""
    try:
        _DISPATCH[type(stmt)](c, stmt)
    except CakeError as fault:
        if fault.diagnostic.rule == "language/too-large":
            raise
        c.diagnostics.append(fault.diagnostic)
        _poison(c, stmt)
    except StaticRange as fault:
        c.report("language/static-range", str(fault), stmt.span, contract="Static integers fit 64 bits.")
        _poison(c, stmt)
    except SilentError:
        _poison(c, stmt)


def _poison(c: Context, stmt: Any) -> None:
    if isinstance(stmt, S.Assign):
        for t in stmt.targets:
            c.poison(t.id)


# ---- assignment --------------------------------------------------------------------------------------------------------


def _assign(c: Context, stmt: S.Assign) -> None:
    for t in stmt.targets:
        if t.id in RESERVED or is_op(t.id) or t.id in decls.BUILTINS:
            c.fail(
                "language/reserved-name",
                f"'{t.id}' is reserved",
                t.span,
                contract="Op and function names are reserved.",
            )
    value_node = stmt.value
    if isinstance(value_node, S.Call) and isinstance(value_node.func, S.Name):
        name = value_node.func.id
        if name in decls.DECLARATIONS:
            if len(stmt.targets) != 1:
                c.fail("language/arguments", f"{name}() declares one name", stmt.span)
            _fresh(c, stmt.targets[0])
            c.define(stmt.targets[0].id, decls.declare(c, stmt.targets[0].id, value_node))
            return
        if name == "fragment":
            _fragment(c, stmt, value_node)
            return
        if is_op(name):
            _assign_op(c, stmt, value_node)
            return
    value = E.expr(c, value_node)
    if len(stmt.targets) > 1:
        if not isinstance(value, tuple) or len(value) != len(stmt.targets):
            c.fail(
                "language/unpack",
                f"{len(stmt.targets)} names, {len(value) if isinstance(value, tuple) else 1} value(s)",
                stmt.span,
            )
        for t, v in zip(stmt.targets, value, strict=True):
            assign(c, t, v, stmt.span)
        return
    for target in stmt.targets:
        assign(c, target, value, stmt.span)


def _fresh(c: Context, target: S.Name) -> None:
    found = c.lookup(target.id)
    if found is not None and not isinstance(found.value, Poison):
        c.fail("language/duplicate-name", f"'{target.id}' is already declared", target.span)


def assign(c: Context, target: S.Name, value: Any, span: Any) -> None:
    """Bind or rebind a name. A name keeps its type; kernel-level names are not assigned in role blocks."""
    found = c.lookup(target.id)
    if found is not None and isinstance(found.value, Poison):
        raise SilentError
    if found is not None and found.owner is None and c.role is not None and not _local(c, target.id):
        c.fail(
            "language/kernel-name-in-role",
            f"'{target.id}' is a kernel-level name; a role block may read it, not assign it",
            target.span,
            contract="A name belongs to the kernel level or to exactly one role.",
        )
    old = found.value if found is not None else None
    if E.is_sx(value):
        _assign_scalar(c, target, old, value, span)
    elif E.is_vx(value):
        _assign_tile(c, target, old, value, span)
    elif isinstance(value, (OnChip, B.Region, B.BarUse)):
        if old is not None and not isinstance(old, (OnChip, B.Region, B.BarUse)):
            c.fail("language/type-change", f"'{target.id}' changes its type", target.span)
        # a name for a view is not a variable: it must see the values its index had here
        c.define(target.id, _freeze(c, value, span))
    else:
        c.fail("language/type", f"{E.describe(value)} cannot be assigned to a name", span)


def _local(c: Context, name: str) -> bool:
    owner = c.role.name if c.role else None
    return any(name in s.roles.get(owner or "", {}) for s in c.scopes)


def _freeze(c: Context, value: Any, span: Any) -> Any:
    """A named view reads mutable counters at the point of naming: copy them."""

    def hold(x: Any) -> Any:
        if x is None or isinstance(x, B.SConst):
            return x
        if all(v in c.definitions or v.kind not in ("local", "loaded") for v in B.sx_vars(x)):
            return x
        var = c.scalar("held", "local", "i32", c.uniform(x), span)
        c.definitions[var] = x
        c.emit(B.SetScalar(var, x, span))
        return B.SVar(var)

    if isinstance(value, OnChip):
        return OnChip(
            value.buffer,
            hold(value.use),
            hold(value.row0),
            value.rows,
            hold(value.col0),
            value.cols,
            value.dims,
            value.transposed,
            hold(value.rank),
            value.span,
        )
    if isinstance(value, B.BarUse):
        return B.BarUse(value.barrier, hold(value.use), hold(value.rank), value.span)
    dims = tuple(B.RegionDim(d.kind, hold(d.start), hold(d.stop), d.size, d.rows) for d in value.dims)
    return B.Region(value.tensor, dims, value.transposed, value.span)


def _assign_scalar(c: Context, target: S.Name, old: Any, value: Any, span: Any) -> None:
    if old is None or (isinstance(old, B.SConst) and c.assigned.get(target.id, 0) <= 1):
        if c.assigned.get(target.id, 0) <= 1:
            if isinstance(value, B.SConst):
                c.define(target.id, value)
                return
            var = c.scalar(target.id, "local", value.dtype, c.weaker(c.uniform(value), "grid"), target.span)
            c.definitions[var] = value
        else:
            var = c.scalar(target.id, "local", value.dtype, c.uniform(value), target.span)
        c.define(target.id, var)
        c.emit(B.SetScalar(var, value, span))
        return
    if not isinstance(old, B.ScalarVar):
        if isinstance(old, B.SConst):
            var = c.scalar(target.id, "local", value.dtype, c.uniform(value), target.span)
            c.define(target.id, var)
            c.emit(B.SetScalar(var, value, span))
            return
        c.fail(
            "language/type-change",
            f"'{target.id}' was {E.describe(E.as_value(c, old))} and becomes a scalar",
            target.span,
            contract="A name keeps its type.",
        )
    if old.kind in ("dim", "scalar", "loop", "instance") or old in c.builtins.values():
        c.fail("language/assignment", f"'{target.id}' cannot be assigned", target.span)
    if old.dtype != value.dtype:
        if old.dtype == "f32" and isinstance(value, B.SConst):
            value = B.SConst(float(value.value), "f32")
        else:
            c.fail(
                "language/type-change",
                f"'{target.id}' is {old.dtype} and becomes {value.dtype}",
                target.span,
                contract="A name keeps its type.",
            )
    c.uniformity[old] = c.weaker(c.weaker(c.uniformity[old], c.uniform(value)), "grid")
    c.definitions.pop(old, None)
    c.emit(B.SetScalar(old, value, span))


def _assign_tile(c: Context, target: S.Name, old: Any, value: Any, span: Any) -> None:
    if old is None:
        frag = c.fragment(target.id, value.type, target.span)
        c.define(target.id, frag)
        c.emit(B.Let(frag, value, span, fresh=True))
        return
    if not isinstance(old, B.Fragment):
        c.fail(
            "language/type-change",
            f"'{target.id}' becomes a register tile",
            target.span,
            contract="A name keeps its type.",
        )
    if old.type != value.type:
        c.fail(
            "language/type-change",
            f"'{target.id}' is {old.type} and becomes {value.type}",
            target.span,
            contract="A name keeps its type.",
        )
    c.emit(B.Let(old, value, span))


def _fragment(c: Context, stmt: S.Assign, call: S.Call) -> None:
    if len(stmt.targets) != 1:
        c.fail("language/arguments", "fragment() declares one name", stmt.span)
    frag, value = fragment(c, call, stmt.targets[0].id)
    old = c.lookup(frag.name)
    if value is not None and old is not None and isinstance(old.value, B.Fragment) and old.value.type == frag.type:
        assign(c, stmt.targets[0], value, stmt.span)  # the tile is filled anew, for the code behind this block as well
        return
    c.define(stmt.targets[0].id, frag)
    c.emit(B.Let(frag, value, stmt.span, fresh=True))


def fragment(c: Context, call: S.Call, name: str) -> tuple[B.Fragment, Any]:
    """fragment(dtype, LAYOUT[, fill]): a register tile; poison until written when there is no fill."""
    if call.keywords or not 2 <= len(call.args) <= 3:
        c.fail("language/arguments", "fragment(dtype, LAYOUT, fill)", call.span)
    dtype, shape = E.expr(c, call.args[0]), E.expr(c, call.args[1])
    if not isinstance(dtype, DType):
        c.fail("language/unknown-dtype", "fragment() needs a dtype first", call.args[0].span)
    if not hasattr(shape, "axis") or not hasattr(shape, "rows"):
        c.fail("language/type", f"fragment() needs a layout with its shape, got {E.describe(shape)}", call.args[1].span)
    type_ = E.tile_type(c, dtype, shape, call.args[1].span)
    if registers(type_) > 255:
        c.fail(
            "hardware/register-pressure",
            f"{type_} holds {registers(type_)} registers per thread; a thread has at most 255",
            call.span,
            contract="CUDA programming guide: 255 registers per thread.",
        )
    value = None
    if len(call.args) == 3:
        fill = E.scalar(c, call.args[2], "a fill value")
        if isinstance(fill, B.SConst) and dtype.kind == "f":
            fill = B.SConst(float(fill.value), "f32")
        value = B.VSplat(fill, type_)
    return c.fragment(name, type_, call.span), value


def _assign_op(c: Context, stmt: S.Assign, call: S.Call) -> None:
    names = tuple(t.id for t in stmt.targets)
    fresh = all(c.lookup(n) is None for n in names)
    results = call_op(c, call, names if fresh else ())
    if len(results) != len(names):
        c.fail(
            "language/unpack",
            f"this op gives {len(results)} value(s), {len(names)} name(s) are written",
            stmt.span,
        )
    for t, r in zip(stmt.targets, results, strict=True):
        if fresh and c.lookup(t.id) is None and not (isinstance(r, B.ScalarVar) and c.assigned.get(t.id, 0) > 1):
            c.define(t.id, r)
        else:
            assign(c, t, E.as_value(c, r), stmt.span)


def _aug(c: Context, stmt: S.AugAdd) -> None:
    value = c.resolve(stmt.target)
    step = E.index(c, stmt.value)
    if not isinstance(value, B.ScalarVar) or value.dtype != "i32":
        c.fail("language/type", "`+=` is for index counters; a register tile is rebound: x = x + e", stmt.span)
    assign(c, stmt.target, sop("+", B.SVar(value), step), stmt.span)


# ---- calls -------------------------------------------------------------------------------------------------------------


def _call(c: Context, stmt: S.CallStmt) -> None:
    call = stmt.call
    name = call.func.id if isinstance(call.func, S.Name) else ""
    if name == "where":
        decls.where(c, call)
    elif name == "launch":
        decls.launch(c, call)
    elif name == "assume":
        for arg in call.args:
            cond = E.expr(c, arg)
            if E.is_sx(cond):
                _narrow(c, cond)
            c.emit(B.Assume(cond, arg.span))
    elif name in decls.DECLARATIONS or name == "fragment":
        c.fail("language/no-effect", f"{name}() declares a resource; give it a name", stmt.span)
    elif name in RESERVED:
        c.fail("language/no-effect", f"{name}() has no effect as a statement", stmt.span)
    else:
        before = c.sites
        results = call_op(c, call)
        last = c.out[-1] if c.out else None
        pure = isinstance(last, B.Op) and all(a.mode == "read" for a in last.decl.accesses)
        if results and pure and c.sites > before:
            c.fail("language/no-effect", f"the value of {name}() is not used", stmt.span)


def _narrow(c: Context, cond: Any) -> None:
    """`assume(0 <= x <= E)` narrows the interval of a loaded scalar."""
    parts = cond.args if isinstance(cond, B.SOp) and cond.op == "and" else (cond,)
    for p in parts:
        if not isinstance(p, B.SOp) or p.op not in ("<", "<=", ">", ">="):
            continue
        a, b = p.args if p.op in ("<", "<=") else p.args[::-1]
        slack = 1 if p.op in ("<", ">") else 0
        if isinstance(b, B.SVar):
            low, high = c.ranges.get(b.var, (float("-inf"), float("inf")))
            c.ranges[b.var] = (max(low, interval(a, c.ranges, c.definitions)[0] + slack), high)
        if isinstance(a, B.SVar):
            low, high = c.ranges.get(a.var, (float("-inf"), float("inf")))
            c.ranges[a.var] = (low, min(high, interval(b, c.ranges, c.definitions)[1] - slack))


# ---- control -----------------------------------------------------------------------------------------------------------


def _for(c: Context, stmt: S.For) -> None:
    it = stmt.iter
    if not isinstance(it, S.Call):
        c.fail("language/loop", "a loop runs over range(...), unroll(n) or SPACE.persistent()", it.span)
    if isinstance(it.func, S.Attribute):
        space = E.expr(c, it.func.value)
        if it.func.name != "persistent" or not isinstance(space, TileSpace) or it.args or it.keywords:
            c.fail("language/loop", "a loop runs over range(...), unroll(n) or SPACE.persistent()", it.span)
        _persistent(c, stmt, space)
        return
    name = it.func.id if isinstance(it.func, S.Name) else ""
    if name not in ("range", "unroll") or it.keywords:
        c.fail("language/loop", "a loop runs over range(...), unroll(n) or SPACE.persistent()", it.span)
    if len(stmt.targets) != 1:
        c.fail("language/unpack", f"{name}() gives one index", stmt.span)
    if name == "unroll":
        _unroll(c, stmt, it)
        return
    if not 1 <= len(it.args) <= 3:
        c.fail("language/arguments", "range(stop), range(start, stop) or range(start, stop, step)", it.span)
    args = [E.index(c, a, "a loop bound") for a in it.args]
    start, stop, step = (ZERO, args[0], const(1)) if len(args) == 1 else (*args, const(1)) if len(args) == 2 else args
    if isinstance(step, B.SConst) and step.value < 1:
        c.fail("language/loop", f"a loop step is positive, got {step.value}", it.span)
    control = c.weaker(c.weaker(c.uniform(start), c.uniform(stop)), c.uniform(step))
    var = c.scalar(stmt.targets[0].id, "loop", "i32", c.weaker(control, "grid"), stmt.targets[0].span)
    low, high = interval(start, c.ranges, c.definitions), interval(stop, c.ranges, c.definitions)
    c.ranges[var] = (low[0], high[1] - 1)
    _loop(c, stmt, var, start, stop, step, control, lambda: c.define(stmt.targets[0].id, var))


def _loop(
    c: Context, stmt: S.For, var: B.ScalarVar, start: Any, stop: Any, step: Any, control: str, prepare: Any
) -> None:
    with c.scope(control), c.collect() as body:
        prepare()
        for s in stmt.body:
            statement(c, s)
    c.emit(B.For(var, start, stop, step, tuple(body), stmt.span))


def _persistent(c: Context, stmt: S.For, space: TileSpace) -> None:
    """Tiles cluster_id, cluster_id + clusters, ...: one tile per cluster."""
    if len(stmt.targets) != len(space.extents):
        c.fail("language/unpack", f"this tile space has {len(space.extents)} coordinates", stmt.span)
    first, step = (E.as_value(c, c.lookup(n).value) for n in ("cluster_id", "cluster_count"))  # type: ignore[union-attr]
    var = c.scalar("tile", "loop", "i32", "cluster", stmt.span)
    c.ranges[var] = (0, float("inf"))

    def prepare() -> None:
        for t, coordinate in zip(stmt.targets, coordinates(c, space, B.SVar(var), stmt.span), strict=True):
            c.define(t.id, coordinate.var if isinstance(coordinate, B.SVar) else coordinate)

    _loop(c, stmt, var, first, space.count, step, "cluster", prepare)


def _unroll(c: Context, stmt: S.For, it: S.Call) -> None:
    bounds = [E.static_int(c, a, "an unroll bound") for a in it.args]
    if not 1 <= len(bounds) <= 2:
        c.fail("language/arguments", "unroll(n) or unroll(start, stop)", it.span)
    low, high = (0, bounds[0]) if len(bounds) == 1 else bounds
    if high - low > 4096:
        c.fail("language/too-large", f"unroll({high - low}) is too long; use range", it.span)
    before = len(c.diagnostics)
    for i in range(low, high):
        with c.scope():
            c.define(stmt.targets[0].id, const(i))
            for s in stmt.body:
                statement(c, s)
        if len(c.diagnostics) > before:  # the other iterations would repeat the fault
            return


def _while(c: Context, stmt: S.While) -> None:
    with c.scope():
        with c.collect() as prelude:
            cond = E.condition(c, stmt.cond)
        with c.scope(c.uniform(cond)), c.collect() as body:
            for s in stmt.body:
                statement(c, s)
    c.emit(B.While(tuple(prelude), cond, tuple(body), stmt.span))


def _if(c: Context, stmt: S.If) -> None:
    cond = E.condition(c, stmt.cond)
    if isinstance(cond, B.SConst):
        with c.scope():
            for s in stmt.body if cond.value else stmt.orelse:
                statement(c, s)
        return
    control = c.uniform(cond)
    branches = []
    ranges = c.ranges
    for part, holds in ((stmt.body, cond), (stmt.orelse, _opposite(cond))):
        c.ranges = dict(ranges)
        _narrow_fixed(c, holds)
        with c.scope(control):
            branches.append(block(c, part))
        # what a branch declares keeps its interval; what it only narrowed has the old one again
        ranges = {**c.ranges, **ranges}
    c.ranges = ranges
    c.emit(B.If(cond, branches[0], branches[1], stmt.span))


_FIXED = frozenset({"loop", "instance", "cluster_rank", "cluster_id", "cta", "dim"})
"""Kinds of variables that no statement changes, so that a condition on them holds in the whole branch."""
_NOT = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}


def _opposite(cond: Any) -> Any:
    """The condition of the other branch, where it is one comparison."""
    if isinstance(cond, B.SOp) and cond.op in _NOT:
        return B.SOp(_NOT[cond.op], cond.args, cond.dtype)
    return None


def _narrow_fixed(c: Context, cond: Any) -> None:
    """Intervals of indices inside a branch that a condition guards."""
    parts = cond.args if isinstance(cond, B.SOp) and cond.op == "and" else (cond,)
    for p in parts:
        if not isinstance(p, B.SOp) or p.op not in ("<", "<=", ">", ">=", "=="):
            continue
        fixed = [isinstance(a, B.SConst) or (isinstance(a, B.SVar) and a.var.kind in _FIXED) for a in p.args]
        if not all(fixed):
            continue
        for half in ("<=", ">=") if p.op == "==" else (p.op,):
            _narrow(c, B.SOp(half, p.args, p.dtype))


def _with(c: Context, stmt: S.With) -> None:
    if isinstance(stmt.context, S.Call):
        call = stmt.context
        name = call.func.id if isinstance(call.func, S.Name) else ""
        if call.args or call.keywords or name not in ("elected", "warps"):
            c.fail("language/with", "with ROLE:, with elected(): or with warps() as w:", stmt.span)
        (_elected if name == "elected" else _warps)(c, stmt)
        return
    role = E.expr(c, stmt.context)
    if not isinstance(role, B.Role):
        c.fail(
            "language/with",
            f"with needs a role, got {E.describe(role) if not isinstance(role, Symbol) else role.name}",
            stmt.context.span,
        )
    if c.role is not None or c.unit != "K":
        c.fail(
            "language/nested-role",
            f"a role block inside role {c.role.name if c.role else ''}",
            stmt.span,
            contract="Role blocks do not nest.",
        )
    if stmt.name is not None and role.unit == "thread":
        c.fail("language/with", f"role {role.name} has one instance; it has no number", stmt.name.span)
    if c.control == "instance":
        c.fail(
            "sync/non-uniform-control",
            "a role block under a condition that differs between instances",
            stmt.span,
            contract="Kernel-level control flow is uniform over the CTA.",
        )
    instance = None
    c.role, c.unit = role, {"thread": "T", "warp": "W", "warpgroup": "G"}[role.unit]
    c.elected = role.unit == "thread"
    try:
        with c.collect() as body:
            if stmt.name is not None:
                instance = c.scalar(
                    stmt.name.id, "instance", "i32", "instance" if role.count > 1 else "cta", stmt.name.span
                )
                c.ranges[instance] = (0, role.count - 1)
                c.define(stmt.name.id, instance)
            for s in stmt.body:
                statement(c, s)
    finally:
        c.role, c.unit, c.elected = None, "K", False
    c.emit(B.RoleBlock(role, instance, tuple(body), stmt.span))


def _elected(c: Context, stmt: S.With) -> None:
    if c.unit not in ("W", "G") or stmt.name is not None:
        c.fail("language/with", "elected() narrows a warp or warpgroup to its first thread", stmt.span)
    unit, c.unit = c.unit, "T"
    try:
        with c.scope():
            body = block(c, stmt.body)
    finally:
        c.unit = unit
    c.emit(B.ElectedBlock(body, stmt.span))


def _warps(c: Context, stmt: S.With) -> None:
    if c.unit != "G":
        c.fail("language/with", "warps() narrows a warpgroup to its warps", stmt.span)
    c.unit = "W"
    warp = None
    try:
        with c.scope(), c.collect() as body:
            if stmt.name is not None:
                warp = c.scalar(stmt.name.id, "instance", "i32", "instance", stmt.name.span)
                c.ranges[warp] = (0, 3)
                c.define(stmt.name.id, warp)
            for s in stmt.body:
                statement(c, s)
    finally:
        c.unit = "G"
    c.emit(B.WarpsBlock(warp, tuple(body), stmt.span))


_DISPATCH: dict[type, Any] = {
    S.Assign: _assign,
    S.AugAdd: _aug,
    S.CallStmt: _call,
    S.For: _for,
    S.While: _while,
    S.If: _if,
    S.With: _with,
}
