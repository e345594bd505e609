"""On a GPU with torch: updates are the means, k-means settles, on side streams and in graphs. Skipped elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from cake_mcp import kmeans, kmeans_update
from lowering.runtime.errors import available

torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not available(), reason="no GPU")]


def blobs(b: int, n: int, k: int, d: int) -> tuple[Any, Any]:
    """Points around k centres far apart, and those centres a little off."""
    torch.manual_seed(b + n + k + d)
    centres = 8 * torch.randn(b, k, d, device="cuda")
    which = torch.randint(k, (b, n, 1), device="cuda").expand(-1, -1, d)
    x = centres.gather(1, which) + torch.randn(b, n, d, device="cuda")
    return x.bfloat16(), (centres + 0.3).bfloat16()


@pytest.mark.parametrize("shape", [(2, 3000, 30, 128), (1, 200000, 700, 64), (1, 300, 5, 20), (3, 150000, 2500, 16)])
def test_updates_are_the_means(shape: tuple[int, int, int, int]) -> None:
    """Both ways to the sums (few and many points), several slices, padding; labels of nobody among them."""
    x, c = blobs(*shape)
    b, n, k, d = shape
    labels = torch.randint(-1, k + 1, (b, n), device="cuda").int()
    mean, size, shift = kmeans_update(x, labels, c)
    to = torch.where((labels >= 0) & (labels < k), labels.long(), k)
    count = torch.zeros(b, k + 1, device="cuda", dtype=torch.int64).scatter_add_(1, to, torch.ones_like(to))[:, :k]
    total = torch.zeros(b, k + 1, d, device="cuda", dtype=torch.float64)
    total.scatter_add_(1, to[..., None].expand(-1, -1, d), x.double())
    exact = torch.where(count[..., None] > 0, total[:, :k] / count.clamp(min=1)[..., None], c.double())
    assert (size == count).all()
    assert ((mean.double() - exact).abs() <= 2**-8 * exact.abs() + 1e-3).all()
    gap = (mean.double() - c.double()).norm(dim=-1).amax(-1)
    assert torch.allclose(shift.double(), gap, rtol=1e-5)


def test_every_problem_settles_on_its_own_clusters() -> None:
    x, c = blobs(3, 4000, 20, 64)
    found = kmeans(x, init=c, tol=0.0)
    assert isinstance(found.n_iter, tuple)
    assert max(found.n_iter) < 100 and (found.shift == 0).all()
    distance = torch.cdist(x.double(), found.centroids.double())
    mine = distance.gather(2, found.labels.long()[..., None])[..., 0]
    assert (mine <= distance.min(-1).values * (1 + 2**-9)).all()
    assert torch.allclose(found.inertia.double(), (mine**2).sum(-1), rtol=1e-4)
    one = kmeans(x[1], init=c[1], tol=0.0)
    assert (one.labels == found.labels[1]).all() and one.n_iter == found.n_iter[1]


def test_side_streams_and_graphs() -> None:
    x, c = blobs(2, 3000, 30, 128)
    expected = kmeans(x, init=c, max_iter=3, tol=-1.0)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    there = kmeans(x, init=c, max_iter=3, tol=-1.0, stream=side)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kmeans(x, init=c, max_iter=3, tol=-1.0)
    graph.replay()
    torch.cuda.synchronize()
    for got in (there, captured):
        # sums are added in no fixed order: a rare point between two centroids may fall either way
        assert (got.labels == expected.labels).float().mean() > 0.999


def test_other_types_are_rounded_and_padded() -> None:
    x, _ = blobs(1, 500, 4, 13)
    found = kmeans(x[0].float(), 4, seed=1)
    assert found.centroids.dtype == torch.bfloat16 and found.centroids.shape == (4, 13) and found.labels.shape == (500,)
