"""The cost model: a kernel's time at a shape from measured rates, or from data-sheet rates and marked so. It predicts, never measures."""

from __future__ import annotations

from analyses.cost.estimate import Estimate, estimate

__all__ = ["Estimate", "estimate"]
