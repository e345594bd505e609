"""Probes of barriers and of launches."""

from __future__ import annotations

from collections.abc import Iterator

from corpus.calibrate.probe import SMS, Probe, Size, size


def control() -> Iterator[Probe]:
    """Barriers, launches, starts and turns of CTAs."""
    yield from _barriers()
    yield from _launch()
    yield from _turns()
    yield from _after()


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
        file = "exchange" if kernel == "send_pair" else "barriers"
        return Probe(
            f"barrier.{name}", file, kernel, hops, "clk", "clk", clk, bindings or {}, {"G": ctas}, sass={sass: 1}
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
    for warps, busy, name in (
        (1, 1, "waited"),
        (1, 0, "waited.alone"),
        (4, 1, "waited.warps4"),
        (12, 1, "waited.warps12"),
    ):
        yield Probe(
            f"barrier.mbarrier.{name}", "barriers", "waited", 8, "clk", "clk", 450, {"WARPS": warps, "BUSY": busy}, {"G": 1},
            {"p": 0.5, "q": 0.25}, sass={"SYNCS": 8},
        )  # fmt: skip
    for stores, name, clk in (
        (0, "arrived.other_cta", 20),
        (1, "release_cluster.alone", 400),
        (2, "release_cluster", 600),
    ):
        yield Probe(
            f"barrier.mbarrier.{name}", "exchange", "peer_arrivals", 8, "clk", "clk", 8.0 * clk, {"STORES": stores}, {"G": 2},
            sass={"SYNCS": 8, **({"MEMBAR": 8} if stores else {})},
        )  # fmt: skip
    for stages in (2, 4, 8):
        yield Probe(
            f"barrier.mbarrier.release_cluster.fed{stages}", "exchange", "fed_arrivals", 1, "clk", "clk", 1400, {"STAGES": stages},
            {"G": SMS, "R": 1 << 16}, sass={"UTMALDG": 1, "MEMBAR": 1},
        )  # fmt: skip
    yield Probe(
        "barrier.mbarrier.waited.cluster",
        "exchange",
        "peer_waits",
        8,
        "clk",
        "clk",
        480,
        {},
        {"G": 2},
        sass={"CCTL": 8},
    )
    yield one("mbarrier.arrived", "arrived", 16, 160, "SYNCS")
    yield one("named.turn.two", "turns_two", 2, 80, "BAR")
    for groups in (1, 2, 3):
        for late in (0, 1):
            yield Probe(
                f"barrier.named.late.groups{groups}" + ("" if late else ".chain"), "barriers", "late_sync", 1, "clk", "clk", 340,
                {"WG": groups, "LATE": late}, {"G": 1}, {"p": 0.5, "q": 0.25}, sass={"FFMA": 64},
            )  # fmt: skip
    yield one("store_async.hop", "send_pair", 1, 500, "SYNCS", 2)
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
    for ctas in range(2, 17):
        yield Probe(
            f"cluster.sms.ctas{ctas}", "launch", "room", ctas, "SMs", "count", bindings={"CL": ctas}, dims={"G": ctas},
            trips=(2, 8), trip="", mode="residency",
        )  # fmt: skip
    yield Probe(
        "launch.per_cta", "launch", "empty", 1, "us", "us", trips=((SMS, 64), (SMS, 640)), trip="G", dims={"G": SMS}
    )  # fmt: skip
    for warps in (1, 4, 8, 16, 32):
        some = (1, 8, 32) if warps > 1 else (1, 2, 4, 8, 32, 128)
        for per_sm in some:
            yield _crowd(f"empty.warps{warps}.per_sm{per_sm}", "crowd", {"WARPS": warps}, (SMS, per_sm))
    yield _crowd("empty.warps1.ctas1", "crowd", {"WARPS": 1}, 1)
    yield _crowd("empty.warps1.ctas65536", "crowd", {"WARPS": 1}, 65536)
    for ranks in (2, 4, 8):
        for ctas in (128, 1024, 4096):  # a multiple of every cluster on every device
            yield _crowd(f"cluster{ranks}.ctas{ctas}", "crowd_cluster", {"CL": ranks}, ctas)
    for per_sm in (1, 2, 8, 32):
        yield _crowd(f"smem200k.per_sm{per_sm}", "crowd_shared", {}, (SMS, per_sm))


def _crowd(name: str, kernel: str, bindings: dict[str, int | str], ctas: Size) -> Probe:
    large = size(ctas, 132) > 4000
    return Probe(
        f"launch.{name}", "crowd", kernel, 1, "us", "us", bindings=bindings, dims={"G": ctas}, trips=(10, 50) if large else (50, 250),
        trip="", mode="launches",
    )  # fmt: skip


TURNS = (
    ("one.warps4", 4, 200, 1), ("one.warps8", 8, 200, 1), ("one.warps12", 12, 200, 1), ("two.warps4", 4, 100, 2), ("four.warps4", 4, 50, 4),
    ("sixteen.warps4", 4, 1, 16),
)  # fmt: skip
"""Name, warps of a CTA, KiB of shared memory of a CTA, CTAs that an SM holds."""
STEPS = 56
"""Of 16 dependent multiply-adds: about 4000 clocks."""


def _turns() -> Iterator[Probe]:
    """Clocks of a wave of CTAs with a chain, and with a chain of twice the length: twice the first less the second is what lies between
    two CTAs on one place of an SM."""
    for longer in (1, 2):
        chain = {"p": 0.5, "q": 0.25, "steps": STEPS * longer}
        for name, warps, kib, ctas in TURNS:
            yield Probe(
                f"launch.turn.{name}.chain{longer}", "crowd", "turn", 1, "clk", "clk", bindings={"WARPS": warps, "KIB": kib},
                dims={"G": (SMS, ctas)}, scalars=chain, trips=(8, 40), trip="W", sass={"FFMA": 16},
            )  # fmt: skip
        yield Probe(
            f"launch.turn.pair.warps4.chain{longer}", "crowd", "turn_cluster", 1, "clk", "clk", bindings={"CL": 2}, dims={"G": SMS},
            scalars=chain, trips=(8, 40), trip="W", sass={"FFMA": 16},
        )  # fmt: skip


def _after() -> Iterator[Probe]:
    """Microseconds of a launch with a chain of one and of two lengths, behind one another: twice the first less the second is what lies
    between the end of one and the first step of the next."""
    for ctas, where in ((1, "one_cta"), (SMS, "all_sms")):
        for early, how in ((0, "plain"), (1, "dependent")):
            for longer in (1, 2):
                yield Probe(
                    f"launch.after.{how}.{where}.chain{longer}", "launch", "after", 1, "us", "us", bindings={"EARLY": early},
                    dims={"G": ctas}, scalars={"p": 0.5, "q": 0.25, "steps": STEPS * longer}, trips=(50, 250), trip="", mode="launches",
                    sass={"FFMA": 16},
                )  # fmt: skip
