"""Programs that are only tried: candidates for a repair, most of which do not repair anything.

A candidate is verified twice. First on the shapes that showed the findings of the original and as far as the layer that found
them, which costs no search and ends most candidates: a fault on an admitted shape is a fault. What passes is then verified like
any program; what does not depend on the shapes (control, index arithmetic, traces) is kept from the first time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from analyses.bounds import Decided
from cake_ir.bound import BoundKernel
from cake_ir.diagnostics import Diagnostic
from cake_ir.memo import forget, memo
from cake_ir.skeleton import compile_skeleton
from cake_ir.witness import Witness, WitnessSet, witnesses

FEW = 2
"""Shapes of the first round where the findings name none."""

LATE = (
    "data/output-unwritten",
    "data/output-written-twice",
    "data/global-out-of-bounds",
    "data/global-race",
    "data/index-overflow",
    "sync/endless-loop",
    "data/k-step-repeated",
    "data/k-step-skipped",
    "data/mma-slices-differ",
    "data/accumulator-not-cleared",
    "data/operand-swapped",
    "data/stale-tile",
    "data/combined-slices-differ",
)
"""Rules that are asked of programs without other errors: of outputs, index arithmetic, the ends of loops, data tags."""

VIEW = "data/view-out-of-bounds"
SYNC = re.compile(r"(wait|arrive|expect|sync|named_\w+|fence\w*|\w+_(commit|wait|wait_read|arrive))\(.*\)\s*(#.*)?$")
"""A statement on one line that only synchronises: with or without it, indices have the same values."""

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
        self.deep = any(d.rule in LATE for d in errors)
        self.bindings, self.target, self.kernel = dict(bindings or {}), target, kernel
        self._shapes: dict[str, tuple[Witness, ...]] | None = None
        self._first: dict[str, tuple[list[Any], Errors]] = {}
        self._second: dict[str, Errors] = {}

    def passes(self, text: str, good: Callable[[Iterable[Diagnostic]], bool]) -> bool:
        """Whether the errors of a copy are good, on the telling shapes and on all."""
        if text not in self._first:
            kernels = self._bound(text)
            if self.same_indices(text):
                for k in kernels:
                    if isinstance(k, BoundKernel):
                        memo(k, "bounds", Decided)  # not asked again the first time
            self._first[text] = kernels, self._errors(kernels, self.shapes)
        kernels, errors = self._first[text]
        if not good(errors):
            return False
        if text not in self._second:
            self._second[text] = self._errors(kernels, None)
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

    def same_indices(self, text: str) -> bool:
        """Whether a copy differs in synchronisation only, and the original keeps inside its tiles."""
        if self.deep or not self.bound or any(d.rule == VIEW for d in self.errors):
            return False
        lines = [Counter(line.strip() for line in t.split("\n")) for t in (self.text, text)]
        return all(SYNC.match(line) for one, other in (lines, lines[::-1]) for line in one - other)

    def _bound(self, text: str) -> list[BoundKernel | Errors]:
        from analyses.verifier import bound_kernels
        from cake_ir import parse

        parsed = parse(text)
        if parsed.file is None:
            return [parsed.diagnostics]
        return list(bound_kernels(parsed.file, dict(self.bindings), self.target, self.kernel))

    def _errors(self, kernels: list[BoundKernel | Errors], shapes: dict[str, tuple[Witness, ...]] | None) -> Errors:
        """shapes: those of the first time; None for what is verified like any program."""
        from analyses.verifier import verify

        found: list[Diagnostic] = []
        for k in kernels:
            if isinstance(k, BoundKernel):
                few = tuple(w for w in (shapes or {}).get(k.name, ()) if _fits(k, w))
                if shapes is None:
                    forget(k, "witnesses", "derived", "bounds")  # what the first time made of its shapes
                if few:
                    memo(k, "witnesses", lambda few=few: WitnessSet(few, (), ()))
                report = verify(k, None if few else False, brief=True, deep=self.deep or not few)
                found += report.diagnostics
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
