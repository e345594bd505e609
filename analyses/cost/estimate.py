"""Time, bounds and schedule of one kernel at one shape, from the rates of a device.

`analyses.cost.machine` holds the rates (measured where the device has a calibration), `work` what each op asks, `schedule` what a CTA
takes; here CTAs become a grid: waves over the SMs, the limits of the whole device (HBM with every tensor moved once, L2), the clock
under tensor load, the launch. docs/cost-model.md explains every term. What is not modelled is listed in `assumptions`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from analyses.cost.calibration import find
from analyses.cost.machine import Machine
from analyses.cost.schedule import Schedule, shares
from analyses.cost.terms import check
from analyses.cost.work import SHARED
from cake_ir import bound as B
from cake_ir.arithmetic import compile_sx
from cake_ir.diagnostics import CakeError, error

ASSUMPTIONS = (
    "each input is read from HBM once and each output written once; what CTAs read at the same time crosses L2 once",
    "roles overlap with each other, steps of one role do not, except asynchronous copies and products that are not waited for",
    "loops over data run once, branches on data are not taken",
    "bank conflicts, register moves and what other kernels leave in L2 are not modelled",
)
IDLE = 0.25
"""A CTA whose busiest resource works less than this part of the time waits for latencies."""


L2 = Literal["cold", "warm"]


@dataclass(frozen=True)
class Step:
    """A stretch of the critical path: what the role's instance did at a line of the program (`why` is "executes"), or what it waited
    for there; `share` of the whole time."""

    role: str
    instance: int
    what: str
    line: int
    col: int
    us: float
    share: float
    why: str


@dataclass(frozen=True)
class Estimate:
    """All times in microseconds; docs/cost-model.md explains every field.

    bounds_us: time each resource needs if nothing else cost anything (the roofline); bound_by is the largest. limited_by: what this
    schedule waits for: a resource, "role NAME" (its steps are in order), "copy latency" (a ring with too few stages), "latency" (too
    little work on an SM to fill the time that loads and barriers take), hbm or l2. floor_us: what no schedule beats on this device
    (compulsory bytes and tensor work at the rates of the datasheet). clock_mhz: the SM clock that the time was made with.
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
    role_us: dict[str, float]
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
    env, ctas = _environment(bound, shape, m.sms)
    resident = _resident(bound)
    sms = m.usable_sms(bound.launch.cluster)
    busy = max(1, min(resident, -(-ctas // sms)))
    schedule = Schedule(bound, m, env, busy, shares(bound, env, min(ctas, sms * busy)))
    top, slots = schedule.top, sms * resident
    start = m.latency["first_load"] if any(_copies(s) for s in B.walk(bound.body)) else m.latency["load"] / 2
    if bound.launch.cluster > 1:
        start += m.latency["cluster"]  # its CTAs meet once their barriers are there
    cta = top.time + start
    whole, rest = divmod(ctas, slots)
    alone = max(top.own.values(), default=0.0) + start
    last = max(alone, cta * -(-rest // sms) / busy) if rest else 0.0
    grid = max(whole * cta + last, -(-ctas // sms) * m.latency["cta_start"])

    average = _average_fraction(bound, schedule, ctas)
    per_sm = ctas * average / m.sms
    tensor_clk = top.work.get("tensor", 0.0) * per_sm
    # the power cap lowers the clock the more the busier the tensor cores are
    clock = m.clock_hz - (m.clock_hz - m.clock_tensor_hz) * min(1.0, tensor_clk / grid if grid else 0.0)
    reads, writes = _hbm(bound, schedule)
    bounds = {
        "hbm": reads / m.hbm_read + writes / m.hbm_write,
        "l2": top.work.get("l2", 0.0) * ctas * average / m.l2,
        **{r: top.work[r] * per_sm / clock for r in SHARED if top.work.get(r, 0.0) > 0},
    }
    memory = max(bounds["hbm"], bounds["l2"])
    launch_us = m.latency["dependent_us" if any(_depends(s) for s in B.walk(bound.body)) else "launch_us"]
    time_s = max(grid / clock, memory) + launch_us * 1e-6
    if grid / clock <= memory:
        limited_by = "hbm" if bounds["hbm"] >= bounds["l2"] else "l2"
    else:
        idle = top.by.startswith("role") and schedule.asked(top.work)[0] * busy < IDLE * cta
        limited_by = "latency" if idle else top.by
    # what no schedule beats comes from the datasheet: a measured rate is what one program reached, and another may reach more
    sheet = m if not m.calibrated else Machine.of(bound.target, None)
    floor = max(reads / sheet.hbm_read + writes / sheet.hbm_write, tensor_clk / max(m.clock_hz, sheet.clock_hz))
    us = 1e6
    return Estimate(
        time_us=time_s * us, floor_us=floor * us, bound_by=max(bounds, key=lambda r: bounds[r]),
        limited_by=limited_by, bounds_us={k: v * us for k, v in bounds.items()}, ctas=ctas, ctas_per_sm=resident,
        waves=ctas / slots if slots else 0.0, cta_us=cta / clock * us, launch_us=launch_us,
        role_us={n: c / clock * us for n, c in top.own.items()}, limiters=_limiters(schedule), tensor_flop=_flop(schedule) * ctas * average,
        hbm_bytes=reads + writes, l2_bytes=top.work.get("l2", 0.0) * ctas * average, target=bound.target.name, shape=dict(shape),
        calibrated=m.calibrated, assumptions=(*_rates(m), *ASSUMPTIONS),
        device=m.name, source=m.source, clock_mhz=clock / 1e6, l2=l2, bound_class=_class(limited_by, bounds),
        low_us=0.8 * time_s * us if m.calibrated else None, high_us=1.25 * time_s * us if m.calibrated else None,
    )  # fmt: skip


def _class(limited_by: str, bounds: dict[str, float]) -> str:
    """The bound class of what a schedule is limited by."""
    if limited_by.startswith("role") or limited_by in ("fma", "alu", "sfu", "shuffle"):
        return "issue"
    return {"copy latency": "latency", "port": "l2"}.get(limited_by, limited_by)


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
    """CTAs that fit on an SM by shared memory, threads and registers (registers as declared, else 64 per thread)."""
    from cake_ir.derive.memory import memory_map

    t = bound.target
    by_smem = t.value("smem_per_sm") // (memory_map(bound).total + t.value("smem_reserved"))
    by_threads = t.value("threads_per_sm") // bound.threads
    declared = sum(32 * r.warps * (r.registers or 64) for r in bound.roles)
    by_registers = t.value("registers_per_sm") // declared
    return max(1, min(by_smem, by_threads, by_registers, t.value("blocks_per_sm")))


def _rates(m: Machine) -> tuple[str, ...]:
    """What is said of rates that were not measured."""
    if not m.calibrated:
        return (f"{m.source}, not measured on your device; latencies are assumed",)
    return (f"assumed, not measured: {', '.join(m.assumed)}",) if m.assumed else ()


def _copies(s: Any) -> bool:
    return isinstance(s, B.Op) and s.name in ("tma_load", "bulk_load")


def _depends(s: Any) -> bool:
    return isinstance(s, B.Op) and s.name == "griddep_wait"


def _hbm(bound: B.BoundKernel, schedule: Schedule) -> tuple[float, float]:
    """Compulsory bytes (read, written): every tensor once, tensors that are updated both ways."""
    reads = writes = 0.0
    for t in bound.tensors:
        n = t.dtype.bits / 8
        for e in t.extents:
            n *= schedule.value(e)
        reads += n if t.direction != "Out" else 0.0
        writes += n if t.direction in ("Out", "InOut") else 0.0
    return reads, writes


def _flop(schedule: Schedule) -> float:
    """Tensor work of CTA 0, padding included."""
    return schedule.top.work.get("flop", 0.0)


def _limiters(schedule: Schedule) -> tuple[dict[str, Any], ...]:
    top = sorted(schedule.sites.items(), key=lambda kv: -kv[1])[:3]
    total = sum(schedule.sites.values()) or 1.0
    return tuple(
        {"line": line, "col": col, "what": what, "clocks_per_cta": clocks, "share": clocks / total}
        for (line, col, what), clocks in top
    )


def _average_fraction(bound: B.BoundKernel, schedule: Schedule, ctas: int) -> float:
    """Work of the average CTA over that of CTA 0: persistent loops give the first clusters one tile more."""
    first = {bound.builtins["cluster_id"], bound.builtins["cta"]}
    for s in bound.body:
        if isinstance(s, B.For) and first & B.sx_vars(s.start):
            count, step = schedule.value(s.stop), max(1, schedule.value(s.step))
            trips = -(-count // step)
            return count / (trips * step) if trips else 1.0
    return 1.0
