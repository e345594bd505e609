"""Files that several processes write: whole or not at all, and one writer at a time."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def replace(path: Path, data: bytes, *, mode: int | None = 0o644) -> None:
    """Write a file through a neighbour and a rename: a full disk or a crash leaves the old one whole.

    mode: its permissions; None keeps those of the file that is there. A link stays one, its target is replaced. The
    bytes are on disk before they are visible. Raises OSError.
    """
    target = path.resolve()
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(temporary, target.stat().st_mode & 0o777 if mode is None else mode)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def lock(handle: int, wait_s: float, each: Callable[[], None] = lambda: None) -> bool:
    """Take the exclusive flock of an open file or directory; False when it stays taken for `wait_s` seconds.

    The kernel releases it when the last descriptor of it is closed, however the holder ends. `each` is called between
    tries and may raise.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            each()
            time.sleep(0.05)
