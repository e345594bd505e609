"""On a GPU with torch: labels and products are right, on side streams and in graphs. Skipped elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from cake_mcp import gemm, kmeans_assign
from lowering.runtime.errors import available

torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not available(), reason="no GPU")]


def points(b: int, n: int, k: int, d: int) -> tuple[Any, Any]:
    torch.manual_seed(b + n + k + d)
    x = torch.randn(b, n, d, device="cuda", dtype=torch.bfloat16)
    return x, torch.randn(b, k, d, device="cuda", dtype=torch.bfloat16)


def worst(x: Any, c: Any, labels: Any) -> float:
    """By how much a chosen centroid's score is above the least."""
    x, c = x.double(), c.double()
    score = (c * c).sum(-1)[:, None, :] - 2 * x @ c.transpose(1, 2)
    return float((score.gather(2, labels.long()[..., None])[..., 0] - score.min(-1).values).max())


@pytest.mark.parametrize("shape", [(2, 3000, 300, 128), (1, 129, 5, 64), (3, 500, 100, 60)])
def test_labels_are_nearest(shape: tuple[int, int, int, int]) -> None:
    x, c = points(*shape)
    assert worst(x, c, kmeans_assign(x, c)) < 1e-2
    assert worst(x, c, kmeans_assign(x, c, c_sq=(c.float() ** 2).sum(-1))) < 1e-2


def test_a_graph_replays_what_was_captured_in_it() -> None:
    x, c = points(2, 3000, 300, 128)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        labels = kmeans_assign(x, c)
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert (labels == kmeans_assign(x, c)).all()


def test_a_side_stream_is_followed() -> None:
    x, c = points(2, 3000, 300, 128)
    expected = kmeans_assign(x, c)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.randn(8192, 8192, device="cuda").square_()
        labels = kmeans_assign(x, c)
    side.synchronize()
    assert (labels == expected).all() and (kmeans_assign(x, c, stream=side) == expected).all()


def test_products() -> None:
    a = torch.randn(300, 512, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(1024, 512, device="cuda", dtype=torch.bfloat16)
    exact = a.double() @ w.double().T
    for b in (w.T, w.T.contiguous()):
        assert float((gemm(a, b).double() - exact).abs().max()) < 0.5
