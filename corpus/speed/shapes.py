"""Which shapes each table times.

gemm: products of public model sizes and squares; TN is `a @ b.T` with both operands contiguous along K, NN has `b` as (K, N).
large: what the k-means literature times. contract: the published shapes of exported kernels of the same contract (the list is
the k-means family's). iteration and calls: the large shapes, and the small ones of the contract whose time is mostly the host's.
"""

from __future__ import annotations

from corpus.contract import Shape


def _gemm(m: int, n: int, k: int) -> Shape:
    return {"M": m, "N": n, "K": k}


def _kmeans(b: int, n: int, c: int, d: int) -> Shape:
    return {"B": b, "N": n, "C": c, "D": d}


GEMM: tuple[tuple[str, Shape], ...] = (
    ("TN", _gemm(2048, 2048, 2048)),
    ("TN", _gemm(4096, 4096, 4096)),
    ("TN", _gemm(8192, 8192, 8192)),
    ("TN", _gemm(4096, 14336, 4096)),
    ("TN", _gemm(8192, 4096, 14336)),
    ("TN", _gemm(2048, 1024, 8192)),
    ("TN", _gemm(256, 8192, 8192)),
    ("NN", _gemm(4096, 4096, 4096)),
    ("TN", _gemm(512, 512, 512)),
    ("TN", _gemm(1024, 1024, 1024)),
)
HEADLINE_GEMM = 7
"""The first rows, which the geometric mean is of; the others are extra."""

YARDSTICK = _gemm(4096, 4096, 4096)
"""The cuBLAS product whose rate is the yardstick of the large k-means shapes."""

LARGE: tuple[Shape, ...] = (
    _kmeans(32, 65536, 1024, 128),
    _kmeans(1, 1000000, 1024, 128),
    _kmeans(1, 262144, 4096, 128),
    _kmeans(1, 262144, 4096, 256),
    _kmeans(8, 131072, 1000, 128),
)

SMALL_WORK = 2e9
SMALL_COUNT = 20


def contract() -> tuple[Shape, ...]:
    """The contract's shapes, from the family of k-means assignment."""
    from corpus.families import family

    return family("kmeans_assign").shapes["contract"]


def small() -> tuple[Shape, ...]:
    """SMALL_COUNT contract shapes of at most SMALL_WORK multiply-adds (a few microseconds of a large GPU), spread evenly."""
    found = [s for s in contract() if s["B"] * s["N"] * s["C"] * s["D"] <= SMALL_WORK]
    step = max(1, len(found) / SMALL_COUNT)
    return tuple(found[int(i * step)] for i in range(min(SMALL_COUNT, len(found))))


QUICK_GEMM = (GEMM[1], GEMM[7])
"""Of the smoke run, and so on below."""

QUICK_LARGE = (LARGE[0], LARGE[2])


def quick_contract() -> tuple[Shape, ...]:
    """Six contract shapes across the list."""
    found = contract()
    return found[:: len(found) // 6][:6]
