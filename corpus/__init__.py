"""Kernels, workload contracts, evaluation and evidence.

The names of docs/architecture.md are functions here. `kernels` and `contracts` are also submodules: those are loaded
first, so that the functions win. numpy is imported only when a function needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import corpus.contracts
import corpus.kernels  # noqa: F401 - see above

if TYPE_CHECKING:
    from corpus.contract import Contract
    from corpus.evidence import ResultRow
    from corpus.kernels import CorpusKernel

__all__ = ["check_cpu", "contracts", "kernels", "results"]


def kernels() -> list[CorpusKernel]:
    """All corpus kernels; see corpus/kernels.py."""
    from corpus.kernels import kernels as read

    return read()


def contracts(extra_dir: str | Path | None = None) -> dict[str, Contract]:
    """Contracts by name, those of an operator's directory included; see corpus/contract.py."""
    from corpus.contract import contracts as read

    return read(extra_dir)


def results() -> list[ResultRow]:
    """The committed measurements; see corpus/evidence.py."""
    from corpus.evidence import results as read

    return read()


def check_cpu(*args: Any, **kwargs: Any) -> Any:
    """Check a kernel by interpretation; see corpus/check.py."""
    from corpus.check import check_cpu as run

    return run(*args, **kwargs)
