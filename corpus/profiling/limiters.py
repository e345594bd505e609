"""What bounds a kernel, and the three ops that cost it the most.

The class is the first rule of `RULES` that the measured numbers meet. Numbers come from hardware counters where there
are some, else from the timeline, else from the cost model's bounds set against the measured time; the summary says
which. The threshold of 60 % of a unit's peak is Nsight Compute's own ("Speed Of Light": below 60 % of compute and
memory a kernel is called latency bound); the other thresholds are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from corpus.profiling.attribution import Cell, by_role, samples_by_line, words
from corpus.profiling.facts import SHARED, Facts
from corpus.profiling.metrics import BRIEF
from lowering.sass import Sass

BUSY = 60.0
CLOSE = 5.0
IDLE_SMS = 25.0
GAP = 30.0
WAITING = 25.0
FEW_WARPS = 50.0
MEMORY_STALLS = 30.0
MODEL_LAUNCH = 50.0

UNITS: dict[str, tuple[str, str]] = {  # metric: (class, in words)
    "tensor": ("tensor", "tensor pipe"),
    "dram": ("memory", "device memory"),
    "l2": ("memory", "L2 cache"),
    "smem": ("memory", "shared memory"),
    "issue": ("issue", "issue slots"),
    "alu": ("issue", "integer and logic pipe"),
    "fma": ("issue", "float32 pipe"),
    "xu": ("issue", "transcendental pipe"),
    "lsu": ("issue", "load/store pipe"),
}
MODEL_UNITS = {"tensor": "tensor", "hbm": "dram", "l2": "l2", "smem": "smem", "fma": "fma", "alu": "alu", "sfu": "xu"}
"""The cost model's resources by our names."""
PER_SM = ("tensor", "smem", "issue", "alu", "fma", "xu", "lsu")

PRODUCTS = frozenset({"wgmma", "wgmma_commit", "wgmma_wait", "mma", "tcgen05_mma"})
"""Ops of which the time is the tensor core's: a wait for a product is no wait for another role."""
COPIES = ("load", "store", "copy", "tma", "bulk", "cp_async", "reduce")


@dataclass(frozen=True)
class Numbers:
    """Measured numbers in percent; None: not measured. `source` says where utilisations come from."""

    time_us: float
    units: Mapping[str, float] = field(default_factory=dict)
    source: str = "model"
    gap: float | None = None
    idle_sms: float | None = None
    role: str = ""
    waiting: float | None = None
    warps: float | None = None
    memory_stalls: float | None = None
    model_launch: float | None = None


@dataclass(frozen=True)
class Rule:
    """`test` answers the evidence in words, or None when the class does not apply. `text` is the rule for readers."""

    bound: str
    text: str
    test: Callable[[Numbers], str | None]


def _launch(n: Numbers) -> str | None:
    if n.gap is not None:
        return f"no CTA runs for {n.gap:.0f} % of the time per launch" if n.gap >= GAP else None
    if n.model_launch is not None and n.model_launch >= MODEL_LAUNCH:
        return f"a launch alone is {n.model_launch:.0f} % of the {n.time_us:.4g} us measured, by the model"
    return None


def _tail(n: Numbers) -> str | None:
    if n.idle_sms is None or n.idle_sms < IDLE_SMS:
        return None
    return f"SMs stand without a CTA for {n.idle_sms:.0f} % of the kernel's time"


def _busy(bound: str) -> Callable[[Numbers], str | None]:
    def test(n: Numbers) -> str | None:
        unit = busiest(n)
        if unit is None or UNITS[unit][0] != bound or n.units[unit] < BUSY:
            return None
        return unit_words(unit, n)

    return test


def busiest(n: Numbers) -> str | None:
    """The unit with the highest use. The tensor pipe wins when it is close: shared memory and L2 are busy feeding it."""
    return max(n.units, key=lambda u: n.units[u] + (CLOSE if u == "tensor" else 0.0), default=None)


def _barrier(n: Numbers) -> str | None:
    if n.waiting is None or n.waiting < WAITING:
        return None
    return f"{n.role}, which waits the least, waits {n.waiting:.0f} % of its time at barriers"


def _occupancy(n: Numbers) -> str | None:
    if n.warps is None or n.memory_stalls is None or n.warps > FEW_WARPS or n.memory_stalls < MEMORY_STALLS:
        return None
    return f"{n.warps:.0f} % of the warps an SM can hold, and {n.memory_stalls:.0f} % of their samples wait for memory results"


def _latency(n: Numbers) -> str:
    unit = busiest(n)
    return f"no unit is busy; the busiest: {unit_words(unit, n)}" if unit else "no unit's use is known"


RULES: tuple[Rule, ...] = (
    Rule("launch", f"the device is without a CTA for at least {GAP:.0f} % of the time per launch (timeline: event time less kernel time; "
         f"without one: the model's launch cost is at least {MODEL_LAUNCH:.0f} % of the measured time)", _launch),
    Rule("tail", f"SMs have no CTA for at least {IDLE_SMS:.0f} % of the kernel's time (counters: active over elapsed clocks; timeline: "
         "the share of the CTA slots in use)", _tail),
    Rule("tensor", f"the tensor pipe is the busiest unit, at least {BUSY:.0f} % while an SM is active", _busy("tensor")),
    Rule("memory", f"device memory, L2 or shared memory is the busiest unit, at least {BUSY:.0f} %", _busy("memory")),
    Rule("issue", f"the issue slots or an arithmetic pipe are the busiest unit, at least {BUSY:.0f} %", _busy("issue")),
    Rule("barrier wait", f"the role that waits the least still waits at least {WAITING:.0f} % of its time for barriers (waits for the "
         "tensor core's products do not count)", _barrier),
    Rule("occupancy", f"at most {FEW_WARPS:.0f} % of the warps an SM can hold are resident, and at least {MEMORY_STALLS:.0f} % of the warp "
         "samples wait for memory results", _occupancy),
    Rule("latency", "otherwise: no unit is busy, and nothing above explains the time", _latency),
)  # fmt: skip


@dataclass(frozen=True)
class Limiter:
    """One op that costs time: `us` of mean time per role instance and launch, `share` of the role's time (0..1).
    `what` is the program's line; `evidence` a sentence of measured numbers."""

    line: int
    op: str
    role: str
    what: str
    us: float
    share: float
    evidence: str


@dataclass(frozen=True)
class Summary:
    """What a profile says. `basis` names what was measured; `units` are busy percentages with their source.

    `by_line`: {"line", "role", "ops", "what", "kind", "us", "share", "samples", "stalls"}, largest first; `us` and
    `kind` only with a timeline, `samples` and `stalls` only with counters. `by_role`: {"role", "us" by kind, "samples",
    "stalls", "waiting"}. `model_us` is the cost model's time. Of the samples, `unattributed` is the share that no line could be
    named for.
    """

    bound: str
    why: str
    basis: str
    time_us: float
    limiters: tuple[Limiter, ...]
    by_line: tuple[dict[str, Any], ...] = ()
    by_role: tuple[dict[str, Any], ...] = ()
    units: Mapping[str, float] = field(default_factory=dict)
    units_from: str = "model"
    model_us: float = 0.0
    overhead: float | None = None
    unattributed: float | None = None
    brief: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The whole in one line."""
        first = f"; first limiter: {self.limiters[0].evidence}" if self.limiters else ""
        return f"{self.time_us:.4g} us, bound by {self.bound} ({self.why}; {self.basis}){first}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "limiters": [asdict(x) for x in self.limiters], "sentence": self.sentence()}


def summarise(profile: Mapping[str, Any], sass: Sass | None, facts: Facts) -> Summary:
    """The summary of a profile (JSON of `corpus.jobs.Profile`). sass: of the profiled cubin, where samples are to be
    attributed. Raises ValueError when it is another cubin's, or when the profile has no time."""
    candidate = profile["shape"].get("candidate")
    if not candidate:
        raise ValueError("the profile has no time: the kernel could not be timed")
    timeline, counters = _had(profile["timeline"]), _had(profile["counters"])
    rows = counters.get("instructions", []) if sass is not None else []
    symbol = facts.kernel if sass is not None and any(i.function == facts.kernel for i in sass.instructions) else ""
    cells = samples_by_line(sass, rows, facts, symbol) if sass is not None and rows else []
    metrics = {k: float(m["value"]) for k, m in counters.get("metrics", {}).items()}
    time_us = float(candidate["median_us"])
    table = _lines(timeline, cells, facts, time_us)
    roles = _roles(timeline, cells, table)
    numbers = measured(profile, facts, metrics, timeline, cells, roles, time_us)
    rule, why = next((r, text) for r in RULES if (text := r.test(numbers)) is not None)
    limiters = _limiters(table, numbers, facts, clock_words(profile, metrics))
    total = sum(c.samples for c in cells)
    return Summary(
        bound=rule.bound, why=why, basis=_basis(timeline, metrics), time_us=time_us, limiters=limiters,
        by_line=tuple(table), by_role=tuple(roles), units=numbers.units, units_from=numbers.source,
        model_us=facts.model_us, overhead=timeline.get("overhead"), brief=_brief(counters.get("metrics", {})),
        unattributed=sum(c.samples for c in cells if not c.line) / total if total else None,
        notes=tuple(f"no {name}: {profile[name]['unavailable']}" for name in ("timeline", "counters") if "unavailable" in profile[name]),
    )  # fmt: skip


def measured(
    profile: Mapping[str, Any], facts: Facts, metrics: Mapping[str, float], timeline: Mapping[str, Any],
    cells: Sequence[Cell], roles: Sequence[Mapping[str, Any]], time_us: float,
) -> Numbers:  # fmt: skip
    """The numbers that the rules look at."""
    active = None
    if metrics.get("elapsed_cycles") and "active_cycles" in metrics:
        active = min(1.0, metrics["active_cycles"] / metrics["elapsed_cycles"])
    units = {u: metrics[u] for u in UNITS if u in metrics}
    source = "counters"
    if active:
        units |= {u: min(100.0, units[u] / active) for u in PER_SM if u in units}
    if not units:
        source = "model"
        units = {
            MODEL_UNITS[r]: min(100.0, 100 * us / time_us)
            for r, us in facts.bounds_us.items()
            if r in MODEL_UNITS and us
        }
    by_samples = sum((c.stalls for c in cells), start=type(cells[0].stalls)()) if cells else {}
    seen = sum(by_samples.values())
    critical = min(
        (r for r in roles if r["role"] != SHARED and r["waiting"] is not None), key=lambda r: r["waiting"], default=None
    )
    gap = None
    if timeline.get("instrumented_us"):
        gap = max(0.0, 100 * (1 - timeline["kernel_us"] / timeline["instrumented_us"]))
    return Numbers(
        time_us=time_us, units=units, source=source, gap=gap,
        idle_sms=100 * (1 - active) if active else _idle_sms(timeline, int(profile["device"].get("sms", 0))),
        role=critical["role"] if critical else "", waiting=100 * critical["waiting"] if critical else None,
        warps=metrics.get("occupancy"), memory_stalls=100 * by_samples.get("long_sb", 0) / seen if seen else None,
        model_launch=100 * facts.launch_us / time_us if facts.launch_us and not metrics and not timeline else None,
    )  # fmt: skip


def unit_words(unit: str, n: Numbers) -> str:
    """`tensor pipe busy 91 %`, or what the model says of it."""
    name = UNITS[unit][1]
    if n.source == "counters":
        return f"{name} busy {n.units[unit]:.0f} %"
    return f"{name} needs {n.units[unit] / 100 * n.time_us:.4g} us of the {n.time_us:.4g} us measured, by the model"


def clock_words(profile: Mapping[str, Any], metrics: Mapping[str, float]) -> str:
    """`SM clock 1.41 GHz of 1.98 under the power cap` when the clock was low while timing; else empty."""
    most = float(profile["device"].get("sm_clock_mhz") or 0)
    seen = profile["shape"].get("conditions", {}).get("telemetry") or {}
    now = seen.get("sm_mhz_mean") or metrics.get("sm_clock", 0.0) * 1e3
    if not now or not most or now > 0.93 * most:
        return ""
    why = ", ".join(r for r in seen.get("reasons", ()) if r != "idle")
    return f"SM clock {now / 1e3:.2f} GHz of {most / 1e3:.2f}{f' under the {why}' if why else ''}"


def _had(part: Mapping[str, Any]) -> Mapping[str, Any]:
    return {} if "unavailable" in part else part


def _basis(timeline: Mapping[str, Any], metrics: Mapping[str, float]) -> str:
    found = [name for name, part in (("counters", metrics), ("timeline", timeline)) if part]
    return " and ".join(found) if found else "event times against the model's bounds, no profiler"


def _idle_sms(timeline: Mapping[str, Any], sms: int) -> float | None:
    """Percent of SM time without a CTA: how long the slots were used, and SMs that had no slot in use at all."""
    used = [float(r["covered"]) for r in timeline.get("roles", ())]
    if not used or not sms:
        return None
    spread = min(1.0, (timeline.get("slots") or min(timeline["grid"], sms)) / sms)
    return 100 * max(0.0, 1 - max(used) * spread)


def _lines(timeline: Mapping[str, Any], cells: Sequence[Cell], facts: Facts, time_us: float) -> list[dict[str, Any]]:
    """Spans of the timeline with the samples of their lines; without a timeline, lines by samples."""
    role_samples = {r: c.samples for r, c in by_role(cells).items()}
    if not timeline:
        return [
            {"line": c.line, "role": c.role, "ops": list(c.ops), "what": facts.text(c.line) or "generated code",
             "us": time_us * c.samples / role_samples[c.role], "share": c.samples / role_samples[c.role],
             "samples": c.samples, "stalls": c.top()}
            for c in cells
        ]  # fmt: skip
    ends = {m["id"]: m["end_line"] for m in timeline["marks"]}
    out, left = [], {(c.line, c.role): c for c in cells}
    for x in timeline["lines"]:
        end = x.get("end_line") or ends.get(x.get("mark"), x["line"])
        row = {"line": x["line"], "role": x["role"], "ops": list(x["ops"]), "what": facts.text(x["line"]), "kind": x["kind"],
               "us": x["us"], "share": x["share"]}  # fmt: skip
        own = [left.pop(k) for k in list(left) if k[1] == x["role"] and x["line"] <= k[0] <= end]
        if own:
            stalls = sum((c.stalls for c in own), start=type(own[0].stalls)())
            row |= {"samples": sum(c.samples for c in own), "stalls": dict(stalls.most_common(3))}
        out.append(row)
    out += [
        {"line": c.line, "role": c.role, "ops": list(c.ops), "what": facts.text(c.line) or "generated code",
         "samples": c.samples, "stalls": c.top()}
        for c in left.values()
    ]  # fmt: skip
    return out


def _roles(
    timeline: Mapping[str, Any], cells: Sequence[Cell], table: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Time by kind and samples of each role; `waiting` is the share (0..1) that it waits for others."""
    sampled, timed = by_role(cells), {r["role"]: r for r in timeline.get("roles", ())}
    out = []
    for role in dict.fromkeys([*timed, *sampled]):
        own = [x for x in table if x["role"] == role and "us" in x]
        total = sum(x["us"] for x in own)
        lost = sum(x["us"] for x in own if _waits(x))
        row: dict[str, Any] = {"role": role, "waiting": lost / total if total else None}
        if role in timed:
            row |= {"us": dict(timed[role]["us"]), "instances": timed[role]["instances"]}
        if role in sampled:
            row |= {"samples": sampled[role].samples, "stalls": sampled[role].top()}
        out.append(row)
    return out


def _waits(row: Mapping[str, Any]) -> bool:
    """Whether a line waits for another role or copy (not for the tensor core's product)."""
    if PRODUCTS.intersection(row["ops"]):
        return False
    return row["kind"] == "wait" if "kind" in row else bool(_blocking().intersection(row["ops"]))


def _blocking() -> frozenset[str]:
    from cake_ir import ops

    return frozenset(name for name, decl in ops.registry().items() if decl.completion == "blocks")


def _limiters(table: Sequence[Mapping[str, Any]], n: Numbers, facts: Facts, clock: str) -> tuple[Limiter, ...]:
    """The costliest lines of the role that waits the least: what it does is what the others wait for."""
    own = [x for x in table if "us" in x and x["role"] == n.role and x["line"]]
    if not own:
        return _predicted(n, facts, clock)
    total = sum(x["us"] for x in own)
    top = sorted(own, key=lambda x: -x["us"])[:3]
    return tuple(_limiter(x, x["us"] / total if total else 0.0, n, clock if i == 0 else "") for i, x in enumerate(top))


def _limiter(x: Mapping[str, Any], share: float, n: Numbers, clock: str) -> Limiter:
    product = bool(PRODUCTS.intersection(x["ops"]))
    said = [
        f"{x['role']} {'waits' if _waits(x) else 'spends'} {100 * share:.0f} % of its time at line {x['line']} {_short(x['what'])}"
    ]
    if product and "tensor" in n.units:
        said.append(unit_words("tensor", n))
    elif any(op.startswith(COPIES) or "load" in op or "store" in op for op in x["ops"]):
        unit = max(("dram", "l2", "smem"), key=lambda u: n.units.get(u, 0.0))
        if n.units.get(unit, 0.0) >= BUSY / 2:
            said.append(unit_words(unit, n))
    stalls = {r: c for r, c in (x.get("stalls") or {}).items() if r not in ("selected", "not_selected")}
    if stalls and x.get("samples"):
        top = max(stalls, key=lambda r: stalls[r])
        said.append(f"{100 * stalls[top] / x['samples']:.0f} % of {x['samples']} samples wait for {words(top)}")
    if clock:
        said.append(clock)
    return Limiter(
        line=x["line"], op=x["ops"][0] if x["ops"] else "", role=x["role"], what=_short(x["what"]),
        us=round(float(x["us"]), 3), share=round(share, 4), evidence="; ".join(said),
    )  # fmt: skip


def _predicted(n: Numbers, facts: Facts, clock: str) -> tuple[Limiter, ...]:
    """Without a profiler: the model's costliest sites, set against the measured time."""
    unit = busiest(n)
    if unit is None:
        return ()
    bound_us = n.units[unit] / 100 * n.time_us
    out = []
    for i, x in enumerate(facts.limiters[:3]):
        line = facts.lines.get(x["line"])
        said = f"predicted, not profiled: {100 * x['share']:.0f} % of the model's work is at line {x['line']}; {unit_words(unit, n)}"
        out.append(
            Limiter(line=x["line"], op=x["what"], role=line.role if line else "", what=_short(facts.text(x["line"])),
                    us=round(bound_us * x["share"], 3), share=round(bound_us * x["share"] / n.time_us, 4),
                    evidence=said + (f"; {clock}" if clock and i == 0 else ""))
        )  # fmt: skip
    return tuple(out)


def _brief(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {name: f"{metrics[name]['value']:.3g} {metrics[name]['unit']}".strip() for name in BRIEF if name in metrics}


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
