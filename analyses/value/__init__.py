"""The value reading: an interpreter of bound kernels in the exact element formats, with poison and per-proxy memory."""

from analyses.value.faults import ValueFault
from analyses.value.interpret import interpret

__all__ = ["ValueFault", "interpret"]
