"""Entry of every worker process: ask the kernel to end us with our parent, then run one allowed module.

Started as `python -m server.guard MODULE`. Set up in the child itself (not by a pre-exec hook, which is unsafe in a
threaded parent): parent-death signal, own session for group kills, address-space and file-size limits.
"""

from __future__ import annotations

import ctypes
import os
import resource
import runpy
import signal
import sys

ALLOWED = ("server.cpu_main", "corpus.gpu_main")
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """SIGKILL this process when its parent ends; leave at once if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(3)


def lower(kind: int, wanted: int) -> None:
    """Set a limit, soft and hard, to at most `wanted`; one that is lower already (`ulimit`) stays."""
    hard = resource.getrlimit(kind)[1]
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (value, value))


def main(argv: list[str]) -> None:
    if len(argv) != 3 or argv[1] not in ALLOWED or not argv[2].isdigit():
        print("usage: python -m server.guard MODULE PARENT_PID", file=sys.stderr)
        raise SystemExit(2)
    die_with_parent(int(argv[2]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if argv[1] == "server.cpu_main":
        # A GPU process maps far more address space than it uses, so only the CPU worker gets these limits.
        lower(resource.RLIMIT_AS, 24 * 2**30)
        lower(resource.RLIMIT_FSIZE, 2**30)
    else:
        # The server bounds its own address space; a CUDA context needs far more of it.
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    sys.argv = [argv[1]]
    runpy.run_module(argv[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv)
