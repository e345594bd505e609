"""Bounds and schedule of one kernel at one shape.

Method: walk the bound program once per role with the runtime extents known, multiplying by trip counts, and add up what each op asks
of each SM resource. A role's own time is the sum of its steps (they are in order); the CTA's time is the largest of: a role alone, a
resource shared by all roles. The grid's time is the larger of that over the waves and the device-wide limits (HBM with each tensor moved
once, L2 with every copy counted). What is not modelled is listed in `assumptions`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from analyses.cost.work import Rates, Work, let_work, op_work
from cake_ir import bound as B
from cake_ir.arithmetic import compile_sx
from cake_ir.diagnostics import CakeError, error

# Fixed costs in seconds and clocks, assumed (not measured on the user's device); they only matter for small problems.
LAUNCH_S = 3.0e-6
FIRST_LOAD_CLK = 1000.0
SYNC_CLK = 30.0
_SHARED = ("tensor", "smem", "fma", "alu", "sfu", "shuffle")
_OVERLAPPED = (
    "tma_load",
    "tma_store",
    "bulk_load",
    "bulk_store",
    "cp_async",
    "bulk_reduce",
    "tma_reduce",
    "tcgen05_mma",
)


@dataclass(frozen=True)
class Estimate:
    """All times in microseconds; docs/cost-model.md explains every field.

    bounds_us: time each resource needs if nothing else cost anything (the roofline); bound_by is the largest. limited_by: what
    this schedule waits for: a resource, "role NAME" (its steps are in order), "latency" (too little work per CTA to hide the first
    load), hbm or l2. floor_us: what no schedule beats on this device (compulsory bytes, tensor work). calibrated is False: rates
    are datasheet numbers."""

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
    assumptions: tuple[str, ...] = (
        "datasheet rates of the target's full product, not measured on your device",
        "each input is read from HBM once and each output written once; every copy crosses L2",
        "roles overlap perfectly with each other; steps of one role do not overlap, except asynchronous copies",
        "bank conflicts, instruction issue, barrier latency and power throttling are not modelled",
    )


class _Walk:
    """One pass over the program for CTA 0 of the grid (it gets the most tiles)."""

    def __init__(self, bound: B.BoundKernel, env: list[Any]) -> None:
        self.bound, self.env = bound, env
        self.rates = Rates(bound.target)
        self.total: Work = defaultdict(float)
        self.roles: dict[str, float] = defaultdict(float)
        self.sites: dict[tuple[int, int, str], list[float]] = {}
        self._compiled: dict[int, Any] = {}

    def value(self, x: Any) -> Any:
        f = self._compiled.get(id(x))
        if f is None:
            f = self._compiled[id(x)] = compile_sx(x)
        try:
            return f(self.env)
        except (TypeError, ZeroDivisionError, OverflowError):
            return 0

    def run(self, body: tuple[B.Stmt, ...], times: float, role: B.Role | None, warps: int) -> None:
        for s in body:
            self.step(s, times, role, warps)

    def step(self, s: B.Stmt, times: float, role: B.Role | None, warps: int) -> None:
        if isinstance(s, B.SetScalar):
            self.env[s.var.slot] = self.value(s.value)
        elif isinstance(s, B.RoleBlock):
            if s.instance is not None:
                self.env[s.instance.slot] = 0
            unit = {"thread": 1, "warp": 1, "warpgroup": 4}[s.role.unit]
            self.run(s.body, times, s.role, unit)
        elif isinstance(s, B.For):
            start, stop, step = self.value(s.start), self.value(s.stop), max(1, self.value(s.step))
            trips = max(0, -(-(stop - start) // step))
            if trips:
                self.env[s.var.slot] = start + trips // 2 * step
                self.run(s.body, times * trips, role, warps)
        elif isinstance(s, B.While):
            self.run((*s.prelude, *s.body), times, role, warps)
        elif isinstance(s, B.If):
            self.run(s.then if self.value(s.cond) else s.orelse, times, role, warps)
        elif isinstance(s, B.ElectedBlock):
            self.run(s.body, times, role, 1)
        elif isinstance(s, B.WarpsBlock):
            if s.warp is not None:
                self.env[s.warp.slot] = 0
            self.run(s.body, times * 4, role, 1)
        elif isinstance(s, B.Let):
            self.add(s.span, s.frag.name, let_work(s, self.rates, warps), times, role, False)
        elif isinstance(s, B.Op):
            for r in s.results:
                if isinstance(r, B.ScalarVar):
                    self.env[r.slot] = 0
            work = op_work(s, self.rates, self.bound.launch.cluster, warps)
            self.add(s.span, s.name, work, times, role, s.name in _OVERLAPPED)
            if s.decl.completion == "blocks" and role is not None:
                self.roles[role.name] += SYNC_CLK * times

    def add(self, span: Any, label: str, work: Work, times: float, role: B.Role | None, overlapped: bool) -> None:
        count = role.count if role is not None else 1
        for resource, clocks in work.items():
            self.total[resource] += clocks * times * count
            if resource in _SHARED:
                entry = self.sites.setdefault((span.line, span.col, label), [0.0, 0.0])
                entry[0] += clocks * times * count
        if role is not None and not overlapped:
            # alone, a unit of w warps reaches w/4 of the SM's lanes; the tensor core serves one unit at full rate
            own = sum(c for r, c in work.items() if r in ("fma", "alu", "sfu", "shuffle"))
            scale = min(1.0, 4.0 / count) if role.unit == "warp" else 1.0
            self.roles[role.name] += times * (
                own * scale + work.get("tensor", 0.0) + work.get("smem", 0.0) * (work.get("tensor", 0.0) == 0.0)
            )


def _environment(bound: B.BoundKernel, shape: dict[str, int]) -> tuple[list[Any], int]:
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
    sms = bound.target.value("sm_count")
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


def estimate(bound: B.BoundKernel, shape: dict[str, int]) -> Estimate:
    """Estimate one kernel at one shape (every dimension by name). Raises CakeError for a shape the kernel does not admit."""
    from cake_ir.derive import derive

    env, ctas = _environment(bound, shape)
    target = bound.target
    clock = target.rate("clock_hz")
    sms = target.value("sm_count")
    walk = _Walk(bound, env)
    walk.run(bound.body, 1.0, None, 1)
    smem = derive(bound).smem_bytes
    resident = _resident(bound, smem)
    slots = sms * resident
    waves = ctas / slots if slots else 0.0
    full_waves = -(-ctas // slots) if ctas else 0
    busy = min(resident, -(-ctas // sms)) if ctas else 0

    shared = {r: walk.total[r] for r in _SHARED if walk.total[r] > 0}
    # co-resident CTAs share the SM's resources; their roles overlap
    clocks = {
        **{r: c * max(1, busy) for r, c in shared.items()},
        **{f"role {n}": c for n, c in walk.roles.items() if c > 0},
    }
    cta_clk = max(clocks.values(), default=0.0) + FIRST_LOAD_CLK
    cta_s = cta_clk / clock

    hbm_bytes = 0.0
    for t in bound.tensors:
        n = 1.0
        for e in t.extents:
            n *= walk.value(e)
        hbm_bytes += n * t.dtype.bits / 8 * (2 if t.direction == "InOut" else 1)
    average = _average_fraction(bound, walk, ctas)
    l2_bytes = walk.total["l2"] * ctas * average
    tensor_s = walk.total["tensor"] * ctas * average / sms / clock
    bounds = {
        "hbm": hbm_bytes / target.rate("hbm_bytes_per_s"),
        "l2": l2_bytes / (target.rate("l2_bytes_per_clk_per_sm") * sms * clock)
        if "l2_bytes_per_clk_per_sm" in target.facts
        else 0.0,
        **{r: c * ctas * average / sms / clock for r, c in shared.items()},
    }
    schedule = cta_s * full_waves
    time_s = max(schedule, bounds["hbm"], bounds["l2"]) + LAUNCH_S
    memory = max(bounds["hbm"], bounds["l2"])
    if schedule <= memory:
        limited_by = "hbm" if bounds["hbm"] >= bounds["l2"] else "l2"
    elif max(clocks.values(), default=0.0) < FIRST_LOAD_CLK:
        limited_by = "latency"
    else:
        limited_by = max(clocks, key=lambda r: clocks[r])
    bits = {
        op.operands["b"].buffer.dtype.bits if isinstance(op.operands["b"], B.View) else op.operands["b"].type.dtype.bits
        for op in B.walk(bound.body)
        if isinstance(op, B.Op) and op.name in ("wgmma", "mma", "tcgen05_mma")
    }
    flop = (
        tensor_s * sms * clock * walk.rates.tensor(min(bits)) * (walk.rates.mma_sync if _uses(bound, "mma") else 1.0)
        if bits
        else 0.0
    )
    top = sorted(walk.sites.items(), key=lambda kv: -kv[1][0])[:3]
    total = sum(v[0] for v in walk.sites.values()) or 1.0
    us = 1e6
    return Estimate(
        time_us=time_s * us,
        floor_us=max(bounds["hbm"], tensor_s) * us,
        bound_by=max(bounds, key=lambda r: bounds[r]),
        limited_by=limited_by,
        bounds_us={k: v * us for k, v in bounds.items()},
        ctas=ctas,
        ctas_per_sm=resident,
        waves=waves,
        cta_us=cta_s * us,
        launch_us=LAUNCH_S * us,
        role_us={n: c / clock * us for n, c in walk.roles.items()},
        limiters=tuple(
            {"line": k[0], "col": k[1], "what": k[2], "clocks_per_cta": v[0], "share": v[0] / total} for k, v in top
        ),
        tensor_flop=flop,
        hbm_bytes=hbm_bytes,
        l2_bytes=l2_bytes,
        target=target.name,
        shape=dict(shape),
    )


def _uses(bound: B.BoundKernel, name: str) -> bool:
    return any(isinstance(s, B.Op) and s.name == name for s in B.walk(bound.body))


def _resident(bound: B.BoundKernel, smem: int) -> int:
    """CTAs that fit on an SM by shared memory, threads and registers (registers as declared, else 64 per thread)."""
    t = bound.target
    by_smem = t.value("smem_per_sm") // (smem + t.value("smem_reserved"))
    by_threads = t.value("threads_per_sm") // bound.threads
    declared = sum(32 * r.warps * (r.registers or 64) for r in bound.roles)
    by_registers = t.value("registers_per_sm") // declared
    return max(1, min(by_smem, by_threads, by_registers, t.value("blocks_per_sm")))


def _average_fraction(bound: B.BoundKernel, walk: _Walk, ctas: int) -> float:
    """Work of the average CTA over that of CTA 0: persistent loops give the first clusters one tile more."""
    first = {bound.builtins["cluster_id"], bound.builtins["cta"]}
    for s in bound.body:
        if isinstance(s, B.For) and first & B.sx_vars(s.start):
            count, step = walk.value(s.stop), max(1, walk.value(s.step))
            trips = -(-count // step)
            return count / (trips * step) if trips else 1.0
    return 1.0
