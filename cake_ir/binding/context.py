"""The binder's state: scopes, the statement list under construction, the current unit, and how faults are reported."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, NoReturn, cast

from cake_ir import bound as B
from cake_ir import syntax as S
from cake_ir.binding.scalars import Interval
from cake_ir.binding.scope import POISON, UNIFORM_RANK, Named, Poison, Scope, SilentError
from cake_ir.diagnostics import CakeError, Diagnostic, Family, Span, Subject, error
from cake_ir.layouts import THREADS, TileType

MAX_STATEMENTS = 16_000  # after unrolling; keeps a hostile program from exhausting the server


class Context:
    """Mutable state of one kernel's binding."""

    def __init__(self, kernel: S.Kernel | S.Program, target: Any, tunables: dict[str, Any]) -> None:
        self.kernel = kernel
        self.target = target
        self.tunables = tunables
        self.diagnostics: list[Diagnostic] = []
        self.scopes: list[Scope] = [Scope()]
        self.scalars: list[B.ScalarVar] = []
        self.uniformity: dict[B.ScalarVar, str] = {}
        self.definitions: dict[B.ScalarVar, B.SX] = {}
        self.ranges: dict[B.ScalarVar, Interval] = {}
        self.assigned: dict[str, int] = {}
        self.assigned_anywhere: set[str] = set()
        self.out: list[B.Stmt] = []
        self.statements = 0
        self.sites = 0
        self.role: B.Role | None = None
        self.unit = "K"
        self.elected = False
        self.tensors: dict[str, B.Tensor] = {}
        self.roles: list[B.Role] = []
        self.buffers: list[B.Buffer] = []
        self.barriers: list[B.Barrier] = []
        self.where: list[B.Where] = []
        self.launch: B.Launch | None = None
        self.dims: dict[str, B.ScalarVar] = {}
        self.args: list[B.ScalarVar] = []
        self.builtins: dict[str, B.ScalarVar] = {}
        self.written: set[str] = set()

    # ---- faults ----

    def fail(
        self, rule: str, message: str, span: Span, *, family: Family | None = None, contract: str = "", **subject: Any
    ) -> NoReturn:
        """Stop the current statement with one diagnostic. The family is the rule's prefix unless given."""
        raise CakeError(self.diagnostic(rule, message, span, family=family, contract=contract, **subject))

    def report(self, rule: str, message: str, span: Span, **more: Any) -> None:
        """Report and go on."""
        self.diagnostics.append(self.diagnostic(rule, message, span, **more))

    def diagnostic(
        self, rule: str, message: str, span: Span, *, family: Family | None = None, contract: str = "", **subject: Any
    ) -> Diagnostic:
        prefix = cast(Family, rule.split("/")[0])
        subject.setdefault("kernel", self.kernel.name)
        subject.setdefault("role", self.role.name if self.role else None)
        return error(
            rule,
            family or ("safety" if rule.startswith("sync/") else prefix),
            message,
            span,
            contract=contract,
            subject=Subject(**subject),
        )

    # ---- scalars ----

    def scalar(self, name: str, kind: str, dtype: str, uniformity: str, span: Span) -> B.ScalarVar:
        var = B.ScalarVar(name, kind, dtype, len(self.scalars), uniformity, span)
        self.scalars.append(var)
        self.uniformity[var] = uniformity
        return var

    def uniform(self, x: Any) -> str:
        """Uniformity of a scalar expression: the weakest of what it reads."""
        worst = "grid"
        for var in B.sx_vars(x):
            if UNIFORM_RANK[self.uniformity[var]] > UNIFORM_RANK[worst]:
                worst = self.uniformity[var]
        return worst

    @property
    def control(self) -> str:
        return self.scopes[-1].control

    def weaker(self, a: str, b: str) -> str:
        return a if UNIFORM_RANK[a] >= UNIFORM_RANK[b] else b

    # ---- names ----

    def lookup(self, name: str) -> Named | None:
        owner = self.role.name if self.role else None
        for scope in reversed(self.scopes):
            if owner and name in scope.roles.get(owner, {}):
                return Named(scope.roles[owner][name], owner)
            if name in scope.names:
                return Named(scope.names[name], None)
        return None

    def other_owner(self, name: str) -> str | None:
        """A role that owns the name somewhere in view (for the error message)."""
        for scope in reversed(self.scopes):
            for role, names in scope.roles.items():
                if name in names:
                    return role
        return None

    def seen(self, name: str) -> bool:
        """Whether any block of the kernel assigns this name."""
        return name in self.assigned_anywhere

    def define(self, name: str, value: Any) -> None:
        """Bind a new name in the innermost scope, owned by the current role."""
        scope = self.scopes[-1]
        self.assigned_anywhere.add(name)
        if self.role is None:
            scope.names[name] = value
        else:
            scope.roles.setdefault(self.role.name, {})[name] = value

    def poison(self, name: str) -> None:
        if self.lookup(name) is None:
            self.define(name, POISON)

    def resolve(self, node: S.Name) -> Any:
        found = self.lookup(node.id)
        if found is None:
            owner = self.other_owner(node.id)
            if owner:
                here = f"role {self.role.name}" if self.role else "kernel level"
                self.fail(
                    "language/name-of-another-role",
                    f"'{node.id}' belongs to role {owner} and is used at {here}",
                    node.span,
                    contract="A value crosses roles only through memory and a barrier.",
                )
            self.fail(
                "language/unknown-name",
                f"unknown name '{node.id}'{self._hint(node.id)}",
                node.span,
                contract="A name first assigned in a block ends with it." if self.seen(node.id) else "",
            )
        if isinstance(found.value, Poison):
            raise SilentError
        return found.value

    def _hint(self, name: str) -> str:
        import difflib

        known = {n for s in self.scopes for n in s.names} | set(self.tensors)
        close = difflib.get_close_matches(name, known, 1)
        return f"; did you mean '{close[0]}'?" if close else ""

    @contextmanager
    def scope(self, control: str | None = None) -> Any:
        self.scopes.append(Scope(control=self.weaker(control or "grid", self.control)))
        try:
            yield
        finally:
            self.scopes.pop()

    @contextmanager
    def collect(self) -> Any:
        """Statements emitted inside go to the list that is yielded."""
        saved, self.out = self.out, []
        try:
            yield self.out
        finally:
            self.out = saved

    def emit(self, stmt: B.Stmt) -> None:
        self.statements += 1
        if self.statements > MAX_STATEMENTS:
            raise CakeError(
                error(
                    "language/too-large",
                    "language",
                    f"more than {MAX_STATEMENTS} statements after unrolling; use range instead of unroll",
                    getattr(stmt, "span", self.kernel.span),
                )
            )
        self.out.append(stmt)

    def new_site(self) -> int:
        self.sites += 1
        return self.sites - 1

    # ---- units ----

    @property
    def threads(self) -> int:
        """Threads of the current unit that can hold fragments (32 or 128)."""
        return THREADS["warpgroup"] if self.unit == "G" else THREADS["warp"]

    def fragment(self, name: str, type_: TileType, span: Span) -> B.Fragment:
        return B.Fragment(name, type_, self.role.name if self.role else "", span)
