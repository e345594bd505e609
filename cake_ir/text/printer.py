"""Syntax tree to canonical text: the formatter. One tree has one text.

Parentheses only where precedence needs them (and around arithmetic under a bit operator), four spaces a level, lines of
at most 120 columns broken behind commas (or before an operator) inside the outermost bracket that helps, a blank line
around the role group and around the memory group of a kernel, two blank lines between functions. Nothing depends on how
the text was laid out before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from cake_ir import syntax as cst

WIDTH = 120
_OR, _AND, _NOT, _COMPARE, _UNARY, _POSTFIX, _ATOM = 1, 2, 3, 4, 11, 13, 14
_BINARY = {"|": 5, "^": 6, "&": 7, "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "//": 10, "%": 10}
_BITWISE = frozenset(("&", "|", "^", "<<", ">>"))
_MEMORY = frozenset(("smem", "tmem", "mbarrier", "named_barrier"))


def print_file(file: cst.File, *, prose: bool = True) -> str:
    """The canonical text, ending in one line break. `prose=False` leaves comments and docstrings out."""
    return _Printer(prose).file(file)


def print_expr(node: Any) -> str:
    """One expression (or index item) on one line."""
    return _expr(node)[0]


# ---- expressions -------------------------------------------------------------------------------------------------


def _expr(node: Any) -> tuple[str, int]:
    """Text and precedence."""
    return _EXPR[type(node)](node)


def _at_least(node: Any, level: int) -> str:
    text, own = _expr(node)
    return text if own >= level else f"({text})"


def _num(node: cst.Num) -> tuple[str, int]:
    return repr(node.value), _ATOM


def _unary(node: cst.Unary) -> tuple[str, int]:
    if node.op == "not":
        return "not " + _at_least(node.operand, _NOT), _NOT
    return node.op + _at_least(node.operand, _UNARY), _UNARY


def _binary(node: cst.Binary) -> tuple[str, int]:
    level = _BINARY[node.op]
    if node.op in _BITWISE:
        return (
            f"{_bit_operand(node.left, node.op, level)} {node.op} {_bit_operand(node.right, node.op, level + 1)}",
            level,
        )
    return f"{_at_least(node.left, level)} {node.op} {_at_least(node.right, level + 1)}", level


def _bit_operand(node: Any, op: str, level: int) -> str:
    """The one exception to minimal brackets: few readers know how `a & b - 1` or `a << b + c` group."""
    text, own = _expr(node)
    return f"({text})" if own < level or (isinstance(node, cst.Binary) and node.op != op) else text


def _logic(node: cst.Logic) -> tuple[str, int]:
    level = _AND if node.op == "and" else _OR
    return f" {node.op} ".join(_at_least(item, level + 1) for item in node.operands), level


def _compare(node: cst.Compare) -> tuple[str, int]:
    parts = [_at_least(node.first, _COMPARE + 1)]
    for op, item in zip(node.ops, node.rest, strict=True):
        parts += [op, _at_least(item, _COMPARE + 1)]
    return " ".join(parts), _COMPARE


def _base(node: Any) -> str:
    """What stands before '.', '[' or '('. A number needs brackets: `1.T` is not a token."""
    return f"({_expr(node)[0]})" if isinstance(node, cst.Num) else _at_least(node, _POSTFIX)


def _call(node: cst.Call) -> tuple[str, int]:
    args = [_expr(item)[0] for item in node.args]
    args += [f"{item.name}={_expr(item.value)[0]}" for item in node.keywords]
    return f"{_base(node.func)}({', '.join(args)})", _POSTFIX


def _slice(node: cst.Slice) -> tuple[str, int]:
    start = _expr(node.start)[0] if node.start is not None else ""
    stop = _expr(node.stop)[0] if node.stop is not None else ""
    return f"{start}:{stop}", _ATOM


def _tuple(node: cst.Tuple) -> tuple[str, int]:
    body = ", ".join(_expr(item)[0] for item in node.items)
    return f"({body},)" if len(node.items) == 1 else f"({body})", _ATOM


_EXPR: dict[type, Callable[[Any], tuple[str, int]]] = {
    cst.Name: lambda node: (node.id, _ATOM),
    cst.Num: _num,
    cst.Bool: lambda node: (repr(node.value), _ATOM),
    cst.Unary: _unary,
    cst.Binary: _binary,
    cst.Logic: _logic,
    cst.Compare: _compare,
    cst.Call: _call,
    cst.Attribute: lambda node: (f"{_base(node.value)}.{node.name}", _POSTFIX),
    cst.Slice: _slice,
    cst.NewAxis: lambda node: ("None", _ATOM),
    cst.Index: lambda node: (f"{_base(node.value)}[{', '.join(_expr(i)[0] for i in node.items)}]", _POSTFIX),
    cst.Tuple: _tuple,
}

# ---- line breaking -----------------------------------------------------------------------------------------------

_BREAK = re.compile(r"[(\[]|[)\]]|, | (?=(?:[-+*/%&|^]|//|<<|>>|<=?|>=?|==|!=|and|or) )")


def wrap(line: str, hang: int | None = None, width: int = WIDTH) -> list[str]:
    """`line` cut into lines of at most `width` columns where that is possible.

    A cut is made inside brackets: behind a comma if any fits, else before an operator; of those the one in the fewest
    brackets, and of those the last that fits. The rest starts under the first character inside that bracket. `hang` is
    the column of a bracket that an earlier line opened.
    """
    out: list[str] = []
    carried = [] if hang is None else [hang]
    while len(line) > width:
        opened = list(carried)
        kept: list[int] = []
        best: tuple[int, int, int, int] | None = None  # (operator?, depth, -position) is minimised; last: indentation
        for match in _BREAK.finditer(line):
            at, what = match.start(), match.group()
            if what in "([":
                opened.append(at)
            elif what in ")]":
                if opened:
                    opened.pop()
            elif opened and at + 1 <= width:
                key = (what == " ", len(opened), -(at + 1), opened[-1] + 1)
                # A cut must leave a shorter rest, or nothing is gained.
                if opened[-1] + 1 < at + 1 and (best is None or key < best):
                    best, kept = key, list(opened)
        if best is None:
            break
        cut, indent = -best[2], best[3]
        out.append(line[:cut].rstrip(" "))
        line = " " * indent + line[cut:].lstrip(" ")
        carried = kept
    return [*out, line]


# ---- statements and files ----------------------------------------------------------------------------------------


class _Printer:
    def __init__(self, prose: bool) -> None:
        self.prose = prose
        self.out: list[str] = []

    def line(self, depth: int, text: str, tail: str = "") -> None:
        lines = wrap("    " * depth + text)
        if self.prose and tail:
            lines[-1] += "  " + _comment(tail)
        self.out += lines

    def above(self, depth: int, comments: tuple[str, ...]) -> None:
        if self.prose:
            self.out += ["    " * depth + _comment(text) for text in comments]

    def doc(self, depth: int, doc: str | None) -> None:
        if self.prose and doc is not None:
            self.out += doc_lines(doc, "    " * depth)

    def file(self, file: cst.File) -> str:
        self.above(0, file.comments)
        self.doc(0, file.doc)
        functions: list[cst.Kernel | cst.Program] = [*file.kernels, *([file.program] if file.program else [])]
        for function in functions:
            if self.out:
                self.out += ["", ""]
            self.function(function)
        if self.prose and file.tail:
            self.out += ["", "", *(_comment(text) for text in file.tail.split("\n"))]
        return "\n".join(self.out) + "\n"

    def function(self, node: cst.Kernel | cst.Program) -> None:
        self.above(0, node.comments)
        if isinstance(node, cst.Program):
            self.out.append("@program")
        else:
            names = ", ".join(f'"{name}"' for name in node.targets)
            self.out.append(f"@kernel(target={names if len(node.targets) == 1 else f'({names})'})")
        lines = signature_lines(node)
        if self.prose and node.tail:
            lines[-1] += "  " + _comment(node.tail)
        self.out += lines
        self.doc(1, node.doc)
        before = None
        for statement in node.body:
            group = _group(statement)
            if before is not None and group != before:
                self.out.append("")
            self.statement(statement, 1)
            before = group

    def block(self, body: tuple[Any, ...], depth: int) -> None:
        for statement in body:
            self.statement(statement, depth)

    def statement(self, node: Any, depth: int, keyword: str = "if") -> None:
        self.above(depth, node.comments)
        if isinstance(node, cst.Assign):
            self.line(depth, f"{', '.join(t.id for t in node.targets)} = {_expr(node.value)[0]}", node.tail)
        elif isinstance(node, cst.AugAdd):
            self.line(depth, f"{node.target.id} += {_expr(node.value)[0]}", node.tail)
        elif isinstance(node, cst.CallStmt):
            self.line(depth, _expr(node.call)[0], node.tail)
        elif isinstance(node, cst.For):
            self.line(depth, f"for {', '.join(t.id for t in node.targets)} in {_expr(node.iter)[0]}:", node.tail)
            self.block(node.body, depth + 1)
        elif isinstance(node, cst.While):
            self.line(depth, f"while {_expr(node.cond)[0]}:", node.tail)
            self.block(node.body, depth + 1)
        elif isinstance(node, cst.With):
            bound = f" as {node.name.id}" if node.name is not None else ""
            self.line(depth, f"with {_expr(node.context)[0]}{bound}:", node.tail)
            self.block(node.body, depth + 1)
        else:
            self.line(depth, f"{keyword} {_expr(node.cond)[0]}:", node.tail)
            self.block(node.body, depth + 1)
            if len(node.orelse) == 1 and isinstance(node.orelse[0], cst.If):
                self.statement(node.orelse[0], depth, "elif")
            elif node.orelse:
                self.line(depth, "else:")
                self.block(node.orelse, depth + 1)


def _group(node: Any) -> str:
    """The layout group of a kernel-level statement; a blank line stands where it changes."""
    if isinstance(node, cst.Assign) and isinstance(node.value, cst.Call) and isinstance(node.value.func, cst.Name):
        if node.value.func.id == "role":
            return "role"
        if node.value.func.id in _MEMORY:
            return "memory"
    return "other"


def _comment(text: str) -> str:
    return f"# {text}" if text else "#"


def signature_lines(node: cst.Kernel | cst.Program) -> list[str]:
    """`def NAME(...):`; tunables start a new line when the whole does not fit one."""
    first = [parameter_text(item) for item in (*node.tensors, *node.scalars)]
    if node.tunables:
        first.append("*")
    second = [parameter_text(item) for item in node.tunables]
    head = f"def {node.name}("
    whole = f"{head}{', '.join(first + second)}):"
    if len(whole) <= WIDTH or not second:
        return wrap(whole)
    return wrap(f"{head}{', '.join(first)},") + wrap(" " * len(head) + ", ".join(second) + "):", len(head) - 1)


def parameter_text(node: cst.TensorParam | cst.ScalarParam | cst.Tunable) -> str:
    """One parameter as it stands in a signature."""
    if isinstance(node, cst.ScalarParam):
        return f"{node.name}: {node.dtype}"
    if isinstance(node, cst.Tunable):
        return f"{node.name}: {_expr(node.domain)[0]} = {_expr(node.default)[0]}"
    extents = [
        _expr(extent.size)[0] + (f":{_expr(extent.stride)[0]}" if extent.stride is not None else "")
        for extent in node.extents
    ]
    return f"{node.name}: {node.direction}[{', '.join([_expr(node.dtype)[0], *extents])}]"


def doc_lines(doc: str, indent: str) -> list[str]:
    """A docstring in triple quotes; only backslashes and quotes that could end it are escaped."""
    body = doc.replace("\\", "\\\\")
    body = re.sub(r'"(?=")|(?<=")"|"\Z', r"\"", body)
    lines = body.split("\n")
    if len(lines) == 1:
        return [f'{indent}"""{body}"""']
    return [f'{indent}"""{lines[0]}', *(indent + line if line else "" for line in lines[1:]), f'{indent}"""']
