"""Paths in the syntax tree of a kernel, and edits that keep every other node.

A path is a tuple of field names and tuple indices from the kernel down: `("body", 3, "call", "args", 0)`. Nodes on the way
are built anew through their validators, so an edit that text cannot say raises `pydantic.ValidationError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cake_ir.syntax import (
    AugAdd,
    Binary,
    Call,
    CallStmt,
    Expr,
    File,
    For,
    If,
    Kernel,
    Name,
    Node,
    Num,
    Statement,
    Unary,
    While,
    With,
)

Path = tuple[Any, ...]
Stmt = Any
BLOCKS = ("body", "orelse")
PROSE = ("span", "comments", "tail", "node", "doc")


def get(root: Any, path: Path) -> Any:
    """The node, tuple or literal at a path."""
    for step in path:
        root = root[step] if isinstance(step, int) else getattr(root, step)
    return root


def put(root: Any, path: Path, new: Any) -> Any:
    """`root` with the value at `path` replaced."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return (*root[:step], put(root[step], rest, new), *root[step + 1 :])
    return remade(root, **{step: put(getattr(root, step), rest, new)})


def remade(node: Any, **changes: Any) -> Any:
    """A copy of a node with some fields changed, validated as a new one."""
    fields = {f: getattr(node, f) for f in type(node).model_fields}
    return type(node)(**{**fields, **changes})


def splice(root: Any, block: Path, start: int, stop: int, new: tuple[Stmt, ...]) -> Any:
    """`root` with statements start .. stop of the block (a tuple of statements) at `block` replaced by `new`."""
    old = get(root, block)
    return put(root, block, (*old[:start], *new, *old[stop:]))


def nodes(root: Any, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """All nodes below `root`, with their paths, in text order."""
    if isinstance(root, Node):
        yield path, root
        for name in type(root).model_fields:
            if name not in PROSE:
                yield from nodes(getattr(root, name), (*path, name))
    elif isinstance(root, tuple):
        for i, item in enumerate(root):
            yield from nodes(item, (*path, i))


@dataclass(frozen=True)
class Place:
    """One statement of a kernel. roles: names of the role blocks around it; loops: paths of the loops around it."""

    path: Path
    node: Stmt
    role: str | None
    depth: int

    @property
    def block(self) -> Path:
        """The path of the block that holds it."""
        return self.path[:-1]

    @property
    def at(self) -> int:
        """Its position in the block."""
        return self.path[-1]

    @property
    def parent(self) -> Path:
        """The path of the compound statement (or kernel) that holds its block."""
        return self.path[:-2]


def places(kernel: Kernel) -> list[Place]:
    """All statements of a kernel in text order."""
    found: list[Place] = []
    roles = declared(kernel, "role")

    def visit(block: Path, items: tuple[Statement, ...], role: str | None, depth: int) -> None:
        for i, s in enumerate(items):
            path = (*block, i)
            found.append(Place(path, s, role, depth))
            inner = role
            if isinstance(s, With) and isinstance(s.context, Name) and s.context.id in roles:
                inner = s.context.id
            for name in BLOCKS:
                part = getattr(s, name, ())
                if part:
                    visit((*path, name), part, inner, depth + isinstance(s, (For, While)))

    visit(("body",), kernel.body, None, 0)
    return found


def declared(kernel: Kernel, *ops: str) -> dict[str, Call]:
    """Names that a kernel declares by one of the calls `ops`, with the call."""
    found = {}
    for _, s in nodes(kernel.body):
        value = getattr(s, "value", None)
        if getattr(s, "node", "") == "Assign" and called(value) in ops:
            found[s.targets[0].id] = value  # type: ignore[attr-defined]
    return found


def called(x: Any) -> str:
    """The function name of a call to a plain name, otherwise an empty string."""
    return x.func.id if isinstance(x, Call) and isinstance(x.func, Name) else ""


def op_of(s: Stmt) -> str:
    """The op of a statement: of a call statement, or of an assignment's value."""
    if isinstance(s, CallStmt):
        return called(s.call)
    if isinstance(s, AugAdd):
        return "+="
    if isinstance(s, (For, While, If, With)):
        return type(s).__name__.lower()
    return called(getattr(s, "value", None))


def names(x: Any) -> set[str]:
    """All names in a node."""
    return {n.id for _, n in nodes(x) if isinstance(n, Name)}


def num(value: int) -> Expr:
    """An integer, negative ones as a unary minus."""
    return Num(value=value) if value >= 0 else Unary(op="-", operand=Num(value=-value))


def plus(x: Any, by: int) -> Expr:
    """x + by, folded into a literal or into a trailing literal term."""
    if isinstance(x, Num) and isinstance(x.value, int):
        return num(x.value + by)
    if isinstance(x, Binary) and x.op in "+-" and isinstance(x.right, Num) and isinstance(x.right.value, int):
        value = (x.right.value if x.op == "+" else -x.right.value) + by
        if value == 0:
            return x.left
        return Binary(op="+" if value > 0 else "-", left=x.left, right=Num(value=abs(value)))
    return Binary(op="+" if by > 0 else "-", left=x, right=Num(value=abs(by)))


def keyword(call: Call, name: str) -> int | None:
    """The position of a keyword argument."""
    return next((i for i, k in enumerate(call.keywords) if k.name == name), None)


def without_keyword(call: Call, name: str) -> Call:
    """The call without a keyword argument."""
    return remade(call, keywords=tuple(k for k in call.keywords if k.name != name))


def alone(kernel: Kernel) -> File:
    """A file of one kernel without prose, so that the content id is that of this kernel."""
    return File(kernels=(remade(kernel, doc=None, comments=(), tail=""),))
