"""Declarations: signature, where, tile_space, launch, roles, shared and tensor memory, barriers."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir import syntax as S
from cake_ir.binding import expr as E
from cake_ir.binding.context import Context
from cake_ir.binding.scalars import ZERO, const, sop
from cake_ir.binding.scope import Symbol, TileSpace
from cake_ir.derive.memory import tmem_cols
from cake_ir.dtypes import DTYPES, DType

DECLARATIONS = {"tile_space", "role", "smem", "tmem", "mbarrier", "named_barrier"}
BUILTINS = ("cta", "cta_count", "cluster_rank", "cluster_id", "cluster_count", "sms")
_UNIFORM = {
    "cta": "cta",
    "cta_count": "grid",
    "cluster_rank": "cta",
    "cluster_id": "cluster",
    "cluster_count": "grid",
    "sms": "grid",
}


def signature(c: Context) -> None:
    """Dimension symbols, tensors, kernel scalars, built-in names."""
    kernel = c.kernel
    for name in BUILTINS:
        var = c.scalar(name, name, "i32", _UNIFORM[name], kernel.span)
        c.builtins[name] = var
        if name != "sms":
            c.define(name, var)
    for name, value in c.tunables.items():
        c.define(name, value if isinstance(value, DType) else const(value))
    alone = {e.size.id for t in kernel.tensors for e in t.extents if isinstance(e.size, S.Name)}
    used = {
        n
        for t in kernel.tensors
        for e in t.extents
        for part in (e.size, e.stride)
        if part is not None
        for n in _names(part)
    }
    for name in sorted(used - set(c.tunables)):
        where = next(
            e.span
            for t in kernel.tensors
            for e in t.extents
            for p in (e.size, e.stride)
            if p is not None and name in _names(p)
        )
        if name not in alone and not any(s.name == name for s in kernel.scalars):
            c.report(
                "language/dimension-not-alone", f"dimension '{name}' must stand alone in at least one extent", where
            )
        var = c.scalar(name, "dim", "i32", "grid", where)
        c.dims[name] = var
        c.ranges[var] = (0, 2**31 - 1)
        c.define(name, var)
    for s in kernel.scalars:
        var = c.scalar(s.name, "scalar", s.dtype, "grid", s.span)
        c.args.append(var)
        c.define(s.name, var)
    for t in kernel.tensors:
        dtype = E.expr(c, t.dtype)
        if not isinstance(dtype, DType) or dtype.name in ("bool", "tf32"):
            c.fail("language/unknown-dtype", f"tensor '{t.name}' needs a memory dtype", t.dtype.span)
        extents, strides = [], []
        for e in t.extents:
            extents.append(E.index(c, e.size, "an extent"))
            strides.append(E.index(c, e.stride, "a stride") if e.stride is not None else None)
        if not extents:
            c.fail("language/rank", f"tensor '{t.name}' has no dimensions", t.span)
        _extent_range(c, t, extents, strides)
        tensor = B.Tensor(t.name, t.direction, dtype, tuple(extents), tuple(strides), t.span)
        c.tensors[t.name] = tensor
        c.define(t.name, tensor)


def _extent_range(c: Context, t: S.TensorParam, extents: list[Any], strides: list[Any]) -> None:
    """Extents are positive i32; strides do not step back, and what is written does not lie on itself."""
    least = 0 if t.direction in ("In", "Const") else 1
    for e, size, stride in zip(t.extents, extents, strides, strict=True):
        if isinstance(size, B.SConst) and not 1 <= size.value <= 2**31 - 1:
            c.fail("language/extent-range", f"an extent of '{t.name}' is {size.value}; extents are 1 .. 2^31 - 1", e.span)
        if isinstance(stride, B.SConst) and stride.value < least:
            c.fail(
                "language/extent-range",
                f"a stride of '{t.name}' is {stride.value}; a tensor that is {t.direction} takes strides from {least} on",
                e.span,
            )


def _names(node: Any) -> set[str]:
    if isinstance(node, S.Name):
        return {node.id} - set(DTYPES)
    found: set[str] = set()
    for field in type(node).model_fields:
        value = getattr(node, field)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, S.Node):
                found |= _names(item)
    return found


def where(c: Context, call: S.Call) -> None:
    """`where(cond, ...)`: a false static part is a constraint on the bindings, reported before anything else."""
    for arg in call.args:
        cond = E.condition(c, arg)
        if isinstance(cond, B.SConst):
            if not cond.value:
                bound = ", ".join(f"{k}={v}" for k, v in c.tunables.items())
                c.report(
                    "language/where-unsatisfied",
                    f"the bindings contradict this condition ({bound})",
                    arg.span,
                    contract="`where` relates tunables and extents; a variant must satisfy it.",
                )
            continue
        c.where.append(B.Where(cond, arg.span))


def _spelled_out(c: Context, x: B.SX) -> B.SX:
    """The expression without the names assigned above it: the host has extents, arguments and `device.sms` alone."""
    known = {s.var: s.value for s in c.out if isinstance(s, B.SetScalar)}

    def plain(e: B.SX) -> B.SX:
        if isinstance(e, B.SVar) and e.var in known:
            return plain(known[e.var])
        return B.SOp(e.op, tuple(plain(a) for a in e.args), e.dtype) if isinstance(e, B.SOp) else e

    return plain(x)


def launch(c: Context, call: S.Call) -> None:
    args = keywords(c, call, ("ctas", "cluster", "ctas_per_sm"))
    if c.launch is not None:
        c.fail("language/duplicate-declaration", "launch() is declared twice", call.span)
    if "ctas" not in args:
        c.fail("language/arguments", "launch(ctas=...) is required", call.span)
    cluster = E.static_int(c, args["cluster"], "cluster") if "cluster" in args else 1
    per_sm = E.static_int(c, args["ctas_per_sm"], "ctas_per_sm") if "ctas_per_sm" in args else 1
    limit = c.target.fact("cluster_max").value if c.target.has("cluster") else 1
    if cluster < 1 or cluster > limit:
        c.report(
            "hardware/cluster-shape",
            f"cluster={cluster}; {c.target.name} allows 1 .. {limit}",
            call.span,
            contract="CUDA programming guide: at most 8 CTAs per cluster (16 with opt-in) on sm_90 and sm_100; none before sm_90.",
        )
        cluster = max(1, min(cluster, limit))
    if per_sm < 1 or per_sm > c.target.fact("blocks_per_sm").value:
        c.report("hardware/ctas-per-sm", f"ctas_per_sm={per_sm} is not possible on {c.target.name}", call.span)
        per_sm = 1
    ctas = _spelled_out(c, E.index(c, args["ctas"], "the number of CTAs"))
    most = c.target.value("max_grid_x")
    if isinstance(ctas, B.SConst) and not 0 <= ctas.value <= most:
        c.report(
            "hardware/grid-size",
            f"ctas={ctas.value}; a grid has 0 .. {most} CTAs",
            call.span,
            contract="CUDA programming guide, technical specifications: the x dimension of a grid is at most 2^31 - 1.",
        )
    c.launch = B.Launch(ctas, cluster, per_sm, call.span)
    if cluster == 1:
        # the plain form: a rank of 0, a cluster per CTA
        c.scopes[0].names["cluster_rank"] = ZERO
        c.scopes[0].names["cluster_id"] = c.builtins["cta"]
        c.scopes[0].names["cluster_count"] = c.builtins["cta_count"]
    else:
        c.ranges[c.builtins["cluster_rank"]] = (0, cluster - 1)


def keywords(c: Context, call: S.Call, names: tuple[str, ...], positional: int = 0) -> dict[str, Any]:
    """Keyword arguments of a declaration, checked."""
    if len(call.args) > positional:
        c.fail("language/arguments", f"too many positional arguments; keywords are {', '.join(names)}", call.span)
    out: dict[str, Any] = {}
    for k in call.keywords:
        if k.name not in names:
            c.fail("language/unknown-argument", f"unknown argument '{k.name}'; known: {', '.join(names)}", k.span)
        if k.name in out:
            c.fail("language/arguments", f"argument '{k.name}' is given twice", k.span)
        out[k.name] = k.value
    return out


def declare(c: Context, name: str, call: S.Call) -> Any:
    """`NAME = role(...)` and its kin."""
    kind = call.func.id  # type: ignore[union-attr]
    if c.role is not None or c.unit != "K":
        c.fail("language/declaration-place", f"{kind}() is declared at kernel level, before the statements", call.span)
    return {
        "tile_space": _tile_space,
        "role": _role,
        "smem": _smem,
        "tmem": _tmem,
        "mbarrier": _mbarrier,
        "named_barrier": _named,
    }[kind](c, name, call)


def _tile_space(c: Context, name: str, call: S.Call) -> TileSpace:
    args = keywords(c, call, ("group",), positional=8)
    extents = tuple(E.index(c, a, "a tile count") for a in call.args)
    group = E.static_int(c, args["group"], "group") if "group" in args else 1
    if not extents:
        c.fail("language/arguments", "tile_space needs at least one extent", call.span)
    if group < 1 or (group > 1 and len(extents) != 2):
        c.fail("language/arguments", "group= is a positive number for tile spaces of rank 2", call.span)
    count = extents[0]
    for e in extents[1:]:
        count = sop("*", count, e)
    return TileSpace(extents, group, count)


def _role(c: Context, name: str, call: S.Call) -> B.Role:
    args = keywords(c, call, ("count", "warps", "registers"), positional=1)
    unit = E.expr(c, call.args[0]) if call.args else None
    if not isinstance(unit, Symbol) or unit.name not in ("thread", "warp", "warpgroup"):
        c.fail("language/arguments", "role(thread | warp | warpgroup, ...)", call.span)
    count = E.static_int(c, args["count"], "count") if "count" in args else 1
    warps = E.static_int(c, args["warps"], "warps") if "warps" in args else 1
    registers = E.static_int(c, args["registers"], "registers") if "registers" in args else None
    if ("warps" in args and unit.name != "thread") or ("count" in args and unit.name == "thread"):
        c.fail("language/arguments", "warps= belongs to thread roles, count= to warp and warpgroup roles", call.span)
    if count < 1 or warps < 1:
        c.fail("language/arguments", "count and warps are positive", call.span)
    total = {"thread": warps, "warp": count, "warpgroup": 4 * count}[unit.name]
    first = sum(r.warps for r in c.roles)
    if unit.name == "warpgroup" and first % 4:
        c.report(
            "hardware/warpgroup-alignment",
            f"role '{name}' starts at warp {first}; a warpgroup starts at a multiple of 4",
            call.span,
            contract="PTX ISA, wgmma: the first warp of a warpgroup has an index that is a multiple of 4.",
            role=name,
        )
    role = B.Role(name, unit.name, count, total, first, registers, call.span)
    c.roles.append(role)
    return role


def _dims(c: Context, call: S.Call, what: str) -> tuple[DType, tuple[int, ...]]:
    dtype = E.expr(c, call.args[0]) if call.args else None
    if not isinstance(dtype, DType) or dtype.name == "bool":
        c.fail("language/unknown-dtype", f"{what}(dtype, d0, ...) needs a memory dtype first", call.span)
    dims = tuple(E.static_int(c, a, "a tile dimension") for a in call.args[1:])
    if not dims or min(dims) < 1:
        c.fail("language/arguments", f"{what}(dtype, d0, ...) needs positive dimensions", call.span)
    return dtype, dims


def _smem(c: Context, name: str, call: S.Call) -> B.Buffer:
    args = keywords(c, call, ("stages", "swizzle", "pad", "over"), positional=9)
    dtype, dims = _dims(c, call, "smem")
    stages = E.static_int(c, args["stages"], "stages") if "stages" in args else 1
    swizzle = E.static_int(c, args["swizzle"], "swizzle") if "swizzle" in args else 0
    pad = E.static_int(c, args["pad"], "pad") if "pad" in args else 0
    over = E.expr(c, args["over"]) if "over" in args else None
    if over is not None and (not isinstance(over, B.Buffer) or over.space != "smem"):
        c.fail("language/type", "over= names another smem tile", args["over"].span)
    if stages < 1 or pad < 0:
        c.fail("language/arguments", "stages are positive, pad is not negative", call.span)
    buffer = B.Buffer(name, "smem", dtype, dims, stages, "stages" in args, swizzle, pad, over, None, call.span)
    if swizzle:
        if swizzle not in (32, 64, 128):
            c.fail("hardware/swizzle", f"swizzle={swizzle}; the hardware has 32, 64 and 128", args["swizzle"].span)
        if len(dims) < 2 or buffer.row_bytes % swizzle:
            c.fail(
                "hardware/swizzle-span",
                f"rows of {buffer.row_bytes} B do not fill the {swizzle} B swizzle span",
                call.span,
                resource=name,
                contract="Row bytes equal the swizzle span or are a multiple of it (a row of panels).",
            )
        if pad:
            c.fail("language/arguments", "pad= is for unswizzled tiles", call.span)
    if over is not None and buffer.stage_bytes * stages > over.stage_bytes * over.stages:
        c.fail(
            "data/over-too-large",
            f"'{name}' ({buffer.stage_bytes * stages} B) does not fit into '{over.name}' ({over.stage_bytes * over.stages} B)",
            call.span,
            resource=name,
            contract="over=x starts at x's first byte and must fit into x.",
        )
    c.buffers.append(buffer)
    return buffer


def _tmem(c: Context, name: str, call: S.Call) -> B.Buffer:
    args = keywords(c, call, ("stages", "owner", "over"), positional=3)
    if not c.target.has("tmem") and not c.target.has("tcgen05"):
        c.fail(
            "hardware/feature-missing",
            f"tensor memory does not exist on {c.target.name}",
            call.span,
            contract="PTX ISA, tcgen05: tensor memory needs the sm_100a family.",
        )
    dtype, dims = _dims(c, call, "tmem")
    stages = E.static_int(c, args["stages"], "stages") if "stages" in args else 1
    owner = E.expr(c, args["owner"]) if "owner" in args else None
    over = E.expr(c, args["over"]) if "over" in args else None
    if not isinstance(owner, B.Role):
        c.fail("language/arguments", "tmem(..., owner=ROLE) names the role that allocates", call.span)
    if len(dims) != 2 or dims[0] != 128:
        c.fail("hardware/tmem-shape", f"tensor memory tiles are [128, columns], got {list(dims)}", call.span)
    if stages < 1:
        c.fail("language/arguments", "stages are positive", call.span)
    if over is not None and (not isinstance(over, B.Buffer) or over.space != "tmem"):
        c.fail("language/type", "over= names another tmem tile", args["over"].span)
    buffer = B.Buffer(name, "tmem", dtype, dims, stages, "stages" in args, 0, 0, over, owner, call.span)
    if over is not None and tmem_cols(buffer) * stages > tmem_cols(over) * over.stages:
        c.fail(
            "data/over-too-large",
            f"'{name}' ({tmem_cols(buffer) * stages} columns) does not fit into"
            f" '{over.name}' ({tmem_cols(over) * over.stages} columns)",
            call.span,
            resource=name,
            contract="over=x starts at x's first column and must fit into x.",
        )
    c.buffers.append(buffer)
    return buffer


def _mbarrier(c: Context, name: str, call: S.Call) -> B.Barrier:
    args = keywords(c, call, ("stages", "arrivals", "bytes"))
    values = {k: E.static_int(c, v, k) for k, v in args.items()}
    if values.get("stages", 1) < 1:
        c.fail("language/arguments", "stages are positive", call.span)
    barrier = B.Barrier(
        name, "mbarrier", values.get("stages", 1), values.get("arrivals"), values.get("bytes"), call.span
    )
    c.barriers.append(barrier)
    return barrier


def _named(c: Context, name: str, call: S.Call) -> B.Barrier:
    keywords(c, call, (), positional=1)
    n = E.static_int(c, call.args[0], "the number of barriers") if call.args else 1
    if n < 1:
        c.fail("language/arguments", "named_barrier(n) with n positive", call.span)
    barrier = B.Barrier(name, "named", n, None, None, call.span)
    c.barriers.append(barrier)
    return barrier
