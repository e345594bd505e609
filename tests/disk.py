"""Engines in tests do not wait for the disk."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

import pytest


class _Unsynced(sqlite3.Connection):
    """A connection that leaves it to the system when its pages reach the disk, whatever it is asked."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.execute("PRAGMA synchronous = OFF")

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        return super().execute("PRAGMA synchronous = OFF" if sql.startswith("PRAGMA synchronous =") else sql, *args)


def unsynced(patch: pytest.MonkeyPatch) -> None:
    """Until the patch is undone nothing in this process waits for the disk: opening a store alone takes 60 ms for it. That what is
    answered is on the disk is tested with `Store` itself and with servers that are killed (tests/server/test_durability.py)."""
    connect = sqlite3.connect
    patch.setattr(sqlite3, "connect", lambda *args, **more: connect(*args, factory=_Unsynced, **more))
    patch.setattr(os, "fsync", lambda handle: None)
