"""Whole k-means iterations (assignment, update, greatest shift) of flash-kmeans and FlashLib through their public loops.

A `Lloyd` runs `iterations` of them from given centroids and returns (labels, centroids), torch tensors. tol is 0, for which
FlashLib's loops never wait for the device; flash-kmeans waits in every iteration, which is part of its call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corpus.baselines import registry

Iterate = Callable[[Any, Any, int], tuple[Any, Any]]


@dataclass(frozen=True)
class Lloyd:
    """A library's loop. run(x, c, iterations): x (B, N, D) and c (B, C, D) of one 16-bit type; c may be overwritten.

    assignment: the registered baseline of the same library, for its versions and for why it is unavailable.
    """

    name: str
    summary: str
    assignment: str
    run: Iterate

    def unavailable(self) -> str | None:
        """Why it cannot run here, or None."""
        return registry()[self.assignment].unavailable()

    def versions(self) -> dict[str, str]:
        """Versions of its packages."""
        return registry()[self.assignment].versions()


def _flash_kmeans(x: Any, c: Any, iterations: int) -> tuple[Any, Any]:
    from flash_kmeans.kmeans_triton_impl import batch_kmeans_Euclid

    labels, centroids, _ = batch_kmeans_Euclid(x, c.shape[1], max_iters=iterations, tol=0.0, init_centroids=c)
    return labels, centroids


def _flashlib(x: Any, c: Any, iterations: int) -> tuple[Any, Any]:
    from flashlib.primitives.kmeans.triton.kmeans import batch_kmeans_Euclid

    labels, centroids, _ = batch_kmeans_Euclid(x, c.shape[1], max_iters=iterations, tol=0.0, init_centroids=c)
    return labels, centroids


def flashlib_cute(assign: Callable[[Any, Any, Any, Any], None]) -> Iterate:
    """`flashlib.primitives.kmeans.cutedsl.cutedsl_kmeans_Euclid` around an assignment that was compiled beforehand.

    assign(x, c, c_sq, label) launches the CuTe DSL kernel. The rest is that function's: buffers made once a call, norms by
    torch in every iteration, FlashLib's Triton update, two centroid buffers in turn.
    """

    def run(x: Any, c: Any, iterations: int) -> tuple[Any, Any]:
        import torch
        from flashlib.primitives.kmeans.triton.update import triton_lloyd_centroid_step_euclid

        b, n, _ = x.shape
        count = c.shape[1]
        other = torch.empty_like(c)
        sums = torch.zeros(c.shape, device=x.device, dtype=torch.float32)
        counts = torch.zeros((b, count), device=x.device, dtype=torch.int32)
        shift = torch.empty((b, count), device=x.device, dtype=torch.float32)
        label = torch.empty((b, n), device=x.device, dtype=torch.int32)
        now, then = c, other
        for _ in range(iterations):
            assign(x, now, (now.float() ** 2).sum(-1), label)
            triton_lloyd_centroid_step_euclid(
                x, label, now, sums_buf=sums, cnts_buf=counts, new_buf=then, shift_buf=shift
            )
            now, then = then, now
        return label, now

    return run


LLOYD = (
    Lloyd("flash_kmeans", "flash_kmeans.kmeans_triton_impl.batch_kmeans_Euclid (Triton)", "flash_kmeans", _flash_kmeans),
    Lloyd("flashlib_triton", "flashlib.primitives.kmeans.triton.kmeans.batch_kmeans_Euclid (Triton)", "flashlib_triton", _flashlib),
)  # fmt: skip
