"""Targets: one table of hardware facts, features and matrix forms per architecture, matched by exact name."""

from __future__ import annotations

from cake_ir.diagnostics import NOWHERE, CakeError, Span, error
from cake_ir.targets import sm_80, sm_89, sm_90a, sm_100a, sm_103a, sm_120a
from cake_ir.targets._feature import Feature
from cake_ir.targets.features import FEATURES
from cake_ir.targets.matrix import MmaSyncForm, NRule, Tcgen05Form, WgmmaForm
from cake_ir.targets.table import CHECKED_MEANING, Checked, Fact, Target

__all__ = [
    "CHECKED_MEANING",
    "FEATURES",
    "Checked",
    "Fact",
    "Feature",
    "MmaSyncForm",
    "NRule",
    "Target",
    "Tcgen05Form",
    "WgmmaForm",
    "get",
    "names",
]

_TARGETS: dict[str, Target] = {
    t.name: t for t in (sm_80.TARGET, sm_89.TARGET, sm_90a.TARGET, sm_100a.TARGET, sm_103a.TARGET, sm_120a.TARGET)
}


def names() -> tuple[str, ...]:
    """The known target names, oldest first."""
    return tuple(_TARGETS)


def get(name: str, span: Span = NOWHERE) -> Target:
    """The target of that exact name. Raises CakeError `hardware/unknown-target` listing the known ones."""
    found = _TARGETS.get(name)
    if found is None:
        # The name comes from the author's text: keep what is echoed short and printable.
        shown = "".join(c for c in name[:40] if c.isalnum() or c == "_")
        message = f"unknown target '{shown}'; known: {', '.join(_TARGETS)}"
        if f"{shown}a" in _TARGETS:
            message += f". Targets are matched exactly: write '{shown}a'"
        raise CakeError(
            error(
                "hardware/unknown-target",
                "hardware",
                message,
                span,
                contract="A kernel names exactly one known architecture per target.",
            )
        )
    return found
