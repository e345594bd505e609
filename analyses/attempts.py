"""Programs that are only tried: candidates for a repair, most of which do not repair anything.

A candidate is verified twice. First on the shapes that showed the findings of the original, which costs no search and ends
most candidates: a fault on an admitted shape is a fault. What passes is then verified like any program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cake_ir.bound import BoundKernel
from cake_ir.diagnostics import Diagnostic
from cake_ir.memo import memo
from cake_ir.skeleton import compile_skeleton
from cake_ir.witness import Witness, WitnessSet, witnesses

FEW = 2
"""Shapes of the first round where the findings name none."""

Errors = tuple[Diagnostic, ...]


class Attempts:
    """The errors of edited copies of one text; copies met again are not verified again."""

    def __init__(
        self,
        text: str,
        errors: Sequence[Diagnostic],
        bindings: Mapping[str, Any] | None,
        target: str | None,
        kernel: str | None,
        bound: Sequence[BoundKernel] = (),
    ) -> None:
        self.text, self.errors, self.bound = text, errors, bound
        self.bindings, self.target, self.kernel = dict(bindings or {}), target, kernel
        self._shapes: dict[str, tuple[Witness, ...]] | None = None
        self._first: dict[str, tuple[list[Any], Errors]] = {}
        self._second: dict[str, Errors] = {}

    def passes(self, text: str, good: Callable[[Iterable[Diagnostic]], bool]) -> bool:
        """Whether the errors of a copy are good, on the telling shapes and on all."""
        if text not in self._first:
            kernels = self._bound(text)
            self._first[text] = kernels, self._errors(kernels, self.shapes)
        kernels, errors = self._first[text]
        if not good(errors):
            return False
        if text not in self._second:
            self._second[text] = self._errors(kernels, {})
        return good(self._second[text])

    @property
    def shapes(self) -> dict[str, tuple[Witness, ...]]:
        """By kernel the shapes that the findings name, otherwise the first ones."""
        if self._shapes is None:
            said = " ".join(d.message for d in self.errors)
            self._shapes = {}
            for k in self.bound or self._bound(self.text):
                if isinstance(k, BoundKernel):
                    every = witnesses(k).witnesses
                    named = tuple(w for w in every if w.describe() and w.describe() in said)
                    self._shapes[k.name] = named or every[:FEW]
        return self._shapes

    def _bound(self, text: str) -> list[BoundKernel | Errors]:
        from analyses.verifier import bound_kernels
        from cake_ir import parse

        parsed = parse(text)
        if parsed.file is None:
            return [parsed.diagnostics]
        return list(bound_kernels(parsed.file, dict(self.bindings), self.target, self.kernel))

    def _errors(self, kernels: list[BoundKernel | Errors], shapes: dict[str, tuple[Witness, ...]]) -> Errors:
        from analyses.verifier import verify

        found: list[Diagnostic] = []
        for k in kernels:
            if isinstance(k, BoundKernel):
                copy = replace(
                    k, notes=dict(k.notes)
                )  # results are kept by object: those on few shapes stay with the copy
                few = tuple(w for w in shapes.get(k.name, ()) if _fits(copy, w))
                if few:
                    memo(copy, "witnesses", lambda few=few: WitnessSet(few, (), ()))
                report = verify(copy, brief=bool(few))
                found += [d for d in report.diagnostics if d.severity == "error"]
            else:
                found += [d for d in k if d.severity == "error"]
        return tuple(found)


def _fits(k: BoundKernel, w: Witness) -> bool:
    """Whether a shape of the original is one of the copy, with the same launch."""
    if set(w.shape) != set(k.dims):
        return False
    skeleton = compile_skeleton(k)
    env = skeleton.environment(w.shape, {}, w.sms)
    try:
        return skeleton.admits(env) and skeleton.cta_count(env) == w.cta_count
    except ZeroDivisionError:
        return False
