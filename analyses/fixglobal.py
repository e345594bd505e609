"""Candidate repairs for global indices: a guard around the access, a mask, or a fact in `where` (what the launch then refuses)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from analyses.fixtext import STEP
from cake_ir.diagnostics import Diagnostic, Edit, Span

MOST = 1 << 31
"""Index expressions stay below this."""


def _one(title: str, *edits: Any) -> Iterator[Any]:
    from analyses.fixrules import Candidate

    if edits and all(e is not None for e in edits):
        yield Candidate(title, tuple(edits))


def _extents(src: Any, n: int, tensor: str) -> list[str]:
    """The extents of a tensor as the signature of the kernel around line n writes them."""
    first, _ = src.kernel(n)
    head = " ".join(src.lines[first : src.statement_end(first) + 1])
    m = re.search(rf"\b{re.escape(tensor)}: \w+\[([^\]]*)\]", head)
    return [e.split(":")[0].strip() for e in m.group(1).split(",")[1:]] if m else []


def _items(src: Any, n: int, tensor: str) -> list[str]:
    """The indices of the first region of a tensor in the statement at line n, as text; a slice by its start."""
    code = " ".join(s.strip() for s in src.lines[n : src.statement_end(n) + 1])
    try:
        tree = ast.parse(code.rstrip(":") if not code.startswith("with") else "pass")
    except SyntaxError:
        return []
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == tensor:
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return [
                (ast.unparse(p.lower) if p.lower else "0") if isinstance(p, ast.Slice) else ast.unparse(p) for p in parts
            ]
    return []


def _fact(src: Any, n: int, fact: str) -> Iterator[Any]:
    """A further `where`, above the launch."""
    first, last = src.kernel(n)
    for i in src.find(r"^launch\(", list(range(first, last + 1)))[:1]:
        yield from _one(f"admit only shapes for which it holds: where({fact})", src.before(i, f"where({fact})"))


def _wrapped(src: Any, n: int, last: int, head: str) -> Edit:
    """Lines n to last inside a block."""
    pad = " " * src.indent(n)
    text = "".join(f"{STEP}{s}\n" if s.strip() else "\n" for s in src.lines[n : last + 1])
    return Edit(span=Span(line=n, col=1, end_line=last + 1, end_col=1), new=f"{pad}{head}\n{text}")


def guard(f: Any, d: Diagnostic) -> Iterator[Any]:
    """An index outside: a mask for gathered rows, else a condition around the rest of the block."""
    src, n, tensor = f.src, d.span.line, d.subject.resource or ""
    said = re.search(r"(gathered )?index (-?\d+) of dimension (\d+)|starts at (-\d+) in dimension (\d+)", d.message)
    if said is None:
        return
    dim = int(said.group(3) or said.group(5))
    items, extents = _items(src, n, tensor), _extents(src, n, tensor)
    if dim >= len(items) or dim >= len(extents):
        return
    index, low = items[dim], int(said.group(2) or said.group(4)) < 0
    test = f"{index} >= 0" if low else f"{index} < {extents[dim]}"
    if said.group(1):
        code = src.line(n)
        mask = re.search(r"when=(.*?)(?=, \w+=|\)$)", code)
        if mask:
            old = mask.group(1) if re.fullmatch(r"[\w.]+|\(.*\)", mask.group(1)) else f"({mask.group(1)})"
            yield from _one(f"mask the rows: {test}", src.replace(n, f"when={mask.group(1)}", f"when={old} & ({test})"))
        elif code.endswith(")"):
            yield from _one(f"mask the rows: {test}", src.replace(n, code, f"{code[:-1]}, when={test})"))
        return
    parents = src.parents(n)
    if parents:
        end = src.last(parents[0])
        own = [i for i in range(parents[0] + 1, n) if src.indent(i) == src.indent(n)]
        yield from _one(f"only where the index lies inside: if {test}", _wrapped(src, n, end, f"if {test}:"))
        if own:  # values of statements above may be meant for the same index
            begin = src.statement_end(own[0]) if src.line(own[0]).startswith(index.split()[0]) else own[0] - 1
            if begin + 1 < n:
                yield from _one(
                    f"only where the index lies inside: if {test}", _wrapped(src, begin + 1, end, f"if {test}:")
                )


def whole_tiles(f: Any, d: Diagnostic) -> Iterator[Any]:
    """An index or copy behind a tail: only shapes without one."""
    src, n, tensor = f.src, d.span.line, d.subject.resource or ""
    first, last = src.kernel(n)
    said = re.search(r"copies (\d+) elements", d.message)
    for extent in _extents(src, n, tensor):
        sizes = [said.group(1)] if said else []
        for i in range(first, last + 1):
            sizes += re.findall(rf"ceil_div\({re.escape(extent)}, (\w+)\)", src.line(i))
        for size in dict.fromkeys(sizes):
            if re.fullmatch(r"[A-Z]\w*", extent):
                yield from _fact(src, n, f"{extent} % {size} == 0")


def bounded_product(f: Any, d: Diagnostic) -> Iterator[Any]:
    """An index expression beyond 32 bits: a bound on the extents that make it large."""
    src, n = f.src, d.span.line
    said = re.search(r"reaches (\d+)", d.message)
    shape = re.search(r"\[([^\]]*)\]$", d.message)
    if said is None or shape is None:
        return
    first, _ = src.kernel(n)
    head = " ".join(src.lines[first : src.statement_end(first) + 1])
    value = int(said.group(1))
    sizes = [(k, int(v)) for k, v in re.findall(r"(\w+)=(\d+)", shape.group(1)) if re.search(rf"\b{k}\b", head)]
    large = sorted((s for s in sizes if s[1] > 1), key=lambda s: -s[1])[:3]
    groups = [[a] for a in large] + [[a, b] for i, a in enumerate(large) for b in large[i + 1 :]]
    groups += [large] if len(large) == 3 else []
    for names in groups:
        product = 1
        for _, v in names:
            product *= v
        factor = -(-value // product)
        factor = 1 << (factor - 1).bit_length() if factor > 1 else 1
        if factor < MOST >> 8:
            text = " * ".join([*([str(factor)] if factor > 1 else []), *(k for k, _ in names)])
            yield from _fact(src, n, f"{text} < {MOST}")


def whole_output(f: Any, d: Diagnostic) -> Iterator[Any]:
    """A part behind what the kernel ever writes: only shapes that have no such part."""
    src, n, tensor = f.src, d.span.line, d.subject.resource or ""
    said = re.search(r"the first is \w+\[([\d, ]+)\]", d.message)
    if said is None:
        return
    for at, extent in zip(said.group(1).split(", "), _extents(src, n, tensor), strict=False):
        if at != "0" and re.fullmatch(r"[A-Z]\w*", extent):
            yield from _fact(src, n, f"{extent} <= {at}")


GLOBAL: dict[str, tuple[Any, ...]] = {
    "data/global-out-of-bounds": (guard, whole_tiles),
    "data/index-overflow": (bounded_product,),
    "data/output-unwritten": (whole_output,),
}
