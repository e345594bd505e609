"""Time, bounds and schedule of one kernel at one shape, from the rates of a device.

`analyses.cost.machine` holds the rates (measured where the device has a calibration), `work` what each op asks, `reading` what the SM with
most CTAs takes; here come the limits of the whole device, the clock under tensor load and the launch.
docs/cost-model.md explains every term. What is not modelled is listed in `assumptions`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from analyses.cost.calibration import find
from analyses.cost.machine import Machine
from analyses.cost.path import Step, critical_path
from analyses.cost.reading import Grid, Reading, read
from analyses.cost.sharing import L2, tensor_bytes
from analyses.cost.sites import Site, sites
from analyses.cost.terms import BOUNDS, FIRST, check
from analyses.cost.work import SHARED
from cake_ir import bound as B
from cake_ir.arithmetic import compile_sx
from cake_ir.diagnostics import CakeError, error

ASSUMPTIONS = (
    "inputs come from HBM once and again where L2 no longer keeps them; what CTAs read at the same time crosses L2 once",
    "roles overlap with each other, steps of one role do not, except asynchronous copies and products that are not waited for",
    "loops over data run once, branches on data are not taken",
    "bank conflicts, register moves and what other kernels leave in L2 are not modelled",
)


@dataclass(frozen=True)
class Estimate:
    """All times in microseconds; docs/cost-model.md explains every field.

    bounds_us: time each resource needs if nothing else cost anything (the roofline); bound_by is the largest. limited_by: what this
    schedule waits for: the resource that works most of the time, else "barriers", "latency" (of loads), "products", "stores" or
    "issue". floor_us: what no schedule beats on this device (each tensor at most once, and tensor work, at the rates of the datasheet).
    clock_mhz: the SM clock that the time was made with.
    calibrated: whether the rates were measured on `device`; source: when and how."""

    time_us: float
    floor_us: float
    bound_by: str
    limited_by: str
    bounds_us: dict[str, float]
    ctas: int
    ctas_per_sm: int
    waves: float
    cta_us: float
    launch_us: float
    limiters: tuple[dict[str, Any], ...]
    tensor_flop: float
    hbm_bytes: float
    l2_bytes: float
    target: str
    shape: dict[str, int] = field(default_factory=dict)
    calibrated: bool = False
    assumptions: tuple[str, ...] = ()
    device: str = ""
    source: str = ""
    clock_mhz: float = 0.0
    low_us: float | None = None
    high_us: float | None = None
    bound_class: str = ""
    path: tuple[Step, ...] = ()
    sites: tuple[Site, ...] = ()
    l2: L2 = "cold"


def estimate(
    bound: B.BoundKernel, shape: dict[str, int], device: str | None = None, *, l2: L2 = "cold",
    without: frozenset[str] = frozenset(), explain: bool = True,
) -> Estimate:  # fmt: skip
    """Estimate one kernel at one shape (every dimension by name; kernel scalars may be given too).

    device: its CUDA name (default: the product of the kernel's target). l2: whether what fits L2 is there at the start (`warm`: the
    kernel is launched again and again) or not (`cold`). without: terms to leave out (`analyses.cost.terms`). explain: path and limiters
    too. Raises CakeError for a shape the kernel does not admit, `cost/unknown-term`, and `cost/unknown-device` for a device that
    was not measured and has no data sheet here.
    """
    calibration = find(bound.target.name, device)
    return estimate_on(bound, shape, Machine.of(bound.target, calibration), l2=l2, without=without, explain=explain)


def estimate_on(
    bound: B.BoundKernel, shape: dict[str, int], m: Machine, *, l2: L2 = "cold", without: frozenset[str] = frozenset(),
    explain: bool = True,
) -> Estimate:  # fmt: skip
    """`estimate` for a machine at hand. Raises CakeError for a shape the kernel does not admit and `cost/unknown-term`."""
    check(without)
    try:
        env, ctas = _environment(bound, shape, m.sms)
    except ZeroDivisionError:
        raise CakeError(
            error("language/shape", "language", f"'{bound.name}' divides by zero at shape {shape}, in where or launch", bound.span)
        ) from None  # fmt: skip
    grid = _grid(bound, env, ctas, m, without)
    reading = read(bound, env, grid, m, m.clock_hz, l2=l2, without=without, log=explain)
    per_sm = grid.active / m.sms
    depends = any(_depends(s) for s in B.walk(bound.body))
    tensor = reading.busy.get("tensor", 0.0) * per_sm
    used = 0.0 if "clock" in without or not reading.clocks else min(1.0, tensor / reading.clocks)
    clock = m.clock_under(used)
    launch_us = 0.0 if "launch" in without else m.latency["dependent_us" if depends else "launch_us"]
    start = (
        0.0
        if "launch" in without
        else (m.latency["start"] if any(b.kind == "mbarrier" for b in bound.barriers) else 0.0)
        + (m.latency["cluster"] if bound.launch.cluster > 1 else 0.0)
    )
    memory = {"hbm": 0.0 if "hbm" in without else reading.reads / m.hbm_read + reading.writes / m.hbm_write}
    bounds = memory | _bounds(reading, m, clock, ctas * grid.average)
    # operations on one line of memory are done one after the other; those of the last wave come at its end
    lines = (
        0.0
        if "l2" in without
        else reading.adds * m.latency["atomic_line"] * min(1.0, grid.sms * grid.busy / max(1, ctas))
    )
    inside = max((reading.clocks + start + lines) / clock if ctas else 0.0, memory["hbm"])
    time_us = inside * 1e6 + launch_us
    floor = _floor(bound, env, reading, m)
    found = Estimate(
        time_us=time_us, floor_us=floor * 1e6, bound_by=max(bounds, key=lambda r: bounds[r]), limited_by="",
        bounds_us={k: v * 1e6 for k, v in bounds.items()},
        ctas=ctas, ctas_per_sm=grid.resident, waves=ctas / (grid.sms * grid.resident), cta_us=reading.cta / clock * 1e6,
        launch_us=launch_us,
        limiters=(), tensor_flop=reading.flop, hbm_bytes=reading.reads + reading.writes, l2_bytes=reading.l2_reads + reading.l2_writes,
        target=bound.target.name, shape=dict(shape), calibrated=m.calibrated, assumptions=(*_rates(m), *ASSUMPTIONS), device=m.name,
        source=m.source, clock_mhz=clock / 1e6, l2=l2, sites=sites(reading.trace) if explain else (),
        path=critical_path(reading.outcome, inside * 1e6, launch_us) if explain else (),
    )  # fmt: skip
    found = replace(found, limited_by=_limited(reading))
    found = replace(found, bound_class=_class(found, reading, grid))
    low, high = _interval(found, m)
    return replace(found, low_us=low, high_us=high)


def _grid(bound: B.BoundKernel, env: list[Any], ctas: int, m: Machine, without: frozenset[str]) -> Grid:
    sms = m.usable_sms(bound.launch.cluster)
    resident = _resident(bound)
    per_sm = -(-ctas // sms)
    busy = 1 if "residency" in without else max(1, min(resident, per_sm))
    if "residency" in without:  # CTAs of an SM as if each had one
        per_sm = -(-per_sm // resident)
    return Grid(ctas, resident, sms, busy, max(1, per_sm), _average_fraction(bound, env))


def _bounds(reading: Reading, m: Machine, clock: float, ctas: float) -> dict[str, float]:
    """Seconds that each resource would need alone for the work of `ctas` CTAs like the first, spread evenly over all SMs."""
    even = ctas / reading.ctas / m.sms / clock
    l2 = max(reading.l2_reads / m.l2, reading.l2_writes / m.l2_write)  # both ways are open at once
    return {"l2": l2} | {r: v * even for r, v in reading.busy.items() if r in SHARED and v > 0}


def _floor(bound: B.BoundKernel, env: list[Any], reading: Reading, m: Machine) -> float:
    """Seconds that no schedule beats, from the datasheet: a measured rate is what one program reached, and another may reach more.
    What a schedule reads again, because it has passed through L2, another one need not."""
    sheet = m if not m.calibrated else Machine.of(bound.target, None)
    bits = max((t.dtype.bits for t in bound.tensors if t.direction == "In" and t.dtype.bits <= 16), default=16)
    products = reading.flop / (sheet.flop[bits] * sheet.sms * max(m.clock_hz, sheet.clock_hz))
    sizes = tensor_bytes(bound, env)
    reads = _once(reading.reads, sum(sizes[id(t)] for t in bound.tensors if t.direction != "Out"), reading.error)
    writes = _once(reading.writes, sum(sizes[id(t)] for t in bound.tensors if t.direction != "In"), reading.error)
    return max(reads / sheet.hbm_read + writes / sheet.hbm_write, products)


def _once(moved: float, whole: float, error: float) -> float:
    """What is moved of tensors of `whole` bytes, each byte once: all of it, where what CTAs that were sampled say (`error`, a fraction of
    it, is a standard error) does not differ from that."""
    return whole if moved * (1 + 3 * error) >= whole else moved


def _interval(found: Estimate, m: Machine) -> tuple[float | None, float | None]:
    """Where nine in ten measured times of kernels of this bound class lay; None where nobody has compared: nothing is claimed then."""
    spread = m.spread.get(found.bound_class) or m.spread.get("all")
    return (found.time_us * spread[0], found.time_us * spread[1]) if spread else (None, None)


BUSY = 0.75
"""A resource that works so much of the time is what a schedule is limited by."""


def _limited(reading: Reading) -> str:
    """The busiest resource, if it works most of the time; else what the roles wait for."""
    which = max(reading.busy, key=lambda r: reading.busy[r])
    if reading.clocks and reading.busy[which] >= BUSY * reading.clocks:
        return "l2" if which == "out" else which  # stores have a way of their own
    waits = {k: v for k, v in reading.stalls.items() if v > 0}
    worst = max(waits, key=lambda k: waits[k], default="")
    return {"barrier": "barriers", "load": "latency", "product": "products", "store": "stores"}.get(worst, "issue")


def _class(found: Estimate, reading: Reading, grid: Grid) -> str:
    """The bound class in one run: shares of the time."""
    outside = found.launch_us / found.time_us if found.time_us else 1.0
    if outside >= FIRST["launch"]:
        return "launch"
    if found.limited_by in reading.busy:
        return BOUNDS.get(found.limited_by, found.limited_by)
    idle = 1 - grid.ctas / (grid.sms * grid.per_sm) if grid.ctas > grid.sms else 0.0
    if idle >= FIRST["wave"]:
        return "tail"
    return "barrier wait" if found.limited_by == "barriers" else "latency" if found.limited_by != "issue" else "issue"


def _environment(bound: B.BoundKernel, shape: dict[str, int], sms: int) -> tuple[list[Any], int]:
    missing = [d for d in bound.dims if d not in shape]
    unknown = [k for k in shape if k not in bound.dims and k not in {a.name for a in bound.args}]
    if missing or unknown:
        what = f"missing {', '.join(missing)}" if missing else f"unknown {', '.join(unknown)}"
        raise CakeError(
            error(
                "language/shape",
                "language",
                f"the shape must give every dimension of '{bound.name}' ({', '.join(bound.dims)}): {what}",
                bound.span,
            )
        )
    env: list[Any] = [0] * len(bound.scalars)
    for name, var in bound.dims.items():
        if shape[name] < 0:
            raise CakeError(error("language/shape", "language", f"{name}={shape[name]} is negative", bound.span))
        env[var.slot] = shape[name]
    for var in bound.args:
        env[var.slot] = shape.get(var.name, 0)
    env[bound.builtins["sms"].slot] = sms
    for w in bound.where:
        if not compile_sx(w.cond)(env):
            raise CakeError(
                error("language/where-unsatisfied", "language", f"shape {shape} contradicts this condition", w.span)
            )
    ctas = max(0, int(compile_sx(bound.launch.ctas)(env)))
    env[bound.builtins["cta_count"].slot] = ctas
    env[bound.builtins["cluster_count"].slot] = ctas // bound.launch.cluster
    return env, ctas


def _resident(bound: B.BoundKernel) -> int:
    return max(1, min(fits(bound).values()))


WIDENED, BESIDE, LEAST_REGISTERS = 0.7, 18, 40
"""Registers that the compiler takes beyond the fragments that are alive: for addresses and guards, and where 16-bit elements are worked
on as f32. (Medians over 400 variants of corpus kernels; what the verifier allows for, `analyses.registers.OVERHEAD`, is an upper bound.)"""


def fits(bound: B.BoundKernel) -> dict[str, int]:
    """CTAs that fit on an SM by shared memory, threads, blocks and registers: as declared, else by the fragments that are alive at once."""
    from analyses.registers import LIMIT, peak
    from cake_ir.derive.memory import memory_map

    t = bound.target
    if any(r.registers for r in bound.roles):
        used = sum(32 * r.warps * (r.registers or 64) for r in bound.roles)
    else:  # one number for all threads, in steps of eight
        needed = (p.registers + WIDENED * p.packed + BESIDE for p in (peak(bound, r) for r in bound.roles))
        most = min(LIMIT, int(max(LEAST_REGISTERS, *needed)))
        used = bound.threads * (-(-most // 8) * 8)
    return {
        "shared memory": t.value("smem_per_sm") // (memory_map(bound).total + t.value("smem_reserved")),
        "threads": t.value("threads_per_sm") // bound.threads,
        "registers": t.value("registers_per_sm") // used,
        "blocks": t.value("blocks_per_sm"),
    }


def _rates(m: Machine) -> tuple[str, ...]:
    """What is said of rates that were not measured."""
    if not m.calibrated:
        return (f"{m.source}, not measured on your device; latencies are assumed",)
    return (f"assumed, not measured: {', '.join(m.assumed)}",) if m.assumed else ()


def _depends(s: Any) -> bool:
    return isinstance(s, B.Op) and s.name == "griddep_wait"


def _average_fraction(bound: B.BoundKernel, env: list[Any]) -> float:
    """Work of the average CTA over that of CTA 0: persistent loops give the first clusters one tile more."""
    for s in bound.body:
        if isinstance(s, B.For) and B.persistent(bound, s):
            count, step = compile_sx(s.stop)(env), max(1, compile_sx(s.step)(env))
            trips = -(-count // step)
            return count / (trips * step) if trips else 1.0
    return 1.0
