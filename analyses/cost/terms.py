"""The terms of the cost model, by name. `estimate(..., without={name})` leaves one out: what it is worth is measured that way.

An ablation (`corpus.ranking.figures`) removes each in turn; the limiters of an explanation are the terms whose removal saves most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from cake_ir.diagnostics import CakeError, error

TERMS: Mapping[str, str] = {
    "tensor": "products take time on the tensor cores",
    "issue": "instructions take issue slots and pipes (FMA, ALU, special functions, shuffles)",
    "interference": "instructions of other warps slow products down",
    "smem": "shared memory moves 128 bytes a clock",
    "copies": "bulk copies take time to move through the SM's port",
    "l2": "L2 has a bandwidth that all SMs share",
    "hbm": "device memory has a bandwidth that all SMs share",
    "load latency": "loads and copies arrive after a latency",
    "barriers": "barriers, fences and hand-overs have latencies",
    "ring": "a stage is filled again only when it was released",
    "wave": "CTAs run in whole waves over the SMs, the last of which may be partly empty",
    "residency": "CTAs that share an SM share its resources",
    "clock": "the power limit lowers the clock while the tensor cores work",
    "launch": "a launch, the start of CTAs and their first load take time",
}
"""What each term says; without it, the opposite holds."""
BOUNDS: Mapping[str, str] = {"fma": "issue", "alu": "issue", "sfu": "issue", "shuffle": "issue", "port": "l2"}
"""Classes of resources that are not called like theirs."""
FIRST: Mapping[str, float] = {"launch": 0.5, "wave": 0.25}
"""Terms that are the class from this share of the time on, whatever the resources cost: while no SM or not every SM has a CTA, a faster
resource is of little use. (The profile's classes begin with the same two, docs/measuring.md.)"""


def check(without: frozenset[str]) -> None:
    """Raises CakeError `cost/unknown-term`."""
    unknown = sorted(without - TERMS.keys())
    if unknown:
        _unknown(unknown)


def _unknown(names: list[str]) -> NoReturn:
    raise CakeError(
        error("cost/unknown-term", "performance", f"the cost model has no term {', '.join(names)}; it has {', '.join(TERMS)}",
              contract="Terms are named as analyses/cost/terms.py lists them.")
    )  # fmt: skip
