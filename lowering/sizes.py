"""Sizes and conditions as text: `min((B * ceil_div(N, 192)), sms)`, `((D % 8) == 0)`.

The notation is the language's (`lowering.emission.scalars.sx_text` prints it) and a part of Python's expression grammar, so
Python's own parser reads it; the tree is checked node by node and becomes closures. Nothing is evaluated by Python. The host
path reads manifests and route tables with it, so it imports next to nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

from cake_ir.fault import CakeError, fault
from cake_ir.operations import ARITH, FAST

MAX_TEXT = 2000
MAX_DEPTH = 48
MAX_BITS = 128
"""No meant value is longer; a longer one comes from a hostile table (a chain of products) and would cost time."""

Value = int | float | bool
Expression = Callable[[Mapping[str, Any]], Value]

_BINARY: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.LShift: "<<", ast.RShift: ">>",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
}  # fmt: skip
_COMPARE: dict[type, str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_UNARY: dict[type, str] = {ast.USub: "neg", ast.Not: "not", ast.Invert: "~"}
_CALLS = {"min": 2, "max": 2, "ceil_div": 2, "select": 3, "lsb": 1, "abs": 1}

_CONTRACT = "Sizes and conditions use integers, extents, + - * // % << >> & | ^, comparisons, and, or, not, min, max, ceil_div, select."


def expression(text: int | str, names: Collection[str]) -> Expression:
    """The expression as a function of an environment (name -> value).

    Raises CakeError `lowering/bad-expression`: not in the notation, too long, or a name that is not among `names`. The function
    raises the same when a divisor is zero or a value is longer than 128 bits.
    """
    if isinstance(text, int):
        return lambda env: text
    run, used = _parsed(_text(text))
    unknown = sorted(used.difference(names))
    if unknown:
        raise _bad(text, f"it reads {', '.join(unknown)}; known here: {', '.join(sorted(names)) or 'nothing'}")
    return run


def names_in(text: int | str) -> frozenset[str]:
    """Names that the expression reads; raises as `expression`."""
    return frozenset() if isinstance(text, int) else _parsed(_text(text))[1]


def _text(text: object) -> str:
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise _bad(str(text)[:40], f"an expression is text of at most {MAX_TEXT} characters")
    return text


@lru_cache(maxsize=1024)
def _parsed(text: str) -> tuple[Expression, frozenset[str]]:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        raise _bad(text, f"it does not parse ({type(exc).__name__})") from None
    used: set[str] = set()
    inner = _closure(tree.body, text, used, 0)

    def run(env: Mapping[str, Any]) -> Value:
        try:
            value = inner(env)
        except ZeroDivisionError:
            raise _bad(text, "a divisor is zero") from None
        except (ValueError, OverflowError, TypeError) as exc:
            raise _bad(text, str(exc)) from None
        return value

    return run, frozenset(used)


def _closure(node: ast.AST, text: str, used: set[str], depth: int) -> Expression:
    if depth > MAX_DEPTH:
        raise _bad(text, f"it nests deeper than {MAX_DEPTH}")

    def sub(x: ast.AST) -> Expression:
        return _closure(x, text, used, depth + 1)

    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        value = node.value
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise _bad(text, "a number is too long")
        return lambda env: value
    if isinstance(node, ast.Name):
        name = node.id
        used.add(name)
        return lambda env: env[name]
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _bounded(FAST[_BINARY[type(node.op)]], sub(node.left), sub(node.right))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        f, a, b = FAST[_COMPARE[type(node.ops[0])]], sub(node.left), sub(node.comparators[0])
        return lambda env: f(a(env), b(env))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        g, x = ARITH[_UNARY[type(node.op)]], sub(node.operand)
        return lambda env: g(x(env))
    if isinstance(node, ast.BoolOp):
        by, parts = isinstance(node.op, ast.Or), [sub(v) for v in node.values]
        return lambda env: (any if by else all)(bool(p(env)) for p in parts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        name = node.func.id
        if _CALLS.get(name) == len(node.args):
            args = [sub(a) for a in node.args]
            if name == "select":
                c, a, b = args
                return lambda env: a(env) if c(env) else b(env)
            h = ARITH[name]
            return lambda env: h(*[p(env) for p in args])
    raise _bad(text, f"{type(node).__name__} is not part of the notation")


def _bounded(f: Callable[[Any, Any], Any], a: Expression, b: Expression) -> Expression:
    def run(env: Mapping[str, Any]) -> Value:
        value = f(a(env), b(env))
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise ValueError(f"a value is longer than {MAX_BITS} bits")
        return value

    return run


def _bad(text: str, why: str) -> CakeError:
    return fault("lowering/bad-expression", f"the expression {text[:120]!r} cannot be used: {why}", contract=_CONTRACT)
