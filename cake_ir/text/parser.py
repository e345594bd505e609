"""Text to syntax tree: Python's grammar, read with `ast`, never executed.

`parse` never raises on any input. A result has either a file or at least one error; faults are collected over the whole
file, each at its own place and with what to write instead. Comments come from the gate's scan, since `ast` drops them.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from cake_ir import syntax as cst
from cake_ir.diagnostics import NOWHERE, Diagnostic, Span, error
from cake_ir.text.expressions import Builder
from cake_ir.text.limits import LogicalLine, Scan, decode, scan
from cake_ir.text.signature import read_decorators, read_parameters

_BLOCKED = {
    "Break": "there is no 'break'; put the condition into 'while' or into an 'if' around the rest of the body",
    "Continue": "there is no 'continue'; put the rest of the body under an 'if'",
    "Return": "there is no 'return'; a kernel ends with its text and writes its results with store ops",
    "Pass": "there is no 'pass'; leave the empty block out",
    "Import": "there is no 'import'; ops, dtypes and layouts are built in",
    "ImportFrom": "there is no 'import'; ops, dtypes and layouts are built in",
    "FunctionDef": "a function inside a kernel; write its statements where they are needed",
    "AsyncFunctionDef": "there is no 'async'; roles and barriers express concurrency",
    "AsyncFor": "there is no 'async'; roles and barriers express concurrency",
    "AsyncWith": "there is no 'async'; roles and barriers express concurrency",
    "ClassDef": "there are no classes",
    "Delete": "there is no 'del'; a name ends with its block",
    "Assert": "there is no 'assert'; state facts with where(...) about extents or assume(...) about data",
    "Raise": "there are no exceptions",
    "Try": "there are no exceptions",
    "TryStar": "there are no exceptions",
    "Global": "there is no 'global'; kernel-level names are readable in role blocks",
    "Nonlocal": "there is no 'nonlocal'; kernel-level names are readable in role blocks",
    "Match": "there is no 'match'; write if, elif and else",
    "TypeAlias": "there are no type aliases; name a dtype with a tunable",
}


@dataclass(frozen=True)
class ParseResult:
    """`file` is None exactly when a diagnostic is an error. Spans refer to `text`."""

    file: cst.File | None
    diagnostics: tuple[Diagnostic, ...]
    text: str = ""
    name: str = "<text>"


def parse(text: str | bytes, name: str = "<text>") -> ParseResult:
    """The tree of a `.cake` text, or located diagnostics. Never raises on bad input; `name` is only reported back."""
    source, fault = decode(text)
    if fault is not None:
        return ParseResult(None, (fault,), source, name)
    scanned = scan(source)
    if scanned.diagnostics:
        return ParseResult(None, scanned.diagnostics, source, name)
    tree, fault = _python_tree(source)
    if tree is None:
        return ParseResult(None, (fault or error("language/syntax", "language", "not readable"),), source, name)
    reader = _Reader(source, scanned)
    try:
        file = reader.file(tree)
    except RecursionError:  # the caller's stack was nearly full: the gate bounds our own depth
        return ParseResult(None, (_syntax("the program nests too deeply to be read here", NOWHERE),), source, name)
    if reader.diagnostics:
        return ParseResult(
            None, tuple(sorted(reader.diagnostics, key=lambda d: (d.span.line, d.span.col))), source, name
        )
    return ParseResult(file, (), source, name)


def _syntax(message: str, span: Span) -> Diagnostic:
    return error("language/syntax", "language", message, span)


def _python_tree(source: str) -> tuple[ast.Module | None, Diagnostic | None]:
    try:
        return ast.parse(source), None
    except SyntaxError as fault:
        line = max(fault.lineno or 1, 1)
        col = max(fault.offset or 1, 1)
        end_line = max(fault.end_lineno or line, line)
        end_col = fault.end_offset or 0
        if end_line == line and end_col <= col:
            end_col = col + 1
        span = Span(line=line, col=col, end_line=end_line, end_col=max(end_col, 1))
        message = re.sub(r"\s*\(<unknown>.*\)$", "", fault.msg or "invalid syntax")
        hint = ""
        if message == "invalid syntax":
            lines = source.split("\n")
            shown = lines[line - 1][col - 1 : col + 19].strip() if line <= len(lines) else ""
            hint = f" at {shown!r}" if shown else ""
        return None, _syntax(f"{message}{hint}", span)
    except (RecursionError, MemoryError, ValueError) as fault:
        return None, _syntax(f"the program is too complex for the Python parser ({type(fault).__name__})", NOWHERE)


class _Reader(Builder):
    """Walks the Python tree in text order, so that comments can be handed out as statements pass by."""

    def __init__(self, source: str, scanned: Scan) -> None:
        super().__init__(source)
        self.lines = scanned.lines
        self.ending = scanned.ending
        self.next_line = 0

    def comments(self, line: int) -> tuple[tuple[str, ...], str]:
        """Comments of the statement whose header starts at `line`, with those of header-less lines before it."""
        above: list[str] = []
        tail = ""
        while self.next_line < len(self.lines) and self.lines[self.next_line].first <= line:
            passed: LogicalLine = self.lines[self.next_line]
            self.next_line += 1
            if tail:
                above.append(tail)
            above.extend(passed.above)
            tail = passed.tail
        return tuple(above), tail

    # ---- files ---------------------------------------------------------------------------------------------------

    def file(self, tree: ast.Module) -> cst.File | None:
        body = list(tree.body)
        head: tuple[str, ...] = ()
        doc = None
        if body and _is_doc(body[0]):
            first = body.pop(0)
            # Only the comments above the docstring are the file's; one behind it goes to the first kernel.
            passed = self.lines[0]
            head, passed.above = tuple(passed.above), []
            doc = self.doc(first)
        kernels: list[cst.Kernel] = []
        programs: list[cst.Program] = []
        seen: dict[str, Span] = {}
        for node in body:
            if not isinstance(node, ast.FunctionDef):
                self.outside(node)
                continue
            item = self.function(node)
            if item is None:
                continue
            if item.name in seen:
                self.fault("duplicate-name", f"{item.name!r} is already defined at {seen[item.name]}; rename one", node)
            else:
                seen[item.name] = item.span
            if isinstance(item, cst.Kernel):
                kernels.append(item)
            elif programs:
                self.fault("program", f"a file has one @program; the first is at {programs[0].span}", node)
            else:
                programs.append(item)
        if not kernels and not self.diagnostics:
            self.add(
                error(
                    "language/empty",
                    "language",
                    'the file has no kernel; write @kernel(target="...") above a def',
                    Span(line=1, col=1, end_line=1, end_col=1),
                )
            )
        if self.diagnostics:
            return None
        rest: list[str] = []
        for passed in self.lines[self.next_line :]:
            rest += [*passed.above, *([passed.tail] if passed.tail else [])]
        return self.make(
            cst.File,
            Span(line=1, col=1, end_line=self.text.count("\n") + 1, end_col=len(self.text) - self.text.rfind("\n")),
            comments=head,
            doc=doc,
            kernels=tuple(kernels),
            program=programs[0] if programs else None,
            tail="\n".join([*rest, *self.ending]),
        )

    def outside(self, node: ast.stmt) -> None:
        kind = type(node).__name__
        if kind in ("Import", "ImportFrom", "AsyncFunctionDef"):
            self.fault("unsupported", _BLOCKED[kind], node)
        elif _is_doc(node):
            self.fault("unsupported", "the file's docstring comes first; elsewhere write a comment with '#'", node)
        else:
            self.fault("unsupported", "a file holds @kernel functions and one @program; move this into a kernel", node)

    def function(self, node: ast.FunctionDef) -> cst.Kernel | cst.Program | None:
        role, targets = read_decorators(self, node)
        above, tail = self.comments(node.lineno)
        tensors, scalars, tunables = read_parameters(self, node)
        self.identifier(node.name, node)
        body = list(node.body)
        doc = self.doc(body.pop(0)) if _is_doc(body[0]) else None
        if not body:
            self.fault("empty", f"{node.name!r} has no statements", node)
        statements = self.block(body, straight=role == "program")
        if role is None:
            return None
        common = {
            "name": node.name,
            "tensors": tensors,
            "scalars": scalars,
            "tunables": tunables,
            "doc": doc,
            "body": statements,
            "comments": above,
            "tail": tail,
        }
        span = self.span(node)
        if role == "program":
            return self.make(cst.Program, span, **common)
        return self.make(cst.Kernel, span, targets=targets, **common)

    def doc(self, node: ast.stmt) -> str | None:
        text = node.value.value  # type: ignore[attr-defined]
        return cst.clean_doc(text) or None

    # ---- statements ----------------------------------------------------------------------------------------------

    def block(self, nodes: list[ast.stmt], straight: bool = False) -> tuple[cst.Statement, ...]:
        """Statements of a block; `straight` allows only what a @program may hold."""
        out = []
        for node in nodes:
            statement = self.statement(node)
            if statement is None:
                continue
            if straight and not isinstance(statement, cst.Assign | cst.CallStmt):
                self.fault(
                    "program", "a @program is a straight line of assignments and calls; put this into a kernel", node
                )
            out.append(statement)
        return tuple(out)

    def statement(self, node: ast.stmt) -> cst.Statement | None:
        above, tail = self.comments(node.lineno)
        method = _STATEMENTS.get(type(node))
        if method is None:
            kind = type(node).__name__
            self.fault("unsupported", _BLOCKED.get(kind, f"a {kind} statement is not part of the language"), node)
            return None
        return method(self, node, {"span": self.span(node), "comments": above, "tail": tail})

    def expression(self, node: ast.Expr, common: dict) -> cst.Statement | None:
        if isinstance(node.value, ast.Call):
            return self.make(cst.CallStmt, call=self.expr(node.value), **common)
        if _is_doc(node):
            self.fault("unsupported", "a string as a statement; write a comment with '#'", node)
        else:
            self.expr(node.value)
            self.fault("unsupported", "an expression without effect; assign it to a name or call an op", node)
        return None

    def assign(self, node: ast.Assign, common: dict) -> cst.Statement | None:
        if len(node.targets) > 1:
            self.fault("unsupported", "a chained assignment; write one assignment a line", node)
        targets = self.names(node.targets[0])
        return self.make(cst.Assign, targets=targets, value=self.expr(node.value), **common)

    def advance(self, node: ast.AugAssign, common: dict) -> cst.Statement | None:
        value = self.expr(node.value)
        if not isinstance(node.op, ast.Add):
            self.fault("unsupported", "of the assignments with an operator only '+=' exists; write x = x - e", node)
            return None
        if not isinstance(node.target, ast.Name):
            self.fault(
                "assignment", "'+=' advances an index counter, a plain name; memory is written by store", node.target
            )
            return None
        return self.make(cst.AugAdd, target=self.names(node.target)[0], value=value, **common)

    def typed(self, node: ast.AnnAssign, common: dict) -> cst.Statement | None:
        self.fault("unsupported", "a typed assignment; types follow from the value, so write NAME = expr", node)
        return None

    def loop(self, node: ast.For, common: dict) -> cst.Statement | None:
        targets, source = self.names(node.target), self.expr(node.iter)
        if not isinstance(node.iter, ast.Call):
            self.fault("loop", "a loop runs over range(...), unroll(...) or SPACE.persistent()", node.iter)
        body = self.block(node.body)
        self.no_else(node.orelse, "for")
        return self.make(cst.For, targets=targets, iter=source, body=body, **common)

    def while_loop(self, node: ast.While, common: dict) -> cst.Statement | None:
        cond, body = self.expr(node.test), self.block(node.body)
        self.no_else(node.orelse, "while")
        return self.make(cst.While, cond=cond, body=body, **common)

    def branch(self, node: ast.If, common: dict) -> cst.Statement | None:
        cond, body = self.expr(node.test), self.block(node.body)
        return self.make(cst.If, cond=cond, body=body, orelse=self.block(node.orelse), **common)

    def scope(self, node: ast.With, common: dict) -> cst.Statement | None:
        if len(node.items) > 1:
            self.fault("unsupported", "one block a line; nest a second 'with' inside", node)
        item = node.items[0]
        context, bound = self.expr(item.context_expr), None
        if isinstance(item.optional_vars, ast.Name):
            bound = self.names(item.optional_vars)[0]
        elif item.optional_vars is not None:
            self.fault("assignment", "'as' gives one name, the instance number", item.optional_vars)
        return self.make(cst.With, context=context, name=bound, body=self.block(node.body), **common)

    def no_else(self, orelse: list[ast.stmt], kind: str) -> None:
        if orelse:
            self.fault(
                "unsupported", f"there is no 'else' of a '{kind}'; write the statements behind the loop", orelse[0]
            )
            self.block(orelse)


_STATEMENTS: dict[type, Any] = {
    ast.Expr: _Reader.expression,
    ast.Assign: _Reader.assign,
    ast.AugAssign: _Reader.advance,
    ast.AnnAssign: _Reader.typed,
    ast.For: _Reader.loop,
    ast.While: _Reader.while_loop,
    ast.If: _Reader.branch,
    ast.With: _Reader.scope,
}


def _is_doc(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
