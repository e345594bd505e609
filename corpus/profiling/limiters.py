"""What bounds a kernel, and the three ops that cost it the most.

The class is the first rule of `RULES` that the measured numbers meet. Numbers come from hardware counters where there
are some, else from the timeline, else from the cost model's bounds set against the measured time; the summary says
which. Nsight Compute ("Speed Of Light") calls a kernel latency bound below 60 % of a unit's peak and bound by the unit
above 80 %; the line is drawn between. The other thresholds are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from corpus.profiling.attribution import CONTROL, Cell, by_role, samples_by_line, words
from corpus.profiling.closure import Closure, closure
from corpus.profiling.facts import SHARED, Facts
from corpus.profiling.metrics import BRIEF
from lowering.sass import Sass

BUSY = 70.0
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
COPIES = ("load", "store", "tma", "bulk", "cp_async", "matrix")
"""Parts of the names of ops that move data."""


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
    return f"no unit is near its peak; the busiest: {unit_words(unit, n)}" if unit else "no unit's use is known"


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
    Rule("latency", "otherwise: no unit is near its peak, and nothing above explains the time: work that waits for other work", _latency),
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

    `by_line`: {"line", "end_line", "site", "role", "ops", "what", "kind", "us", "share", "samples", "stalls"}, largest first; of a
    span over several lines `site` is the one with most samples, or the first that is more than bookkeeping; `us` and `kind`
    only with a timeline, `samples` and `stalls` only with counters. `by_role`: {"role", "us" by kind, "samples", "stalls",
    "waiting"}. `samples`: {"line", "role", "ops", "what", "samples", "stalls"} of every sampled line and role, also of those
    inside a span of `by_line`; empty without counters. `model_us` is the cost model's time. Of the samples, `unattributed` is
    the share that no line could be named for.
    """

    bound: str
    why: str
    basis: str
    time_us: float
    limiters: tuple[Limiter, ...]
    by_line: tuple[dict[str, Any], ...] = ()
    by_role: tuple[dict[str, Any], ...] = ()
    samples: tuple[dict[str, Any], ...] = ()
    units: Mapping[str, float] = field(default_factory=dict)
    units_from: str = "model"
    model_us: float = 0.0
    overhead: float | None = None
    closure: Closure | None = None
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
        by_line=tuple(table), samples=tuple(_cell(c, facts) for c in cells), by_role=tuple(roles),
        units=numbers.units, units_from=numbers.source,
        model_us=facts.model_us, overhead=timeline.get("overhead"),
        closure=closure(timeline, metrics), brief=_brief(counters.get("metrics", {})),
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
    used = [float(r.get("busy", r["covered"])) for r in timeline.get("roles", ())]
    if not used or not sms:
        return None
    spread = min(1.0, (timeline.get("slots") or min(timeline["grid"], sms)) / sms)
    return 100 * max(0.0, 1 - max(used) * spread)


def _lines(timeline: Mapping[str, Any], cells: Sequence[Cell], facts: Facts, time_us: float) -> list[dict[str, Any]]:
    """Spans of the timeline with the samples of their lines; without a timeline, lines by samples."""
    role_samples = {r: c.samples for r, c in by_role(cells).items()}
    if not timeline:
        return [
            {**_cell(c, facts), "us": time_us * c.samples / role_samples[c.role], "share": c.samples / role_samples[c.role]}
            for c in cells
        ]  # fmt: skip
    ends = {m["id"]: m["end_line"] for m in timeline["marks"]}
    spans = [{**x, "end_line": x.get("end_line") or ends.get(x.get("mark"), x["line"])} for x in timeline["lines"]]
    own: dict[int, list[Cell]] = {}
    left = []
    for c in cells:
        at = _span_of(c, spans)
        if at is None:
            left.append(c)
        else:
            own.setdefault(at, []).append(c)
    out = []
    for n, x in enumerate(spans):
        found = own.get(n, [])
        site = max(found, key=lambda c: c.samples).line if found else _working_line(x, facts)
        row = {"line": x["line"], "end_line": x["end_line"], "site": site, "role": x["role"], "ops": list(x["ops"]),
               "what": facts.text(site), "kind": x["kind"], "us": x["us"], "share": x["share"]}  # fmt: skip
        if found:
            stalls = sum((c.stalls for c in found), start=type(found[0].stalls)())
            row |= {"samples": sum(c.samples for c in found), "stalls": dict(stalls.most_common(3))}
        out.append(row)
    return out + [_cell(c, facts) for c in left]


def _cell(c: Cell, facts: Facts) -> dict[str, Any]:
    return {"line": c.line, "role": c.role, "ops": list(c.ops), "what": facts.text(c.line) or "generated code",
            "samples": c.samples, "stalls": c.top()}  # fmt: skip


def _span_of(cell: Cell, spans: Sequence[Mapping[str, Any]]) -> int | None:
    """The span that a line's samples belong to: of those of its role that name its op (a wait: that hold its line), else that
    hold its line, the longest. A span runs on across the loop's end, so its ops tell more than its lines."""
    near = [n for n, x in enumerate(spans) if x["role"] == cell.role and x["line"] <= cell.line <= x["end_line"]]
    named = [n for n, x in enumerate(spans)
             if x["role"] == cell.role and set(cell.ops).intersection(x["ops"]) and (x["kind"] != "wait" or n in near)]  # fmt: skip
    return max(named or near, key=lambda n: spans[n]["us"], default=None)


def _working_line(x: Mapping[str, Any], facts: Facts) -> int:
    """The first line of a span that is more than bookkeeping (arrive, expect, commit, fence); its first line if none is."""
    quiet = CONTROL | _bookkeeping()
    inside = [n for n in facts.lines if x["line"] <= n <= x["end_line"] and facts.lines[n].role == x["role"]]
    return next((n for n in inside if set(facts.lines[n].ops) - quiet), x["line"])


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


def _bookkeeping() -> frozenset[str]:
    from cake_ir import ops

    return frozenset(
        name for name, d in ops.registry().items() if d.syncs and not d.accesses and d.completion != "blocks"
    )


def _limiters(table: Sequence[Mapping[str, Any]], n: Numbers, facts: Facts, clock: str) -> tuple[Limiter, ...]:
    """The costliest lines of the role that waits the least: what it does is what the others wait for."""
    own = [x for x in table if "us" in x and x["role"] == n.role and x["line"]]
    if not own:
        return _predicted(n, facts, clock)
    total = sum(x["us"] for x in own)
    top = sorted(own, key=lambda x: -x["us"])[:3]
    return tuple(
        _limiter(x, x["us"] / total if total else 0.0, n, facts, clock if i == 0 else "") for i, x in enumerate(top)
    )


def _limiter(x: Mapping[str, Any], share: float, n: Numbers, facts: Facts, clock: str) -> Limiter:
    line = x.get("site", x["line"])
    known = facts.lines.get(line)
    first, last = x["line"], x.get("end_line", x["line"])
    where = (
        f"line {line} {_short(x['what'])}"
        if first == last
        else f"lines {first}-{last}, most at {line} {_short(x['what'])}"
    )
    said = [f"{x['role']} {'waits' if _waits(x) else 'spends'} {100 * share:.0f} % of its time at {where}"]
    unit = _unit_of(known.ops if known and known.ops else tuple(x["ops"]), n)
    if unit:
        said.append(unit_words(unit, n))
    stalls = {r: c for r, c in (x.get("stalls") or {}).items() if r not in ("selected", "not_selected")}
    if stalls and x.get("samples"):
        top = max(stalls, key=lambda r: stalls[r])
        said.append(f"{100 * stalls[top] / x['samples']:.0f} % of {x['samples']} samples wait for {words(top)}")
    if clock:
        said.append(clock)
    return Limiter(
        line=line, op=(known.ops if known and known.ops else x["ops"] or ("",))[0], role=x["role"], what=_short(x["what"]),
        us=round(float(x["us"]), 3), share=round(share, 4), evidence="; ".join(said),
    )  # fmt: skip


def _unit_of(ops: Sequence[str], n: Numbers) -> str | None:
    """The unit that does these ops: the tensor pipe for products, the busiest memory for copies, else the busiest pipe."""
    if PRODUCTS.intersection(ops):
        units: tuple[str, ...] = ("tensor",)
    elif any(part in op for op in ops for part in COPIES):
        units = ("dram", "l2", "smem")
    elif not set(ops) - (CONTROL | _bookkeeping() | _blocking()):
        return None
    else:
        units = ("alu", "fma", "xu", "lsu")
    return max((u for u in units if u in n.units), key=lambda u: n.units[u], default=None)


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
