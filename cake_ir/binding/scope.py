"""Names: scopes, role ownership and uniformity, and the compile-time objects a name can stand for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cake_ir.bound import SX, Buffer, View
from cake_ir.diagnostics import Span
from cake_ir.layouts import Layout

UNIFORM_RANK = {"grid": 0, "cluster": 1, "cta": 2, "instance": 3}


class Poison:
    """A name whose definition failed: uses are silent, so one fault gives one finding."""


POISON = Poison()


class SilentError(Exception):
    """A consequence of an already reported fault."""


@dataclass(frozen=True)
class LayoutShape:
    """`wgmma_d[64, 128]` or `wgmma_d.cols[128]`: a layout with its static shape."""

    layout: Layout
    rows: int
    cols: int
    axis: str | None


@dataclass(frozen=True)
class LayoutAxis:
    """`wgmma_d.cols` before it is indexed."""

    layout: Layout
    axis: str


@dataclass(frozen=True, eq=False)
class TileSpace:
    """Numbered tiles; see docs/language.md. extents are SX."""

    extents: tuple[SX, ...]
    group: int
    count: SX


@dataclass(frozen=True)
class Device:
    """The name `device`."""


@dataclass(frozen=True)
class Symbol:
    """A reserved word used as a value: evict_first, cluster, add ..."""

    name: str


@dataclass(frozen=True, eq=False)
class OnChip:
    """A view under construction: `dims` are the dimensions the author still sees."""

    buffer: Buffer
    use: SX | None
    row0: SX
    rows: int
    col0: SX
    cols: int
    dims: tuple[int, ...]
    transposed: bool
    rank: SX | None
    span: Span

    def view(self) -> View:
        """The finished operand. Leading dimensions of a tile of rank > 2 are flattened."""
        if len(self.dims) <= 1:
            shape: tuple[int, ...] = self.dims
        else:
            shape = (self.cols, self.rows) if self.transposed else (self.rows, self.cols)
        return View(
            self.buffer,
            self.use,
            self.row0,
            self.rows,
            self.col0,
            self.cols,
            shape,
            self.transposed,
            self.rank,
            self.span,
        )


@dataclass
class Scope:
    """One lexical block. Kernel-level names in `names`; names owned by a role in `roles[role]`."""

    names: dict[str, Any] = field(default_factory=dict)
    roles: dict[str, dict[str, Any]] = field(default_factory=dict)
    control: str = "grid"  # uniformity of the control flow that leads here


@dataclass(frozen=True)
class Named:
    """A resolved name: what it stands for and who owns it (None: kernel level)."""

    value: Any
    owner: str | None
