"""Python expressions to Cake expressions, with spans, and the fault list that both share.

A fault does not stop the walk: the faulty place becomes a placeholder name, the rest is still read, and the caller
discards the tree when any fault was found.
"""

from __future__ import annotations

import ast
import math
from typing import Any, TypeVar

from cake_ir import syntax as cst
from cake_ir.diagnostics import Diagnostic, Span, error

MAX_FAULTS = 50

_BINARY = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
}
_UNARY = {ast.USub: "-", ast.Not: "not", ast.Invert: "~"}
_COMPARE = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_OTHER = {
    "IfExp": "there is no conditional expression; write select(condition, a, b)",
    "Lambda": "there are no functions as values",
    "ListComp": "there are no comprehensions; write a 'for' loop",
    "SetComp": "there are no comprehensions; write a 'for' loop",
    "DictComp": "there are no comprehensions; write a 'for' loop",
    "GeneratorExp": "there are no comprehensions; write a 'for' loop",
    "List": "there are no lists; write a tuple (a, b)",
    "Set": "there are no sets; write a tuple (a, b)",
    "Dict": "there are no dictionaries; pass keyword arguments",
    "Starred": "there are no star arguments; write each argument",
    "NamedExpr": "there is no ':='; assign on a line of its own",
    "Await": "there is no 'await'; write wait(barrier[n])",
    "Yield": "there is no 'yield'",
    "YieldFrom": "there is no 'yield'",
    "JoinedStr": "there are no strings in expressions",
    "TemplateStr": "there are no strings in expressions",
}

N = TypeVar("N", bound=cst.Node)
_set = object.__setattr__
_new = object.__new__
_DEFAULTS: dict[type, dict[str, Any]] = {}
_FIELDS: dict[type, set[str]] = {}
for _model in [*vars(cst).values(), Span]:
    if isinstance(_model, type) and (issubclass(_model, cst.Node) or _model is Span):
        _DEFAULTS[_model] = {name: info.default for name, info in _model.model_fields.items()}
        _FIELDS[_model] = set(_model.model_fields)


def _fresh(cls: Any, state: dict[str, Any]) -> Any:
    """An instance with exactly `state`, whose keys are all fields of `cls` in declaration order.

    Without pydantic validation, which would cost more than the parse itself: the parser establishes what the validators
    check, and the round-trip tests compare with validated trees.
    """
    node = _new(cls)
    _set(node, "__dict__", state)
    _set(node, "__pydantic_fields_set__", _FIELDS[cls])
    _set(node, "__pydantic_extra__", None)
    _set(node, "__pydantic_private__", None)
    return node


class Builder:
    """Shared state of one parse: the text, the faults, and how nodes are made."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.diagnostics: list[Diagnostic] = []
        # ast counts UTF-8 bytes; only lines with other characters need conversion.
        self.wide = {} if text.isascii() else {n: t for n, t in enumerate(text.split("\n"), 1) if not t.isascii()}

    def add(self, diagnostic: Diagnostic) -> None:
        if len(self.diagnostics) < MAX_FAULTS:
            self.diagnostics.append(diagnostic)

    def fault(self, rule: str, message: str, node: ast.AST) -> None:
        self.add(error(f"language/{rule}", "language", message, self.span(node)))

    def span(self, node: Any) -> Span:
        line, end_line = node.lineno, node.end_lineno
        col, end_col = node.col_offset, node.end_col_offset
        if self.wide:
            if line in self.wide:
                col = len(self.wide[line].encode()[:col].decode())
            if end_line in self.wide:
                end_col = len(self.wide[end_line].encode()[:end_col].decode())
        return _fresh(Span, {"line": line, "col": col + 1, "end_line": end_line, "end_col": end_col + 1})

    def make(self, cls: type[N], span: Span, **fields: Any) -> N:
        fields["span"] = span
        return _fresh(cls, _DEFAULTS[cls] | fields)

    def identifier(self, name: str, node: ast.AST) -> None:
        reason = cst.identifier_fault(name)
        if reason:
            self.fault("name", f"{name[:80]!r} cannot be a name: {reason}", node)

    def names(self, node: ast.expr) -> tuple[cst.Name, ...]:
        """The targets of an assignment or loop."""
        items = node.elts if isinstance(node, ast.Tuple) else [node]
        if not items:
            self.fault("assignment", "an assignment needs a name", node)
        out = []
        for item in items:
            if isinstance(item, ast.Name):
                out.append(self.make(cst.Name, self.span(item), id=item.id))
            else:
                self.fault("assignment", "only names are assigned; memory is written by store and the copy ops", item)
        return tuple(out)

    # ---- expressions ---------------------------------------------------------------------------------------------

    def expr(self, node: ast.expr) -> Any:
        method = _METHODS.get(type(node))
        if method is not None:
            return method(self, node)
        kind = type(node).__name__
        return self.bad("unsupported", _OTHER.get(kind, f"a {kind} expression is not part of the language"), node)

    def bad(self, rule: str, message: str, node: ast.expr) -> cst.Name:
        self.fault(rule, message, node)
        return self.make(cst.Name, self.span(node), id="_")

    def name(self, node: ast.Name) -> cst.Name:
        return _fresh(cst.Name, {"span": self.span(node), "node": "Name", "id": node.id})

    def constant(self, node: ast.Constant) -> Any:
        value = node.value
        if value is True or value is False:
            return self.make(cst.Bool, self.span(node), value=value)
        if type(value) is float and not math.isfinite(value):
            return self.bad("number", "the number is beyond the range of a float; infinity is written inf", node)
        if type(value) is int and value > cst.MAX_INT:
            return self.bad("number", f"an integer literal is at most {cst.MAX_INT}", node)
        if type(value) in (int, float):
            return self.make(cst.Num, self.span(node), value=value)
        if isinstance(value, str | bytes):
            return self.bad(
                "unsupported", "there are no strings in expressions; dtypes, layouts and options are names", node
            )
        if value is None:
            return self.bad("unsupported", "'None' stands only inside an index, as in v[:, None]", node)
        return self.bad("unsupported", "this literal is not part of the language; write an int or a float", node)

    def unary(self, node: ast.UnaryOp) -> Any:
        operand = self.expr(node.operand)
        if type(node.op) is ast.UAdd:
            return self.bad("unsupported", "there is no unary '+'; leave it out", node)
        return self.make(cst.Unary, self.span(node), op=_UNARY[type(node.op)], operand=operand)

    def binary(self, node: ast.BinOp) -> Any:
        left, right = self.expr(node.left), self.expr(node.right)
        op = _BINARY.get(type(node.op))
        if op is None:
            what = (
                "there is no '**'; multiply, or shift 1 << n"
                if type(node.op) is ast.Pow
                else "there is no '@'; use a matrix op"
            )
            return self.bad("unsupported", what, node)
        return self.make(cst.Binary, self.span(node), op=op, left=left, right=right)

    def logic(self, node: ast.BoolOp) -> cst.Logic:
        op = "and" if type(node.op) is ast.And else "or"
        operands = cst.flatten_logic(op, tuple([self.expr(value) for value in node.values]))
        return self.make(cst.Logic, self.span(node), op=op, operands=operands)

    def compare(self, node: ast.Compare) -> Any:
        first = self.expr(node.left)
        rest = tuple([self.expr(value) for value in node.comparators])
        ops = []
        for op in node.ops:
            if type(op) not in _COMPARE:
                return self.bad("unsupported", "there is no 'in' and no 'is'; compare with == or <", node)
            ops.append(_COMPARE[type(op)])
        return self.make(cst.Compare, self.span(node), first=first, ops=tuple(ops), rest=rest)

    def call(self, node: ast.Call) -> Any:
        func = self.expr(node.func)
        args = tuple([self.expr(value) for value in node.args])
        keywords = []
        seen: set[str] = set()
        for item in node.keywords:
            value = self.expr(item.value)
            if item.arg is None:
                self.fault("unsupported", "there are no star arguments; write each argument", item)
                continue
            if item.arg in seen:
                self.fault("duplicate-name", f"the keyword {item.arg!r} is given twice", item)
            seen.add(item.arg)
            keywords.append(self.make(cst.Keyword, self.span(item), name=item.arg, value=value))
        if not isinstance(node.func, ast.Name | ast.Attribute):
            return self.bad("unsupported", "only a name or a method is called, as in f(...) or x.f(...)", node)
        return self.make(cst.Call, self.span(node), func=func, args=args, keywords=tuple(keywords))

    def attribute(self, node: ast.Attribute) -> cst.Attribute:
        return self.make(cst.Attribute, self.span(node), value=self.expr(node.value), name=node.attr)

    def index(self, node: ast.Subscript) -> cst.Index:
        value = self.expr(node.value)
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not items:
            self.fault("unsupported", "an index needs at least one item", node)
        return self.make(
            cst.Index, self.span(node), value=value, items=tuple([self.index_item(item) for item in items])
        )

    def index_item(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Slice):
            return self.slice(node)
        if isinstance(node, ast.Constant) and node.value is None:
            return self.make(cst.NewAxis, self.span(node))
        if isinstance(node, ast.Tuple):
            return self.bad("unsupported", "a tuple as an index item; write the items side by side", node)
        return self.expr(node)

    def slice(self, node: ast.Slice) -> cst.Slice:
        start = self.expr(node.lower) if node.lower is not None else None
        stop = self.expr(node.upper) if node.upper is not None else None
        if node.step is not None:
            self.fault("unsupported", "a slice has no step", node.step)
        if start == cst.ZERO:
            start = None
        return self.make(cst.Slice, self.span(node), start=start, stop=stop)

    def tuple(self, node: ast.Tuple) -> Any:
        if not node.elts:
            return self.bad("unsupported", "an empty tuple has no meaning here", node)
        return self.make(cst.Tuple, self.span(node), items=tuple([self.expr(item) for item in node.elts]))


_METHODS = {
    ast.Name: Builder.name,
    ast.Constant: Builder.constant,
    ast.UnaryOp: Builder.unary,
    ast.BinOp: Builder.binary,
    ast.BoolOp: Builder.logic,
    ast.Compare: Builder.compare,
    ast.Call: Builder.call,
    ast.Attribute: Builder.attribute,
    ast.Subscript: Builder.index,
    ast.Tuple: Builder.tuple,
}
