"""The syntax tree of a `.cake` file: what the text says, before any binding.

The same tree is the JSON form (every node carries `node`, its class name). Spans and comments do not take part in
equality or in the content id. Nothing here knows ops, types or targets.

The validators keep one promise: a tree that can be constructed can be printed, and its text parses back to an equal
tree. So what text cannot say is refused here (a negative literal, an empty block, a keyword as a name) and what text
can say in two ways is brought to one (nested `and`, a slice that starts at 0, the indentation of a docstring). What is
merely not a Cake program (a loop in `@program`, a bad tunable domain) is the parser's business.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    field_validator,
    model_validator,
)

from cake_ir.diagnostics import NOWHERE, Span

# ---- what text can carry -----------------------------------------------------------------------------------------

MAX_INT = 2**64 - 1
"""The largest integer literal: the widest dtype holds no more."""

KEYWORDS = frozenset(
    [
        "False",
        "None",
        "True",
        "and",
        "as",
        "assert",
        "async",
        "await",
        "break",
        "class",
        "continue",
        "def",
        "del",
        "elif",
        "else",
        "except",
        "finally",
        "for",
        "from",
        "global",
        "if",
        "import",
        "in",
        "is",
        "lambda",
        "nonlocal",
        "not",
        "or",
        "pass",
        "raise",
        "return",
        "try",
        "while",
        "with",
        "yield",
    ]
)
"""Words that cannot be names. Spelled out so that the language does not change with the Python that reads it."""

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]{0,63}"

# Controls, line separators that editors count and Python does not, and marks that reorder the display of a line:
# a reader must see the program that is compiled.
UNSAFE_CHARS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def identifier_fault(name: str) -> str | None:
    """Why `name` cannot be a name, or None when it can."""
    if name in KEYWORDS:
        return f"{name!r} is a reserved word"
    if re.fullmatch(IDENTIFIER, name) is None:
        return "a name is 1 to 64 ASCII letters, digits and underscores and does not start with a digit"
    return None


def clean_doc(text: str) -> str:
    """The normal form of a docstring: no common indentation, no trailing blanks, no blank first or last line."""
    lines = [line.rstrip(" ") for line in text.split("\n")]
    rest = [len(line) - len(line.lstrip(" ")) for line in lines[1:] if line]
    margin = min(rest, default=0)
    lines = [lines[0].lstrip(" "), *(line[margin:] for line in lines[1:])]
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    cleaned = "\n".join(lines)
    return cleaned if cleaned == text else clean_doc(cleaned)


def _check_identifier(name: str) -> str:
    fault = identifier_fault(name)
    if fault:
        raise ValueError(fault)
    return name


def _check_free_text(text: str) -> str:
    if UNSAFE_CHARS.search(text):
        raise ValueError("free text holds no control, tab, line separator or text direction characters")
    return text


def _check_line(text: str) -> str:
    if "\n" in text:
        raise ValueError("a comment is one line")
    return _check_free_text(text).rstrip(" ")


def _check_lines(text: str) -> str:
    return "\n".join(line.rstrip(" ") for line in _check_free_text(text).split("\n"))


def _check_doc(text: str | None) -> str | None:
    return (clean_doc(_check_free_text(text)) or None) if text is not None else None


Identifier = Annotated[str, AfterValidator(_check_identifier)]
CommentLine = Annotated[str, AfterValidator(_check_line)]
Doc = Annotated[str | None, AfterValidator(_check_doc)]
TargetName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]

# ---- nodes -------------------------------------------------------------------------------------------------------


class Node(BaseModel):
    """Base of all nodes. Equality ignores spans and comments."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    span: Span = Field(default=NOWHERE, exclude=True, repr=False)

    def __eq__(self, other: object) -> bool:
        if self.__class__ is not other.__class__:
            return NotImplemented
        return all(
            getattr(self, name) == getattr(other, name)
            for name in self.__class__.model_fields
            if name not in ("span", "comments", "tail")
        )

    __hash__ = None  # type: ignore[assignment]


# ---- expressions -------------------------------------------------------------------------------------------------


class Name(Node):
    node: Literal["Name"] = "Name"
    id: Identifier


class Num(Node):
    """A non-negative int or float literal. bool literals are `Bool`; `1` and `1.0` differ."""

    node: Literal["Num"] = "Num"
    value: StrictInt | StrictFloat

    @field_validator("value")
    @classmethod
    def _printable(cls, value: float) -> int | float:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("a literal is finite; infinity is the name 'inf'")
        if math.copysign(1.0, value) < 0:
            raise ValueError("a literal has no sign; a negative number is Unary '-' of a literal")
        if isinstance(value, int) and value > MAX_INT:
            raise ValueError(f"an integer literal is at most {MAX_INT}")
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Num):
            return NotImplemented
        return type(self.value) is type(other.value) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


class Bool(Node):
    node: Literal["Bool"] = "Bool"
    value: bool


class Unary(Node):
    """`-x` or `not x` or `~x`."""

    node: Literal["Unary"] = "Unary"
    op: Literal["-", "not", "~"]
    operand: Expr


class Binary(Node):
    node: Literal["Binary"] = "Binary"
    op: Literal["+", "-", "*", "/", "//", "%", "<<", ">>", "&", "|", "^"]
    left: Expr
    right: Expr


class Logic(Node):
    """`a and b and c` / `a or b`. An operand with the same `op` is spliced in: grouping has no meaning here."""

    node: Literal["Logic"] = "Logic"
    op: Literal["and", "or"]
    operands: Annotated[tuple[Expr, ...], Field(min_length=2)]

    @model_validator(mode="after")
    def _flat(self) -> Logic:
        object.__setattr__(self, "operands", flatten_logic(self.op, self.operands))
        return self


def flatten_logic(op: str, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """`operands` of a Logic `op`, with operands that are themselves Logic `op` replaced by their operands."""
    return tuple(
        inner
        for item in operands
        for inner in (item.operands if isinstance(item, Logic) and item.op == op else (item,))
    )


class Compare(Node):
    """A chained comparison: `first op0 rest0 op1 rest1`."""

    node: Literal["Compare"] = "Compare"
    first: Expr
    ops: Annotated[tuple[Literal["<", "<=", ">", ">=", "==", "!="], ...], Field(min_length=1)]
    rest: tuple[Expr, ...]

    @model_validator(mode="after")
    def _paired(self) -> Compare:
        if len(self.ops) != len(self.rest):
            raise ValueError("a comparison has as many operators as right-hand operands")
        return self


class Keyword(Node):
    node: Literal["Keyword"] = "Keyword"
    name: Identifier
    value: Expr


class Call(Node):
    """`f(args, k=v)`; `func` is a Name or an Attribute (method)."""

    node: Literal["Call"] = "Call"
    func: Callee
    args: tuple[Expr, ...] = ()
    keywords: tuple[Keyword, ...] = ()


class Attribute(Node):
    node: Literal["Attribute"] = "Attribute"
    value: Expr
    name: Identifier


class Slice(Node):
    """`start:stop` inside an index; either may be absent. There is no step. A literal start 0 is the absent one."""

    node: Literal["Slice"] = "Slice"
    start: Expr | None = None
    stop: Expr | None = None

    @model_validator(mode="after")
    def _no_zero_start(self) -> Slice:
        if self.start == ZERO:
            object.__setattr__(self, "start", None)
        return self


class NewAxis(Node):
    """`None` inside an index: `f[:, None]`."""

    node: Literal["NewAxis"] = "NewAxis"


class Index(Node):
    """`value[item, ...]`; items are expressions (not tuples), slices or NewAxis."""

    node: Literal["Index"] = "Index"
    value: Expr
    items: Annotated[tuple[IndexItem, ...], Field(min_length=1)]


class Tuple(Node):
    node: Literal["Tuple"] = "Tuple"
    items: Annotated[tuple[Expr, ...], Field(min_length=1)]


Callee = Annotated[Name | Attribute, Field(discriminator="node")]
Expr = Annotated[
    Name | Num | Bool | Unary | Binary | Logic | Compare | Call | Attribute | Index | Tuple, Field(discriminator="node")
]
IndexItem = Annotated[
    Name | Num | Bool | Unary | Binary | Logic | Compare | Call | Attribute | Index | Slice | NewAxis,
    Field(discriminator="node"),
]

ZERO = Num(value=0)

# ---- statements --------------------------------------------------------------------------------------------------


class Stmt(Node):
    """`comments` are the comment lines above the statement, `tail` the one behind it (text without '#')."""

    comments: tuple[CommentLine, ...] = ()
    tail: CommentLine = ""


class Assign(Stmt):
    """`a, b = value`."""

    node: Literal["Assign"] = "Assign"
    targets: Annotated[tuple[Name, ...], Field(min_length=1)]
    value: Expr


class AugAdd(Stmt):
    """`name += value` (index counters only)."""

    node: Literal["AugAdd"] = "AugAdd"
    target: Name
    value: Expr


class CallStmt(Stmt):
    """An op or declaration used as a statement."""

    node: Literal["CallStmt"] = "CallStmt"
    call: Call


Block = Annotated[tuple["Statement", ...], Field(min_length=1)]


class For(Stmt):
    node: Literal["For"] = "For"
    targets: Annotated[tuple[Name, ...], Field(min_length=1)]
    iter: Expr
    body: Block


class While(Stmt):
    node: Literal["While"] = "While"
    cond: Expr
    body: Block


class If(Stmt):
    """`orelse` is empty when there is no else; `elif` is an If alone in `orelse`."""

    node: Literal["If"] = "If"
    cond: Expr
    body: Block
    orelse: tuple[Statement, ...] = ()


class With(Stmt):
    """`with ROLE as name:`, `with elected():`, `with warps() as name:`."""

    node: Literal["With"] = "With"
    context: Expr
    name: Name | None = None
    body: Block


Statement = Annotated[Assign | AugAdd | CallStmt | For | While | If | With, Field(discriminator="node")]

# ---- files -------------------------------------------------------------------------------------------------------


class Extent(Node):
    """One dimension of a tensor parameter; `stride` (elements) when it is not the dense row-major one."""

    node: Literal["Extent"] = "Extent"
    size: Expr
    stride: Expr | None = None


class TensorParam(Node):
    """`x: In[bf16, M, K]`."""

    node: Literal["TensorParam"] = "TensorParam"
    name: Identifier
    direction: Literal["In", "Const", "Out", "InOut"]
    dtype: Expr
    extents: Annotated[tuple[Extent, ...], Field(min_length=1)]


class ScalarParam(Node):
    """`eps: f32`."""

    node: Literal["ScalarParam"] = "ScalarParam"
    name: Identifier
    dtype: Literal["i32", "f32"]


class Tunable(Node):
    """`BN: (64, 128) = 128` or `STAGES: range(2, 8) = 4`; keyword-only."""

    node: Literal["Tunable"] = "Tunable"
    name: Identifier
    domain: Expr
    default: Expr


class Kernel(Node):
    """One `@kernel(target=...)` function."""

    node: Literal["Kernel"] = "Kernel"
    name: Identifier
    targets: Annotated[tuple[TargetName, ...], Field(min_length=1)]
    tensors: tuple[TensorParam, ...] = ()
    scalars: tuple[ScalarParam, ...] = ()
    tunables: tuple[Tunable, ...] = ()
    doc: Doc = None
    body: Block
    comments: tuple[CommentLine, ...] = ()
    tail: CommentLine = ""


class Program(Node):
    """The `@program` function: workspaces, fills and launches in text order."""

    node: Literal["Program"] = "Program"
    name: Identifier
    tensors: tuple[TensorParam, ...] = ()
    scalars: tuple[ScalarParam, ...] = ()
    tunables: tuple[Tunable, ...] = ()
    doc: Doc = None
    body: Block
    comments: tuple[CommentLine, ...] = ()
    tail: CommentLine = ""


class File(Node):
    """A whole file. `comments` stand above the docstring, `tail` holds the comment lines behind the last kernel."""

    node: Literal["File"] = "File"
    comments: tuple[CommentLine, ...] = ()
    doc: Doc = None
    kernels: Annotated[tuple[Kernel, ...], Field(min_length=1)]
    program: Program | None = None
    tail: Annotated[str, AfterValidator(_check_lines)] = ""


for _model in list(globals().values()):
    if isinstance(_model, type) and issubclass(_model, Node):
        _model.model_rebuild()
