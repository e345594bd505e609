"""What is measured, by which program, with which tunables. A rate is added here, and its program under `corpus/microbenchmarks/`.

A probe runs one kernel with two trip counts; the slope of time over trips is free of launch, set-up and drain. `amount` says how much
of the measured thing one trip does; `form` turns the slope into the rate:

| form | value | unit |
| --- | --- | --- |
| per_clk | amount / clocks of a trip | amount per clock and SM |
| per_s | amount x CTAs / seconds of a trip | amount per second, whole device |
| clk | clocks of a trip / amount | clocks |
| us | microseconds of a trip / amount | microseconds |
| count | amount x clusters that the driver says are resident at once | as it says |

Clocks are microseconds times the SM clock that the device itself counted meanwhile (an instrumented empty kernel before and after each
run reads its cycle counter and its timer): what NVML shows lags by a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Form = Literal["per_clk", "per_s", "clk", "us", "count"]
Mode = Literal["trips", "launches", "sustained", "residency"]
SMS = "sms"
"""As a dimension or trip count: the number of SMs of the device; `4 * sms` as ("sms", 4)."""
Size = int | str | tuple[str, int]

CLOCKS = 1_200_000
"""Length of the longer run in SM clocks (0.6 ms at 1.98 GHz): a thousand steps of the event clock, and too short for a power cap."""
SHORTER = 5
"""The shorter run has a fifth of the trips."""
SUSTAINED_MS = 350.0
"""How long a probe of the clock under load runs without a pause."""


@dataclass(frozen=True)
class Probe:
    """One rate and the run that measures it.

    `expect` is the expected length of a trip in clocks (it only sets trip counts, unless `trips` gives them). `trip` names the scalar or
    dimension that holds the trip count. `sass`: mnemonics and how often they stand in the machine code at least, so that a loop that
    the compiler emptied is not measured. `cold`: L2 holds nothing of the inputs before each run. mode
    launches: trips are launches in one graph; sustained: the longer run again and again;
    residency: nothing is timed, the driver is asked.
    """

    rate: str
    file: str
    kernel: str
    amount: float
    unit: str
    form: Form
    expect: float = 0.0
    bindings: Mapping[str, int | str] = field(default_factory=dict)
    dims: Mapping[str, Size] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    trips: tuple[Size, Size] | None = None
    trip: str = "trips"
    start: tuple[int, int] | None = None
    sass: Mapping[str, int] = field(default_factory=dict)
    mode: Mode = "trips"
    cold: bool = False
    target: str = "sm_90a"

    def counts(self, sms: int) -> tuple[int, int]:
        """Trip counts of the shorter and the longer run."""
        if self.trips is not None:
            few, many = self.trips
            return size(few, sms), size(many, sms)
        many = max(10, round(CLOCKS / self.expect))
        return max(2, many // SHORTER), many


def size(value: Size, sms: int) -> int:
    """A size with the device's number of SMs put in."""
    if isinstance(value, tuple):
        return value[1] * sms
    return sms if value == SMS else int(value)


def probes() -> tuple[Probe, ...]:
    """All probes. Rates are distinct."""
    return (
        *_tensor(),
        *_behind(),
        *_issue(),
        *_shared(),
        *_tma(),
        *_memory(),
        *_latencies(),
        *_barriers(),
        *_launch(),
        *_clocks(),
    )


def _tensor() -> Iterator[Probe]:
    all_sms = {"G": SMS}
    for form, kernel in (("ss", "wgmma_ss"), ("rs", "wgmma_rs")):
        for dtype in ("bf16", "f16"):
            for n in (64, 128, 256):
                flop = 2.0 * 64 * n * 64  # a warpgroup and trip: 4 instructions of k16
                for groups in (2,) if dtype == "f16" else (2, 1):
                    name = f"tensor.wgmma.{dtype}.{form}.n{n}" + ("" if groups == 2 else ".alone")
                    yield Probe(
                        name, "tensor", kernel, flop * groups, "flop/clk/SM", "per_clk", flop * groups / 4096,
                        {"DT": dtype, "BN": n, "WG": groups}, all_sms, sass={"HGMMA": 4},
                    )  # fmt: skip
    for dtype, warps in (("bf16", 4), ("bf16", 8), ("bf16", 16), ("f16", 8)):
        flop = 2.0 * 64 * 32 * 16 * warps
        yield Probe(
            f"tensor.mma_sync.{dtype}.warps{warps}", "tensor", "mma_sync", flop, "flop/clk/SM", "per_clk", flop / 2500,
            {"DT": dtype, "WARPS": warps}, all_sms, sass={"HMMA": 16},
        )  # fmt: skip


BEHIND = (
    (128, 3, ((0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (0, 1), (0, 2), (0, 4), (1, 1), (1, 2), (2, 2), (3, 3))),
    (128, 2, ((0, 0), (1, 0), (2, 0), (1, 2), (0, 2))),
    (128, 1, ((0, 0), (1, 2))),
    (64, 3, ((0, 0), (1, 0), (1, 2))),
    (256, 2, ((0, 0), (1, 0), (1, 2), (0, 2), (2, 2))),
)
"""Columns of a product, warpgroups, and the (FMA, ALU) instructions per element that run behind it. One ALU minimum comes on top."""


def _behind() -> Iterator[Probe]:
    for n, groups, kinds in BEHIND:
        for fma, alu in kinds:
            yield Probe(
                f"behind.n{n}.groups{groups}.fma{fma}.alu{alu}", "overlap", "behind_products", groups, "clk/product", "clk",
                4.0 * n * groups + 0.5 * n * (fma + 2 * alu), {"BN": n, "WG": groups, "FMA": fma, "ALU": alu}, {"G": SMS},
                sass={"HGMMA": 8},
            )  # fmt: skip


def _issue() -> Iterator[Probe]:
    def one(
        name: str,
        kernel: str,
        lanes: float,
        per: int,
        bindings: dict[str, int | str],
        sass: dict[str, int],
        **scalars: float,
    ) -> Probe:
        warps = int(bindings.get("WARPS", 8))
        return Probe(
            f"issue.{name}", "issue", kernel, 32.0 * per * warps, "lanes/clk/SM", "per_clk", 32.0 * per * warps / lanes, bindings,
            {"G": SMS}, scalars, sass=sass,
        )  # fmt: skip

    half = {"p": 0.5, "q": 0.25}
    for warps in (4, 8, 16):
        yield one(f"fma.warps{warps}", "ffma", 128, 128, {"WARPS": warps}, {"FFMA": 128}, **half)
    yield Probe(
        "latency.fma", "issue", "fma_chain", 16, "clk", "clk", 64, {"WARPS": 1}, {"G": 1}, half, sass={"FFMA": 64}
    )
    yield one("minmax", "minmax", 64, 64, {"WARPS": 8}, {"FMNMX": 64}, p=-4.0, q=1e-6)
    yield one("minmax3", "minmax3", 64, 128, {"WARPS": 8}, {"VIMNMX3": 128}, m=1 << 20, n=-(1 << 20))
    yield one("compare_select", "compare_select", 64, 64, {"WARPS": 8}, {"FSETP": 32, "FSEL": 32}, p=0.0, q=1e-6)
    yield one("logic", "logic", 64, 96, {"WARPS": 8}, {"LOP3": 96}, m=0x7FFFFF, n=5)
    yield one("imad", "imad", 64, 128, {"WARPS": 8}, {"IMAD": 128}, m=3, n=5)
    for warps in (4, 8, 16):
        yield one(
            f"fma_and_logic.warps{warps}",
            "fma_logic",
            100,
            32,
            {"WARPS": warps},
            {"FFMA": 16, "LOP3": 16},
            m=0x7FFFFF,
            **half,
        )
        yield one(
            f"fma_and_minmax.warps{warps}", "fma_minmax", 100, 32, {"WARPS": warps}, {"FFMA": 16, "FMNMX": 16}, **half
        )
    for at, fn in enumerate(("exp2", "rcp", "rsqrt", "log2", "tanh")):
        yield one(f"special.{fn}", "special", 16, 32, {"FN": at, "WARPS": 8}, {"MUFU": 32}, **half)
    for dtype in ("bf16", "f16"):
        yield one(f"convert.{dtype}", "convert", 40, 32, {"DT": dtype, "WARPS": 8}, {"F2FP": 16, "FFMA": 32}, **half)
    for arg, what in enumerate(("max", "sum", "argmin")):
        for n, groups in ((8, 1), (8, 3), (128, 1), (128, 3)):
            yield Probe(
                f"reduce.{what}.n{n}.groups{groups}", "issue", "reduce_rows", 1, "clk/tile", "clk", 300 + 4.0 * n,
                {"BN": n, "WG": groups, "ARG": arg}, {"G": SMS}, sass={"SHFL": 4},
            )  # fmt: skip


def _shared() -> Iterator[Probe]:
    for v in (1, 2, 4):
        width = f"{4 * v}B"
        yield Probe(
            f"smem.load.{width}", "shared", "shared_load", 8 * 4096, "B/clk/SM", "per_clk", 256 * 1.1, {"V": v, "WARPS": 8}, {"G": SMS},
            sass={"LDS": 32 // v},
        )  # fmt: skip
        yield Probe(
            f"smem.store.{width}", "shared", "shared_store", 8 * 4096, "B/clk/SM", "per_clk", 256 * 1.1, {"V": v, "WARPS": 8},
            {"G": SMS}, sass={"STS": 32 // v},
        )  # fmt: skip
    yield Probe(
        "smem.ldmatrix", "shared", "matrix_load", 8 * 8192, "B/clk/SM", "per_clk", 512 * 1.1, {"WARPS": 8}, {"G": SMS}, sass={"LDSM": 16}
    )  # fmt: skip
    yield Probe(
        "smem.stmatrix", "shared", "matrix_store", 2 * 32768, "B/clk/SM", "per_clk", 512 * 1.1, {"WG": 2}, {"G": SMS}, sass={"STSM": 16}
    )  # fmt: skip


L2_ROWS = 1 << 16  # 8 MiB of 128-byte rows: a small part of L2, in no other cache (bulk copies do not use L1)
HBM_ROWS = 1 << 25  # 4 GiB


def _tma() -> Iterator[Probe]:
    def ring(
        name: str, rows: int, stages: int, ctas: Size, where: int, spread: int, form: Form, unit: str, clk: float, stride: int = 1,
        trips: tuple[int, int] | None = None, cold: bool = False,
    ) -> Probe:  # fmt: skip
        box = rows * 128.0
        starts = (0, (HBM_ROWS // 2) // rows) if where == HBM_ROWS else (0, 0)
        return Probe(
            f"tma.{name}", "tma", "tma_ring", 1 if form == "clk" else box, unit, form, clk,
            {"ROWS": rows, "STAGES": stages, "SPREAD": spread, "STRIDE": stride}, {"G": ctas, "R": where}, trips=trips, start=starts,
            cold=cold,
            sass={"UTMALDG": 1},
        )  # fmt: skip

    for rows, stages in ((8, 8), (32, 8), (64, 8), (128, 8), (256, 4)):
        box = rows * 128.0
        for spread, which in ((1, "own"), (0, "same")):
            yield ring(f"l2.{which}.rows{rows}", rows, stages, SMS, L2_ROWS, spread, "per_clk", "B/clk/SM", box / 50)
        yield ring(f"l2.one_cta.rows{rows}", rows, stages, 1, L2_ROWS, 1, "per_clk", "B/clk/SM", box / 60)
    for rows, stages in ((64, 8), (128, 4), (128, 8), (256, 4)):
        yield ring(f"hbm.rows{rows}.stages{stages}", rows, stages, SMS, HBM_ROWS, 1, "per_s", "B/s", rows * 128.0 / 16)
    yield ring(
        "hbm.one_cta.rows128", 128, 8, 1, HBM_ROWS, 1, "per_clk", "B/clk/SM", 128 * 128 / 60, trips=(4000, 24000)
    )
    yield ring("latency.l2", 8, 1, 1, L2_ROWS, 1, "clk", "clk", 700)
    yield ring("latency.l2.rows128", 128, 1, 1, L2_ROWS, 1, "clk", "clk", 1000)
    yield ring("latency.hbm", 8, 1, 1, HBM_ROWS, 1, "clk", "clk", 1000, 16, trips=(500, 3000), cold=True)
    for rows, stages in ((64, 8), (128, 8), (256, 4)):
        yield Probe(
            f"tma.l2.multicast2.rows{rows}", "tma", "tma_pair", rows * 128.0, "B/clk/SM", "per_clk", rows * 128.0 / 50,
            {"ROWS": rows, "STAGES": stages}, {"G": SMS, "R": L2_ROWS}, sass={"UTMALDG": 1},
        )  # fmt: skip
    for rows, stages in ((64, 4), (128, 4)):
        yield Probe(
            f"tma.store.rows{rows}", "tma", "tma_write", rows * 128.0, "B/s", "per_s",
            bindings={"ROWS": rows, "STAGES": stages}, dims={"G": SMS}, trips=(128, 1024), trip="T", sass={"UTMASTG": 1},
        )  # fmt: skip


def _memory() -> Iterator[Probe]:
    yield Probe(
        "l2.read", "memory", "read", 8 * 4096.0, "B/s", "per_s", 1200, {"WARPS": 8}, {"G": (SMS, 2), "R": 4096}, sass={"LDG": 8}
    )  # fmt: skip
    for ctas in (2, 4):
        grid: dict[str, Size] = {"G": (SMS, ctas)}
        yield Probe(
            f"hbm.read.ctas{ctas}", "memory", "read", 8 * 4096.0, "B/s", "per_s", 1800 * ctas, {"WARPS": 8}, {**grid, "R": 1 << 20},
            sass={"LDG": 8},
        )  # fmt: skip
        yield Probe(
            f"hbm.copy.ctas{ctas}", "memory", "copy", 2 * 8 * 4096.0, "B/s", "per_s", bindings={"WARPS": 8}, dims=grid,
            trips=(20, 100) if ctas == 4 else (40, 200), trip="T", sass={"STG": 8},
        )  # fmt: skip


def _latencies() -> Iterator[Probe]:
    yield Probe(
        "latency.load.l2",
        "memory",
        "chase",
        1,
        "clk",
        "clk",
        300,
        {"SIZE": 1 << 21},
        {"G": 1},
        sass={"LDG": 1},
    )
    yield Probe(
        "latency.load.hbm", "memory", "chase", 1, "clk", "clk", 800, {"SIZE": 1 << 26}, {"G": 1}, trips=(500, 3000),
        sass={"LDG": 1}, cold=True,
    )  # fmt: skip


def _barriers() -> Iterator[Probe]:
    def one(
        name: str,
        kernel: str,
        hops: int,
        clk: float,
        sass: str,
        ctas: Size = 1,
        bindings: dict[str, int | str] | None = None,
    ) -> Probe:
        return Probe(
            f"barrier.{name}", "barriers", kernel, hops, "clk", "clk", clk, bindings or {}, {"G": ctas}, sass={sass: 1}
        )

    yield one("mbarrier.passed", "passed", 1, 40, "SYNCS")
    yield one("mbarrier.thread_to_thread", "hop_thread", 2, 100, "SYNCS")
    yield one("mbarrier.thread_to_group", "hop_group", 2, 120, "SYNCS")
    yield one("mbarrier.to_other_cta", "hop_pair", 2, 600, "SYNCS", 2)
    for groups in (1, 2, 3):
        yield one(f"named.role.groups{groups}", "role_sync", 1, 30, "BAR", bindings={"WG": groups})
    yield one("named.turn", "turns", 3, 120, "BAR")
    for warps in (4, 8, 16):
        yield one(f"cta.warps{warps}", "cta_sync", 1, 30, "BAR", bindings={"WARPS": warps})
    for ranks in (2, 4, 8):
        yield one(f"cluster.ctas{ranks}", "cluster_sync", 1, 250, "UCGABAR_ARV", ranks, {"CL": ranks})
    yield one("cluster.ctas2.all", "cluster_sync", 1, 250, "UCGABAR_ARV", SMS, {"CL": 2})
    yield one("fence_async", "async_fence", 1, 40, "FENCE")


def _launch() -> Iterator[Probe]:
    def one(name: str, kernel: str, dims: dict[str, Size]) -> Probe:
        return Probe(
            f"launch.{name}", "launch", kernel, 1, "us", "us", dims=dims, trips=(50, 250), trip="", mode="launches"
        )

    yield one("graph.one_cta", "empty", {"G": 1})
    yield one("graph.all_sms", "empty", {"G": SMS})
    yield one("graph.wave8", "empty", {"G": (SMS, 8)})
    yield one("dependent.one_cta", "dependent", {"G": 1})
    yield one("dependent.all_sms", "dependent", {"G": SMS})
    yield one("first_load.all_sms", "first_load", {"G": SMS, "R": (SMS, 128)})
    for ctas in (2, 4, 8, 16):
        yield Probe(
            f"cluster.sms.ctas{ctas}", "launch", "room", ctas, "SMs", "count", bindings={"CL": ctas}, dims={"G": 16}, trips=(2, 8), trip="",
            mode="residency",
        )  # fmt: skip
    yield Probe(
        "launch.per_cta", "launch", "empty", 1, "us", "us", trips=((SMS, 64), (SMS, 640)), trip="G", dims={"G": SMS}
    )  # fmt: skip


def _clocks() -> Iterator[Probe]:
    def one(
        name: str,
        file: str,
        kernel: str,
        expect: float,
        bindings: dict[str, int | str],
        dims: dict[str, Size],
        **more: float,
    ) -> Probe:
        return Probe(
            f"clock.under.{name}", file, kernel, 1, "clk/trip", "clk", expect, bindings, dims, more, mode="sustained"
        )

    yield one("products", "tensor", "wgmma_rs", 512, {"DT": "bf16", "BN": 128, "WG": 2}, {"G": SMS})
    yield one(
        "products_and_epilogue",
        "overlap",
        "behind_products",
        1700,
        {"BN": 128, "WG": 3, "FMA": 1, "ALU": 2},
        {"G": SMS},
    )
    yield one("fma", "issue", "ffma", 256, {"WARPS": 8}, {"G": SMS}, p=0.5, q=0.25)
    yield one("memory", "memory", "read", 3600, {"WARPS": 8}, {"G": (SMS, 2), "R": 1 << 20})
