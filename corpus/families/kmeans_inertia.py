"""The family of inertia: the sum of squared distances of points from their centroids (contracts kmeans_inertia and its f16 twin)."""

from __future__ import annotations

from corpus.families import Derived, Family, Member
from corpus.families.kmeans_assign import HELDOUT, LARGE, _shapes

SMALL = ((1, 256, 256, 48), (1, 512, 8192, 288), (8, 8192, 512, 128), (8, 65536, 512, 16), (4, 8192, 1024, 480))

FAMILY = Family(
    name="kmeans_inertia",
    summary="inertia of a clustering: the sum of squared distances of points from their centroids",
    contracts={"bf16": "kmeans_inertia", "f16": "kmeans_inertia_f16"},
    alike={"f16": "bf16"},
    kernels=(
        Member("kmeans_inertia", {"DP": (16, 32, 64, 128), "kmeans_distances.RUN": (32, 64, 128)}, fallback=True),
    ),
    dims=("B", "N", "C", "D"),
    ranges={"B": (1, 1 << 16), "N": (1, 1 << 24), "C": (1, 1 << 16), "D": (8, 4096)},
    steps={"D": 8},
    derived={"points": Derived((("B", 1), ("N", 1)), "points of all problems")},
    shapes={"small": _shapes(SMALL), "large": _shapes(LARGE), "heldout": _shapes(HELDOUT)},
    repeat={"B": 3, "N": 50021},
    most_variants=6,
)
