"""A limit on the computation that one program may ask of the server's own threads.

Parsing, binding and verifying are pure Python in the server process, so that they answer in milliseconds. A hostile or
unlucky program could keep them busy for hours. The watchdog measures the CPU time of the working thread (not the wall
clock: a loaded machine is not the program's fault) and raises an exception inside it.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from server.errors import EngineError

POLL_S = 0.2


class _TimeUp(BaseException):
    """Raised inside the working thread; no `except Exception` on the way stops it."""


class TooComplex(EngineError):
    """The program needs more computation than the server spends on one."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(
            "program/too-complex",
            f"{what} this program took more than {seconds:g} s of computation and was ended",
            "make it smaller: shorter `unroll` loops, fewer nested loops, or several kernels",
        )


@contextmanager
def computation_limit(what: str, seconds: float) -> Iterator[None]:
    """End the block after `seconds` of this thread's CPU time. Raises TooComplex, also when memory runs out."""
    ident = threading.get_ident()
    clock = time.pthread_getcpuclockid(ident)
    lock, over, fired = threading.Lock(), threading.Event(), threading.Event()
    end = time.clock_gettime(clock) + seconds

    def watch() -> None:
        while not over.wait(POLL_S):
            with lock:
                if over.is_set():
                    return
                if time.clock_gettime(clock) > end:
                    fired.set()
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(_TimeUp))
                    return

    watcher = threading.Thread(target=watch, name="computation-limit", daemon=True)
    watcher.start()
    try:
        try:
            yield
        finally:
            with lock:
                over.set()
            if fired.is_set():
                # The exception may still be on its way; it must not arrive in unrelated work.
                time.sleep(POLL_S)
    except (_TimeUp, MemoryError, RecursionError):
        raise TooComplex(what, seconds) from None
