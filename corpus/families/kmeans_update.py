"""The family of k-means updates: means, norms, sizes and shifts from points and labels (contracts kmeans_update and its f16 twin).

Shapes are those of k-means assignment. What decides is how many points a cluster has: few, and adding every row to memory is
as good as any; many, and sorting first saves most of the additions. Counters get more copies the fewer clusters there are.
"""

from __future__ import annotations

from corpus.families import Derived, Family, Member
from corpus.families.kmeans_assign import CONTRACT, HELDOUT, LARGE, _shapes

FEW = ((1, 1000000, 64, 64), (1, 1000000, 256, 64), (4, 100000, 16, 32), (1, 262144, 100, 256))
"""Many points in few clusters: counters and sums are hot."""

FAMILY = Family(
    name="kmeans_update",
    summary="k-means update: the mean of each cluster's points, and how far the centroids moved",
    contracts={"bf16": "kmeans_update", "f16": "kmeans_update_f16"},
    alike={"f16": "bf16"},
    kernels=(
        Member("kmeans_update_direct", {"DP": (16, 32, 64, 128), "R": (1, 4)}, fallback=True),
        Member(
            "kmeans_update_sorted",
            {"DP": (16, 32, 64, 128), "R": (4, 8, 16, 32), "kmeans_runs.RUN": (64, 128)},
        ),
    ),
    dims=("B", "N", "C", "D"),
    ranges={"B": (1, 1 << 16), "N": (1, 1 << 24), "C": (1, 1 << 16), "D": (8, 4096)},
    steps={"D": 8},
    derived={
        "points": Derived((("B", 1), ("N", 1)), "points of all problems"),
        "clusters": Derived((("B", 1), ("C", 1)), "clusters of all problems"),
    },
    shapes={"contract": _shapes(CONTRACT), "large": _shapes((*LARGE, *FEW)), "heldout": _shapes(HELDOUT)},
    repeat={"B": 3, "N": 50021},
    most_variants=12,
)
