"""Shapes at the edges of a kernel's own tiles: what a contract's boundary set, written without knowing the kernel, may miss.

A tile size is the number of elements that one op moves along a dimension (or all instances of its role together). For
each dimension the sizes 0, 1, one less than a tile, a tile, one more, one more than two tiles, primes and one more than a
power of two are tried, the other dimensions staying just over one tile. A size that the
kernel's `where` refuses is moved up to the next one that it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from cake_ir.bound import BoundKernel, Op, Region, SVar, walk
from cake_ir.diagnostics import CakeError
from corpus.contract import Contract, Shape
from corpus.signature import refused, scalar_values, solve_dims

DISTRIBUTIONS = ("small_int", "normal")
"""What edge shapes are drawn from: with small integers every deviation is an indexing bug."""
MOST = 20
"""Edge shapes of one kernel."""
MAX_FLOP = 5e7
MAX_ELEMENTS = 1 << 20
"""Edge shapes stay small enough to be interpreted in a second or two."""
REACH = 64
"""How far a refused size is moved up."""
SPAN = 8192
"""Tiles beyond this size are left to the sizes below it: a row kernel's tile is its whole row."""


def gate_shapes(bound: BoundKernel, contract: Contract, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """The edge shapes that belong to a check of these shapes: those of the kernel where they are the boundary set."""
    if list(map(dict, shapes)) != list(map(dict, contract.shapes["boundary"])):
        return ()
    return tuple(s for s in edge_shapes(bound, contract) if s not in contract.shapes["boundary"])


def edge_shapes(bound: BoundKernel, contract: Contract) -> tuple[Shape, ...]:
    """Contract shapes at the edges of the kernel's tiles that the kernel admits; at most MOST, empty ones last."""
    tiles = tile_sizes(bound, contract)
    base = dict(
        max((s for s in contract.shapes["boundary"]), key=lambda s: (_admits(bound, contract, s), -contract.flops(s)))
    )
    for d, sizes in tiles.items():
        base = _edge(bound, contract, base, d, min(sizes) + 1) or base
    columns = [[_edge(bound, contract, base, d, size) for size in _sizes(tiles.get(d, ()))] for d in contract.dims]
    turns = [shape for turn in zip_longest(*columns) for shape in turn if shape is not None]
    empty = [s for d in contract.dims if (s := _edge(bound, contract, base, d, 0)) is not None]
    found = [s for i, s in enumerate(turns) if s not in turns[:i]]
    return (*found[: MOST - len(empty)], *empty)


def _edge(bound: BoundKernel, contract: Contract, base: Shape, dim: str, size: int) -> Shape | None:
    """`base` with one dimension at (or, where refused, just above) a size; None when the kernel takes none near it."""
    if size < contract.least.get(dim, 0):
        return None
    for moved in range(size, size + REACH if size else 1):
        shape = {**base, dim: moved}
        if _admits(bound, contract, shape):
            return shape if _small(contract, shape) else None
    return None


def tile_sizes(bound: BoundKernel, contract: Contract) -> dict[str, tuple[int, ...]]:
    """Elements that ops move at a time along each dimension of the contract: of one op, and of all instances of its role."""
    names = {(t.name, i): e for t in contract.tensors for i, e in enumerate(t.extents) if isinstance(e, str)}
    counts = {r.name: r.count for r in bound.roles}
    sizes: dict[str, set[int]] = {}
    for op in walk(bound.body):
        for r in op.operands.values() if isinstance(op, Op) else ():
            if not isinstance(r, Region):
                continue
            for i, (d, extent) in enumerate(zip(r.dims, r.tensor.extents, strict=True)):
                name = names.get((r.tensor.name, i))
                if d.kind == "slice" and name is not None and isinstance(extent, SVar):
                    more = d.size * counts.get(op.role or "", 1)
                    sizes.setdefault(name, set()).update(n for n in (d.size, more) if 1 < n <= SPAN)
    return {d: tuple(sorted(n)) for d, n in sizes.items() if n}


def _sizes(tiles: Iterable[int]) -> list[int]:
    """Sizes worth trying in one dimension, those around a tile first; a dimension without tiles is a count of problems."""
    out: list[int] = []
    for t in sorted(tiles, reverse=True)[:2]:
        out += [t - 1, t, t + 1, 2 * t + 1]
    return list(dict.fromkeys([*out, 1, 13, 97, 33] if out else [1, 2, 3, 13]))


def _small(contract: Contract, shape: Shape) -> bool:
    elements = sum(_product(contract.extents(t, shape)) for t in contract.tensors)
    return contract.flops(shape) <= MAX_FLOP and elements <= MAX_ELEMENTS


def _product(extents: Iterable[int]) -> int:
    out = 1
    for n in extents:
        out *= n
    return out


def _admits(bound: BoundKernel, contract: Contract, shape: Shape) -> bool:
    try:
        dims = solve_dims(bound, contract, shape)
        return refused(bound, dims, scalar_values(bound, contract, shape)) is None
    except (CakeError, ZeroDivisionError):
        return False
