"""Kernels, workload contracts, evaluation and evidence.

The names of docs/architecture.md are functions here, loaded on first use. `kernels` and `contracts` are also submodules: the
functions win.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cake_ir.facade import lazy

if TYPE_CHECKING:
    from corpus.check import check_cpu
    from corpus.contract import contracts
    from corpus.evidence import results
    from corpus.kernels import kernels

__all__ = ["check_cpu", "contracts", "kernels", "results"]

lazy(
    __name__,
    {
        "check_cpu": "corpus.check",
        "contracts": "corpus.contract",
        "kernels": "corpus.kernels",
        "results": "corpus.evidence",
    },
)
