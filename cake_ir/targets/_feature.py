"""The record behind a feature name (kept apart so that the table of features needs nothing else)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """An instruction family that a target has or has not.

    `probe` is PTX (the body of one `{ ... }` block) that the assembler accepts exactly on `targets`.
    """

    name: str
    meaning: str
    source: str
    targets: frozenset[str]
    probe: str
    note: str = ""
