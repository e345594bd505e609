"""What a target *is*: hardware facts, exact features and legal matrix forms, each with its source.

A target is matched by its full name; nothing is stepped down to a neighbour, so `sm_90` is not `sm_90a`. A fact that no
source states is absent rather than guessed: ask with `Target.get` where an analysis can live without it, with
`Target.fact` where it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from cake_ir.diagnostics import NOWHERE, CakeError, Span, error
from cake_ir.targets._feature import Feature
from cake_ir.targets.matrix import MmaSyncForm, Tcgen05Form, WgmmaForm

Checked = Literal["ptxas", "doc", "vendor", "derived", "measured", "assumed"]

CHECKED_MEANING: Mapping[str, str] = MappingProxyType(
    {
        "ptxas": "accepted or rejected by the assembler; re-probed by the tests",
        "doc": "stated by NVIDIA's reference documentation or headers",
        "vendor": "stated by a product data sheet or architecture paper",
        "derived": "arithmetic on other facts",
        "measured": "measured on a device",
        "assumed": "believed, not confirmed: never the ground of a hard error",
    }
)


@dataclass(frozen=True)
class Fact:
    """One number (or tuple of numbers) about a target, its unit, where it comes from and how that was checked."""

    value: int | float | tuple[int, ...]
    unit: str
    source: str
    checked: Checked
    note: str = ""

    @property
    def number(self) -> float:
        """The value as a float. Raises TypeError for tuple facts."""
        if isinstance(self.value, tuple):
            raise TypeError("fact is a tuple, not a number")
        return float(self.value)

    @property
    def integer(self) -> int:
        """The value as an int. Raises TypeError when it is not a whole number."""
        if isinstance(self.value, tuple) or int(self.value) != self.value:
            raise TypeError("fact is not a whole number")
        return int(self.value)


@dataclass(frozen=True)
class Target:
    """One compilation target. `product` names the full product behind the per-device facts (SMs, clock, memory)."""

    name: str
    compute_capability: tuple[int, int]
    architecture: str
    product: str
    facts: Mapping[str, Fact]
    features: frozenset[str]
    wgmma: tuple[WgmmaForm, ...] = ()
    mma_sync: tuple[MmaSyncForm, ...] = ()
    tcgen05: tuple[Tcgen05Form, ...] = ()
    feature_table: Mapping[str, Feature] = field(default_factory=dict, repr=False)

    def get(self, key: str) -> Fact | None:
        """The fact, or None when it is not known for this target."""
        return self.facts.get(key)

    def fact(self, key: str) -> Fact:
        """The fact. Raises CakeError `hardware/unknown-fact` when the table has none."""
        found = self.facts.get(key)
        if found is None:
            known = ", ".join(sorted(self.facts))
            raise CakeError(
                error(
                    "hardware/unknown-fact",
                    "hardware",
                    f"target {self.name} has no fact '{key}'; known: {known}",
                    contract="Only facts with a source are used; an unknown number is never guessed.",
                )
            )
        return found

    def value(self, key: str) -> int:
        """Shorthand for a whole-number fact. Raises like `fact`; TypeError for non-integers."""
        return self.fact(key).integer

    def rate(self, key: str) -> float:
        """Shorthand for a numeric fact as float. Raises like `fact`."""
        return self.fact(key).number

    def has(self, feature: str) -> bool:
        """Whether the target has the feature. Raises CakeError for a name that is no feature at all."""
        self._known(feature)
        return feature in self.features

    def require(self, feature: str, what: str = "", span: Span = NOWHERE) -> None:
        """Raises CakeError `hardware/target-lacks-feature` unless the target has it. `what` names the asking op."""
        known = self._known(feature)
        if feature in self.features:
            return
        having = ", ".join(sorted(known.targets))
        raise CakeError(
            error(
                "hardware/target-lacks-feature",
                "hardware",
                f"{what or 'this op'} needs '{feature}' ({known.meaning}), which {self.name} does not have; "
                f"targets with it: {having}",
                span,
                contract=f"{known.source}: the instruction exists on {having} only.",
            )
        )

    def wgmma_form(self, a: str, b: str, d: str) -> WgmmaForm | None:
        """The wgmma form with these operand types, or None."""
        return next((f for f in self.wgmma if (f.a, f.b, f.d) == (a, b, d)), None)

    def mma_sync_forms(self, a: str, b: str, d: str) -> tuple[MmaSyncForm, ...]:
        """The plain (unscaled) mma.sync forms with these operand types, largest k first."""
        found = [f for f in self.mma_sync if (f.a, f.b, f.d) == (a, b, d) and f.scale is None]
        return tuple(sorted(found, key=lambda f: -f.k))

    def tcgen05_form(self, a: str, b: str, d: str, scale: str | None = None) -> Tcgen05Form | None:
        """The tcgen05.mma form with these operand types (and scale factor type, for block-scaled kinds), or None."""
        return next(
            (f for f in self.tcgen05 if a in f.ab and b in f.ab and f.pairs(a, b) and d in f.d and f.has_scale(scale)),
            None,
        )

    def _known(self, feature: str) -> Feature:
        found = self.feature_table.get(feature)
        if found is None:
            raise CakeError(
                error(
                    "hardware/unknown-feature",
                    "hardware",
                    f"'{feature}' is not a feature; known: {', '.join(sorted(self.feature_table))}",
                )
            )
        return found
