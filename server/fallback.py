"""Answers that need no workspace are given without one.

Verifying, estimating, compiling and checking read a program and compute. When the workspace cannot be opened or takes no
more writes, they run on a copy in memory, and the answer says that nothing is stored. What exists to be kept (programs
under ids, jobs, measurements, failures) answers storage/* instead, see `Store.require`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from server.errors import UnknownId
from server.results import Result, clean
from server.store import StoreError

if TYPE_CHECKING:
    from server.engine import Engine

_RECOVERABLE = ("storage/full", "storage/limit", "storage/unavailable")


def or_unstored(engine: Engine, work: Callable[[Engine], Result]) -> Result:
    """Do the work with the engine's store; when that fails, with a copy in memory. Raises what `work` raises."""
    problem = engine.store.problem
    try:
        result = work(engine)
    except StoreError as exc:
        if exc.code not in _RECOVERABLE or engine.store.read_only:
            raise
        problem = exc
        # Made afresh, since the workspace may have grown; kept, since the answer names artifacts in it.
        engine.twin = twin = type(engine)(replace(engine.config, read_only=True))
        result = work(twin)
    except UnknownId:
        # An id of a workspace that cannot be read is not an unknown id.
        if problem is not None:
            raise problem from None
        raise
    if problem is not None:
        result.summary += f"; nothing was stored ({problem.code}: {clean(problem.message, 160)})"
        result.next = problem.next
    return result
