"""Plain loads and stores: width from the layout and provable alignment, masks from the region's clip."""

from __future__ import annotations

from collections.abc import Callable

from cake_ir.bound import SX, VX, Op, Region, SConst, View
from cake_ir.dtypes import DType
from cake_ir.layouts import TileType, placement
from lowering.emission.context import Context
from lowering.emission.regions import (
    Run,
    global_address,
    in_range,
    inner_axis,
    kept,
    logical,
    longest,
    offset_text,
    pointee,
    region_width,
    runs_of,
    single_holder,
    stride_text,
    tile_terms,
    view_width,
)
from lowering.emission.scalars import add, const, f32_text
from lowering.emission.tiles import NoFit, bits_of, fit, per_register
from lowering.helpers import memory as helpers

# ---- load ------------------------------------------------------------


def _modifiers(c: Context, op: Op, read_only: bool) -> str:
    cache = op.attrs.get("cache")
    return (".nc" if read_only else "") + (f".L1::{cache}" if cache else "")


def _kind(dtype: DType, width: int) -> tuple[str, int]:
    """(register kind of the helper, registers of one access)."""
    if dtype.bits == 32:
        return ("f32" if dtype.kind == "f" else "b32" if dtype.name == "u32" else "i32"), width
    if dtype.bits == 64:
        return ("i64" if dtype.kind == "i" else "b64"), width
    if width * dtype.bits >= 32:
        return "b32", width * dtype.bits // 32
    return ("b16" if width * dtype.bits == 16 else "b8"), 1


def _fill(c: Context, fill: SX | None, dtype: DType, kind: str) -> str:
    value = const(0) if fill is None else fill
    if dtype.bits in (8, 16):
        if not isinstance(value, SConst):
            raise c.unsupported(f"a runtime fill of {dtype}")
        bits = bits_of(float(value.value), dtype)
        whole = bits * (0x00010001 if dtype.bits == 16 else 0x01010101)
        return f"{whole if kind == 'b32' else bits:#x}u" if bits else "0u"
    if dtype.kind == "f" and isinstance(value, SConst):
        return f32_text(float(value.value))
    return c.sx.top(value)


def load(c: Context, op: Op) -> None:
    """All accesses of a tile are issued before anything uses them."""
    frag = op.results[0]
    tile: TileType = frag.type  # type: ignore[union-attr]
    src = op.operands["src"]
    name = c.tiles.name(frag)  # type: ignore[arg-type]
    if tile.dtype.name == "bool":
        raise c.unsupported("a load of masks")
    c.out.open("")
    if isinstance(src, Region):
        _load_region(c, op, src, tile, name)
    else:
        _load_view(c, op, src, tile, name)
    c.out.close()


def _narrow(c: Context, tile: TileType, width: int, name: str) -> tuple[str, Callable[[], None]]:
    """Where accesses of less than a register are loaded to, and what packs them afterwards."""
    bits = width * tile.dtype.bits
    if bits >= 32:
        return name, lambda: None
    pieces = c.names.fresh("h")
    each = 32 // bits
    registers = -(-placement(tile).slots // (width * each))
    c.out.line(f"cake::{'u16' if bits == 16 else 'u32'} {pieces}[{registers * each}] = {{}};")

    def pack() -> None:
        parts = [f"{pieces}[{each} * r]"]
        parts += [f"static_cast<cake::u32>({pieces}[{each} * r + {i}]) << {bits * i}" for i in range(1, each)]
        c.out.line("#pragma unroll")
        c.out.line(f"for (int r = 0; r < {registers}; ++r) {name}[r] = {' | '.join(parts)};")

    return pieces, pack


def _entry_of(tile: TileType, width: int, slot: int) -> int:
    """Array entry of an access: of the tile, or of the pieces that `_narrow` packs."""
    return slot // (per_register(tile.dtype) if width * tile.dtype.bits >= 32 else width)


def _load_region(c: Context, op: Op, region: Region, tile: TileType, name: str) -> None:
    """Guarded accesses; where the tile lies inside the tensor and is aligned, plain ones as wide as the layout allows."""
    if any(d.kind == "gather" for d in region.dims):
        _load_gather(c, op, region, tile, name)
        return
    width = region_width(c, region, tile)
    row, col = c.base(tile)
    pointers: dict[int, str] = {}
    for run in runs_of(tile, width):
        if run.row not in pointers:
            place = logical(tile, add(row, run.row), col)
            pointers[run.row] = c.hoist("p", f"const {pointee(tile.dtype)}*", global_address(c, region, place))
    guarded = any(any(_conditions(c, region, tile, add(row, run.row), col, run)) for run in runs_of(tile, width))
    wide, aligned = _wide(c, region, tile, width, pointers)
    whole = _whole_terms(c, region, tile) if guarded else []
    if whole is not None and len(runs_of(tile, width)) >= 4 and (guarded or wide > width):
        c.out.open(f"if ({' && '.join([*whole, *aligned])})")
        _load_runs(c, op, region, tile, name, wide, pointers, guarded=False)
        c.out.middle("} else {")
        _load_runs(c, op, region, tile, name, width, pointers, guarded=guarded)
        c.out.close()
    else:
        _load_runs(c, op, region, tile, name, width, pointers, guarded=guarded)


def _wide(c: Context, region: Region, tile: TileType, width: int, pointers: dict[int, str]) -> tuple[int, list[str]]:
    """(width that the layout allows, run-time conditions for it). The address is checked in one row only."""
    natural = longest(placement(tile).offsets, max(1, 128 // tile.dtype.bits))
    if tile.axis == "rows" or inner_axis(region) != "col" or len(pointers) > 1:
        return width, []
    while natural > width and c.facts.divisor(c.base(tile)[1]) % natural:
        natural //= 2
    if natural <= width:
        return width, []
    # The first column of the tile, not of the thread: one answer for all lanes, and the same one, as lanes start at multiples.
    row, first = next(iter(pointers)), const(0)
    start = global_address(c, region, logical(tile, add(c.base(tile)[0], row), first))
    return natural, [f"(reinterpret_cast<cake::u64>({start}) & {natural * tile.dtype.bits // 8 - 1}ull) == 0"]


def _whole_terms(c: Context, region: Region, tile: TileType) -> list[str] | None:
    """Uniform conditions under which no element is clipped; None for tiles that do not fill their unit."""
    if placement(tile).partial:
        return None
    terms = []
    for dim, d in kept(region):
        if in_range(region, dim, d):
            continue
        for end in (region.tensor.extents[dim], d.stop):
            if end is not None:
                terms.append(f"{c.sx(add(d.start, d.size))} <= {c.sx(end)}")
    return terms


def _load_runs(
    c: Context,
    op: Op,
    region: Region,
    tile: TileType,
    name: str,
    width: int,
    pointers: dict[int, str],
    *,
    guarded: bool,
) -> None:
    """Every access of the tile at one width."""
    kind, count = _kind(tile.dtype, width)
    target, finish = _narrow(c, tile, width, name)
    row, col = c.base(tile)
    read_only = region.tensor.direction in ("In", "Const")
    call = c.helpers.add(*helpers.load("global", kind, count, modifiers=_modifiers(c, op, read_only), guarded=guarded))
    fill = _fill(c, op.operands.get("fill"), tile.dtype, kind) if guarded else ""
    stride = ""
    if inner_axis(region) != "col" and tile.axis != "rows":
        stride = _axis_stride(c, region, 1 if tile.axis is None else 0)
    groups: dict[int, list[Run]] = {}
    for run in runs_of(tile, width):
        groups.setdefault(run.row, []).append(run)
    for row_offset, runs in groups.items():
        rows_ok = ""
        if guarded:
            terms = _conditions(c, region, tile, add(row, row_offset), col, runs[0])[0]
            rows_ok = c.hoist("in", "bool", " && ".join(terms)) if terms else ""
        _emit_loads(
            c, region, tile, runs, target, width, call, pointers[row_offset], guarded, rows_ok, fill, col, stride
        )
    finish()


def _axis_stride(c: Context, region: Region, axis: int) -> str:
    return stride_text(c, region.tensor, kept(region)[axis][0])


def _conditions(c: Context, region: Region, tile: TileType, row: SX, col: SX, run: Run) -> tuple[list[str], list[str]]:
    """(conditions on the row, conditions on the column) of a run."""
    pairs = kept(region)
    terms: tuple[list[str], list[str]] = ([], [])
    axes = [0] if tile.axis == "rows" else [1] if tile.axis == "cols" else [0, 1]
    for (dim, d), axis in zip(pairs, axes, strict=True):
        if d.kind == "gather" or in_range(region, dim, d):
            continue
        place = add(d.start, row if axis == 0 else add(col, run.col))
        for end in (region.tensor.extents[dim], d.stop):
            if end is not None:
                terms[axis].append(f"{c.sx(place)} < {c.sx(end)}")
    for term in tile_terms(c, tile, run):
        terms[1 if tile.axis != "rows" else 0].append(term)
    return terms


def _emit_loads(
    c: Context,
    region: Region,
    tile: TileType,
    runs: list[Run],
    target: str,
    width: int,
    call: str,
    pointer: str,
    guarded: bool,
    rows_ok: str,
    fill: str,
    col: SX,
    stride: str,
) -> None:
    """One helper call per run, as a loop where entries and columns are simple functions of the run number."""

    def line(entry: str, column: str, run: Run, shift: SX) -> str:
        at = f"{pointer} + {column}" if not stride else f"{pointer} + ({column}) * {stride}"
        if column == "0":
            at = pointer
        tail = ""
        if guarded:
            terms = [t for t in (rows_ok,) if t] + _conditions(
                c, region, tile, const(0), add(col, shift), Run(run.slot, run.row, 0) if shift is not _ZERO else run
            )[1]
            tail = f", {' && '.join(terms) or 'true'}, {fill}"
        return f"{call}(&{target}[{entry}], {at}{tail});"

    entries = [_entry_of(tile, width, run.slot) for run in runs]
    if len(runs) > 2 and not placement(tile).partial:
        try:
            entry, column = fit(entries), fit([run.col for run in runs])
        except NoFit:
            entry = column = ""
        if entry:
            c.out.line("#pragma unroll")
            c.out.line(
                f"for (int r = 0; r < {len(runs)}; ++r) {line(entry, column, runs[0], c.local_scalar(f'({column})'))}"
            )
            return
    for run, entry_number in zip(runs, entries, strict=True):
        c.out.line(line(str(entry_number), str(run.col), run, _ZERO))


_ZERO = const(0)


def _load_gather(c: Context, op: Op, region: Region, tile: TileType, name: str) -> None:
    """Rows chosen by an index vector of the same layout."""
    width = region_width(c, region, tile)
    kind, count = _kind(tile.dtype, width)
    read_only = region.tensor.direction in ("In", "Const")
    target, finish = _narrow(c, tile, width, name)
    fill = _fill(c, op.operands.get("fill"), tile.dtype, kind)
    call = c.helpers.add(*helpers.load("global", kind, count, modifiers=_modifiers(c, op, read_only), guarded=True))
    col = c.base(tile)[1]
    for run in runs_of(tile, width):
        pointer, terms = _gather_place(c, region, tile, run, col)
        c.out.line(
            f"{call}(&{target}[{_entry_of(tile, width, run.slot)}], {pointer}, {' && '.join(terms) or 'true'}, {fill});"
        )
    finish()


def _gather_place(c: Context, region: Region, tile: TileType, run: Run, col: SX) -> tuple[str, list[str]]:
    """(pointer, conditions) of a run of a gathered region."""
    from lowering.emission.tiles import slot_table

    places: list[SX] = []
    for d in region.dims:
        if d.kind == "gather":
            assert d.rows is not None
            slot = slot_table(d.rows.type)[(run.row, 0) if d.rows.type.axis == "rows" else (0, run.col)]
            index = c.tiles.text(d.rows, [slot])
            places.append(c.local_scalar(c.hoist("index", "int", index)))
        elif d.kind == "index":
            places.append(d.start)
        else:
            places.append(add(d.start, col, run.col))
    terms = []
    for dim, d in enumerate(region.dims):
        if d.kind == "slice" and not in_range(region, dim, d):
            terms += [f"{c.sx(places[dim])} < {c.sx(e)}" for e in (region.tensor.extents[dim], d.stop) if e is not None]
        elif d.kind == "gather":
            terms.append(
                f"static_cast<unsigned>({c.sx.top(places[dim])}) < static_cast<unsigned>({c.sx.top(region.tensor.extents[dim])})"
            )
    return f"{c.tensor(region.tensor)} + {offset_text(c, region, places)}", [*terms, *tile_terms(c, tile, run)]


def _view_places(view: View, tile: TileType, row: SX, col: SX) -> tuple[SX, SX]:
    """(row, column) in the stored matrix of a logical position."""
    if tile.axis is not None:
        index = row if tile.axis == "rows" else col
        # A vector view is one row or one column of the buffer.
        return (index, const(0)) if view.cols == 1 and view.rows > 1 else (const(0), index)
    return (col, row) if view.transposed else (row, col)


def _load_view(c: Context, op: Op, view: View, tile: TileType, name: str) -> None:
    width = view_width(c, view, tile)
    kind, count = _kind(tile.dtype, width)
    space, base = _shared_base(c, view)
    target, finish = _narrow(c, tile, width, name)
    row, col = c.base(tile)
    for run in runs_of(tile, width):
        r, k = _view_places(view, tile, add(row, run.row), add(col, run.col))
        where = c.sx.top(add(base, c.element(view, r, k)))
        terms = tile_terms(c, tile, run)
        call = c.helpers.add(*helpers.load(space, kind, count, guarded=bool(terms)))
        tail = f", {' && '.join(terms)}, {_fill(c, None, tile.dtype, kind)}" if terms else ""
        c.out.line(f"{call}(&{target}[{_entry_of(tile, width, run.slot)}], {where}{tail});")
    finish()


def _shared_base(c: Context, view: View) -> tuple[str, SX]:
    """(address space, stage address as a named value)."""
    text = c.sx.top(c.stage(view.buffer, view.use))
    space = "shared"
    if view.rank is not None and c.kernel.launch.cluster > 1:
        text = f"static_cast<int>({c.helpers.use('map_to_rank')}({text}, {c.sx.top(view.rank)}))"
        space = "cluster"
    return space, c.local_scalar(c.hoist("stage", "int", text))


# ---- store ------------------------------------------------------------


def store(c: Context, op: Op) -> None:
    """Elements outside the region or masked by `when` are skipped; a replicated vector is stored by one holder."""
    x: VX = op.operands["x"]
    dst, when = op.operands["dst"], op.operands.get("when")
    tile = x.type
    c.out.open("")
    is_region = isinstance(dst, Region)
    width = 1 if when is not None else region_width(c, dst, tile) if is_region else view_width(c, dst, tile)
    kind, count = _kind(tile.dtype, width)
    name, entries = c.tiles.registers_of(x)
    row, col = c.base(tile)
    holder = single_holder(c, tile)
    base: SX = const(0)
    if is_region:
        space = "global"
    else:
        space, base = _shared_base(c, dst)
    call = c.helpers.add(*helpers.store(space, kind, count, modifiers=_modifiers(c, op, False) if is_region else ""))
    pointers: dict[int, str] = {}
    gathered = is_region and any(d.kind == "gather" for d in dst.dims)
    for run in runs_of(tile, width):
        terms = list(holder)
        if gathered:
            where, more = _gather_place(c, dst, tile, run, col)
            terms += more
        elif is_region:
            r = add(row, run.row)
            if run.row not in pointers:
                pointers[run.row] = c.hoist(
                    "p", f"{pointee(tile.dtype)}*", global_address(c, dst, logical(tile, r, col))
                )
            where = _advance(c, dst, tile, pointers[run.row], run.col)
            rows, columns = _conditions(c, dst, tile, r, col, run)
            terms += rows + columns
        else:
            mem = _view_places(dst, tile, add(row, run.row), add(col, run.col))
            where = c.sx.top(add(base, c.element(dst, *mem)))
            terms += tile_terms(c, tile, run)
        if when is not None:
            terms.append(c.tiles.text(when, [run.slot]))
        values = _store_values(c, tile, width, name, entries, run.slot, count)
        guard = f"if ({' && '.join(dict.fromkeys(terms))}) " if terms else ""
        c.out.line(f"{guard}{call}({where}, {', '.join(values)});")
    c.out.close()


def store_async(c: Context, op: Op) -> None:
    """One st.async for every piece of neighbouring elements; a replicated vector is stored by one holder."""
    x: VX = op.operands["x"]
    view, bar = op.operands["view"], op.operands["signal"]
    tile = x.type
    c.out.open("")
    width = min(view_width(c, view, tile), 4)
    kind, count = _kind(tile.dtype, width)
    name, entries = c.tiles.registers_of(x)
    row, col = c.base(tile)
    _, base = _shared_base(c, view)
    address = c.sx.top(c.barrier(bar))
    if bar.rank is not None and c.kernel.launch.cluster > 1:
        address = f"{c.helpers.use('map_to_rank')}({address}, {c.sx.top(bar.rank)})"
    signal = c.hoist("bar", "cake::u32", address)
    call = c.helpers.add(*helpers.store_async(kind, count))
    holder = single_holder(c, tile)
    for run in runs_of(tile, width):
        terms = [*holder, *tile_terms(c, tile, run)]
        places = _view_places(view, tile, add(row, run.row), add(col, run.col))
        where = c.sx.top(add(base, c.element(view, *places)))
        values = ", ".join(_store_values(c, tile, width, name, entries, run.slot, count))
        guard = f"if ({' && '.join(dict.fromkeys(terms))}) " if terms else ""
        c.out.line(f"{guard}{call}({where}, {values}, {signal});")
    c.out.close()
    c.promise("store_async", "st.async")


def _advance(c: Context, region: Region, tile: TileType, pointer: str, col: int) -> str:
    if col == 0 or tile.axis == "rows":
        return pointer
    if inner_axis(region) == "col":
        return f"{pointer} + {col}"
    return f"{pointer} + {col} * {_axis_stride(c, region, 1 if tile.axis is None else 0)}"


def _store_values(
    c: Context, tile: TileType, width: int, name: str, entries: list[int], slot: int, count: int
) -> list[str]:
    per = per_register(tile.dtype)
    if per == 1:
        return [f"{name}[{entries[slot + i]}]" for i in range(count)]
    if width >= per:
        return [f"{name}[{entries[slot // per + i]}]" for i in range(count)]
    part, shift = f"{name}[{entries[slot // per]}]", slot % per * tile.dtype.bits
    shifted = f"{part} >> {shift}" if shift else part
    return [f"static_cast<cake::u16>({shifted})" if width * tile.dtype.bits == 16 else f"({shifted}) & 0xffu"]


def _red_width(c: Context, region: Region, tile: TileType) -> int:
    """Elements of one red."""
    if tile.dtype.name != "f32" or not c.kernel.target.has("red_vec"):
        return 1
    return min(4, region_width(c, region, tile))


def atomic(c: Context, op: Op) -> None:
    """One red per run of neighbours; an atom per element where the old value is wanted."""
    x: VX = op.operands["x"]
    region, when = op.operands["region"], op.operands.get("when")
    tile = x.type
    result = c.tiles.name(op.results[0]) if op.results else ""  # type: ignore[arg-type]
    width = 1 if result or when is not None or op.name != "atomic_add" else _red_width(c, region, tile)
    how = op.name.rsplit("_", 1)[1]
    call = c.helpers.add(*(helpers.fetch(how) if result else helpers.red(how, tile.dtype.name, width)))
    c.out.open("")
    name, entries = c.tiles.registers_of(x)
    row, col = c.base(tile)
    gathered = any(d.kind == "gather" for d in region.dims)
    for run in runs_of(tile, width):
        terms = single_holder(c, tile)
        if gathered:
            where, more = _gather_place(c, region, tile, run, col)
        else:
            where = global_address(c, region, logical(tile, add(row, run.row), add(col, run.col)))
            rows, columns = _conditions(c, region, tile, add(row, run.row), col, run)
            more = rows + columns
        terms = [*terms, *more, *([] if when is None else [c.tiles.text(when, [run.slot])])]
        guard = f"if ({' && '.join(terms)}) " if terms else ""
        values = ", ".join(_store_values(c, tile, width, name, entries, run.slot, width))
        if result:
            c.out.line(f"{result}[{run.slot}] = 0;")
            guard += f"{result}[{run.slot}] = "
        c.out.line(f"{guard}{call}({where}, {values});")
    c.out.close()


# ---- scalars ------------------------------------------------------------


def _scalar_place(c: Context, memory: Region | View) -> tuple[str, str]:
    """(space, address) of a rank-0 operand."""
    if isinstance(memory, Region):
        return "global", global_address(c, memory, ())
    address = add(c.stage(memory.buffer, memory.use), c.element(memory, const(0), const(0)))
    text = c.sx.top(address)
    if memory.rank is not None and c.kernel.launch.cluster > 1:
        return "cluster", f"{c.helpers.use('map_to_rank')}({text}, {c.sx.top(memory.rank)})"
    return "shared", text


def load_scalar(c: Context, op: Op) -> None:
    """The same address for all lanes."""
    src, result = op.operands["src"], op.results[0]
    dtype = src.tensor.dtype if isinstance(src, Region) else src.buffer.dtype
    space, address = _scalar_place(c, src)
    read_only = isinstance(src, Region) and src.tensor.direction in ("In", "Const")
    call = c.helpers.add(*helpers.load(space, _kind(dtype, 1)[0], 1, modifiers=".nc" if read_only else ""))
    c.out.line(f"{call}(&{c.names.of(result, result.name)}, {address});")


def store_scalar(c: Context, op: Op) -> None:
    """One element by one thread of the unit."""
    dst, x = op.operands["dst"], op.operands["x"]
    dtype = dst.tensor.dtype if isinstance(dst, Region) else dst.buffer.dtype
    space, address = _scalar_place(c, dst)
    call = c.helpers.add(*helpers.store(space, _kind(dtype, 1)[0], 1))
    value = c.sx.top(x)
    if dtype.bits == 16 and isinstance(x, SConst):
        value = f"static_cast<cake::u16>({bits_of(float(x.value), dtype):#x})"
    guard = ""
    if c.unit in ("W", "G"):
        c.out.line("__syncwarp();")
        guard = f"if ({c.sx(c.tid)} == 0) "
    c.out.line(f"{guard}{call}({address}, {value});")


EMITTERS = {
    "load": load, "store": store, "load_scalar": load_scalar, "store_scalar": store_scalar,
    "atomic_add": atomic, "atomic_min": atomic, "atomic_max": atomic, "atomic_fetch_add": atomic,
    "store_async": store_async,
}  # fmt: skip
