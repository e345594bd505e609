"""The family of k-means assignment: for every point the nearest centroid (contracts kmeans_assign and its f16 twin).

Shapes are (B, N, C, D): problems, points, centroids, features. CONTRACT are published shapes of exported kernels of the
same contract; they are three quarters of a list whose rest this repository does not have, so what is found on them must
hold for neighbours. LARGE are the shapes that the literature on k-means times.
"""

from __future__ import annotations

from corpus.families import Derived, Family, Member, Shape

CONTRACT = (
    (1, 256, 256, 48), (1, 256, 256, 112), (1, 256, 256, 144), (1, 256, 256, 176), (1, 256, 256, 224),
    (1, 256, 256, 352), (1, 256, 256, 416), (1, 256, 256, 480), (1, 384, 4096, 112), (1, 384, 4096, 288),
    (1, 512, 8192, 48), (1, 512, 8192, 144), (1, 512, 8192, 176), (1, 512, 8192, 224), (1, 512, 8192, 288),
    (1, 512, 8192, 352), (1, 512, 8192, 416), (1, 512, 8192, 480), (1, 640, 4096, 288), (1, 896, 4096, 288),
    (1, 896, 4096, 480), (1, 1024, 4096, 416), (1, 1408, 4096, 112), (1, 1536, 1024, 480), (1, 2176, 768, 416),
    (1, 2560, 768, 288), (1, 3328, 768, 352), (2, 512, 8192, 112), (2, 640, 4096, 48), (2, 640, 8192, 416),
    (2, 768, 1024, 48), (2, 768, 4096, 288), (2, 768, 4096, 352), (2, 1024, 8192, 352), (2, 1792, 512, 48),
    (2, 1920, 512, 288), (2, 2048, 1024, 144), (2, 2048, 1024, 176), (2, 2048, 1024, 224), (2, 2048, 1024, 288),
    (2, 2048, 1024, 416), (2, 2048, 1024, 480), (2, 2304, 1024, 416), (2, 2560, 768, 416), (2, 2816, 256, 480),
    (2, 4096, 512, 480), (2, 6144, 768, 224), (2, 262144, 256, 128), (3, 768, 8192, 112), (3, 1024, 4096, 480),
    (3, 1152, 2048, 288), (3, 1536, 256, 48), (3, 2048, 768, 352), (3, 2688, 768, 48), (3, 3072, 512, 224),
    (3, 3200, 256, 480), (3, 3456, 768, 416), (3, 3840, 512, 224), (3, 3840, 768, 112), (3, 5120, 1024, 224),
    (4, 1024, 256, 352), (4, 1536, 256, 224), (4, 2304, 512, 48), (4, 3712, 1024, 112), (4, 3840, 512, 416),
    (4, 3968, 256, 48), (4, 4096, 256, 352), (4, 4480, 512, 224), (4, 8192, 256, 288), (4, 8192, 1024, 112),
    (4, 8192, 1024, 144), (4, 8192, 1024, 176), (4, 8192, 1024, 288), (4, 8192, 1024, 352), (4, 8192, 1024, 416),
    (4, 8192, 1024, 480), (4, 32768, 1024, 16), (4, 32768, 1024, 32), (5, 2048, 512, 480), (5, 2176, 512, 112),
    (5, 2176, 512, 128), (5, 2304, 768, 352), (5, 2944, 512, 112), (5, 5632, 768, 224), (5, 6016, 1024, 128),
    (5, 7296, 512, 128), (6, 8576, 512, 128), (7, 6016, 512, 128), (8, 8064, 256, 128), (8, 8192, 256, 128),
    (8, 8192, 512, 128), (8, 65536, 512, 16), (8, 65536, 512, 32),
)  # fmt: skip
LARGE = (
    (32, 65536, 1024, 128), (1, 1000000, 1024, 128), (1, 262144, 4096, 128), (1, 262144, 4096, 256), (8, 131072, 1000, 128),
    (8, 131072, 100, 128), (32, 16384, 1000, 128), (1, 1000000, 256, 64), (1, 500000, 2048, 96), (4, 100000, 2000, 192),
)  # fmt: skip
HELDOUT = (
    (3, 10007, 777, 120), (8, 16384, 1000, 128), (1, 200000, 256, 256), (1, 100000, 512, 448), (1, 8192, 1024, 128),
    (1, 1024, 4096, 256), (2, 1408, 8192, 48), (6, 4096, 512, 144), (5, 2944, 768, 176), (3, 1280, 1024, 320),
    (1, 768, 8192, 16), (7, 3000, 333, 80),
)  # fmt: skip


FEW = {"DP": (512,), "WG": (1,), "AREG": (False,), "ANY": (True,), "PDL": (True,)}
"""Few points: latency and loads decide. The chunk loop follows D, so one variant serves every width."""
MANY = {"WG": (2,), "BC": (128,), "AREG": (True,), "TURN": (True,), "PDL": (True,)}
"""Many points: the tensor cores decide. Exactly the columns of D are multiplied; the ring is as deep as the points leave room for."""
NARROW = {"DP": (48, 112, 128), "BC": (128,), "STAGES": (10,), "AREG": (True,), "PDL": (True,)}


def _shapes(rows: tuple[tuple[int, int, int, int], ...]) -> tuple[Shape, ...]:
    return tuple({"B": b, "N": n, "C": c, "D": d} for b, n, c, d in rows)


FAMILY = Family(
    name="kmeans_assign",
    summary="k-means assignment: the nearest centroid of every point",
    contracts={"bf16": "kmeans_assign", "f16": "kmeans_assign_f16"},
    alike={"f16": "bf16"},
    kernels=(
        Member(
            "kmeans_bias",
            {"DP": (16, 32, 48, 64, 112, 128), "WG": (2, 3, 4), "XS": (1, 2), "STAGES": (4,), "TURN": (True,)},
            fallback=True,
        ),
        Member("kmeans_packed", {"DP": (256,), "WG": (2, 3), "BC": (64, 128), "STAGES": (2, 4)}, fallback=True),
        Member("kmeans_assign", {"DP": (256,), "WG": (2,), "STAGES": (2,)}, fallback=True),
        Member("kmeans_split", {**FEW, "G": (2,), "S": (1, 2, 4, 8), "BC": (128,), "STAGES": (8,)}, fallback=True),
        Member("kmeans_split", {**FEW, "G": (1,), "S": (2, 4, 8), "BC": (64,), "STAGES": (16,)}, fallback=True),
        Member(
            "kmeans_split",
            {**FEW, "DP": (256,), "G": (2,), "S": (1, 2, 4), "BC": (128,), "STAGES": (10,)},
            fallback=True,
        ),
        Member(
            "kmeans_split",
            {**FEW, "WG": (2,), "BC": (128,), "STAGES": (5,), "TURN": (True,), "AHEAD": (4,)},
            fallback=True,
        ),
        Member("kmeans_split", {**MANY, "DP": (144, 176, 224, 256), "S": (1, 2), "STAGES": (9,)}, fallback=True),
        Member("kmeans_split", {**MANY, "DP": (288,), "STAGES": (8,)}, fallback=True),
        Member("kmeans_split", {**MANY, "DP": (352,), "STAGES": (7,)}, fallback=True),
        Member("kmeans_split", {**MANY, "DP": (416,), "STAGES": (6,), "AHEAD": (4,)}, fallback=True),
        Member("kmeans_split", {**MANY, "DP": (480,), "STAGES": (5,), "AHEAD": (4,)}, fallback=True),
        Member("kmeans_split", {**MANY, "DP": (480,), "STAGES": (5,), "TURN": (False,)}, fallback=True),
        Member(
            "kmeans_split",
            {**MANY, "DP": (224, 256), "WG": (3,), "S": (1, 2), "STAGES": (7,), "TURN": (False, True)},
            fallback=True,
        ),
        Member(
            "kmeans_split", {**MANY, "DP": (192, 256), "BC": (256,), "AREG": (False,), "STAGES": (4,)}, fallback=True
        ),
        Member("kmeans_split", {**NARROW, "WG": (2, 3), "S": (1, 2), "TURN": (True,)}, fallback=True),
        Member("kmeans_split", {**NARROW, "WG": (1,), "G": (2,), "S": (1, 2, 4)}, fallback=True),
    ),
    dims=("B", "N", "C", "D"),
    ranges={"B": (1, 32), "N": (128, 1 << 20), "C": (100, 8192), "D": (16, 480)},
    steps={"D": 8},
    derived={
        "tiles64": Derived((("B", 1), ("N", 64)), "row tiles of one warpgroup"),
    },
    guards=("tiles64", "C", "D"),
    shapes={"contract": _shapes(CONTRACT), "large": _shapes(LARGE), "heldout": _shapes(HELDOUT)},
    repeat={"B": 3, "N": 50021},
    most_variants=12,
)
