"""Which shapes a call is about: sets of the contract by name, or listed; which of them interpretation can look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cake_ir.diagnostics import CakeError
from server.errors import BadArgument

Shapes = str | Sequence[Mapping[str, int]]

MAX_INTERPRETED_FLOP = 1e10
"""Most arithmetic of one shape that is interpreted: some minutes."""


def shape_list(spec: Any, shapes: Shapes) -> list[dict[str, int]]:
    """Concrete shapes. Raises BadArgument for an unknown set or a shape that does not fit the contract."""
    from corpus.check import named_shapes

    try:
        return [dict(s) for s in named_shapes(spec, shapes if isinstance(shapes, str) else [dict(s) for s in shapes])]
    except CakeError as exc:
        raise BadArgument(exc.diagnostic.message, f"see cake://contracts/{spec.name}", code="args/shape") from exc


def interpretable(spec: Any, shapes: Shapes) -> Shapes:
    """Shapes for the check by interpretation: the explicit ones that are small enough, else the boundary set."""
    if isinstance(shapes, str):
        return shapes
    return [s for s in shape_list(spec, shapes) if spec.flops(s) <= MAX_INTERPRETED_FLOP] or "boundary"


def unchecked(spec: Any, asked: Shapes, checked: Shapes) -> str:
    """What was asked for and not looked at without a GPU, in words; empty when everything was."""
    rest = [s for s in shape_list(spec, asked) if s not in shape_list(spec, checked)]
    if not rest:
        return ""
    if isinstance(asked, str):
        return f"boundary shapes only; {asked} not checked"
    instead = "boundary shapes only; " if isinstance(checked, str) else ""
    more = f" and {len(rest) - 1} more" if len(rest) > 1 else ""
    return f"{instead}too large to interpret, so not checked: {shape_words(rest[0])}{more}"


def refuse_large(spec: Any, shapes: Sequence[Mapping[str, int]]) -> None:
    """Raise BadArgument args/shape for a shape that nobody would wait for."""
    large = [s for s in shapes if spec.flops(s) > MAX_INTERPRETED_FLOP]
    if large:
        raise BadArgument(
            f"{shape_words(large[0])} needs {spec.flops(large[0]):.2g} operations, too many to interpret "
            f"(at most {MAX_INTERPRETED_FLOP:.0g})",
            "check a smaller shape by interpretation, or this one on the GPU",
            code="args/shape",
        )


def shape_words(shape: Mapping[str, int]) -> str:
    return ",".join(f"{k}={v}" for k, v in shape.items())
