"""How long the host waits for the device, and what was launched since it last answered.

A kernel that never ends keeps the waiting thread inside the driver, and freeing memory or closing a stream blocks there
as well, so the wait cannot simply be given up: a second thread sees that it takes too long and calls `expired`, which
ends the process. Nothing is polled on the waiting thread, so timed code pays two assignments.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TICK_S = 0.05
"""How often the second thread looks."""


class Patience:
    """Counts launches of our kernels and limits waits. Without `limit` every wait may take for ever.

    `pending`: symbols launched since the device last came to rest, in order. `done`: launches that came to their end
    since `begin`. Both only inform messages.
    """

    def __init__(self) -> None:
        self.pending: list[str] = []
        self.done = 0
        self._deadline: float | None = None
        self._limit_s: float | None = None

    def limit(self, seconds: float, expired: Callable[[], None]) -> None:
        """Call `expired` (once, on another thread) when one wait takes longer than `seconds`."""
        self._limit_s = seconds

        def watch() -> None:
            while True:
                time.sleep(TICK_S)
                deadline = self._deadline
                if deadline is not None and time.monotonic() > deadline:
                    expired()
                    return

        threading.Thread(target=watch, name="patience", daemon=True).start()

    def begin(self) -> None:
        """Count launches from here: a new case begins."""
        self.done = 0

    @contextmanager
    def waiting(self, settles: bool = True) -> Iterator[None]:
        """Around a call that blocks until the device has run what was launched; not settles: only some of it."""
        if self._limit_s is not None:
            self._deadline = time.monotonic() + self._limit_s
        try:
            yield
        finally:
            self._deadline = None
        if settles:
            self.done += len(self.pending)
            self.pending.clear()

    @contextmanager
    def recording(self) -> Iterator[list[str]]:
        """Around a graph capture: what the body launches is recorded, not run. The list is filled at the end."""
        kept, self.pending = self.pending, []
        recorded: list[str] = []
        try:
            yield recorded
        finally:
            recorded += self.pending
            self.pending = kept
