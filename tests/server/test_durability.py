"""What was answered survives SIGKILL at any moment, and a reader never meets half of anything; the tool that measures it sees it fail."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from server.store import Store, digest
from tools import kill_store


def test_a_hundred_writers_killed_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    got = kill_store.kill_writers(tmp_path / "w", 100, seed=7)
    assert got.kills == 100 and got.stored > 100
    assert got.whole, got.to_json()


def test_servers_killed_while_they_answer_lose_no_answer(tmp_path: Path) -> None:
    got = kill_store.kill_servers(tmp_path / "w", 2, seed=7)
    assert got.kills == 2 and got.stored > 2
    assert got.whole, got.to_json()


def test_a_writer_that_answers_first_and_stores_later_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer_first(root: Path, seed: int, pipe: int) -> None:
        store = Store(root)
        for number in range(1000):
            name = f"{seed} {number}"
            said = ["build", digest("b", name), name, hashlib.sha256(b"x").hexdigest()]
            os.write(pipe, (json.dumps(said) + "\n").encode())
            time.sleep(0.005)
            kill_store.keep(store, "build", name, "x")

    Store(tmp_path / "w").close()
    monkeypatch.setattr(kill_store, "write_for_ever", answer_first)
    got = kill_store.kill_writers(tmp_path / "w", 12, seed=7)
    assert got.lost


def test_a_store_that_writes_in_place_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_place(self: Store, path: Path, raw: bytes) -> None:
        with path.open("wb") as out:
            for at in range(0, len(raw), 1000):
                out.write(raw[at : at + 1000])
                out.flush()
                time.sleep(0.001)

    def large(root: Path, seed: int, pipe: int) -> None:
        store = Store(root)
        for number in range(1000):
            kill_store.keep(store, "artifact", f"{seed} {number}", f"{number}" * kill_store.LARGE)

    monkeypatch.setattr(Store, "_write_file", in_place)
    monkeypatch.setattr(kill_store, "write_for_ever", large)
    got = kill_store.kill_writers(tmp_path / "w", 12, seed=7)
    assert got.half_written


def test_unfinished_files_of_the_dead_are_swept_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    Store(tmp_path).close()
    dead, living = tmp_path / "tmp" / "dead", tmp_path / "tmp" / "living"
    dead.write_bytes(b"half")
    with living.open("wb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        Store(tmp_path).close()
        assert not dead.exists() and living.exists()
    Store(tmp_path).close()
    assert not living.exists()


def test_a_file_swept_before_its_writer_had_locked_it_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    calls: list[Any] = []
    replace = os.replace

    def swept_once(source: str, to: Path) -> None:
        calls.append(source)
        if len(calls) == 1:
            os.unlink(source)
        replace(source, to)

    monkeypatch.setattr("server.store.os.replace", swept_once)
    artifact = store.put_artifact(digest("b", "x"), "log", "whole")
    assert artifact.bytes == 5 and store.artifact(digest("b", "x"), "log") == b"whole" and len(calls) == 2
    store.close()


def test_the_database_log_and_directory_entries_are_on_disk_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    assert store._one("PRAGMA synchronous")[0] == 2 and store._one("PRAGMA journal_mode")[0] == "wal"
    synced: list[str] = []
    fsync = os.fsync

    def note(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr("server.store.os.fsync", note)
    store.put_artifact(digest("b", "x"), "log", "text")
    sha = hashlib.sha256(b"text").hexdigest()
    objects = tmp_path / "objects"
    assert synced[0] == str(objects) and synced[1].startswith(str(tmp_path / "tmp"))
    assert synced[2:] == [str(objects / sha[:2])]
    store.close()
