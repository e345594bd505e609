"""A played GPU with tables and cubins, so that calls run to their launches."""

from __future__ import annotations

import base64
import functools
from pathlib import Path
from typing import Any

import pytest

from cake_mcp import compiled, operation
from corpus import routes
from corpus.recipes import table_text, untuned
from corpus.routes import Table
from lowering.cache import CubinCache
from tests.cake_mcp import played
from tests.cake_mcp.fake_cuda import PRIMARY, FakeCuda


@functools.cache
def tables() -> dict[str, Table]:
    """Untuned tables: what the tuner writes has routes as well."""
    assign = ("B", "N", "C", "D")
    return {
        "kmeans_assign": untuned("kmeans_assign", "sm_90a", assign, [("kmeans_packed", {"DP": 128}, "bf16")]),
        "row_norms": untuned(
            "row_norms", "sm_90a", ("M", "D"), [("row_norms", {}, "bf16"), ("row_norms", {"DT": "f16"}, "f16")]
        ),
        "gemm": untuned("gemm", "sm_90a", ("M", "N", "K"), [("gemm_sm90", {}, "bf16")]),
    }


@pytest.fixture
def cu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCuda:
    """The played driver behind `cake_mcp`; every variant's cubin is in the cache, made of its key."""
    cu = FakeCuda()
    cu.parameters = {"kmeans_packed": 7, "row_norms": 4, "gemm_sm90": 6}
    cu.stack.append(PRIMARY)
    monkeypatch.setattr(operation, "libcuda", lambda: cu)
    monkeypatch.setattr(operation, "_adapters", {})
    monkeypatch.setattr(operation, "_gpus", {})
    monkeypatch.setattr(routes, "DIRECTORY", tmp_path / "shipped")  # the committed tables change as they are tuned
    monkeypatch.setenv("CAKE_TABLES_DIR", str(tmp_path / "tables"))
    monkeypatch.setenv("CAKE_CACHE_DIR", str(tmp_path / "cubins"))
    (tmp_path / "tables").mkdir()
    store = CubinCache(tmp_path / "cubins")
    for name, table in tables().items():
        (tmp_path / "tables" / f"{name}.sm_90a.json").write_bytes(table_text(table))
        for v in table.variants.values():
            for key in v.cubin_keys:
                store.put(key, {"cubin": base64.b64encode(key.encode()).decode()})
    compiled.table.cache_clear()
    from cake_mcp.assign import ASSIGN
    from cake_mcp.products import GEMM

    for op in (ASSIGN, GEMM):
        monkeypatch.setattr(op, "_known", {})
        monkeypatch.setattr(op, "quick", operation._no_quick)
        monkeypatch.setattr(op, "_others", {})
    yield cu
    compiled.table.cache_clear()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    return played.torch(monkeypatch)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    return played.cupy(monkeypatch)
