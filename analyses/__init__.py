"""Readings of a bound program: verifier rules, order and value readings, cost model.

Names are loaded on first use, so that importing one reading does not import numpy or the others.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Estimate": "analyses.cost",
    "estimate": "analyses.cost",
    "interpret": "analyses.value",
    "interpret_program": "analyses.value.program",
    "ValueFault": "analyses.value",
    "Report": "analyses.report",
    "verify": "analyses.verifier",
    "verify_text": "analyses.verifier",
    "with_fixes": "analyses.fixes",
}

__all__ = [
    "Estimate",
    "Report",
    "ValueFault",
    "estimate",
    "interpret",
    "interpret_program",
    "verify",
    "verify_text",
    "with_fixes",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'analyses' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
