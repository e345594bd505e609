"""Fixtures of evidence that costs a compile: made once per session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bundle that the self-test wrote for rmsnorm over the played GPU."""
    from server import selftest
    from server.worker import Control
    from tests.corpus import played_gpu

    folder = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selftest, "run_worker", played_gpu.PlayedGpu())
        done = selftest.run(
            0, folder / "b.zip", Control(), only=["rmsnorm"], quick=True, command="cake selftest --quick"
        )
    assert [(p.entry.name, p.entry.status) for p in done.parts] == [
        ("rmsnorm-check", "passed"),
        ("rmsnorm-bench", "passed"),
    ]
    yield folder / "b.zip"
