"""What a report shows, as plain data: no plot, no markup, no store.

Times are microseconds per launch, rates FLOP/s and bytes/s, dates ISO 8601 UTC. `collect` builds these from stored and
committed evidence; templates and plots only read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.report import units

#: Worst first. The last field is for the eye besides colour: a mark that differs in shape.
VERDICTS: dict[str, tuple[int, str, str]] = {
    "incorrect": (0, "bad", "✕"),
    "error": (0, "bad", "!"),
    "invalid": (0, "bad", "⊘"),
    "slower": (1, "bad", "▼"),
    "inconclusive": (2, "open", "≈"),
    "faster": (3, "good", "▲"),
    "measured": (4, "plain", "•"),
    "failed": (0, "bad", "✕"),
    "passed": (4, "good", "✓"),
}
UNKNOWN_VERDICT = (0, "open", "?")


@dataclass(frozen=True)
class Subject:
    """What was measured: a kernel with its bindings for a target, under a contract."""

    kernel: str
    contract: str
    contract_digest: str = ""
    content_id: str = ""
    variant_id: str = ""
    target: str = ""
    bindings: Mapping[str, Any] = field(default_factory=dict)
    compiler: str = ""
    cubin_sha256: str = ""

    @property
    def bound_as(self) -> str:
        return units.pairs(self.bindings)


@dataclass(frozen=True)
class Provenance:
    """Where a number comes from. `stale` is why it no longer speaks for the kernel, or None."""

    device: str = ""
    driver: str = ""
    command: str = ""
    date: str = ""
    commit: str = ""
    seed: str = ""
    secret: str = ""
    stale: str | None = None


@dataclass(frozen=True)
class Contender:
    """Samples of one contender, each the mean of a batch of launches."""

    name: str
    samples_us: tuple[float, ...]
    median_us: float
    batch: int = 0
    versions: str = ""

    @property
    def mad_us(self) -> float:
        """Median absolute deviation of the samples; 0 without samples."""
        from lowering.runtime.stats import median

        return median([abs(s - self.median_us) for s in self.samples_us]) if self.samples_us else 0.0

    @property
    def cv(self) -> float | None:
        """Coefficient of variation of the samples: standard deviation over mean; None below two samples."""
        n = len(self.samples_us)
        if n < 2:
            return None
        mean = sum(self.samples_us) / n
        return (sum((s - mean) ** 2 for s in self.samples_us) / (n - 1)) ** 0.5 / mean if mean else None


@dataclass(frozen=True)
class Comparison:
    """The candidate beside one baseline. `ratio` is baseline over candidate: above 1 the candidate is faster."""

    baseline: Contender
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str
    yardstick: bool = False
    results: str = ""


@dataclass(frozen=True)
class Conditions:
    """What the device did meanwhile; a missing reading is None. Clocks in MHz, power in W, temperature in °C."""

    sm_mhz_min: float | None = None
    sm_mhz_max: float | None = None
    sm_mhz_limit: float | None = None
    memory_mhz: float | None = None
    power_w_max: float | None = None
    power_limit_w: float | None = None
    temperature_c_max: float | None = None
    reasons: tuple[str, ...] | None = None
    other_processes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        return any(v not in (None, ()) for v in vars(self).values())


@dataclass(frozen=True)
class Timing:
    """One shape in one mode. flops and bytes are the contract's; 0 when the contract does not say."""

    subject: Subject
    provenance: Provenance
    shape: str
    mode: str
    verdict: str
    dtypes: str = ""
    method: str = ""
    message: str = ""
    rule: str = ""
    candidate: Contender | None = None
    comparisons: tuple[Comparison, ...] = ()
    unavailable: Mapping[str, str] = field(default_factory=dict)
    floor_us: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    flop_unit: str = ""
    checks: tuple[tuple[str, str], ...] = ()
    conditions: Conditions = Conditions()

    @property
    def time_us(self) -> float | None:
        return self.candidate.median_us if self.candidate else None

    @property
    def of_floor(self) -> float | None:
        """The physical floor over the measured time: 1.0 is as fast as the device can be."""
        return self.floor_us / self.time_us if self.time_us and self.floor_us else None

    @property
    def judged(self) -> str:
        """The judged launches in words, failures named first: "all 6 passed: before timing, ..."."""
        bad = [f"{what}: {verdict}" for what, verdict in self.checks if verdict != "passed"]
        good = [what for what, verdict in self.checks if verdict == "passed"]
        if not self.checks:
            return ""
        head = f"all {len(good)} passed" if not bad else f"{'; '.join(bad)}; {len(good)} passed"
        return head + (f": {'; '.join(units.counted_up(good))}" if good else "")

    @property
    def label(self) -> str:
        extra = f" {self.dtypes}" if self.dtypes and self.dtypes != units.NONE else ""
        return f"{self.subject.kernel} {self.shape}{extra}"


@dataclass(frozen=True)
class Judgement:
    """One check of the numbers, or compute-sanitizer's second opinion. `where` is "interpreted" or the device (and tool)."""

    subject: Subject
    provenance: Provenance
    where: str
    verdict: str
    summary: str
    cases: int
    shapes: int = 0
    distributions: tuple[str, ...] = ()
    judge: str = ""
    findings: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoleRegisters:
    """Registers per thread of one role: what it may use, by what, and the estimate from the program."""

    role: str
    threads: int
    budget: int | None
    source: str
    estimate: int | None


@dataclass(frozen=True)
class Resources:
    """One build. Registers per thread, bytes per block, blocks per SM."""

    subject: Subject
    date: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    static_smem: int
    dynamic_smem: int
    barriers: int
    blocks_per_sm: int
    limited_by: str
    roles: tuple[RoleRegisters, ...] = ()


@dataclass(frozen=True)
class StoredProfile:
    """One stored profile: the JSON of docs/measuring.md and the text that its lines number."""

    subject: Subject
    provenance: Provenance
    profile: Mapping[str, Any]
    source: str = ""


@dataclass(frozen=True)
class Row:
    """One line of the speed-up table: a comparison, or a timing that has none."""

    timing: Timing
    comparison: Comparison | None

    @property
    def verdict(self) -> str:
        broken = rank(self.timing.verdict) == 0
        return self.timing.verdict if broken or self.comparison is None else self.comparison.verdict

    @property
    def order(self) -> tuple[Any, ...]:
        """Broken measurements, losses, inconclusive, wins, then what has no baseline; within each by ratio."""
        worth = self.comparison.ratio if self.comparison and self.comparison.ratio is not None else 0.0
        return (rank(self.verdict), worth)


@dataclass(frozen=True)
class Evidence:
    """Everything one page shows. `missing` says in words what is not there and how to get it."""

    title: str
    scope: str
    generated: str
    version: str
    timings: tuple[Timing, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    resources: tuple[Resources, ...] = ()
    profiles: tuple[StoredProfile, ...] = ()
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def rows(self, *, yardsticks: bool = False) -> list[Row]:
        """The speed-up table, losses first. Yardsticks do not compute the contract and stand in a table of their own."""
        found = [Row(t, c) for t in self.timings for c in t.comparisons if c.yardstick is yardsticks]
        if not yardsticks:
            alone = [t for t in self.timings if not [c for c in t.comparisons if not c.yardstick]]
            found += [Row(t, None) for t in alone]
        return sorted(found, key=lambda r: r.order)

    @property
    def stale(self) -> dict[str, list[str]]:
        """Why something no longer speaks for its kernel -> what that holds for."""
        named = [(f"timing of {t.label}, {t.mode}", t.provenance.stale) for t in self.timings]
        named += [(f"check of {j.subject.kernel} on {j.where}", j.provenance.stale) for j in self.judgements]
        named += [(f"profile of {p.subject.kernel}", p.provenance.stale) for p in self.profiles]
        out: dict[str, list[str]] = {}
        for what, why in named:
            if why:
                out.setdefault(why, []).append(what)
        return out

    @property
    def stale_count(self) -> int:
        return sum(map(len, self.stale.values()))

    @property
    def devices(self) -> list[str]:
        """Device and driver of every measurement, each once."""
        seen = {
            f"{p.device} (driver for CUDA {p.driver})" if p.driver else p.device
            for p in (x.provenance for x in (*self.timings, *self.judgements, *self.profiles))
            if p.device and p.device != "cpu"
        }
        return sorted(seen)

    @property
    def compilers(self) -> list[str]:
        return sorted({s.compiler for s in self.subjects if s.compiler})

    @property
    def subjects(self) -> list[Subject]:
        """Every kernel variant of the page, in order of appearance. What two sources know of one is put together."""
        found: dict[tuple[str, str], Subject] = {}
        for part in (self.timings, self.judgements, self.resources, self.profiles):
            for s in (x.subject for x in part):
                key = (s.kernel, s.variant_id or s.content_id)
                old = found.get(key)
                if old is None or (s.cubin_sha256 and not old.cubin_sha256):
                    found[key] = s
        return list(found.values())

    @property
    def rules(self) -> list[str]:
        """The rules by which verdicts were decided, each once."""
        return list(dict.fromkeys(t.rule for t in self.timings if t.rule))

    def tally(self) -> list[tuple[str, int]]:
        """(verdict, how many timings), worst first; comparisons with yardsticks do not count."""
        counts: dict[str, int] = {}
        for t in self.timings:
            counts[t.verdict] = counts.get(t.verdict, 0) + 1
        return sorted(counts.items(), key=lambda kv: rank(kv[0]))


def rank(verdict: str) -> int:
    """Place of a verdict, worst first."""
    return VERDICTS.get(verdict, UNKNOWN_VERDICT)[0]


def overall(verdict: str, comparisons: Sequence[Comparison], fastest: str | None = None) -> str:
    """The verdict of a timing in the words of docs/measuring.md.

    Evidence stored before those words were fixed says `measured`, `rejected` and `failed`, with the comparison apart.
    fastest: the baseline that the comparison is with; without a name it is the fastest that computes the contract.
    """
    verdict = {"rejected": "invalid", "failed": "incorrect", "no baseline": "measured"}.get(verdict, verdict)
    if verdict != "measured":
        return verdict
    rivals = [c for c in comparisons if not c.yardstick and c.results in ("", "passed")]
    named = [c for c in rivals if c.baseline.name == fastest]
    best = named or sorted(rivals, key=lambda c: c.baseline.median_us)
    return best[0].verdict if best else "measured"
