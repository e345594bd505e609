"""Processes and what they have started. Standard library only: the guard of every worker imports this first."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def descendants(pid: int) -> list[int]:
    """All live descendants of a process, children first, read from /proc (a grandchild may lead its own session)."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, IndexError, ValueError):
                stat = Path("/proc", entry, "stat").read_text()
                parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    out, todo = [], [pid]
    while todo:
        found = parents.get(todo.pop(), [])
        out += found
        todo += found
    return out


def kill_tree(pid: int) -> None:
    """SIGKILL a worker, its group and every descendant."""
    victims = descendants(pid)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for victim in victims:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(victim, signal.SIGKILL)


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends; leave at once if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(3)


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process (Linux), so that none escapes."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
