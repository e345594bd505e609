"""Candidate repairs of forms: swizzles, view bounds, multicast, and use numbers that several lines share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from analyses.fixtext import call_argument, index_of
from cake_ir.diagnostics import Diagnostic

SPANS = (128, 64, 32)


def _one(title: str, *edits: Any) -> Iterator[Any]:
    from analyses.fixrules import Candidate

    if edits and all(e is not None for e in edits):
        yield Candidate(title, tuple(edits))


def legal_swizzle(f: Any, d: Diagnostic) -> Iterator[Any]:
    """swizzle= that the hardware lacks or that the rows do not fill: the widest that fits."""
    src, n = f.src, d.span.line
    old = call_argument(src.line(n), "swizzle")
    for span in SPANS:
        if old is not None and old != str(span):
            yield from _one(f"swizzle={span}", src.replace(n, f"swizzle={old}", f"swizzle={span}"))


def add_swizzle(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A tile that an operand descriptor cannot describe: its declaration gets a swizzle, the widest that fits."""
    src = f.src
    name = re.search(r"'(\w+)'", d.message)
    first, last = src.kernel(d.span.line)
    for n in src.find(rf"^{name.group(1)} = smem\(", list(range(first, last + 1))) if name else ():
        code, old = src.line(n), call_argument(src.line(n), "swizzle")
        for span in SPANS:
            if old is not None:
                yield from _one(f"swizzle={span}", src.replace(n, f"swizzle={old}", f"swizzle={span}"))
            elif code.endswith(")"):
                yield from _one(f"swizzle={span}", src.replace(n, code, f"{code[:-1]}, swizzle={span})"))


def view_step(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A view that leaves its tile inside a loop: step by the view's width, or end the loop with the tile."""
    src, n = f.src, d.span.line
    said = re.search(r"\.(rows|cols) of .*start \d+ with (\d+) element.*outside 0 \.\. (\d+)", d.message)
    if said is None:
        return
    axis, count, extent = said.groups()
    text = src.lines[n]
    for m in re.finditer(rf"\.{axis}\((\w+) \* (\w+), ({count}|\w+)\)", text):
        if m.group(1) != count:
            yield from _one(
                f"step by the width of the view: {count} * {m.group(2)}",
                src.replace(n, m.group(0), f".{axis}({count} * {m.group(2)}, {m.group(3)})"),
            )
    for p in src.parents(n):
        loop = re.match(r"for \w+ in (?:unroll|range)\((.*)\):", src.line(p))
        if loop is None:
            continue
        whole = re.match(r"(.*) // \w+$", loop.group(1))
        for bound in ([f"{whole.group(1)} // {count}"] if whole else []) + [str(int(extent) // int(count))]:
            if bound != loop.group(1):
                yield from _one(
                    f"end the loop with the tile: {bound} steps", src.replace(p, f"({loop.group(1)}):", f"({bound}):")
                )


def multicast(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A part of a tile that no copy of this CTA writes: the copy of the peer's part goes to all CTAs."""
    src, tile = f.src, d.subject.resource or ""
    first, last = src.kernel(d.span.line)
    for n in src.find(rf"\btma_load\({re.escape(tile)}\b", list(range(first, last + 1))):
        code = src.line(n)
        if "multicast" not in code and code.endswith(")"):
            yield from _one(
                "copy to all CTAs of the cluster: multicast=cluster",
                src.replace(n, code, f"{code[:-1]}, multicast=cluster)"),
            )


def shared_use(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A wrong use number on neighbouring lines that name the same use: all of them move together."""
    src, bar = f.src, d.subject.resource or ""
    n = d.span.line
    old = index_of(src.line(n), bar)
    if old is None:
        return
    named = f"{bar}[{old}]"
    block = [n]
    while named in src.line(block[-1] + 1):
        block.append(block[-1] + 1)
    while named in src.line(block[0] - 1):
        block.insert(0, block[0] - 1)
    first, last = src.kernel(n)
    used = [index_of(src.line(i), bar) for i in range(first, last + 1)]
    base = re.sub(r"\s*[+-]\s*\w+$", "", old)
    for use in dict.fromkeys([*used, f"{base} - 1", base, f"{base} + 1"]):
        if use is not None and use != old:
            yield from _one(
                f"use number {use} instead of {old}: {bar}[{use}]",
                *(src.replace(i, named, f"{bar}[{use}]") for i in block),
            )


FORMS: dict[str, tuple[Any, ...]] = {
    "hardware/swizzle": (legal_swizzle,),
    "hardware/swizzle-span": (legal_swizzle,),
    "hardware/mma-swizzle": (add_swizzle,),
    "data/view-out-of-bounds": (view_step,),
    "data/uninitialised-memory": (multicast,),
    "derive/unequal-arrivals": (shared_use,),
}
