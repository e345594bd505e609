"""k-means assignment: for every point the index of the nearest centroid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cake_ir.fault import fault
from cake_mcp.arrays import Adapter, Torch
from cake_mcp.operation import Made, Operation, Spec

_SCORES_AT_ONCE = 1 << 26
"""Elements of the score matrix that the library fallback holds: 256 MiB of f32."""


def _library(lead: Adapter, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
    """The argmin of f32 scores by the caller's library, some rows at a time."""
    x, c, c_sq = arrays["x"], arrays["c"], arrays["c_sq"]
    if not c.shape[-2]:
        raise fault("dispatch/bad-argument", "c has no centroid; pass at least one",
                    contract="A label is the index of a centroid.")  # fmt: skip
    m = lead.module  # type: ignore[attr-defined]
    torch = isinstance(lead, Torch)

    def wide(a: Any) -> Any:
        return a.float() if torch else a.astype("float32")

    points, centroids = wide(x), wide(c)
    sq = wide(c_sq) if c_sq is not None else (centroids * centroids).sum(-1)
    columns = centroids.swapaxes(-1, -2)
    batch = x.shape[0] if x.ndim == 3 else 1
    rows = max(1, _SCORES_AT_ONCE // (batch * c.shape[-2]))
    parts = []
    for start in range(0, x.shape[-2], rows):
        scores = sq[..., None, :] - 2 * m.matmul(points[..., start : start + rows, :], columns)
        best = scores.argmin(-1)
        parts.append(best.int() if torch else best.astype("int32"))
    return (parts[0] if len(parts) == 1 else m.concatenate(parts, -1),)


ASSIGN = Operation(
    "kmeans_assign",
    (Spec("x", "B N D"), Spec("c", "B C D"), Spec("c_sq", "B C", "f32")),
    (Spec("label", "B N", "i32"),),
    made={"c_sq": Made("row_norms", {"x": "c", "y": "c_sq"}, {"M": "B C", "D": "D"})},
    batch="B",
    pads={"D": 8},
    library=_library,
)


def kmeans_assign(
    x: Any, c: Any, *, c_sq: Any = None, out: Any = None, stream: Any = None, strict: bool = False
) -> Any:
    """label = argmin over k of |c_k|^2 - 2 x . c_k, for every point of every problem.

    Args:
        x: points (B, N, D), or (N, D) for one problem.
        c: centroids (B, K, D) or (K, D), of the dtype of x.
        c_sq: squared norms of the centroids, f32 (B, K) or (K,); computed on the way when left out and needed.
        out: where the labels go, i32 (B, N) or (N,); by default new memory of x's library.
        stream: a CUDA stream (integer or object); by default the current one of x's library.
        strict: raise instead of taking a fallback.

    Returns:
        The labels, i32. Ties go to one of the nearest.

    Raises:
        CakeError: `dispatch/...`, `lowering/...`; the message says what to do.
    """
    done = ASSIGN.quick((x, c, c_sq, out), stream)  # one Python call less where it applies
    return done[0] if done is not None else ASSIGN.serve((x, c, c_sq), (out,), stream, strict)[0]
