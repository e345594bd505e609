"""Probes of what an SM computes: tensor cores, what runs beside them, register instructions, clocks under such loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from corpus.calibrate.probe import SMS, Probe, Size


def compute() -> Iterator[Probe]:
    """Products, issue rates, latencies of registers' instructions, clocks."""
    yield from _tensor()
    yield from _fed()
    yield from _behind()
    yield from _issue()
    yield from _chains()
    yield from _clocks()


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


def _fed() -> Iterator[Probe]:
    """The main loop of a GEMM on its own: a ring of copies from L2, products of two warpgroups, and its copies alone."""
    for n, stages in ((64, 8), (64, 4), (128, 4), (256, 4), (256, 3), (256, 2), (128, 2)):
        yield _loop(f"tensor.fed.n{n}" + ("" if stages == 4 else f".stages{stages}"), n, stages, L2_ROWS, 0)
    for n in (64, 128, 256):
        box = 128.0 * (128 + n)
        yield Probe(
            f"tma.fed.n{n}", "feed", "fed_copies", box, "B/clk/SM", "per_clk", box / 60, {"BN": n, "STAGES": 4}, {"G": SMS, "R": L2_ROWS},
            sass={"UTMALDG": 2},
        )  # fmt: skip
    for stages in (2, 3, 4):
        yield Probe(
            f"tensor.fed.mma_sync.stages{stages}", "rings", "fed_mma_sync", 2.0 * 128 * 128, "flop/clk/SM", "per_clk",
            bindings={"STAGES": stages}, dims={"G": SMS}, trips=(64 * 200, 64 * 1000), trip="K", sass={"HMMA": 64, "LDGSTS": 8},
        )  # fmt: skip


L2_ROWS = 1 << 16
"""Rows of 128 bytes of each operand: 8 MiB, in L2."""
HBM_ROWS = 1 << 23
"""The same for operands in device memory: 1 GiB each."""


def _loop(name: str, n: int, stages: int, rows: int, rest: int, sustained: bool = False) -> Probe:
    flop = 2.0 * 128 * n * 64
    return Probe(
        name, "feed", "fed_products", flop, "MHz" if sustained else "flop/clk/SM", "clk" if sustained else "per_clk",
        flop / 4096 * 1.1 + 80 * rest, {"BN": n, "STAGES": stages}, {"G": SMS, "R": rows}, {"p": 0.5, "q": 0.25, "rest": rest},
        sass={"HGMMA": 4, "UTMALDG": 2}, tensor=flop, mode="sustained" if sustained else "trips",
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


CHAINS = ("special.exp2", "special.rsqrt", "special.tanh", "minmax", "imad", "convert", "shuffle", "add")
"""What `chain` of latency.cake measures, in the order of its FN."""
CHAIN_SASS = ("MUFU", "MUFU", "MUFU", "FMNMX", "IMAD", "F2FP", "SHFL", "FADD")


def _chains() -> Iterator[Probe]:
    for at, (what, sass) in enumerate(zip(CHAINS, CHAIN_SASS, strict=True)):
        yield Probe(
            f"latency.{what}", "latency", "chain", 16, "clk", "clk", 16 * 20, {"FN": at}, {"G": 1},
            {"p": 0.5, "q": 0.25, "m": 3, "n": 5}, sass={sass: 16},
        )  # fmt: skip
    yield Probe(
        "latency.mma_sync", "latency", "matrix_use", 1, "clk", "clk", 35, {"LOAD": 0}, {"G": SMS}, sass={"HMMA": 1}
    )
    for form, name in enumerate(("ss", "rs")):
        for n in (64, 128, 256):
            for k in (16, 32, 64, 128):
                yield Probe(
                    f"latency.wgmma.{name}.n{n}.k{k}", "latency", "product_wait", 1, "clk", "clk", 60 + n * k / 32,
                    {"BN": n, "K": k, "RS": form}, {"G": SMS}, sass={"HGMMA": k // 16}, most={"HGMMA": k // 16},
                )  # fmt: skip


def _clocks() -> Iterator[Probe]:
    def one(
        name: str,
        file: str,
        kernel: str,
        expect: float,
        bindings: dict[str, int | str],
        dims: dict[str, Size],
        tensor: float = 0.0,
        **more: float,
    ) -> Probe:
        return Probe(
            f"clock.under.{name}", file, kernel, 1, "MHz", "clk", expect, bindings, dims, more, tensor=tensor, mode="sustained"
        )  # fmt: skip

    # Seconds of full load keep the clock of later products low for some seconds more: bursts come first.
    for k in (256, 1024, 4096, 16384):
        long = _loop(f"clock.under.launches.gemm.k{k}", 256, 4, L2_ROWS, 0, True)
        yield replace(
            long,
            scalars={**long.scalars, "trips": k // 64},
            trip="",
            trips=(20, 100),
            mode="launches",
            idle=True,
            tensor=long.tensor * k / 64,
        )
    for ms in (1, 4, 16, 64, 256):
        long = _loop(f"clock.under.gemm.after{ms}ms", 256, 4, L2_ROWS, 0, True)
        yield replace(long, mode="settling", after_ms=ms)
    yield one(
        "products", "tensor", "wgmma_rs", 512, {"DT": "bf16", "BN": 128, "WG": 2}, {"G": SMS}, 2.0 * 128 * 128 * 64
    )
    yield one(
        "products_and_epilogue",
        "overlap",
        "behind_products",
        1700,
        {"BN": 128, "WG": 3, "FMA": 1, "ALU": 2},
        {"G": SMS},
        3 * 2.0 * 64 * 128 * 128,
    )
    for duty, rest in ((25, 46), (50, 19), (75, 8), (100, 0)):
        yield _loop(f"clock.under.gemm.duty{duty}", 256, 4, L2_ROWS, rest, True)
    yield _loop("clock.under.gemm_hbm", 256, 4, HBM_ROWS, 0, True)
    yield _loop("clock.under.gemm_hbm.n64", 64, 4, HBM_ROWS, 0, True)
    yield one("fma", "issue", "ffma", 256, {"WARPS": 8}, {"G": SMS}, p=0.5, q=0.25)
    yield one("memory", "memory", "read", 3600, {"WARPS": 8}, {"G": (SMS, 2), "R": 1 << 20})
