"""The family of products d = a @ b.T in bf16 (contract gemm_bf16). Shapes are (M, N, K): rows, columns, reduction length.

What decides, measured on an H200 (132 multiprocessors) beside cuBLAS:

* Many tiles of 128 x 256: the power limit. A tile of that size moves the fewest bytes through shared memory per product; running
  no more CTAs than the number of waves needs gained 1 %, multicast nothing that was seen.
* About as many tiles as multiprocessors: the loop of one tile, and what comes before and after it. Plain CTAs start 0.5 us sooner
  than clusters, dependent launch hides 1 us more.
* Clusters of four are out: this device holds 30 of them, so that 12 multiprocessors idle.
* Few tiles: smaller ones, and K divided over a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping

from corpus.families import Derived, Family, Member, Shape
from corpus.families import Literal as Value

Domains = Mapping[str, tuple[Value, ...]]

ALONE: Domains = {"CM": (1,), "CN": (1,)}
TILES: tuple[Domains, ...] = (
    {**ALONE, "WGS": (2,), "BN": (256,), "STAGES": (4,), "GROUP": (4, 8, 16), "PDL": (0, 1)},
    {"CM": (2,), "CN": (1,), "WGS": (2,), "BN": (256,), "STAGES": (4,), "GROUP": (8,), "PDL": (0, 1)},
    {**ALONE, "WGS": (2,), "BN": (192,), "STAGES": (4,), "GROUP": (8,), "PDL": (1,)},
    {**ALONE, "WGS": (2,), "BN": (128,), "STAGES": (6,), "GROUP": (2, 4, 8), "PDL": (0, 1)},
    {"CM": (2,), "CN": (1,), "WGS": (2,), "BN": (128,), "STAGES": (6,), "GROUP": (4,), "PDL": (1,)},
    {**ALONE, "WGS": (2,), "BN": (64,), "STAGES": (8,), "GROUP": (4,), "PDL": (1,)},
    {**ALONE, "WGS": (1,), "BN": (256,), "STAGES": (5,), "GROUP": (4,), "PDL": (1,)},
    {**ALONE, "WGS": (1,), "BN": (128,), "STAGES": (8,), "GROUP": (4, 8), "PDL": (1,)},
    {**ALONE, "WGS": (1,), "BN": (64,), "STAGES": (8,), "GROUP": (8,), "PDL": (1,)},
)
"""Domains of the tile kernel, either layout of b."""
PARTS: tuple[Domains, ...] = (
    {"CM": (1,), "WGS": (1,), "BN": (64,), "KS": (2,), "STAGES": (8,), "GROUP": (4,), "PDL": (1,)},
    {"CM": (1,), "WGS": (1,), "BN": (128,), "KS": (2, 4), "STAGES": (8,), "GROUP": (4,), "PDL": (1,)},
)

SQUARES = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
MODELS = (
    (4096, 14336, 4096), (8192, 4096, 14336), (2048, 1024, 8192), (256, 8192, 8192), (128, 8192, 8192), (4096, 1280, 8192),
    (1024, 6144, 4096), (512, 4096, 4096), (4096, 4096, 1024), (8192, 1024, 8192),
)  # fmt: skip
FEW = ((16, 4096, 4096), (64, 7168, 2048), (64, 1024, 8192), (128, 512, 4096), (256, 256, 8192), (16, 14336, 4096))
HELDOUT = (
    (3000, 4096, 5120), (1000, 1032, 1048), (127, 8192, 8192), (8192, 1280, 8192), (2048, 2048, 4096), (2560, 2560, 2560),
    (640, 5120, 5120), (1, 4096, 4096), (4096, 28672, 4096),
)  # fmt: skip


def shapes(rows: tuple[tuple[int, int, int], ...]) -> tuple[Shape, ...]:
    """Rows of extents as shapes of the family."""
    return tuple({"M": m, "N": n, "K": k} for m, n, k in rows)


def family(name: str, contract: str, summary: str, members: tuple[Member, ...]) -> Family:
    """A family of products with these kernels; both layouts of b meet the same shapes."""
    return Family(
        name=name,
        summary=summary,
        contracts={"bf16": contract},
        kernels=members,
        dims=("M", "N", "K"),
        ranges={"M": (1, 1 << 17), "N": (8, 1 << 17), "K": (8, 1 << 16)},
        steps={"N": 8, "K": 8},
        derived={
            "tiles64": Derived((("M", 64), ("N", 64)), "tiles of 64 x 64"),
            "tiles64x128": Derived((("M", 64), ("N", 128)), "tiles of 64 x 128"),
            "tiles128": Derived((("M", 128), ("N", 128)), "tiles of 128 x 128"),
            "tiles256": Derived((("M", 128), ("N", 256)), "tiles of 128 x 256"),
            "waves128": Derived((("M", 128), ("N", 128)), "waves of tiles of 128 x 128", per_sm=True),
            "waves256": Derived((("M", 128), ("N", 256)), "waves of tiles of 128 x 256", per_sm=True),
        },
        guards=("tiles128", "N", "K"),
        shapes={
            "squares": shapes(tuple((n, n, n) for n in SQUARES if n < 6144)),
            "models": shapes(tuple(s for s in MODELS if s[0] * s[1] * s[2] < 1 << 37)),
            "few": shapes(FEW),
            "large": shapes(
                (*((n, n, n) for n in SQUARES if n >= 6144), *(s for s in MODELS if s[0] * s[1] * s[2] >= 1 << 37))
            ),
            "heldout": shapes(HELDOUT),
        },
        repeat={"M": 1033, "N": 2053},
        most_variants=10,
    )


FAMILY = family(
    "gemm",
    "gemm_bf16",
    "products a @ b.T of bf16 matrices",
    (
        *(Member("gemm_sm90_cluster", domains, fallback=True) for domains in TILES),
        *(Member("gemm_sm90_split", domains) for domains in PARTS),
    ),
)
