"""Typing of ops: one check function per declaration, collected in `CHECKS`. A check fills shapes, tests the form's rules and
gives the results; a test fails if an op lacks one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cake_ir import bound as B
from cake_ir.dtypes import DType
from cake_ir.layouts import TileType, registers
from cake_ir.ops.decl import OpDecl

if TYPE_CHECKING:
    from cake_ir.binding.context import Context

Check = Callable[["Call"], list[Any]]
CHECKS: dict[str, Check] = {}


def check(*names: str) -> Callable[[Check], Check]:
    """Register a check for one or more ops."""

    def register(f: Check) -> Check:
        for name in names:
            CHECKS[name] = f
        return f

    return register


@dataclass
class Call:
    """One call being typed. args: resolved arguments; operands and attrs: what the bound op will carry."""

    c: "Context"
    decl: OpDecl
    args: dict[str, Any]
    nodes: dict[str, Any]
    span: Any
    names: tuple[str, ...]
    operands: dict[str, Any] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)

    def fail(self, rule: str, message: str, at: str | None = None, contract: str = "") -> Any:
        """Stop with a diagnostic at an argument (or the whole call)."""
        span = self.nodes[at].span if at and at in self.nodes else self.span
        self.c.fail(rule, message, span, op=self.decl.name, contract=contract or self._form(rule))

    def _form(self, rule: str) -> str:
        """Hardware findings cite the instruction form; a type error of the language does not need it."""
        return f"{self.decl.form} ({self.decl.source})" if rule.startswith("hardware/") else ""

    def keep(self, *names: str) -> None:
        """Pass arguments through as operands (present ones only)."""
        for n in names:
            if self.args.get(n) is not None:
                self.operands[n] = self.args[n]

    def result(self, type_: TileType, i: int = 0) -> B.Fragment:
        """A fresh fragment for a result."""
        if registers(type_) > 255:
            self.fail(
                "hardware/register-pressure",
                f"{type_} holds {registers(type_)} registers per thread; a thread has at most 255",
            )
        name = self.names[i] if i < len(self.names) else f"{self.decl.name}_{self.c.sites}"
        return self.c.fragment(name, type_, self.span)

    def scalar(self, dtype: str, uniformity: str, i: int = 0) -> B.ScalarVar:
        """A fresh scalar for a result."""
        name = self.names[i] if i < len(self.names) else f"{self.decl.name}_{self.c.sites}"
        return self.c.scalar(name, "loaded", dtype, uniformity, self.span)

    def divisor(self, x: Any) -> int:
        from cake_ir.binding.scalars import divisor

        return divisor(x, self.c.definitions)

    def multiple(self, x: Any, of: int) -> bool:
        """True when x is provably a multiple of `of`."""
        d = self.divisor(x)
        return d == 0 or d % of == 0


def fit(call: Call, region: B.Region, shape: tuple[int, ...], at: str) -> B.Region:
    """Give a region its lengths from the other operand; kept dimensions correspond in order."""
    kept = [d for d in region.dims if d.kind != "index"]
    if region.transposed and any(d.kind == "gather" for d in kept):
        call.fail("language/index", "rows taken by an index vector are not transposed", at)
    if len(kept) != len(shape):
        call.fail(
            "language/rank", f"the region keeps {len(kept)} dimension(s), the other operand has shape {list(shape)}", at
        )
    sizes = list(shape[::-1] if region.transposed else shape)
    dims = []
    for d in region.dims:
        if d.kind == "index":
            dims.append(d)
            continue
        size = sizes.pop(0)
        if d.kind == "gather" and d.size != size:
            call.fail("language/rank", f"the index vector has {d.size} elements, the other operand {size} rows", at)
        dims.append(B.RegionDim(d.kind, d.start, d.stop, size, d.rows))
    return B.Region(region.tensor, tuple(dims), region.transposed, region.span)


def same_dtype(call: Call, a: DType, b: DType, at: str) -> None:
    if a is not b:
        call.fail("language/type", f"dtypes differ: {a} and {b}", at)


def smem_view(call: Call, name: str) -> B.View:
    """The argument as a shared-memory view."""
    view = call.args[name]
    if view.buffer.space != "smem":
        call.fail(
            "language/type", f"'{view.buffer.name}' is tensor memory; {call.decl.name} needs shared memory here", name
        )
    if view.rank is not None and call.decl.name not in ("tma_load", "bulk_load", "store_async"):
        written = call.decl.name in ("cp_async", "stmatrix")
        call.fail(
            "hardware/remote-destination" if written else "hardware/remote-operand",
            f"{call.decl.name} works on the own CTA's shared memory; load and store reach into another's",
            name,
        )
    return view


def panel_aligned(
    call: Call, view: B.View, name: str, row_step: int = 8, col_bytes: int = 16, box: bool = True
) -> None:
    """Starts at 8 rows and 16 bytes; .cols stays inside one panel or takes whole ones. `box`: the columns are those of a
    copy, whose pieces divide a panel evenly; a matrix operand that starts a panel may also end inside one."""
    b = view.buffer
    size = b.dtype.bytes
    if view.rows < b.rows or not (isinstance(view.row0, B.SConst) and view.row0.value == 0):
        if b.swizzle and not call.multiple(view.row0, row_step):
            call.fail(
                "hardware/operand-alignment",
                f"the row start of '{b.name}' is not provably a multiple of {row_step}",
                name,
                "Descriptor, TMA and ldmatrix operands start at 8 rows and 16 bytes.",
            )
    if not call.multiple(view.col0, max(1, col_bytes // size)):
        call.fail(
            "hardware/operand-alignment",
            f"the column start of '{b.name}' is not provably a multiple of {max(1, col_bytes // size)} elements ({col_bytes} B)",
            name,
            "Descriptor, TMA and ldmatrix operands start at 8 rows and 16 bytes.",
        )
    if b.swizzle and view.cols != b.cols:
        span = b.swizzle // size
        whole = (view.cols % span == 0 or not box) and call.multiple(view.col0, span)
        step = call.divisor(view.col0)
        inside = view.cols <= span and span % view.cols == 0 and (step == 0 or step % view.cols == 0)
        if not box:
            # a start that is a multiple of `step` (0: it is 0) leaves at least gcd(step, span) columns of its panel
            left = span - int(view.col0.value) % span if isinstance(view.col0, B.SConst) else math.gcd(step, span)
            inside = view.cols <= left or call.multiple(view.col0, span)  # from a panel's begin, panel by panel
        if not whole and not inside:
            call.fail(
                "hardware/panel-crossing",
                f".cols of '{b.name}' neither stays inside one {span}-element panel nor takes whole ones",
                name,
                "A swizzled tile wider than its span is a row of panels.",
            )


def _load_all() -> None:
    from cake_ir.ops import typing_copies, typing_matrix, typing_registers, typing_sync  # noqa: F401


_load_all()
