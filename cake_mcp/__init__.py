"""Cake's kernels from Python: fast functions on the arrays of torch, CuPy and whoever speaks DLPack.

    from cake_mcp import kmeans_assign
    labels = kmeans_assign(x, c)            # x (B, N, D) or (N, D), c (B, K, D) or (K, D), bf16; labels i32

The work is enqueued on the caller's current stream and context; a measured table picks the kernel by shape; the compiled
kernel comes from a cache. docs/python-api.md is the page. Importing this loads neither a compiler nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cake_ir.facade import lazy
from cake_ir.fault import CakeError
from cake_mcp.assign import kmeans_assign
from cake_mcp.products import gemm

if TYPE_CHECKING:
    from cake_mcp.clustering import KMeans, kmeans, kmeans_update
    from cake_mcp.tables import explain, prepare

__all__ = ["CakeError", "KMeans", "explain", "gemm", "kmeans", "kmeans_assign", "kmeans_update", "prepare"]

lazy(
    __name__,
    {
        "KMeans": "cake_mcp.clustering",
        "explain": "cake_mcp.tables",
        "kmeans": "cake_mcp.clustering",
        "kmeans_update": "cake_mcp.clustering",
        "prepare": "cake_mcp.tables",
    },
)
