"""What holds for a whole run of pytest and its worker processes: one folder of compiled kernels (see tests.compiled), one thread each."""

from __future__ import annotations

import os
import tempfile

import pytest

# Before numpy is loaded: small products lose more to the spinning of a pool of threads than they gain, and workers fill the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tests.compiled import FOLDER


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers of xdist inherit the environment of the process that starts them
        folder = tempfile.TemporaryDirectory(prefix="cake-cubins-")
        os.environ[FOLDER] = folder.name
        config.add_cleanup(folder.cleanup)
