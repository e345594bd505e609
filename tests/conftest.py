"""What holds for a whole run of pytest and its worker processes: one folder of compiled kernels (see tests.compiled), one thread each."""

from __future__ import annotations

import os
import tempfile

import pytest

# Before numpy is loaded: small products lose more to the spinning of a pool of threads than they gain, and workers fill the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tests.compiled import FOLDER

LONG = (
    "tests/test_corpus_kernels.py",
    "tests/e2e/test_repair.py",
    "tests/corpus/test_rebuild.py",
    "tests/test_sketches.py",
    "tests/lowering/emulation/test_emulation.py",
    "tests/lowering/test_marks.py",
    "tests/server/report/test_browser.py",
    "tests/mutation/test_mutation_sample.py",
    "tests/server/test_demo.py",
    "tests/server/test_orphans.py",
    "tests/server/test_stdio.py",
    "tests/server/test_durability.py",
    "tests/server/test_gpu_path.py",
    "tests/server/test_http.py",
)
"""The longest files, which begin first: one that began last would leave the other cores idle (a file stays with one worker)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {file: n for n, file in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.location[0], len(LONG)))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers of xdist inherit the environment of the process that starts them
        folder = tempfile.TemporaryDirectory(prefix="cake-cubins-")
        os.environ[FOLDER] = folder.name
        config.add_cleanup(folder.cleanup)
