"""The small family is known while its tests run, and timing is played."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from corpus.tuning import run
from lowering.runtime import bench
from tests.corpus.tuning import small
from tests.corpus.tuning.played import Played, Times

Start = Callable[..., tuple[Path, Path, Played]]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """(campaign folder, journal, played GPU) for made-up times."""

    def start(times: Times, noise: float = 0.002) -> tuple[Path, Path, Played]:
        directory = tmp_path / "campaign"
        gpu = Played(small.make(directory), times, noise)
        monkeypatch.setattr(run, "family", lambda name: small.FAMILY)
        monkeypatch.setattr(bench, "bench", gpu.bench)
        return directory, tmp_path / "journal.jsonl", gpu

    return start
