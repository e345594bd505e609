"""Files are replaced whole, and locked by one at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corpus import files


def test_a_file_is_replaced_whole_and_keeps_its_permissions_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    files.replace(path, b"one")
    assert path.read_bytes() == b"one" and path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o600)
    files.replace(path, b"two", mode=None)
    assert path.read_bytes() == b"two" and path.stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.replace(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files.replace(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"


def test_a_lock_is_waited_for_and_the_wait_may_be_given_up(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    assert files.lock(first, 0.0) and not files.lock(second, 0.1)

    def enough() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        files.lock(second, 10.0, enough)
    os.close(first)
    assert files.lock(second, 0.0)
    os.close(second)
