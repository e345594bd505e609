"""Probes of shared memory, L2 and device memory: plain accesses and bulk copies, their rates, their latencies, what stays in L2."""

from __future__ import annotations

from collections.abc import Iterator

from corpus.calibrate.probe import SMS, Form, Probe, Size


def storage() -> Iterator[Probe]:
    """Shared memory, copies, memory, latencies of loads."""
    yield from _shared()
    yield from _tma()
    yield from _memory()
    yield from _flight()
    yield from _one_sm()
    yield from _hold()
    yield from _latencies()
    yield from _occupied()
    yield from _shared_boxes()
    yield from _copy_rings()
    yield from _epilogues()
    yield from _atomics()
    yield from _other_cta()


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
    for ranks in (2, 4, 8):
        for rows, boxes in ((64, 1), (64, 4), (128, 1), (128, 4)):
            yield Probe(
                f"tma.flight.multicast{ranks}.rows{rows}.boxes{boxes}", "tma", "tma_cluster", 1, "clk", "clk", 1200 / boxes,
                {"CL": ranks, "ROWS": rows, "STAGES": boxes}, {"G": 120, "R": L2_ROWS}, sass={"UTMALDG": 1},
            )  # fmt: skip
    for rows, boxes in ((64, 1), (64, 2), (128, 1), (128, 2), (256, 1), (256, 2)):
        yield ring(
            f"flight.same.rows{rows}.boxes{boxes}", rows, boxes, SMS, L2_ROWS, 0, "per_clk", "B/clk/SM", (500 + rows * 2) / boxes
        )
    for rows in (8, 64, 128):
        for boxes in (1, 2, 4, 8):
            box, wait = rows * 128.0, 500.0 + rows * 2
            yield ring(
                f"flight.one_cta.rows{rows}.boxes{boxes}",
                rows,
                boxes,
                1,
                L2_ROWS,
                1,
                "per_clk",
                "B/clk/SM",
                max(wait / boxes, box / 64),
            )
            yield ring(
                f"flight.l2.rows{rows}.boxes{boxes}",
                rows,
                boxes,
                SMS,
                L2_ROWS,
                1,
                "per_clk",
                "B/clk/SM",
                max(wait / boxes, box / 36),
            )
            yield ring(
                f"flight.hbm.rows{rows}.boxes{boxes}",
                rows,
                boxes,
                SMS,
                HBM_ROWS,
                1,
                "per_s",
                "B/s",
                max(2 * wait / boxes, box / 16),
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


FLIGHT_CTAS = {4: (4, 1), 8: (8, 1), 16: (8, 2), 32: (8, 4), 48: (8, 6), 64: (8, 8)}
"""Warps an SM: warps of a CTA, CTAs an SM."""
FLIGHT_ROWS = {1: 40961, 2: 20479, 4: 10237, 8: 5119}
"""Rows of 20 MiB by pieces of a row, without a factor of a grid, so that an SM does not come back to the rows that it holds in L1."""


def _flight() -> Iterator[Probe]:
    """Bytes in flight an SM: warps x pieces x 512."""
    for warps, (wide, ctas) in FLIGHT_CTAS.items():
        for pieces in (1, 2, 4, 8):
            if warps * pieces > 256:
                continue
            amount, loads = 512.0 * pieces * wide, {"LDG": pieces}
            tunables: dict[str, int | str] = {"U": pieces, "WARPS": wide, "CTAS": ctas}
            grid: dict[str, Size] = {"G": (SMS, ctas)}
            for where, rows, per_clk in (("l2", FLIGHT_ROWS[pieces], 36), ("hbm", (1 << 23) // pieces, 17)):
                yield Probe(
                    f"flight.{where}.read.warps{warps}.loads{pieces}", "flight", "flight", amount, "B/s", "per_s",
                    max(500 if where == "l2" else 900, amount * ctas / per_clk), tunables, {**grid, "R": rows}, sass=loads, most=loads,
                )  # fmt: skip
            if pieces in (1, 4) and warps in (8, 16, 32, 64):
                for where, total in (("l2", 16 << 20), ("hbm", 1 << 30)):
                    yield _copies(f"flight.{where}.copy.warps{warps}.loads{pieces}", wide, ctas, pieces, total)
        yield _writes(f"flight.hbm.write.warps{warps}", wide, ctas, 1 << 30)
        yield _writes(f"flight.l2.write.warps{warps}", wide, ctas, 16 << 20)


def _one_sm() -> Iterator[Probe]:
    """What one SM gets from L2 and puts into it when the others are idle."""
    for warps in (8, 16, 32):
        loads = {"LDG": 4}
        yield Probe(
            f"flight.one_sm.read.warps{warps}", "flight", "flight", 2048.0 * warps, "B/clk/SM", "per_clk", max(400, 32.0 * warps),
            {"U": 4, "WARPS": warps, "CTAS": 1}, {"G": 1, "R": FLIGHT_ROWS[4]}, sass=loads, most=loads,
        )  # fmt: skip
        yield Probe(
            f"flight.one_sm.write.warps{warps}", "flight", "flight_write", 512.0 * warps * 64, "B/clk/SM", "per_clk", 64 * 16.0 * warps,
            {"WARPS": warps, "CTAS": 1}, {"G": 1, "T": 64}, sass={"STG": 1},
        )  # fmt: skip


def _passes(total: int, unit: int) -> tuple[int, tuple[int, int]]:
    """How many times `unit` bytes of all CTAs make `total`, and trips of the two runs: at least two gigabytes in the longer one."""
    times = max(1, round(total / unit))
    many = max(6, round((2 << 30) / (times * unit)))
    return times, (max(2, many // 5), many)


def _copies(name: str, wide: int, ctas: int, pieces: int, total: int) -> Probe:
    times, trips = _passes(total, 2 * 132 * ctas * wide * 512 * pieces)
    return Probe(
        name, "flight", "flight_copy", 2.0 * 512 * pieces * wide * times, "B/s", "per_s",
        bindings={"U": pieces, "WARPS": wide, "CTAS": ctas}, dims={"G": (SMS, ctas), "T": times}, trips=trips,
        sass={"LDG": pieces, "STG": pieces}, most={"LDG": pieces},
    )  # fmt: skip


def _writes(name: str, wide: int, ctas: int, total: int) -> Probe:
    times, trips = _passes(total, 132 * ctas * wide * 512)
    return Probe(
        name, "flight", "flight_write", 512.0 * wide * times, "B/s", "per_s", bindings={"WARPS": wide, "CTAS": ctas},
        dims={"G": (SMS, ctas), "T": times}, trips=trips, sass={"STG": 1},
    )  # fmt: skip


HOLD = (8, 16, 24, 32, 36, 40, 44, 48, 56, 64, 96, 192)
"""Footprints in MiB."""


def _hold() -> Iterator[Probe]:
    """What of a footprint stays in L2: used again and again within a launch, and by one launch after the other."""
    for mib in HOLD:
        ctas = 1 if mib == 8 else 2
        yield Probe(
            f"l2.hold.read.mib{mib}", "flight", "hold", 8 * 4096.0, "B/s", "per_s", 1500 * ctas, {"WARPS": 8},
            {"G": (SMS, ctas), "R": mib * 256}, sass={"LDG": 8}, most={"LDG": 8},
        )  # fmt: skip
    for mib in (16, 32, 48, 56, 64, 96):
        yield _copies(f"l2.hold.copy.mib{mib}", 8, 4, 1, mib << 20)
    for mib in (8, 32, 64, 96):
        yield _writes(f"l2.hold.write.mib{mib}", 8, 4, mib << 20)
    for what, kernel, part in (("read", "pass_read", 256), ("copy", "pass_copy", 128)):
        for how, grid in (("persistent", 2), ("grid", 0)):
            for mib in HOLD[:-1]:
                yield Probe(
                    f"l2.relaunch.{what}.{how}.mib{mib}", "flight", kernel, 1, "us", "us", bindings={"GRID": grid}, dims={"R": mib * part},
                    trips=(10, 50), trip="", mode="launches", sass={"LDG": 8},
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
        {"none": 0},
        sass={"LDG": 1},
    )
    yield Probe(
        "latency.load.hbm", "memory", "chase", 1, "clk", "clk", 800, {"SIZE": 1 << 26}, {"G": 1}, {"none": 0}, trips=(500, 3000),
        sass={"LDG": 1}, cold=True,
    )  # fmt: skip
    yield Probe(
        "latency.smem.load", "latency", "shared_chase", 16, "clk", "clk", 16 * 35, {}, {"G": 1}, sass={"LDS": 16}
    )
    yield Probe(
        "latency.smem.load.vec",
        "latency",
        "shared_use",
        1,
        "clk",
        "clk",
        45,
        {},
        {"G": 1},
        sass={"LDS": 1},
        most={"LDS": 2},
    )
    yield Probe(
        "latency.ldmatrix",
        "latency",
        "matrix_use",
        1,
        "clk",
        "clk",
        45,
        {"LOAD": 1},
        {"G": 1},
        sass={"LDSM": 2},
        most={"LDSM": 2},
    )


def _occupied() -> Iterator[Probe]:
    """CTAs of eight warps that an SM holds (of the whole device: the driver's answer) by the registers they need, and their rate."""
    for held in (128, 1024, 2048, 4096):
        tunables: dict[str, int | str] = {"HELD": held, "WARPS": 8}
        yield Probe(
            f"occupancy.resident.held{held}", "flight", "occupied", 1, "CTAs", "count", bindings=tunables,
            dims={"G": SMS, "R": FLIGHT_ROWS[1]}, scalars={"trips": 2}, trips=(2, 8), mode="residency",
        )  # fmt: skip
        yield Probe(
            f"occupancy.read.held{held}", "flight", "occupied", 8 * 512.0, "B/s", "per_s", 1000, tunables,
            {"G": (SMS, 8), "R": FLIGHT_ROWS[1]}, sass={"LDG": held // 128 + 1},
        )  # fmt: skip


def _shared_boxes() -> Iterator[Probe]:
    """Boxes from L2 that so many CTAs read at about the same time, as the tiles of a GEMM are."""
    for share in (1, 2, 4, 8, 16, 33, 66):
        box = 256 * 128.0
        yield Probe(
            f"tma.l2.shared{share}.rows256", "rings", "tma_shared", box, "B/clk/SM", "per_clk", box / 50,
            {"ROWS": 256, "STAGES": 4, "SHARE": share}, {"G": SMS, "R": L2_ROWS}, sass={"UTMALDG": 1},
        )  # fmt: skip
    for apart in (16, 33, 66):
        yield Probe(
            f"tma.l2.apart{apart}.rows256", "gpcs", "tma_apart", 256 * 128.0, "B/clk/SM", "per_clk", 256 * 128.0 / 50,
            {"ROWS": 256, "STAGES": 4, "APART": apart}, {"G": SMS, "R": L2_ROWS}, sass={"UTMALDG": 1},
        )  # fmt: skip
    for rows in (8, 64):
        for boxes in (1, 2, 4):
            for busy in (0, 1):
                yield Probe(
                    f"tma.issue.rows{rows}.boxes{boxes}" + (".busy" if busy else ""), "rings", "tma_several", 1, "clk/turn", "clk",
                    max(220, boxes * rows * 1.2), {"ROWS": rows, "BOXES": boxes, "BUSY": busy}, {"G": 1, "R": 1024},
                    {"p": 0.5, "q": 0.25}, sass={"UTMALDG": boxes},
                )  # fmt: skip


def _copy_rings() -> Iterator[Probe]:
    for warps in (4, 8, 16):
        for stages in (1, 2, 4) if warps != 8 else (1, 2, 3, 4, 6):
            for where, rows in (("l2", L2_ROWS), ("hbm", HBM_ROWS // 8)):
                yield Probe(
                    f"cp_async.{where}.warps{warps}.stages{stages}", "rings", "copy_ring", 2048.0 * warps, "B/s", "per_s",
                    max(700 / stages, 2048.0 * warps / 30), {"WARPS": warps, "STAGES": stages}, {"G": SMS, "R": rows}, sass={"LDGSTS": 4},
                    most={"LDGSTS": 4},
                )  # fmt: skip
    yield Probe(
        "cp_async.latency.l2", "rings", "copy_ring", 1, "clk", "clk", 500, {"WARPS": 4, "STAGES": 1}, {"G": 1, "R": L2_ROWS},
        sass={"LDGSTS": 4}, most={"LDGSTS": 4},
    )  # fmt: skip


def _epilogues() -> Iterator[Probe]:
    """Tiles of accumulators of 64 rows a warpgroup to memory: clocks of a turn of all SMs, and of one CTA alone."""
    for ctas, where in ((SMS, "all"), (1, "one_cta")):
        for n, groups, buffers in ((128, 2, 1), (128, 2, 2), (256, 2, 1), (128, 1, 1), (64, 2, 1)):
            yield Probe(
                f"epilogue.tma.n{n}.groups{groups}.buffers{buffers}.{where}", "rings", "epilogue_tma", 1, "clk/tile", "clk",
                bindings={"BN": n, "WG": groups, "BUFFERS": buffers}, dims={"G": ctas}, trips=(100, 500), trip="T",
                sass={"STSM": n // 16, "UTMASTG": 1},
            )  # fmt: skip
        for dtype, n, groups in (
            ("bf16", 128, 2),
            ("bf16", 256, 2),
            ("bf16", 64, 2),
            ("bf16", 128, 1),
            ("f32", 128, 2),
        ):
            yield Probe(
                f"epilogue.plain.{dtype}.n{n}.groups{groups}.{where}", "rings", "epilogue_plain", 1, "clk/tile", "clk",
                bindings={"DT": dtype, "BN": n, "WG": groups}, dims={"G": ctas}, trips=(100, 500), trip="T", sass={"STG": n // 4},
            )  # fmt: skip
    for rows in (64, 128):
        yield Probe(
            f"tma.store.one_cta.rows{rows}", "tma", "tma_write", rows * 128.0, "B/clk/SM", "per_clk",
            bindings={"ROWS": rows, "STAGES": 4}, dims={"G": 1}, trips=(256, 2048), trip="T", sass={"UTMASTG": 1},
        )  # fmt: skip


def _atomics() -> Iterator[Probe]:
    for v in (1, 2, 4):
        yield Probe(
            f"atomic.rows.v{v}", "atomics", "add_rows", 8 * 4096.0, "B/s", "per_s", 6000, {"V": v, "WARPS": 8, "SAME": 0}, {"R": 4099},
            sass={"REDG": 32 // v},
        )  # fmt: skip
    for v in (1, 4):
        yield Probe(
            f"atomic.same_rows.v{v}", "atomics", "add_rows", 8 * 4096.0, "B/s", "per_s", 40000, {"V": v, "WARPS": 8, "SAME": 1},
            {"R": 1056}, sass={"REDG": 32 // v},
        )  # fmt: skip
    for share in (1, 8, 32, 1056):
        yield Probe(
            f"atomic.line.share{share}", "atomics", "add_word", 8.0, "lines/s", "per_s", 100.0 * share, {"WARPS": 8, "SHARE": share},
            {"R": 1056}, sass={"REDG": 1},
        )  # fmt: skip
    yield Probe("latency.atomic", "atomics", "fetch_chain", 1, "clk", "clk", 700, {}, {}, sass={"ATOMG": 1})


def _other_cta() -> Iterator[Probe]:
    """Shared memory of the other CTA of a pair."""
    for ctas, where in ((SMS, "all"), (2, "one_pair")):
        yield Probe(
            f"dsmem.store.{where}", "exchange", "write_pair", 8 * 4096.0, "B/clk/SM", "per_clk", 1500, {"V": 4, "WARPS": 8}, {"G": ctas},
            sass={"ST": 8},
        )  # fmt: skip
        yield Probe(
            f"dsmem.load.{where}", "exchange", "read_pair", 8 * 4096.0, "B/clk/SM", "per_clk", 1500, {"V": 4, "WARPS": 8, "ROW": 1024},
            {"G": ctas}, sass={"LD": 8},
        )  # fmt: skip
    for ranks in (2, 4, 8):
        yield Probe(
            f"dsmem.accumulator.ctas{ranks}", "exchange", "write_accumulator", 64 * 32 * 4.0, "B/clk/SM", "per_clk", 1000, {"CL": ranks},
            {"G": 120}, sass={"ST": 8},
        )  # fmt: skip
    yield Probe(
        "latency.dsmem.load", "exchange", "read_pair", 1, "clk", "clk", 250, {"V": 4, "WARPS": 1, "ROW": 128}, {"G": 2}, sass={"LD": 1},
        most={"LD": 1},
    )  # fmt: skip
