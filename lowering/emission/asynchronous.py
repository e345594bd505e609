"""Copies that complete later: tensor copies, bulk copies, cp.async, and their groups."""

from __future__ import annotations

from cake_ir.bound import SX, Op, Region, SConst, View
from cake_ir.facts import cp_async_piece
from cake_ir.layouts import placement
from lowering.emission.context import Context
from lowering.emission.regions import Run, clip_terms, global_address, offset_text, single_holder, tile_terms
from lowering.emission.scalars import add, const, div, mod, mul
from lowering.helpers import copies


def map_name(c: Context, op: Op) -> str:
    """The tensor map parameter of a TMA op."""
    tensor_map = c.derived.tensor_maps[c.derived.op_maps[op.site]]
    return c.maps.setdefault(tensor_map, c.names.of(tensor_map, tensor_map.name))


def view_start(c: Context, view: View) -> SX:
    """Byte address of the view's first row; a start column inside a panel or at a panel's begin."""
    b = view.buffer
    start = c.stage(b, view.use)
    byte = mul(view.col0, b.dtype.bytes)
    if not b.swizzle:
        return add(start, mul(view.row0, b.pitch), byte)
    start = add(start, mul(view.row0, b.swizzle))
    if isinstance(byte, SConst):
        panel, inner = divmod(int(byte.value), b.swizzle)
        return add(start, panel * b.rows * b.swizzle + inner)
    if b.panels == 1:
        return add(start, byte)
    return add(start, mul(div(byte, b.swizzle), b.rows * b.swizzle), mod(byte, b.swizzle))


def _coordinates(c: Context, region: Region, offsets: tuple[int, ...]) -> list[SX]:
    """Element coordinates, innermost dimension first."""
    return [add(dim.start, off) for dim, off in zip(reversed(region.dims), offsets, strict=True)]


def ranks_mask(c: Context, ranks: object) -> str:
    """The CTA mask of a multicast."""
    cluster = c.kernel.launch.cluster
    if ranks == "cluster":
        return f"{(1 << cluster) - 1}u"
    assert isinstance(ranks, tuple)
    if all(isinstance(r, SConst) for r in ranks):
        return f"{sum(1 << int(r.value) for r in ranks)}u"
    return " | ".join(f"(1u << {c.sx(r)})" for r in ranks)


def policy(c: Context, cache: str | None) -> str:
    """The L2 policy value of a cache hint, made once per kernel; empty without a hint."""
    if cache is None:
        return ""
    if cache not in ("evict_first", "evict_last"):
        raise c.unsupported(f"cache={cache} on a copy engine")
    helper = c.helpers.use(f"policy_{cache}")
    if cache not in c.policies:
        c.policies[cache] = c.names.fresh(f"policy_{cache}")
    assert helper
    return c.policies[cache]


def tma_load(c: Context, op: Op) -> None:
    """One instruction per panel and per block of 256 along long dimensions."""
    view, region, bar = op.operands["view"], op.operands["region"], op.operands["signal"]
    multicast = op.operands.get("multicast")
    rank = len(region.dims)
    hint = policy(c, op.attrs.get("cache"))
    pair = bar.rank is not None and c.kernel.launch.cluster > 1
    call = c.helpers.add(*copies.tma_load(rank, multicast=multicast is not None, hint=bool(hint), pair=pair))
    address = c.sx.top(c.barrier(bar))
    if pair and bar.rank is not None:
        # The barrier of CTA `rank` at the same place: a cluster-wide shared address.
        address = f"{c.helpers.use('map_to_rank')}({address}, {c.sx.top(bar.rank)})"
        address = c.hoist("bar", "cake::u32", address)
    start = view_start(c, view)
    name = map_name(c, op)
    for copy in c.derived.copies[op.site]:
        parts = [
            c.sx.top(add(start, copy.offset)),
            f"&{name}",
            address,
            *(c.sx.top(x) for x in _coordinates(c, region, copy.coords)),
        ]
        if multicast is not None:
            parts.append(ranks_mask(c, multicast))
        if hint:
            parts.append(hint)
        c.out.line(f"{call}({', '.join(parts)});")
    count = len(c.derived.copies[op.site])
    c.promise("tma_load", "tma.load.multicast" if multicast is not None else "tma.load", count)
    _record_map(c, op)


def _record_map(c: Context, op: Op) -> None:
    tensor_map = c.derived.tensor_maps[c.derived.op_maps[op.site]]
    view, region = op.operands["view"], op.operands["region"]
    c.record(
        "tensor_map",
        op,
        "region",
        view_start(c, view),
        map=c.maps[tensor_map],
        tensor=tensor_map.tensor.name,
        box=tensor_map.box,
        swizzle=tensor_map.swizzle,
        copies=tuple((k.offset, k.coords) for k in c.derived.copies[op.site]),
        coordinates=tuple(_coordinates(c, region, (0,) * len(region.dims))),
        view=view,
    )


def tma_store(c: Context, op: Op) -> None:
    """Tensor copy (or reduction) from shared memory, in the issuing thread's bulk group."""
    view, region = op.operands["view"], op.operands["region"]
    reduce = op.attrs["op"] if op.name == "tma_reduce" else None
    call = c.helpers.add(*copies.tma_store(len(region.dims), reduce=reduce))
    start, name = view_start(c, view), map_name(c, op)
    for copy in c.derived.copies[op.site]:
        parts = [
            f"&{name}",
            c.sx.top(add(start, copy.offset)),
            *(c.sx.top(x) for x in _coordinates(c, region, copy.coords)),
        ]
        c.out.line(f"{call}({', '.join(parts)});")
    c.promise(op.name, "tma.store" if reduce is None else "tma.reduce", len(c.derived.copies[op.site]))
    _record_map(c, op)


def _row_loop(c: Context, rows: int) -> tuple[SX, bool]:
    """Opens a loop over the rows of a bulk copy, spread over the unit's threads; the row and whether a loop was opened."""
    if rows == 1:
        first = "" if c.unit == "T" else f"if ({c.sx(c.tid)} == 0)"
        if first:
            c.out.open(first)
        return const(0), bool(first)
    name = c.names.fresh("i")
    threads = {"T": 1, "W": 32, "G": 128}[c.unit]
    start = "0" if threads == 1 else c.sx.top(c.tid)
    c.out.open(f"for (int {name} = {start}; {name} < {rows}; {name} += {threads})")
    row = c.local_scalar(name)
    return row, True


def bulk_copy(c: Context, op: Op) -> None:
    """Row-wise bulk copies; with several rows every thread of the unit issues its share."""
    view, region = op.operands["view"], op.operands["region"]
    b = view.buffer
    size = view.cols * b.dtype.bytes
    row, opened = _row_loop(c, view.rows)
    shared = c.sx.top(add(c.stage(b, view.use), mul(add(view.row0, row), b.pitch), mul(view.col0, b.dtype.bytes)))
    if view.rank is not None and c.kernel.launch.cluster > 1:
        raise c.unsupported(f"{op.name} with a peer's view")
    kept = sum(d.kind != "index" for d in region.dims)
    pointer = global_address(c, region, (row, const(0)) if kept > 1 else (const(0),))
    if op.name == "bulk_load":
        bar = c.sx.top(c.barrier(op.operands["signal"]))
        c.out.line(f"{c.helpers.use('bulk_load')}({shared}, {pointer}, {size}, {bar});")
        c.promise("bulk_load", "bulk.load")
    else:
        c.out.line(f"{c.helpers.use('bulk_store')}({pointer}, {shared}, {size});")
        c.promise("bulk_store", "bulk.store")
    if opened:
        c.out.close()


def bulk_reduce(c: Context, op: Op) -> None:
    """Row-wise reductions into global memory. With an index vector row r goes to its row, issued by a holder of the index."""
    view, region, when = op.operands["view"], op.operands["region"], op.operands.get("when")
    b = view.buffer
    call = c.helpers.add(*copies.bulk_reduce(op.attrs["op"], b.dtype.name))
    size = view.cols * b.dtype.bytes
    rows = next((d.rows for d in region.dims if d.kind == "gather"), None)
    c.out.open("")
    if rows is None:
        row, opened = _row_loop(c, view.rows)
        kept = sum(d.kind != "index" for d in region.dims)
        pointer = global_address(c, region, (row, const(0)) if kept > 1 else (const(0),))
        c.out.line(f"{call}({pointer}, {_linear(c, view, row)}, {size});")
        if opened:
            c.out.close()
    else:
        along = 0 if rows.type.axis == "rows" else 1
        base = c.base(rows.type)[along]
        for slot, place in enumerate(placement(rows.type).offsets):
            offset = place[along]
            terms = [*single_holder(c, rows.type), *tile_terms(c, rows.type, Run(slot, *place))]
            if when is not None:
                terms.append(c.tiles.text(when, [slot]))
            index = c.local_scalar(c.hoist("index", "int", c.tiles.text(rows, [slot])))
            places = [index if d.kind == "gather" else d.start for d in region.dims]
            pointer = f"{c.tensor(region.tensor)} + {offset_text(c, region, places)}"
            guard = f"if ({' && '.join(terms)}) " if terms else ""
            c.out.line(f"{guard}{call}({pointer}, {_linear(c, view, add(base, offset))}, {size});")
    c.out.close()
    c.promise("bulk_reduce", "bulk.reduce")


def _linear(c: Context, view: View, row: SX) -> str:
    """Shared address of a row of an unswizzled view."""
    b = view.buffer
    return c.sx.top(add(c.stage(b, view.use), mul(add(view.row0, row), b.pitch), mul(view.col0, b.dtype.bytes)))


def cp_async(c: Context, op: Op) -> None:
    """Pieces of 16 (8, 4) bytes spread over the unit's threads; the clip becomes the source size."""
    view, region = op.operands["view"], op.operands["region"]
    b = view.buffer
    size = b.dtype.bytes
    row_bytes = view.cols * size
    piece, there, here = cp_async_piece(c.facts, view, region)
    if not piece:  # hardware/cp-async-alignment refuses it before
        raise c.unsupported(f"cp_async of rows that are only {min(there, here)}-byte aligned")
    per_row = row_bytes // piece
    threads = 32 if c.unit == "W" else 128
    total = view.rows * per_row
    helper = c.helpers.use(f"cp_async_{piece}")
    elements = piece // size
    c.out.open("")
    stage = c.hoist("stage", "int", c.sx.top(c.stage(b, view.use)))
    base = c.local_scalar(stage)
    for i in range(-(-total // threads)):
        tid = c.tid
        if threads % per_row == 0:
            # Every round moves down by whole rows, so column and swizzle stay the thread's own.
            row = add(div(tid, per_row), i * (threads // per_row))
            col = mul(mod(tid, per_row), elements)
        else:
            chunk = add(tid, i * threads)
            row, col = div(chunk, per_row), mul(mod(chunk, per_row), elements)
        guard = f"if ({c.sx(add(tid, i * threads))} < {total}) " if (i + 1) * threads > total else ""
        where = c.sx.top(add(base, c.element(view, row, col)))
        terms, partial = clip_terms(c, region, (row, col), elements)
        pointer = global_address(c, region, (row, col))
        count = _source_size(c, terms, partial, piece, size)
        c.out.line(f"{guard}{helper}({where}, {pointer}, {count});")
    c.out.close()
    c.promise("cp_async", "cp.async.cg" if piece == 16 else "cp.async")


def _source_size(c: Context, terms: list[str], partial: SX | None, piece: int, size: int) -> str:
    """Bytes to read: all, none, or the part of a piece that straddles the extent (`partial`: elements left)."""
    inner = str(piece) if partial is None else f"min(max({c.sx(partial)}, 0), {piece // size}) * {size}"
    if not terms:
        return f"{piece}u" if partial is None else f"static_cast<cake::u32>({inner})"
    return f"({' && '.join(terms)}) ? {inner} : 0"


def simple(helper: str, form: str):
    """An op that is one helper call, with its static depth as template argument if it has one."""

    def emit(c: Context, op: Op) -> None:
        call = c.helpers.use(helper)
        depth = f"<{op.attrs['k']}>" if "k" in op.attrs else ""
        c.out.line(f"{call}{depth}();")
        if form:
            c.promise(op.name, form)

    return emit


def cp_async_arrive(c: Context, op: Op) -> None:
    """One arrival per thread when its copies are done."""
    c.out.line(f"{c.helpers.use('cp_async_arrive')}({c.sx.top(c.barrier(op.operands['bar']))});")
    c.promise("cp_async_arrive", "cp.async.mbarrier.arrive")


EMITTERS = {
    "tma_load": tma_load, "tma_store": tma_store, "tma_reduce": tma_store, "bulk_load": bulk_copy, "bulk_store": bulk_copy,
    "cp_async": cp_async, "cp_async_arrive": cp_async_arrive,
    "cp_async_commit": simple("cp_async_commit", "cp.async.commit_group"), "cp_async_wait": simple("cp_async_wait", "cp.async.wait_group"),
    "bulk_reduce": bulk_reduce,
    "bulk_commit": simple("bulk_commit", "bulk.commit_group"), "bulk_wait": simple("bulk_wait", ""),
    "bulk_wait_read": simple("bulk_wait_read", ""),
}  # fmt: skip
