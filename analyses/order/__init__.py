"""The order reading: progress, barrier protocol and data races of a kernel, decided on its witness shapes."""

from __future__ import annotations

from analyses.order import findings
from analyses.order.check import OrderResult, check_order

__all__ = ["OrderResult", "check_order", "findings"]
