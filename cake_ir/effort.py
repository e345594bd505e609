"""Work done by this thread, in steps: what bounds searches instead of time, so that a slow or busy machine gives the same answer.

A step is one event or loop round of a run, eight steps of a rehearsal, or one token read: about fifteen microseconds with all
that follows from it.
"""

from __future__ import annotations

import threading


class _Count(threading.local):
    steps = 0


_done = _Count()


def spend(steps: int) -> None:
    """Adds work."""
    _done.steps += steps


def spent() -> int:
    """Steps of this thread since it began; differences are what counts."""
    return _done.steps
