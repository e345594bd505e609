"""Cost model v0: bounds and a schedule estimate from datasheet rates. Uncalibrated: a prediction, never a measurement."""

from __future__ import annotations

from analyses.cost.estimate import Estimate, estimate

__all__ = ["Estimate", "estimate"]
