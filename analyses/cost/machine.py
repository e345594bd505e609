"""Service rates and latencies of one device, in clocks of an SM: measured where there is a calibration, else from the data sheet.

`Machine.of` gives one object whichever it is, so that the schedule has one model. Rates that a calibration lacks raise; what neither
source knows is assumed (`ASSUMED`, marked in the estimate's assumptions).
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from analyses.cost.calibration import Calibration, spread

if TYPE_CHECKING:
    from cake_ir.targets.table import Target

SCHEDULERS = 4
"""Warp schedulers of an SM (every target): a warp instruction a clock each."""

ASSUMED: Mapping[str, float] = {
    "load": 300, "load_hbm": 700, "l1": 40, "smem_load": 30, "tma": 700, "tma_hbm": 1100, "hop": 90, "far": 240, "passed": 150,
    "named": 35, "cluster": 350, "fence": 40, "wgmma": 90, "mma": 33, "cta_start": 150, "turnaround": 450,
    "start": 500, "atomic_line": 15, "release": 560, "crowd_l2": 13, "crowd_hbm": 57, "launch_us": 1.5, "dependent_us": 1.0,
}  # fmt: skip
"""Latencies in clocks, the clocks of an SM between two CTA starts and the microseconds of a launch where nothing was measured. The
orders of magnitude are those of sm_90a."""


GPCS = 8
"""GPCs of a device (Hopper and Blackwell): clusters of an H200 start in eight."""

FREE = 0.04
"""Part of a product's clocks in which other instructions cost it nothing: one minimum per element of it does not show."""

CLOCK_KNEE = 0.55
"""Part of the time that the tensor cores work up to which the clock stays at its first step (H200: 1750 to 1775 MHz from 17 to 56 %)."""

CLUSTER_SHARE: Mapping[int, float] = {
    2: 132 / 132, 3: 117 / 132, 4: 120 / 132, 5: 110 / 132, 6: 102 / 132, 7: 105 / 132, 8: 120 / 132, 9: 81 / 132,
    **{n: 7 * n / 132 for n in range(10, 17)},
}  # fmt: skip
"""Part of the SMs that clusters of so many CTAs use where nothing was measured: what the driver answered for kernels that fill an SM on one
H200 (39 clusters of 3, 30 of 4, 15 of 8, 9 of 9, 7 of 10 to 16): a cluster lies within a GPC, of which there are seven with 16 or 18
SMs and one with fewer, and takes pairs of SMs."""

LATENCIES: Mapping[str, str] = {
    "tma": "tma.latency.l2", "tma_hbm": "tma.latency.hbm",
    "far": "barrier.mbarrier.to_other_cta", "hop": "barrier.mbarrier.thread_to_group", "passed": "barrier.mbarrier.waited",
    "release": "barrier.mbarrier.release_cluster",
    "named": "barrier.named.role.groups1", "cluster": "barrier.cluster.ctas2", "fence": "barrier.fence_async",
    "launch_us": "launch.graph.all_sms", "dependent_us": "launch.dependent.all_sms",
}  # fmt: skip
"""The rates that latencies are read from."""


@dataclass(frozen=True)
class Machine:
    """One device.

    sms; clocks in Hz: without load, with the tensor cores busy some of the time, and all of it; `hbm_read`, `hbm_write`, `l2` (distinct
    lines read), `l2_write` in bytes per second of the device; `port` (what copies of lines that others read too bring into an SM;
    `port_alone`, `write_alone`: of one SM, in and out), `smem`, and `far` (shared memory of another CTA of the cluster;
    `far_pieces`: when lanes of an accumulator store two elements each) in bytes per clock and SM;
    `fma`, `alu`, `special`, `shuffle` in lanes per clock and SM; `latency` by name (see `ASSUMED`); `wgmma`: FLOP per clock and SM by
    form (ss, rs) and columns; `flop`: the peak by bits of an input element. `alu_slots`: for how many issue slots an ALU instruction
    keeps others away; `l2_keeps`: bytes up to which a footprint stays in L2 from launch to launch, and from which nothing of it does;
    `drag`: how issue slots slow products down (see `_drag`). `gpcs`: groups of SMs that get what they share once. `cluster_sms`: on how
    many SMs clusters of so many CTAs run. `spread`: by bound class, between which multiples of a prediction measured times lie.
    `calibrated` and `source` say where all this comes from; `assumed`: latencies that come from
    `ASSUMED` all the same, because nothing measures them or the calibration is older than what does.
    """

    name: str
    sms: int
    clock_hz: float
    clock_some_hz: float
    clock_tensor_hz: float
    hbm_read: float
    hbm_write: float
    l2: float
    l2_write: float
    port: float
    port_alone: float
    write_alone: float
    smem: float
    far: float
    far_pieces: float
    fma: float
    alu: float
    special: float
    shuffle: float
    latency: Mapping[str, float]
    wgmma: Mapping[tuple[str, int], float]
    mma_sync: float
    flop: Mapping[int, float]
    alu_slots: float = 1.0
    l2_keeps: tuple[float, float] = (64e6, 78e6)
    drag: tuple[float, float, float] = (0.0, 0.0, 0.0)
    gpcs: int = GPCS
    cluster_sms: Mapping[int, int] = field(default_factory=dict)
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    calibrated: bool = False
    source: str = ""
    assumed: tuple[str, ...] = tuple(ASSUMED)

    @staticmethod
    def of(target: Target, calibration: Calibration | None) -> Machine:
        """The machine of a target: measured with a calibration, else from its data sheet."""
        return _measured(target, calibration) if calibration is not None else _sheet(target)

    def usable_sms(self, cluster: int) -> int:
        """SMs on which clusters of that size run: those of a GPC that is no multiple of it are left over.
        One cluster runs on every machine."""
        table = self.cluster_sms or {n: self.sms * share for n, share in CLUSTER_SHARE.items()}
        fits = min((n for n in table if n >= cluster), default=0)
        return max(cluster, int((table[fits] if cluster > 1 and fits else self.sms) // cluster * cluster))

    def clock_under(self, used: float) -> float:
        """The SM clock in Hz while the tensor cores work a part `used` of the time: any work lowers it by a step, much of it further."""
        if not used:
            return self.clock_hz
        more = max(0.0, used - CLOCK_KNEE) / (1 - CLOCK_KNEE)
        return self.clock_some_hz + (self.clock_tensor_hz - self.clock_some_hz) * more

    def product_clk(self, rows: int, n: int, k: int, bits: int, registers: bool) -> float:
        """Clocks of the tensor cores of an SM for one product rows x n x k of a warpgroup."""
        flop = 2.0 * rows * n * k
        peak = self.flop[bits]
        share = 1.0
        if self.wgmma:
            form = "rs" if registers else "ss"
            known = sorted((w, r) for (f, w), r in self.wgmma.items() if f == form)
            share = _between(known, n) / self.flop[16]
        return flop / (peak * share)


def _between(points: list[tuple[int, float]], x: float) -> float:
    """Piecewise linear through sorted points, constant outside; below the first in proportion."""
    if x <= points[0][0]:
        return points[0][1] * x / points[0][0]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]


def _peaks(target: Target) -> dict[int, float]:
    def one(key: str) -> float:
        found = target.get(key)
        return found.number if found is not None else target.rate("tc_bf16")

    return {16: one("tc_bf16"), 8: one("tc_fp8"), 32: one("tc_tf32")}


def _fact(target: Target, key: str, default: float) -> float:
    found = target.get(key)
    return found.number if found is not None else default


def _sheet(target: Target) -> Machine:
    clock, sms = target.rate("clock_hz"), target.value("sm_count")
    per_sm, hbm = _fact(target, "l2_bytes_per_clk_per_sm", 64), target.rate("hbm_bytes_per_s")
    return Machine(
        name=target.product, sms=sms, clock_hz=clock, clock_some_hz=clock, clock_tensor_hz=clock, hbm_read=hbm, hbm_write=hbm,
        l2=per_sm * sms * clock, l2_write=per_sm * sms * clock / 2,
        port=per_sm, port_alone=2 * per_sm, write_alone=per_sm / 2, smem=_fact(target, "smem_bytes_per_clk", 128),
        far=16.0, far_pieces=6.5, fma=_fact(target, "fp32_lanes", 128),
        alu=_fact(target, "alu_per_clk", 64), special=_fact(target, "sfu_per_clk", 16), shuffle=_fact(target, "shuffle_per_clk", 32),
        latency=ASSUMED, wgmma={}, mma_sync=_fact(target, "mma_sync_fraction", 1.0), flop=_peaks(target),
        source=f"data sheet of the {target.product}",
    )  # fmt: skip


def _measured(target: Target, c: Calibration) -> Machine:
    v = c.value
    wgmma = {
        (form, int(name)): rate
        for form in ("ss", "rs")
        for name, rate in c.family(f"tensor.wgmma.bf16.{form}.n").items()
        if name.isdigit()
    }
    sheet, peaks = _sheet(target), _peaks(target)
    slots = _alu_slots(v("issue.fma_and_minmax.warps8"))
    clock, tensor = v("clock.under.memory") * 1e6, v("clock.under.products") * 1e6
    some = max(c.family("clock.under.gemm.duty").values(), default=tensor * 1e-6) * 1e6
    copy, read = c.best("hbm.copy.", "flight.hbm.copy."), c.best("hbm.read.")
    alone = 2.0 * 64 * 128 * 64 / v("tensor.wgmma.bf16.rs.n128.alone") - 2.0 * 64 * 128 * 64 / v(
        "tensor.wgmma.bf16.rs.n128"
    )
    first, empty = c.rates.get("launch.first_load.all_sms"), c.rates.get("launch.graph.all_sms")
    known = {name: c.value(rate) for name, rate in LATENCIES.items() if rate in c.rates} | {"wgmma": alone}
    known |= _load_latencies(c, clock) | _starts(c, clock)
    known |= _crowds(c, {"l2": v("l2.read"), "hbm": read}, clock)
    if "atomic.line.share32" in c.rates and "atomic.line.share1056" in c.rates:
        # 8 warps an SM. Operations of few SMs on a line follow each other more slowly than those of all: the mean of both, in ratio
        few, all_sms = (8 * c.sms / n / c.value(f"atomic.line.share{n}") for n in (32, 1056))
        known["atomic_line"] = math.sqrt(few * all_sms) * clock
    if first is not None and empty is not None:
        # what a first copy takes beyond its latency: barriers are set up, its tensor map is fetched
        known["start"] = max(
            0.0,
            (first.value - empty.value) * clock * 1e-6
            - v("tma.latency.l2.rows128")
            - known.get("passed", ASSUMED["passed"]),
        )
    return replace(
        sheet, name=c.device, sms=c.sms, clock_hz=clock, clock_some_hz=min(clock, some),
        clock_tensor_hz=tensor, hbm_read=read, hbm_write=1 / (2 / copy - 1 / read),
        l2=v("l2.read"), l2_write=max(c.family("flight.l2.write.").values(), default=v("l2.read") / 2),
        port=v("tma.l2.same.rows256"), port_alone=v("tma.l2.one_cta.rows256"),
        write_alone=c.rates["tma.store.one_cta.rows128"].value if "tma.store.one_cta.rows128" in c.rates else 32.0, smem=v("smem.load.16B"),
        far=c.rates["dsmem.store.all"].value if "dsmem.store.all" in c.rates else sheet.far,
        far_pieces=min(c.family("dsmem.accumulator.ctas").values(), default=sheet.far_pieces),
        fma=v("issue.fma.warps8"), alu=v("issue.minmax"),
        special=v("issue.special.exp2"), wgmma=wgmma, mma_sync=v("tensor.mma_sync.bf16.warps16") / peaks[16],
        latency={**ASSUMED, **known},
        alu_slots=slots, drag=_drag(c),
        cluster_sms={int(n): int(sms) for n, sms in c.family("cluster.sms.ctas").items() if n.isdigit()},
        spread=spread(c.slug), calibrated=True, source=c.source,
        assumed=(*(n for n in ASSUMED if n not in known), *(() if c.family("cluster.sms.ctas") else ("cluster_sms",))),
    )  # fmt: skip


LOOP_CLK = 50.0
"""Clocks that a loop around one load takes besides the load's latency: its use, the address, the branch."""


def _load_latencies(c: Calibration, clock_hz: float) -> dict[str, float]:
    """Clocks until a load is there, from L2 and from device memory: four warps an SM, each with one load of 512 bytes on its way, move
    as many bytes as that in a latency."""
    out = {}
    for name, where in (("load", "l2"), ("load_hbm", "hbm")):
        found = c.rates.get(f"flight.{where}.read.warps4.loads1")
        if found is not None:
            out[name] = 4 * 512.0 * c.sms / found.value * clock_hz - LOOP_CLK
    return out


CROWD_FROM, CROWD_TO = 0.25, 0.97
"""Parts of the peak between which what a load waits longer says how queues grow."""


def _crowds(c: Calibration, peak: Mapping[str, float], clock_hz: float) -> dict[str, float]:
    """Clocks C of the law  latency = latency alone + C x / (1 - x)  at a part x of the peak, for L2 and device memory: the median over
    numbers of warps with a load of 512 bytes each on its way, whose latency is what is on its way over the rate (Little's law)."""
    out = {}
    for where, most in peak.items():
        rates = c.family(f"flight.{where}.read.warps")
        alone = rates.get("4.loads1")
        if alone is None:
            continue
        waits = []
        for name, rate in rates.items():
            found = re.fullmatch(r"(\d+)\.loads1", name)
            x = rate / most
            if found and CROWD_FROM < x < CROWD_TO:
                longer = 512.0 * c.sms * (int(found[1]) / rate - 4 / alone)
                waits.append(max(0.0, longer) * clock_hz * (1 - x) / x)
        if waits:
            out[f"crowd_{where}"] = statistics.median(waits)
    return out


def _starts(c: Calibration, clock_hz: float) -> dict[str, float]:
    """Clocks of an SM between the starts of two CTAs, and between the end of a CTA that fills it and the start of the next."""
    out = {}
    for name, one, many, n in (
        ("cta_start", "launch.empty.warps1.per_sm1", "launch.empty.warps1.per_sm128", 127),
        ("turnaround", "launch.smem200k.per_sm1", "launch.smem200k.per_sm32", 31),
    ):
        if one in c.rates and many in c.rates:
            out[name] = (c.value(many) - c.value(one)) / n * clock_hz * 1e-6
    return out


def _alu_slots(mixed: float) -> float:
    """Issue slots of an ALU instruction, from lanes per clock and SM of multiply-adds and minima one to one: a pair takes that many
    clocks on a scheduler, one of them the multiply-add's. (The mix would reach 128 lanes if the pipes ran side by side.)"""
    return max(1.0, 2 * 32.0 * SCHEDULERS / mixed - 1.0)


def _drag(c: Calibration) -> tuple[float, float, float]:
    """(fma, alu, free) of the law  product = alone + max(0, fma x F + alu x A - free x alone):  F clocks of issue slots for multiply-adds,
    A for others run meanwhile. Least squares over the `behind` rates of three warpgroups whose loops multiply-add first (loops that
    change accumulators in place by ALU instructions measure the copies that the compiler makes of them) and that the ALU pipe does not
    fill."""
    rows, longer = [], []
    for name, clocks in c.family("behind.").items():
        found = re.fullmatch(r"n128\.groups3\.fma([1-9])\.alu(\d)", name)
        if found:
            fma, alu = int(found[1]), int(found[2]) + 1  # a minimum comes on top
            if alu <= 3:
                rows.append((64.0 * fma, 64.0 * alu))
                longer.append(clocks - 2.0 * 64 * 128 * 128 / c.value("tensor.wgmma.bf16.rs.n128"))
    if len(rows) < 3:
        return 0.0, 0.0, 0.0
    # the ordinary normal equations of two unknowns
    aa = sum(f * f for f, _ in rows)
    ab = sum(f * a for f, a in rows)
    bb = sum(a * a for _, a in rows)
    ay = sum(f * y for (f, _), y in zip(rows, longer, strict=True))
    by = sum(a * y for (_, a), y in zip(rows, longer, strict=True))
    det = aa * bb - ab * ab
    return (ay * bb - by * ab) / det, (by * aa - ay * ab) / det, FREE
