"""The syntax tree of a `.cake` file: what the text says, before any binding.

The same tree is the JSON form (every node carries `node`, its class name). Spans and comments do not take part in equality
or in the content id. Nothing here knows ops, types or targets.
"""

from __future__ import annotations

from typing import Annotated, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt

from cake_ir.diagnostics import NOWHERE, Span


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
    id: str


class Num(Node):
    """An int or float literal. bool literals are `Bool`."""

    node: Literal["Num"] = "Num"
    value: StrictInt | StrictFloat


class Bool(Node):
    node: Literal["Bool"] = "Bool"
    value: bool


class Unary(Node):
    """`-x` or `not x` or `~x`."""

    node: Literal["Unary"] = "Unary"
    op: Literal["-", "not", "~"]
    operand: "Expr"


class Binary(Node):
    node: Literal["Binary"] = "Binary"
    op: Literal["+", "-", "*", "/", "//", "%", "<<", ">>", "&", "|", "^"]
    left: "Expr"
    right: "Expr"


class Logic(Node):
    """`a and b and c` / `a or b`."""

    node: Literal["Logic"] = "Logic"
    op: Literal["and", "or"]
    operands: tuple["Expr", ...]


class Compare(Node):
    """A chained comparison: `first op0 rest0 op1 rest1`."""

    node: Literal["Compare"] = "Compare"
    first: "Expr"
    ops: tuple[Literal["<", "<=", ">", ">=", "==", "!="], ...]
    rest: tuple["Expr", ...]


class Keyword(Node):
    node: Literal["Keyword"] = "Keyword"
    name: str
    value: "Expr"


class Call(Node):
    """`f(args, k=v)`; `func` is a Name or an Attribute (method)."""

    node: Literal["Call"] = "Call"
    func: "Expr"
    args: tuple["Expr", ...] = ()
    keywords: tuple[Keyword, ...] = ()


class Attribute(Node):
    node: Literal["Attribute"] = "Attribute"
    value: "Expr"
    name: str


class Slice(Node):
    """`start:stop` inside an index; either may be absent. There is no step."""

    node: Literal["Slice"] = "Slice"
    start: Union["Expr", None] = None
    stop: Union["Expr", None] = None


class NewAxis(Node):
    """`None` inside an index: `f[:, None]`."""

    node: Literal["NewAxis"] = "NewAxis"


class Index(Node):
    """`value[item, ...]`; items are expressions, slices or NewAxis."""

    node: Literal["Index"] = "Index"
    value: "Expr"
    items: tuple["IndexItem", ...]


class Tuple(Node):
    node: Literal["Tuple"] = "Tuple"
    items: tuple["Expr", ...]


Expr = Annotated[
    Union[Name, Num, Bool, Unary, Binary, Logic, Compare, Call, Attribute, Index, Tuple], Field(discriminator="node")
]
IndexItem = Annotated[
    Union[Name, Num, Bool, Unary, Binary, Logic, Compare, Call, Attribute, Index, Tuple, Slice, NewAxis],
    Field(discriminator="node"),
]

# ---- statements --------------------------------------------------------------------------------------------------


class Stmt(Node):
    """`comments` are the comment lines above the statement, `tail` the one behind it (text without '#')."""

    comments: tuple[str, ...] = ()
    tail: str = ""


class Assign(Stmt):
    """`a, b = value`."""

    node: Literal["Assign"] = "Assign"
    targets: tuple[Name, ...]
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


class For(Stmt):
    node: Literal["For"] = "For"
    targets: tuple[Name, ...]
    iter: Expr
    body: tuple["Statement", ...]


class While(Stmt):
    node: Literal["While"] = "While"
    cond: Expr
    body: tuple["Statement", ...]


class If(Stmt):
    """`orelse` is empty when there is no else; `elif` is an If alone in `orelse`."""

    node: Literal["If"] = "If"
    cond: Expr
    body: tuple["Statement", ...]
    orelse: tuple["Statement", ...] = ()


class With(Stmt):
    """`with ROLE as name:`, `with elected():`, `with warps() as name:`."""

    node: Literal["With"] = "With"
    context: Expr
    name: Name | None = None
    body: tuple["Statement", ...]


Statement = Annotated[Union[Assign, AugAdd, CallStmt, For, While, If, With], Field(discriminator="node")]

# ---- files -------------------------------------------------------------------------------------------------------


class Extent(Node):
    """One dimension of a tensor parameter; `stride` (elements) when it is not the dense row-major one."""

    node: Literal["Extent"] = "Extent"
    size: Expr
    stride: Expr | None = None


class TensorParam(Node):
    """`x: In[bf16, M, K]`."""

    node: Literal["TensorParam"] = "TensorParam"
    name: str
    direction: Literal["In", "Const", "Out", "InOut"]
    dtype: Expr
    extents: tuple[Extent, ...]


class ScalarParam(Node):
    """`eps: f32`."""

    node: Literal["ScalarParam"] = "ScalarParam"
    name: str
    dtype: Literal["i32", "f32"]


class Tunable(Node):
    """`BN: (64, 128) = 128` or `STAGES: range(2, 8) = 4`; keyword-only."""

    node: Literal["Tunable"] = "Tunable"
    name: str
    domain: Expr
    default: Expr


class Kernel(Node):
    """One `@kernel(target=...)` function."""

    node: Literal["Kernel"] = "Kernel"
    name: str
    targets: tuple[str, ...]
    tensors: tuple[TensorParam, ...] = ()
    scalars: tuple[ScalarParam, ...] = ()
    tunables: tuple[Tunable, ...] = ()
    doc: str | None = None
    body: tuple[Statement, ...]
    comments: tuple[str, ...] = ()
    tail: str = ""


class Program(Node):
    """The `@program` function: workspaces, fills and launches in text order."""

    node: Literal["Program"] = "Program"
    name: str
    tensors: tuple[TensorParam, ...] = ()
    scalars: tuple[ScalarParam, ...] = ()
    tunables: tuple[Tunable, ...] = ()
    doc: str | None = None
    body: tuple[Statement, ...]
    comments: tuple[str, ...] = ()
    tail: str = ""


class File(Node):
    node: Literal["File"] = "File"
    doc: str | None = None
    kernels: tuple[Kernel, ...]
    program: Program | None = None
    tail: str = ""


for _model in list(globals().values()):
    if isinstance(_model, type) and issubclass(_model, Node):
        _model.model_rebuild()
