"""Fewer runs of Python's garbage collector during short computations that allocate much.

A verification makes tens of thousands of objects that live to its end, so the collector runs often and finds nothing; each of
its full runs also walks all that the process holds, some 80 ms in a server, which showed as every fourth millisecond of
verifying. The limit on memory stays: after `YOUNG` new objects it runs as ever.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

YOUNG = 100_000
"""Objects, about ten megabytes, between two runs over the new ones."""
OLDER = 20
"""Such runs between two over those that outlived one."""

_lock = threading.Lock()
_inside = 0
_usual = gc.get_threshold()


def seldom_collected(f: Callable[P, T]) -> Callable[P, T]:
    """`f`, during which the collector runs less often. Calls may nest and overlap in threads; the last to end restores the
    process's thresholds. A process that has turned the collector off, or set it to run more seldom, keeps what it has."""

    @wraps(f)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        global _inside, _usual
        with _lock:
            if not _inside:
                _usual = gc.get_threshold()
                if 0 < _usual[0] < YOUNG:
                    gc.set_threshold(YOUNG, OLDER, _usual[2])
            _inside += 1
        try:
            return f(*args, **kwargs)
        finally:
            with _lock:
                _inside -= 1
                if not _inside:
                    gc.set_threshold(*_usual)

    return run
