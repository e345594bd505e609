"""tile_space: numbered tiles and their coordinates. The last coordinate is fastest; group=g (rank 2) makes bands of g
rows with rows fastest inside a band."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir.binding.context import Context
from cake_ir.binding.scalars import const, sop
from cake_ir.binding.scope import TileSpace
from cake_ir.diagnostics import Span


def _name(c: Context, label: str, value: B.SX, span: Span) -> B.SX:
    """Compute once: constants stay constants, the rest becomes a local."""
    if isinstance(value, (B.SConst, B.SVar)):
        return value
    var = c.scalar(label, "local", "i32", c.uniform(value), span)
    c.definitions[var] = value
    c.emit(B.SetScalar(var, value, span))
    return B.SVar(var)


def coordinates(c: Context, space: TileSpace, number: B.SX, span: Span) -> tuple[Any, ...]:
    """Coordinates of tile `number`, outermost first."""
    if space.group > 1:
        rows, cols = space.extents
        size = sop("*", cols, const(space.group))
        band = _name(c, "band", sop("//", number, size), span)
        within = _name(c, "within", sop("%", number, size), span)
        first = sop("*", band, const(space.group))
        height = _name(c, "height", sop("min", const(space.group), sop("-", rows, first)), span)
        return (
            _name(c, "tile0", sop("+", first, sop("%", within, height)), span),
            _name(c, "tile1", sop("//", within, height), span),
        )
    out: list[Any] = []
    rest = number
    for i, extent in enumerate(reversed(space.extents)):
        last = i == len(space.extents) - 1
        out.append(_name(c, f"tile{len(space.extents) - 1 - i}", rest if last else sop("%", rest, extent), span))
        if not last:
            rest = sop("//", rest, extent)
    return tuple(reversed(out))
