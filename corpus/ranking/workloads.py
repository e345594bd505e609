"""What is ranked: per workload the kernels that serve one contract, and the shapes.

Development shapes are what the model is looked at with; test shapes are others (neither among them nor multiples of them) and were
written down before anything was measured at them. Seen shapes (by the seed of their draws) were test shapes once: the model was
mended after their figures were known, so they are no evidence any more, and serve development. Sizes are mixed on purpose: launches
of a few microseconds, tiles that make a fraction of a wave more than whole ones, few tiles with a long loop, and enough of everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cake_ir.diagnostics import CakeError, error
from corpus.contract import contracts
from corpus.families import Family, Member, Shape

Set = Literal["development", "seen7", "seen8", "test"]
SETS: tuple[Set, ...] = ("development", "seen7", "seen8", "test")
SEEDS: dict[Set, int] = {"development": 6, "seen7": 7, "seen8": 8, "test": 9}
"""Of the draws of a set: different ones, so that the test set has bindings of its own too."""
DRAWS = 64
"""Candidates at a shape: more than count, so that enough of them are near the best (`corpus.ranking.statistics`)."""
POOL = 140
"""Most compiled candidates of a workload; k-means, whose kernels are made for a row length, takes 240."""
TARGET = "sm_90a"
LARGE = "large"
LARGE_FLOP = 1e11
"""Tensor work of a launch from which a round is followed by a longer pause: without it the power limit lowers the clock of whoever
comes last."""


@dataclass(frozen=True)
class Fit:
    """A tunable that has to reach an extent, such as a padded row length: of the multiples of `step` in its domain the `most` least that
    are `dim` or more are drawn at a shape. Larger ones multiply zeros, and nobody would ask about them."""

    dim: str
    step: int = 1
    most: int = 2

    def values(self, domain: Sequence[int], shape: Shape) -> tuple[int, ...]:
        """What is drawn at a shape, in order."""
        return tuple(sorted(v for v in domain if v % self.step == 0 and v >= shape[self.dim])[: self.most])


@dataclass(frozen=True)
class Workload:
    """kernels: corpus kernels of `contract`, each with the whole domain of each of its tunables, but for those in `fits` and the
    element type, which is `dtype`. repeat: extents up to which inputs are drawn (`corpus.families.Family`)."""

    name: str
    contract: str
    dtype: str
    kernels: tuple[str, ...]
    development: tuple[Shape, ...]
    seen7: tuple[Shape, ...]
    seen8: tuple[Shape, ...]
    test: tuple[Shape, ...]
    fits: Mapping[str, Fit] = field(default_factory=dict)
    repeat: Mapping[str, int] = field(default_factory=dict)

    def shapes(self, name: Set) -> tuple[Shape, ...]:
        """Those of a set."""
        return {"development": self.development, "seen7": self.seen7, "seen8": self.seen8, "test": self.test}[name]

    def large(self, shape: Shape) -> bool:
        """Whether a launch is enough tensor work for the power limit to matter."""
        c = contracts()[self.contract]
        return c.flop_unit != "f32" and c.flops(shape) >= LARGE_FLOP

    def family(self) -> Family:
        """The same as `corpus.tuning` reads it: without domains, which the texts have."""
        dims = tuple(contracts()[self.contract].dims)
        every = tuple(s for n in SETS for s in self.shapes(n))
        return Family(
            name=self.name, contracts={self.dtype: self.contract}, kernels=tuple(Member(k, fallback=True) for k in self.kernels),
            dims=dims, ranges={d: (1, max(s[d] for s in every)) for d in dims}, shapes={n: self.shapes(n) for n in SETS},
            large=(LARGE,), repeat=self.repeat,
        )  # fmt: skip


def _shapes(names: str, *rows: tuple[int, ...]) -> tuple[Shape, ...]:
    return tuple(dict(zip(names.split(), row, strict=True)) for row in rows)


GEMM = Workload(
    "gemm", "gemm_bf16", "bf16", ("gemm_sm90", "gemm_sm90_cluster", "gemm_sm90_split", "gemm_sm80"),
    _shapes("M N K", (512, 512, 512), (128, 4096, 4096), (1024, 1024, 4096), (2048, 2048, 2048), (2560, 3072, 1536),
            (4096, 8192, 512), (4096, 4096, 4096), (8192, 4096, 7168), (16, 4096, 4096), (256, 256, 8192), (384, 2304, 1024),
            (1000, 1000, 1000), (640, 5120, 640), (1536, 1536, 1536), (3000, 2000, 504), (2304, 4608, 768), (8192, 1024, 2048),
            (5000, 5000, 2504), (12288, 768, 768)),
    _shapes("M N K", (256, 768, 1024), (64, 7168, 2048), (1152, 1408, 3072), (3072, 1536, 768), (1920, 5120, 2560),
            (2000, 4104, 1000), (6144, 6144, 4096)),
    _shapes("M N K", (320, 1280, 2048), (96, 6144, 3072), (1408, 1664, 2560), (3584, 1792, 640), (1280, 6400, 1920),
            (2200, 3304, 1240), (5632, 5632, 3584)),
    _shapes("M N K", (448, 1920, 1280), (80, 5632, 2560), (1216, 1472, 2304), (3328, 1408, 832), (1664, 4352, 2176),
            (1800, 3704, 1160), (6656, 4864, 3072)),
    repeat={"M": 1033, "N": 2053},
)  # fmt: skip

KMEANS = Workload(
    "kmeans", "kmeans_assign", "bf16", ("kmeans_assign", "kmeans_packed", "kmeans_bias", "kmeans_split"),
    _shapes("B N C D", (1, 1024, 1024, 128), (1, 8192, 512, 64), (4, 4096, 256, 128), (1, 30000, 2048, 64), (1, 2048, 4096, 256),
            (8, 16384, 1000, 128), (1, 131072, 1024, 256), (1, 262144, 1024, 128), (1, 512, 8192, 64), (2, 3000, 700, 256),
            (1, 4096, 4096, 128), (6, 9000, 333, 64), (1, 16896, 1024, 128), (1, 25600, 1024, 64), (32, 2048, 512, 128),
            (1, 12000, 6000, 256), (1, 600000, 256, 64), (1, 40000, 1000, 80), (2, 10000, 1500, 176)),
    _shapes("B N C D", (2, 640, 4096, 48), (3, 3840, 768, 112), (1, 20000, 512, 96), (1, 102400, 300, 128), (16, 4096, 1024, 32),
            (1, 1500, 8192, 192), (1, 90000, 2048, 192), (1, 400000, 1500, 112)),
    _shapes("B N C D", (2, 900, 3000, 64), (4, 2500, 640, 96), (1, 24000, 768, 128), (1, 150000, 200, 112), (12, 5000, 900, 48),
            (1, 1800, 6000, 224), (1, 70000, 2500, 208), (1, 300000, 1200, 80)),
    _shapes("B N C D", (2, 1100, 2600, 80), (5, 3300, 480, 112), (1, 28000, 640, 160), (1, 120000, 250, 96), (10, 6000, 700, 32),
            (1, 2200, 5000, 208), (1, 80000, 1800, 224), (1, 350000, 900, 48)),
    fits={"DP": Fit("D", 16)}, repeat={"B": 3, "N": 50021},
)  # fmt: skip

SOFTMAX = Workload(
    "softmax", "softmax", "f32", ("softmax", "softmax_held", "softmax_rows", "softmax_ring"),
    _shapes("M N", (512, 4096), (4096, 1024), (1000, 8192), (128, 65536), (300, 20000), (16384, 4096), (65536, 1024), (100, 512),
            (8192, 256), (132, 4096), (264, 8000), (2000, 1600), (5000, 6000), (700, 32768), (50000, 320), (64, 30000),
            (1056, 1024)),
    _shapes("M N", (200, 1800), (2600, 640), (3000, 3000), (8192, 8192), (240, 30000), (20000, 2560), (1320, 16384)),
    _shapes("M N", (150, 2400), (3100, 900), (2500, 4000), (6000, 10000), (400, 24000), (30000, 1920), (1600, 12288)),
    _shapes("M N", (180, 2200), (2900, 760), (2200, 5200), (5000, 12000), (360, 26000), (25000, 2240), (1450, 14000)),
    fits={"NMAX": Fit("N")}, repeat={"M": 1033},
)  # fmt: skip

RMSNORM = Workload(
    "rmsnorm", "rmsnorm", "bf16", ("rmsnorm", "rmsnorm_rows", "rmsnorm_ring"),
    _shapes("M D", (128, 4096), (1024, 1024), (4096, 2048), (2000, 8192), (16384, 4096), (65536, 512), (100000, 256), (16, 8192),
            (132, 1024), (520, 512), (6000, 768), (2500, 6144), (40000, 1280), (200000, 128), (9000, 4096), (300, 2000),
            (20000, 1536)),
    _shapes("M D", (72, 1536), (777, 5120), (8192, 1024), (3000, 3072), (30000, 768), (12288, 8192), (32768, 2560)),
    _shapes("M D", (100, 2304), (1000, 3584), (6144, 1280), (2200, 4608), (50000, 640), (10000, 7168), (24000, 3328)),
    _shapes("M D", (90, 1792), (900, 4352), (7000, 1152), (2700, 3840), (44000, 896), (9500, 6656), (28000, 2816)),
    fits={"DMAX": Fit("D")}, repeat={"M": 1033},
)  # fmt: skip

COL_SUMS = Workload(
    "col_sums", "col_sums", "bf16", ("col_sums", "col_sums_split", "col_sums_cluster"),
    _shapes("M N", (512, 1024), (4096, 512), (1000, 3000), (2048, 8192), (16384, 1024), (65536, 512), (32768, 4096), (128, 8192),
            (10000, 72), (5000, 1536), (800, 16384), (40000, 320), (250000, 128), (7000, 7000), (2000, 264), (1500, 12000)),
    _shapes("M N", (300, 4096), (1500, 640), (20000, 128), (3000, 2304), (6000, 5120), (100000, 256), (12000, 12288)),
    _shapes("M N", (400, 6144), (1200, 896), (25000, 160), (2500, 3584), (8000, 4096), (60000, 384), (9000, 10240)),
    _shapes("M N", (350, 5120), (1300, 768), (22000, 192), (2800, 2816), (7200, 4608), (70000, 320), (11000, 8704)),
    repeat={"M": 1033},
)  # fmt: skip

WORKLOADS: dict[str, Workload] = {w.name: w for w in (GEMM, KMEANS, SOFTMAX, RMSNORM, COL_SUMS)}


def workload(name: str) -> Workload:
    """One workload. Raises CakeError `ranking/unknown-workload` with the known names."""
    if name not in WORKLOADS:
        law = "Workloads are those of corpus/ranking/workloads.py."
        text = f"no workload {name!r}; known: {', '.join(WORKLOADS)}"
        raise CakeError(error("ranking/unknown-workload", "language", text, contract=law))
    return WORKLOADS[name]
