"""Cross-lane register ops: in-thread left to right, then butterflies over the lanes that share the result, nearest first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from cake_ir.bound import VX, Op, ScalarVar
from cake_ir.layouts import TileType, placement
from lowering.emission.context import Context
from lowering.emission.regions import Run, tile_terms
from lowering.emission.scalars import f32_text
from lowering.emission.tiles import NoFit, ctype, fit, per_register, slot_table

Combine = Callable[[str, str], str]


def _combine(kind: str, floating: bool) -> Combine:
    if kind == "sum":
        return lambda a, b: f"{a} + {b}"
    if kind in ("max", "min"):
        return lambda a, b: f"{'f' + kind + 'f' if floating else kind}({a}, {b})"
    return lambda a, b: f"{a} {'||' if kind == 'any' else '&&'} {b}"


def _identity(kind: str, floating: bool) -> str:
    if kind == "sum":
        return "0.0f" if floating else "0"
    if kind == "any":
        return "false"
    if kind == "all":
        return "true"
    if floating:
        return f32_text(float("-inf") if kind == "max" else float("inf"))
    return "(-2147483647 - 1)" if kind == "max" else "2147483647"


def lane_distances(tile: TileType, axis: str) -> list[int]:
    """Butterfly distances over the lanes of one row (axis row) or one column (axis col)."""
    name = tile.layout.name
    if name == "tmem_d":
        return [] if axis == "row" else [1, 2, 4, 8, 16]
    if name == "vec":
        lanes = min(32, tile.layout.l or tile.threads)
        first, last = (1, lanes) if axis == "row" else (lanes, 32)
    else:
        first, last = (1, 4) if axis == "row" else (4, 32)
    found = []
    while first < last:
        found.append(first)
        first *= 2
    return found


def _lines(tile: TileType, axis: str) -> list[list[int]]:
    """Slots of each in-thread row (or column), in order."""
    along = 0 if axis == "row" else 1
    groups: dict[int, list[int]] = {}
    for slot, at in enumerate(placement(tile).offsets):
        groups.setdefault(at[along], []).append(slot)
    return [sorted(g, key=lambda s: placement(tile).offsets[s][1 - along]) for g in groups.values()]


def _source(c: Context, x: VX) -> Callable[[list[int]], str]:
    """Text of x at a list of slots; slots outside the tile are not covered here."""
    return lambda slots: c.tiles.text(x, slots)


def _guarded(c: Context, x: VX, slot: int, text: str, identity: str) -> str:
    at = placement(x.type).offsets[slot]
    terms = tile_terms(c, x.type, Run(slot, *at))
    return f"({' && '.join(terms)} ? {text} : {identity})" if terms else text


def reduce(c: Context, op: Op) -> None:
    """sum, max, min, any, all over rows or columns; of the crossing vector: a scalar."""
    axis, kind = op.name.split("_")
    x, result = op.operands["x"], op.results[0]
    tile: TileType = x.type
    floating = tile.dtype.kind == "f"
    combine, identity = _combine(kind, floating), _identity(kind, floating)
    value_type = ctype(tile.dtype)
    text = _source(c, x)
    c.out.open("")
    for index, slots in enumerate(_lines(tile, axis)):
        name = c.names.fresh(kind if kind != "sum" else "total")
        partial = placement(tile).partial
        c.out.line(f"{value_type} {name} = {_guarded(c, x, slots[0], text([slots[0]]), identity)};")
        rest = slots[1:]
        looped = ""
        if len(rest) > 3 and not partial:
            try:
                looped = text(rest)
            except NoFit:
                looped = ""
        if looped:
            c.out.line("#pragma unroll")
            c.out.line(f"for (int r = 0; r < {len(rest)}; ++r) {name} = {combine(name, looped)};")
        else:
            for slot in rest:
                c.out.line(f"{name} = {combine(name, _guarded(c, x, slot, text([slot]), identity))};")
        for distance in lane_distances(tile, axis):
            other = f"__shfl_xor_sync(0xffffffffu, {name}, {distance})"
            if kind in ("any", "all"):
                other = f"(__shfl_xor_sync(0xffffffffu, static_cast<int>({name}), {distance}) != 0)"
            if kind in ("any", "all"):
                partner = c.names.fresh("other")
                c.out.line(f"const bool {partner} = {other};")
                other = partner
            c.out.line(f"{name} = {combine(name, other)};")
        _give(c, result, axis, tile, index, name)
    c.out.close()


def _give(c: Context, result: object, axis: str, tile: TileType, index: int, name: str) -> None:
    """Store a reduced value in its place of the result."""
    if isinstance(result, ScalarVar):
        c.out.line(f"{c.names.of(result, result.name)} = {name};")
        return
    c.out.line(f"{c.tiles.name(result)}[{index}] = {name};")  # type: ignore[arg-type]


def arg_extreme(c: Context, op: Op) -> None:
    """The extreme of each row and its payload: ties to the least payload, NaN loses."""
    sign = "<" if op.name == "row_argmin" else ">"
    x, payload = op.operands["x"], op.operands["payload"]
    tile: TileType = x.type
    floating = tile.dtype.kind == "f"
    vt = ctype(tile.dtype)
    identity = _identity("min" if sign == "<" else "max", floating)
    text, ptext = _source(c, x), _source(c, payload)
    c.out.open("")

    def take(best: str, at: str, value: str, number: str) -> str:
        better = f"{value} {sign} {best} || ({value} == {best} && {number} < {at})"
        if floating:
            better += f" || ({best} != {best} && {value} == {value})"
        return f"if ({better}) {{ {best} = {value}; {at} = {number}; }}"

    for index, slots in enumerate(_lines(tile, "row")):
        best, at = c.names.fresh("best"), c.names.fresh("at")
        other, other_at = c.names.fresh("other"), c.names.fresh("other_at")
        c.out.line(f"{vt} {best} = {_guarded(c, x, slots[0], text([slots[0]]), identity)};")
        c.out.line(f"int {at} = {_guarded(c, payload, slots[0], ptext([slots[0]]), '2147483647')};")
        for slot in slots[1:]:
            c.out.open("")
            c.out.line(f"const {vt} {other} = {_guarded(c, x, slot, text([slot]), identity)};")
            c.out.line(f"const int {other_at} = {_guarded(c, payload, slot, ptext([slot]), '2147483647')};")
            c.out.line(take(best, at, other, other_at))
            c.out.close()
        for distance in lane_distances(tile, "row"):
            c.out.open("")
            c.out.line(f"const {vt} {other} = __shfl_xor_sync(0xffffffffu, {best}, {distance});")
            c.out.line(f"const int {other_at} = __shfl_xor_sync(0xffffffffu, {at}, {distance});")
            c.out.line(take(best, at, other, other_at))
            c.out.close()
        _give(c, op.results[0], "row", tile, index, best)
        _give(c, op.results[1], "row", tile, index, at)
    c.out.close()


def rename(c: Context, op: Op) -> None:
    """operand_a, operand_b, warp_part: the same registers under another layout."""
    x, frag = op.operands["x"], op.results[0]
    target: TileType = frag.type  # type: ignore[union-attr]
    per = per_register(target.dtype)
    table = slot_table(x.type)
    offsets = placement(target).offsets
    if op.name == "warp_part":
        offsets = tuple(((r // 16) * 64 + r % 16, k) for r, k in offsets)
    source = [table[at] for at in offsets]
    c.out.open("")
    name, entries = c.tiles.registers_of(x)
    picked = [entries[source[i] // per] for i in range(0, len(source), per)]
    try:
        c.out.line("#pragma unroll")
        c.out.line(f"for (int r = 0; r < {len(picked)}; ++r) {c.tiles.name(frag)}[r] = {name}[{fit(picked)}];")  # type: ignore[arg-type]
    except NoFit:
        raise c.unsupported(f"{op.name} of {x.type}") from None
    c.out.close()


def transpose(c: Context, op: Op) -> None:
    """movmatrix per 8x8 block."""
    x, frag = op.operands["x"], op.results[0]
    target: TileType = frag.type  # type: ignore[union-attr]
    table = slot_table(x.type)
    c.out.open("")
    name, entries = c.tiles.registers_of(x)
    call = c.helpers.use("transpose_8x8")
    offsets = placement(target).offsets
    for i in range(0, len(offsets), 2):
        row, col = offsets[i]
        c.out.line(f"{c.tiles.name(frag)}[{i // 2}] = {call}({name}[{entries[table[(col, row)] // 2]}]);")  # type: ignore[arg-type]
    c.out.close()


def pick(c: Context, op: Op) -> None:
    """Element i of a .cols vector: shfl.idx from its lane."""
    x, i, result = op.operands["x"], op.operands["i"], op.results[0]
    tile: TileType = x.type
    v, lanes = tile.layout.v, tile.layout.l or tile.threads
    c.out.open("")
    name, entries = c.tiles.registers_of(x)
    index = c.hoist("i", "int", c.sx.top(i))
    chosen = f"{name}[{entries[0]}]"
    for slot in range(1, placement(tile).slots):
        j, k = divmod(slot, v)
        chosen = f"({index} / {lanes * v} == {j} && {index} % {v} == {k} ? {name}[{entries[slot]}] : {chosen})"
    lane = f"{index} / {v} % {lanes}"
    c.out.line(f"{c.names.of(result, result.name)} = __shfl_sync(0xffffffffu, {chosen}, {lane});")
    c.out.close()


def shift(c: Context, op: Op) -> None:
    """Element j-1 at place j: shfl.up at the first element of each lane's group."""
    x, frag = op.operands["x"], op.results[0]
    tile: TileType = x.type
    v, lanes = tile.layout.v, tile.layout.l or tile.threads
    out = c.tiles.name(frag)  # type: ignore[arg-type]
    c.out.open("")
    source = c.tiles.temporary(x)
    lane = c.sx(c.thread("lane"))
    count = placement(tile).slots
    for slot in range(count):
        j, k = divmod(slot, v)
        if k:
            c.out.line(f"{out}[{slot}] = {source}[{slot - 1}];")
            continue
        last = j * v + v - 1
        up = f"__shfl_up_sync(0xffffffffu, {source}[{last}], 1)"
        c.out.open("")
        moved = c.hoist("moved", ctype(tile.dtype), up)
        wrap = c.sx.top(op.operands["fill"])
        if j:
            wrap = c.hoist(
                "wrapped", ctype(tile.dtype), f"__shfl_sync(0xffffffffu, {source}[{(j - 1) * v + v - 1}], {lanes - 1})"
            )
        c.out.line(f"{out}[{slot}] = {lane} % {lanes} == 0 ? {wrap} : {moved};")
        c.out.close()
    c.out.close()


def cumsum(c: Context, op: Op) -> None:
    """Inclusive running sums: in-thread, then shfl.up over the lanes of the line. Layouts whose lanes hold contiguous elements."""
    axis = op.name.split("_")[0]
    x, frag = op.operands["x"], op.results[0]
    tile: TileType = x.type
    out = c.tiles.name(frag)  # type: ignore[arg-type]
    distances = lane_distances(tile, axis)
    lines = _lines(tile, axis)
    along = 1 if axis == "row" else 0
    offsets = placement(tile).offsets
    c.out.open("")
    c.tiles.assign(out, x)
    group = _contiguous(tile, axis)
    lane = c.sx(c.thread("lane"))
    place = f"({lane} / {distances[0]} % {1 << len(distances)})" if distances else "0"
    for slots in lines:
        carry = ""
        parts = [slots[i : i + group] for i in range(0, len(slots), group)]
        for part in parts:
            assert all(offsets[b][along] > offsets[a][along] for a, b in pairwise(part))
            for a, b in pairwise(part):
                c.out.line(f"{out}[{b}] = {out}[{a}] + {out}[{b}];")
            if distances:
                total = c.hoist("total", ctype(tile.dtype), f"{out}[{part[-1]}]").strip()
                running = c.names.fresh("running")
                c.out.line(f"{ctype(tile.dtype)} {running} = {total};")
                for d in distances:
                    step = d // distances[0]
                    up = c.hoist("up", ctype(tile.dtype), f"__shfl_up_sync(0xffffffffu, {running}, {d})")
                    c.out.line(f"if ({place} >= {step}) {running} = {running} + {up};")
                shifted = c.hoist(
                    "shifted", ctype(tile.dtype), f"__shfl_up_sync(0xffffffffu, {running}, {distances[0]})"
                )
                before = c.hoist("before", ctype(tile.dtype), f"{place} == 0 ? {ctype(tile.dtype)}(0) : {shifted}")
                for slot in part:
                    c.out.line(f"{out}[{slot}] = {out}[{slot}] + {before};")
            if carry:
                for slot in part:
                    c.out.line(f"{out}[{slot}] = {out}[{slot}] + {carry};")
            if len(parts) > 1:
                last_lane = f"({lane} & ~{sum(distances)}) | {sum(distances)}" if distances else lane
                carry = c.hoist("carry", ctype(tile.dtype), f"__shfl_sync(0xffffffffu, {out}[{part[-1]}], {last_lane})")
    c.out.close()


def _contiguous(tile: TileType, axis: str) -> int:
    """Elements a thread holds next to each other along the axis."""
    if tile.layout.name == "vec":
        return tile.layout.v if axis == "row" else 1
    return 2 if axis == "row" and tile.layout.name in ("mma_d", "wgmma_d") else 1


def row_bits(c: Context, op: Op) -> None:
    """Bit r = row r of a bool mma_d.rows[16]: two ballots, one bit per quad."""
    x, result = op.operands["x"], op.results[0]
    c.out.open("")
    low = c.hoist("low", "cake::u32", f"__ballot_sync(0xffffffffu, {c.tiles.text(x, [0])})")
    high = c.hoist("high", "cake::u32", f"__ballot_sync(0xffffffffu, {c.tiles.text(x, [1])})")
    terms = [f"({word} >> {4 * r} & 1u) << {r + 8 * half}" for half, word in enumerate((low, high)) for r in range(8)]
    c.out.line(f"{c.names.of(result, result.name)} = static_cast<int>({' | '.join(f'({t})' for t in terms)});")
    c.out.close()


EMITTERS = {
    **{f"{axis}_{kind}": reduce for axis in ("row", "col") for kind in ("sum", "max", "min")},
    "row_any": reduce, "row_all": reduce, "row_argmin": arg_extreme, "row_argmax": arg_extreme,
    "operand_a": rename, "operand_b": rename, "warp_part": rename, "transpose": transpose, "pick": pick, "shift": shift,
    "col_cumsum": cumsum, "row_cumsum": cumsum, "row_bits": row_bits,
}  # fmt: skip
