"""Entry of every worker: a guard that outlives nothing, and the one allowed module in a child of it.

Started as `python -m server.guard MODULE PARENT_PID`. The guard waits. When its parent ends, however it ends, or the
module's process does, it kills everything that the module has started (a profiler, a sanitizer, a compiler, in whatever
session) and ends as the module ended. Set up in the child itself, not by a pre-exec hook, which is unsafe in a threaded
parent: parent-death signals, address-space and file-size limits.
"""

from __future__ import annotations

import os
import resource
import runpy
import signal
import sys
import time
from contextlib import suppress
from typing import NoReturn

from server.processes import adopt_orphans, descendants, end_with_parent

ALLOWED = ("server.cpu_main", "corpus.gpu_main", "corpus.tuning.run")
EXIT_S = 15.0
"""Seconds that killed processes may take to end: one may hang inside a driver, and then nothing more can be done."""
WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


def lower(kind: int, wanted: int) -> None:
    """Set a limit, soft and hard, to at most `wanted`; one that is lower already (`ulimit`) stays."""
    hard = resource.getrlimit(kind)[1]
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (value, value))


def limit(module: str) -> None:
    """The limits of a worker process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if module == "server.cpu_main":
        # A GPU process maps far more address space than it uses, so only the CPU worker gets these limits.
        lower(resource.RLIMIT_AS, 24 * 2**30)
        lower(resource.RLIMIT_FSIZE, 2**30)
    else:
        # The server bounds its own address space; a CUDA context needs far more of it.
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def watch(child: int) -> NoReturn:
    """Wait for the child or for a signal to end; leave no process behind; end as the child did."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # the pipes are the child's: their ends must be seen when it ends
        os.dup2(nowhere, stream)
    status = None
    while status is None:
        if signal.sigwait(WATCHED) != signal.SIGCHLD:
            break
        status = reap(child)
    until = time.monotonic() + EXIT_S
    while (found := descendants(os.getpid())) and time.monotonic() < until:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended = reap(child)
        status = ended if status is None else status
        time.sleep(0.002)
    if status is None or os.WIFSIGNALED(status):
        number = signal.SIGKILL if status is None else os.WTERMSIG(status)
        with suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if status is not None else 1)


def reap(child: int) -> int | None:
    """Collect what has ended; the wait status of `child` if it was among them."""
    status = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = ended[1] if ended[0] == child else status
    return status


def main(argv: list[str]) -> None:
    if len(argv) != 3 or argv[1] not in ALLOWED or not argv[2].isdigit():
        print("usage: python -m server.guard MODULE PARENT_PID", file=sys.stderr)
        raise SystemExit(2)
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    end_with_parent(int(argv[2]), signal.SIGTERM)
    adopt_orphans()
    guard = os.getpid()
    child = os.fork()
    if child:
        watch(child)
    end_with_parent(guard)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    limit(argv[1])
    sys.argv = [argv[1]]
    runpy.run_module(argv[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv)
