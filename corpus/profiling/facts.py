"""What a summary needs of the program and the model: which op and role a line is, the bounds, the launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cake_ir import bound as B

if TYPE_CHECKING:
    from corpus.contract import Contract

SHARED = ""
"""The role of a line that every role executes (a cluster barrier, a loop around several roles)."""


@dataclass(frozen=True)
class Line:
    """One line of the program: the ops on it in text order, and the role that executes it."""

    ops: tuple[str, ...]
    role: str = SHARED


@dataclass(frozen=True)
class Facts:
    """`lines` by number (1-based); `source` the text's lines; `warps` per role. Times in microseconds: `bounds_us` per
    resource, `model_us` and `launch_us` are the cost model's at this shape, `limiters` its most expensive sites."""

    kernel: str
    source: tuple[str, ...] = ()
    lines: Mapping[int, Line] = field(default_factory=dict)
    warps: Mapping[str, int] = field(default_factory=dict)
    bounds_us: Mapping[str, float] = field(default_factory=dict)
    model_us: float = 0.0
    launch_us: float = 0.0
    limiters: tuple[Mapping[str, Any], ...] = ()

    def text(self, line: int) -> str:
        """The program's line without indentation; empty outside the text."""
        return self.source[line - 1].strip() if 0 < line <= len(self.source) else ""


def facts(bound: B.BoundKernel, text: str, contract: Contract, shape: Mapping[str, int]) -> Facts:
    """Facts of one bound kernel at a contract's shape. Raises CakeError for a shape the kernel does not admit."""
    from analyses import estimate
    from corpus.signature import solve_dims

    found = estimate(
        bound, dict(solve_dims(bound, contract, dict(shape))), l2="warm"
    )  # a profile launches again and again
    return Facts(
        kernel=bound.name, source=tuple(text.split("\n")), lines=line_table(bound),
        warps={r.name: r.warps for r in bound.roles}, bounds_us=found.bounds_us, model_us=found.time_us,
        launch_us=found.launch_us, limiters=found.limiters,
    )  # fmt: skip


def line_table(bound: B.BoundKernel) -> dict[int, Line]:
    """Which ops stand on which line, and who executes them. A line with statements of several roles is shared."""
    ops: dict[int, list[str]] = {}
    roles: dict[int, set[str]] = {}

    def add(line: int, name: str, role: str) -> None:
        names = ops.setdefault(line, [])
        if name and name not in names:
            names.append(name)
        roles.setdefault(line, set()).add(role)

    def visit(body: tuple[Any, ...], role: str) -> None:
        for stmt in body:
            at = stmt.span.line
            if isinstance(stmt, B.RoleBlock):
                add(at, "", stmt.role.name)
                visit(stmt.body, stmt.role.name)
                continue
            inner = [b for name in ("prelude", "body", "then", "orelse") if (b := getattr(stmt, name, None))]
            add(at, stmt.name if isinstance(stmt, B.Op) else _WORDS.get(type(stmt), "elementwise"), role)
            for block in inner:
                visit(block, role)

    visit(bound.body, SHARED)
    return {at: Line(tuple(ops[at]), next(iter(who)) if len(who := roles[at]) == 1 else SHARED) for at in sorted(ops)}


_WORDS: dict[type, str] = {
    B.For: "for", B.While: "while", B.If: "if", B.ElectedBlock: "elected", B.WarpsBlock: "warps", B.SetScalar: "scalar",
}  # fmt: skip
