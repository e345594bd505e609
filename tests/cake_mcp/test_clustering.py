"""k-means through the interpreter: the same labels as scikit-learn, convergence problem by problem, and what is refused."""

from __future__ import annotations

import base64
import functools
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import structlog

from cake_mcp import CakeError, compiled, operation
from cake_mcp import clustering as K
from cake_mcp.clustering import kmeans, kmeans_update
from corpus.recipes import table_text, untuned
from lowering.cache import CubinCache
from tests.cake_mcp.fake_cuda import PRIMARY
from tests.cake_mcp.interpreted import CopyingCuda, module_of
from tools import kmeans_agreement

BF16 = np.dtype(ml_dtypes.bfloat16)
AGREE = json.loads((Path(__file__).parents[1] / "data" / "kmeans_sklearn.json").read_text())
DIMS = ("B", "N", "C", "D")


@functools.cache
def tables() -> dict[str, Any]:
    assign = untuned("kmeans_assign", "sm_90a", DIMS, [("kmeans_assign", {}, "bf16")])
    norms = untuned("row_norms", "sm_90a", ("M", "D"), [("row_norms", {}, "bf16")])
    update = untuned("kmeans_update", "sm_90a", DIMS, [("kmeans_update_direct", {}, "bf16")])
    inertia = untuned("kmeans_inertia", "sm_90a", DIMS, [("kmeans_inertia", {}, "bf16")])
    return {"kmeans_assign": assign, "row_norms": norms, "kmeans_update": update, "kmeans_inertia": inertia}


@pytest.fixture
def cu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, cupy: Any) -> Iterator[CopyingCuda]:
    """A played GPU whose launches are interpreted; `.calls` lists them."""
    cu = CopyingCuda()
    cu.stack.append(PRIMARY)
    monkeypatch.setattr(operation, "libcuda", lambda: cu)
    for name in ("_adapters", "_gpus"):
        monkeypatch.setattr(operation, name, {})
    monkeypatch.setattr("cake_mcp.watch._kept", {})
    monkeypatch.setenv("CAKE_TABLES_DIR", str(tmp_path))
    monkeypatch.setenv("CAKE_CACHE_DIR", str(tmp_path / "cubins"))
    store = CubinCache(tmp_path / "cubins")
    for name, table in tables().items():
        (tmp_path / f"{name}.sm_90a.json").write_bytes(table_text(table))
        for variant in table.variants.values():
            for key in variant.cubin_keys:
                store.put(key, {"cubin": base64.b64encode(key.encode()).decode()})
    compiled.table.cache_clear()
    for op in (K.ASSIGN, K.UPDATE, K.INERTIA):
        monkeypatch.setattr(op, "_known", {})
    cu.calls = module_of(monkeypatch, BF16).calls  # type: ignore[attr-defined]
    yield cu
    compiled.table.cache_clear()


def blobs(b: int = 1, n: int = 60, k: int = 3, d: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points around k far centres, and those centres a little off, in bf16."""
    r = np.random.default_rng(seed)
    centres = r.permutation(np.arange(k * d) % 7).reshape(k, d) * 4.0
    x = centres[r.integers(k, size=(b, n))] + r.standard_normal((b, n, d))
    return x.astype(BF16), np.broadcast_to(centres + 0.5, (b, k, d)).astype(BF16)


def lloyd(x: np.ndarray, c: np.ndarray, rounds: int, tol: float) -> tuple[np.ndarray, np.ndarray, int]:
    """One problem in float64 with centroids rounded to bf16: (centroids, labels, updates)."""
    x, c, done = x.astype(np.float64), c.astype(np.float64), rounds
    for i in range(rounds):
        label = ((x[:, None] - c) ** 2).sum(-1).argmin(-1)
        new = np.stack([x[label == k].mean(0) if (label == k).any() else c[k] for k in range(len(c))])
        new = new.astype(BF16).astype(np.float64)
        moved, c = np.sqrt(((new - c) ** 2).sum(-1)).max(), new
        if moved <= tol:
            done = i + 1
            break
    return c, ((x[:, None] - c) ** 2).sum(-1).argmin(-1), done


@pytest.mark.parametrize("case", AGREE["cases"], ids=lambda c: f"{c['name']}-{c['k']}")
def test_the_labels_of_scikit_learn(cu: CopyingCuda, cupy: Any, case: dict[str, Any]) -> None:
    """The numbers of iris and wine, and what scikit-learn made of them from the same start (`tools.kmeans_agreement prepare`)."""
    x, start = kmeans_agreement.unpack(case["x"]), kmeans_agreement.unpack(case["start"])
    with structlog.testing.capture_logs() as logs:
        ours = kmeans(cupy.array(x), init=cupy.array(start), tol=0.0)
    assert [e["how"] for e in logs] == ["pad"]  # 4 and 13 features
    assert ours.centroids.shape == start.shape and ours.centroids.dtype == BF16
    found = kmeans_agreement.compare(case, np.asarray(ours.labels), np.asarray(ours.centroids))
    # Centroids are rounded to bf16 after every update; a point that is nearly a tie may fall to the other side.
    assert found["differ"] <= len(x) // 50 and found["margin_ours"] < 2.0**-6, found
    assert found["not_nearest"] == 0
    assert float(ours.inertia) == pytest.approx(found["inertia"], rel=1e-5)
    assert float(ours.inertia) == pytest.approx(case["inertia"], rel=2e-3)


def test_problems_of_a_batch_converge_for_themselves(cu: CopyingCuda, cupy: Any) -> None:
    x, c = blobs(b=2)
    x[1] = np.random.default_rng(5).standard_normal(x[1].shape).astype(BF16)  # no clusters: takes longer
    c[1] = x[1][:3]
    got = kmeans(cupy.array(x), init=cupy.array(c), max_iter=20, tol=0.0)
    for b in range(2):
        centroids, labels, n_iter = lloyd(x[b], c[b], 20, 0.0)
        assert np.array_equal(np.asarray(got.centroids[b], np.float64), centroids)
        assert np.array_equal(got.labels[b], labels)
        assert got.n_iter[b] == n_iter  # type: ignore[index]
        inside = ((x[b].astype(np.float64) - centroids[labels]) ** 2).sum()
        assert float(got.inertia[b]) == pytest.approx(inside, rel=1e-5)
    assert got.n_iter[0] < got.n_iter[1]  # type: ignore[index]


def test_the_host_waits_for_iterations_that_lie_behind(cu: CopyingCuda, cupy: Any) -> None:
    x, c = blobs()
    got = kmeans(cupy.array(x[0]), init=cupy.array(c[0]), max_iter=50, tol=0.0)
    updates = [name for name, _ in cu.calls].count("kmeans_update_direct")  # type: ignore[attr-defined]
    assert isinstance(got.n_iter, int) and updates == got.n_iter + K.AHEAD
    # While iterations go on, the event waited for is two behind the last one recorded; then the rest is drained.
    assert cu.waited[: -K.AHEAD] == list(range(K.AHEAD + 1, updates + 1))
    # The last assignment began with what had converged: it is not repeated.
    assert [name for name, _ in cu.calls][-1] == "kmeans_inertia"  # type: ignore[attr-defined]
    assert [name for name, _ in cu.calls].count("kmeans_assign") == updates  # type: ignore[attr-defined]


def test_a_negative_tolerance_never_waits(cu: CopyingCuda, cupy: Any) -> None:
    x, c = blobs()
    got = kmeans(cupy.array(x[0]), init=cupy.array(c[0]), max_iter=4, tol=-1.0)
    assert cu.waited == [] and cu.pinned == [] and got.n_iter == 4  # nothing that a graph capture forbids
    assert np.array_equal(got.labels, lloyd(x[0], c[0], 4, -1.0)[1])
    none = kmeans(cupy.array(x[0]), init=cupy.array(c[0]), max_iter=0)
    assert none.n_iter == 0 and np.array_equal(np.asarray(none.centroids), c[0])


def test_host_and_device_agree_on_a_tolerance_that_f32_rounds_up(cu: CopyingCuda, cupy: Any) -> None:
    x = np.zeros((4, 8), BF16)
    x[:, 0] = 0.30078125
    got = kmeans(cupy.array(x), init=cupy.array(np.zeros((1, 8), BF16)), max_iter=9, tol=0.30078125 - 1e-9)
    assert float(got.shift) == 0.30078125 and got.n_iter == 1


def test_random_starts_follow_the_seed_and_are_points(cu: CopyingCuda, cupy: Any) -> None:
    x = cupy.array(blobs(b=2)[0])
    first, again, other = (kmeans(x, 4, seed=s, max_iter=0).centroids for s in (7, 7, 8))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    for b in range(2):
        rows = {r.tobytes() for r in np.asarray(x[b])}
        assert len({r.tobytes() for r in np.asarray(first[b])} & rows) == 4


def test_a_cluster_without_points_and_points_without_cluster(cu: CopyingCuda, cupy: Any) -> None:
    x, c = blobs()
    labels = np.zeros(60, np.int32)
    labels[:5] = (-1, 3, 1000, -(2**31), 2**31 - 1)
    mean, size, shift = kmeans_update(cupy.array(x[0]), cupy.array(labels), cupy.array(c[0]))
    exact = x[0][5:].astype(np.float64).mean(0)
    assert np.allclose(np.asarray(mean[0], np.float64), exact, rtol=2**-8, atol=1e-3)
    assert np.array_equal(np.asarray(mean[1:]), c[0][1:]) and list(size) == [55, 0, 0]
    gap = np.asarray(mean, np.float64) - c[0].astype(np.float64)
    assert float(shift) == pytest.approx(np.sqrt((gap**2).sum(-1)).max(), rel=1e-5)


def test_other_types_and_layouts_are_named_or_refused(cu: CopyingCuda, cupy: Any) -> None:
    x, c = blobs()
    turned = cupy.array(np.asarray(x[0]).T.copy()).T
    with structlog.testing.capture_logs() as logs:
        kmeans(turned, init=cupy.array(c[0]), max_iter=1)
    assert [e["how"] for e in logs] == ["copy"]
    for bad in (turned, cupy.array(x[0].astype(np.float32)), cupy.array(np.ascontiguousarray(x[0][:, :6]))):
        with pytest.raises(CakeError, match="strict") as caught:
            kmeans(bad, 3, strict=True)
        assert caught.value.diagnostic.rule == "dispatch/strict"


def test_what_is_wrong_is_said(cu: CopyingCuda, cupy: Any) -> None:
    x, c = blobs()
    points, start = cupy.array(x[0]), cupy.array(c[0])
    for call, rule in (
        (lambda: kmeans(points), "bad-argument"),
        (lambda: kmeans(points, 61), "bad-argument"),
        (lambda: kmeans(points, 4, init=start), "bad-argument"),
        (lambda: kmeans(points, 3, init="best"), "bad-argument"),
        (lambda: kmeans(points, 3, max_iter=-1), "bad-argument"),
        (lambda: kmeans(points, 3, tol=float("nan")), "bad-argument"),
        (lambda: kmeans(points, init=cupy.array(c)), "rank-mismatch"),
        (lambda: kmeans(points, init=cupy.array(np.ascontiguousarray(c[0][:, :4]))), "extent-mismatch"),
        (lambda: kmeans(points[0], 3), "rank-mismatch"),
        (lambda: kmeans(cupy.array(np.zeros((9, 8), np.int32)), 3), "dtype-mismatch"),
        (lambda: kmeans([1.0], 3), "not-an-array"),
    ):
        with pytest.raises(CakeError) as caught:
            call()
        assert caught.value.diagnostic.rule == f"dispatch/{rule}", caught.value


def test_a_broken_context_is_reported_and_its_memory_is_not_kept(cu: CopyingCuda, cupy: Any) -> None:
    from cake_mcp import watch

    x, c = blobs()
    cu.fail["cuEventSynchronize"] = 700
    with pytest.raises(CakeError) as caught:
        kmeans(cupy.array(x[0]), init=cupy.array(c[0]))
    assert caught.value.diagnostic.rule == "lowering/device-fault" and not watch._kept.get(0)


def test_the_example_of_the_page_runs(cu: CopyingCuda, cupy: Any, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "python-api.md").read_text(encoding="utf-8")
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "import kmeans\n" in b)
    path = tmp_path / "example.py"
    path.write_text(block)
    found = runpy.run_path(str(path), {"x": cupy.array(blobs(b=2)[0])})["found"]
    assert found.centroids.shape == (2, 16, 8) and found.labels.shape == (2, 60) and len(found.n_iter) == 2
    assert found.inertia.shape == found.shift.shape == (2,)
