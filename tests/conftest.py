"""One folder of compiled kernels per run of pytest, shared by its worker processes (see tests.compiled)."""

from __future__ import annotations

import os
import tempfile

import pytest

from tests.compiled import FOLDER


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers of xdist inherit the environment of the process that starts them
        folder = tempfile.TemporaryDirectory(prefix="cake-cubins-")
        os.environ[FOLDER] = folder.name
        config.add_cleanup(folder.cleanup)
