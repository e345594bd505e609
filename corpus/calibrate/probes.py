"""All that is measured. A rate is added to the family it belongs to, its program to `corpus/microbenchmarks/`.

| module | rates |
| --- | --- |
| `compute` | `tensor.*`, `behind.*`, `issue.*`, `reduce.*`, `clock.under.*`, latencies of instructions |
| `storage` | `smem.*`, `tma.*`, `l2.*`, `hbm.*`, `flight.*`, latencies of loads |
| `control` | `barrier.*`, `launch.*`, `cluster.*` |
"""

from __future__ import annotations

from corpus.calibrate.compute import compute
from corpus.calibrate.control import control
from corpus.calibrate.probe import Probe
from corpus.calibrate.storage import storage


def probes() -> tuple[Probe, ...]:
    """All probes. Rates are distinct."""
    return (*compute(), *storage(), *control())
