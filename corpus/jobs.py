"""Jobs for the GPU worker (`python -m corpus.gpu_main`): plain JSON in, JSON lines out.

The job is one JSON object on the first line of stdin. Answers on stdout, one JSON object a line:

    {"progress": 3, "total": 12, "message": "M=1 N=8 normal"}       any number of times
    {"result": {...}}                                               once; see `Check`, `Bench`, `Profile` and `Probe` below
    {"error": {"code": ..., "message": ..., "next": ..., "at": ...}} instead of a result; `at` (where the job stood) on
                                                                    worker/hung, worker/timeout and device faults

Everything else goes to stderr. Exit codes: 0 answered (whatever the verdict), 2 bad job, 3 no GPU or a missing
component, 4 device fault outside a verdict, 5 watchdog, 6 internal error, 7 the parent went away.

A kernel arrives as cubins (base64, or paths under a directory of the caller's) named by their SHA-256, and per shape as
launch plans, one per launch of the program, in order. The worker compiles nothing and runs no text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cake_ir.diagnostics import CakeError, error
from corpus.check import CaseResult, float_sums
from corpus.contract import Contract, Shape, contracts
from corpus.edges import gate_shapes
from corpus.sanitizer import Finding, Tool
from corpus.signature import match, refused, scalar_values, solve_dims

if TYPE_CHECKING:
    from cake_ir.bound import BoundKernel
    from lowering.plan import LaunchPlan

Kind = Literal["check", "bench", "profile", "probe", "launch", "sanitize", "bare", "where"]
"""`launch` only launches (under a profiler), `bare` too, on plain allocations of exact size (under a sanitizer); their
answers say nothing about the results. `where` launches the instrumented form and says where its roles stand."""
Mode = Literal["warm", "cold"]

EXIT_OK, EXIT_BAD_JOB, EXIT_NO_GPU, EXIT_FAULT, EXIT_WATCHDOG, EXIT_INTERNAL, EXIT_ORPHAN = 0, 2, 3, 4, 5, 6, 7


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Workspace(_Model):
    """A scratch tensor of a program: element type and extents. Poisoned before every run."""

    dtype: str
    extents: tuple[int, ...]


class FewerSms(_Model):
    """The same launch as planned for a device with fewer multiprocessors: persistent CTAs then take several tiles each,
    and tiles meet other CTAs."""

    sms: int
    plans: tuple[dict[str, Any], ...]


class Instrumented(_Model):
    """A launch plan of the instrumented form with its mark table (`Manifest.timeline`); see `lowering.timeline`."""

    plan: dict[str, Any]
    table: dict[str, Any]


class Launch(_Model):
    """One shape of a kernel: its launch plans (JSON of `lowering.LaunchPlan`) in order; none where there is nothing to
    launch (an empty dimension). timeline: the instrumented form of each plan (profile and where jobs). edge: the shape
    comes from the kernel's tiles (`corpus.edges`). fewer: a second way to launch it, where its grid depends on
    `device.sms`. unordered: ops that add floats in no fixed order, in words; only with such an op may two runs differ
    bitwise.
    """

    shape: dict[str, int]
    plans: tuple[dict[str, Any], ...]
    timeline: tuple[Instrumented, ...] = ()
    edge: bool = False
    fewer: FewerSms | None = None
    unordered: tuple[str, ...] = ()
    dtypes: dict[str, str] = Field(default_factory=dict)
    workspaces: dict[str, Workspace] = Field(default_factory=dict)


class Job(_Model):
    """One job. `secret` None: drawn fresh and disclosed in the result. Times in seconds unless named otherwise."""

    kind: Kind
    contract: str = ""
    contract_digest: str = ""
    contracts_dir: str | None = None
    kernel: str = ""
    content_id: str = ""
    variant_id: str = ""
    target: str = ""
    compiler: str = ""
    bindings: dict[str, Any] = Field(default_factory=dict)
    cubins: dict[str, str] = Field(default_factory=dict, description="SHA-256 -> base64")
    cubin_paths: dict[str, str] = Field(default_factory=dict, description="SHA-256 -> path")
    launches: tuple[Launch, ...] = ()
    distributions: tuple[str, ...] | None = None
    seed: int = 0
    secret: str | None = None
    repeats: int = Field(default=3, ge=2, le=20)
    soak: int = Field(
        default=10_000,
        ge=0,
        description="check jobs: most launches of one small shape back to back, within half a second",
    )
    baselines: tuple[str, ...] | None = None
    modes: tuple[Mode, ...] = ("warm",)
    samples: int = Field(default=21, ge=5, le=1000, description="rounds, each timing every contender once")
    sample_ms: float = Field(default=5.0, gt=0, le=1000, description="aimed length of one timed batch")
    warmup_ms: float = Field(default=200.0, gt=0, le=10000, description="least time of warm-up per contender")
    rivals: tuple[Launch, ...] = Field(
        default=(),
        description="bench jobs: per launch another one of the same shape, timed as the only contender; "
        "the launches themselves make an A/A run",
    )
    gap_s: float = Field(default=0.0, ge=0, le=10, description="idle between rounds, so that clocks recover")
    device: int = Field(default=0, ge=0)
    timeout_s: float = Field(default=540.0, gt=0)
    launch_timeout_s: float | None = Field(
        default=None, gt=0, description="one wait for the device; None: from the work of the largest shape"
    )
    use_torch: bool = Field(default=True, description="False: a quick start, comparison on the host, no baselines")
    stop_after: int = 3
    watch_stdin: bool = Field(default=False, description="die when stdin closes (it must then stay open)")
    profiler: bool = Field(default=True, description="profile jobs: use ncu when it is there")
    sanitize: tuple[Tool, ...] = Field(default=(), description="sanitize jobs: these tools; empty means all")
    lines: dict[str, tuple[tuple[int, int], ...]] = Field(
        default_factory=dict, description="sanitize jobs: per kernel symbol where a `.cake` line begins in its code"
    )
    peak_flops: float | None = Field(default=None, description="FLOP/s that no kernel can exceed")
    peak_bytes: float | None = Field(default=None, description="device-memory bytes/s no kernel can exceed")

    def cubin(self, sha256: str) -> bytes:
        """A cubin, checked against its name; raises CakeError `job/bad-cubin`."""
        if sha256 in self.cubins:
            data = base64.b64decode(self.cubins[sha256], validate=False)
        elif sha256 in self.cubin_paths:
            try:
                data = Path(self.cubin_paths[sha256]).read_bytes()
            except OSError as exc:
                raise bad("job/bad-cubin", f"cubin {sha256[:12]} cannot be read: {exc.strerror}") from exc
        else:
            raise bad("job/bad-cubin", f"the job carries no cubin {sha256[:12]}")
        if hashlib.sha256(data).hexdigest() != sha256:
            raise bad("job/bad-cubin", f"the bytes of cubin {sha256[:12]} do not have that SHA-256")
        return data

    def find_contract(self) -> Contract:
        """The job's contract; raises CakeError `job/bad-contract` when unknown or of another digest."""
        known = contracts(self.contracts_dir, [])
        if self.contract not in known:
            raise bad("job/bad-contract", f"no contract {self.contract!r}; known: {', '.join(known)}")
        found = known[self.contract]
        if self.contract_digest and self.contract_digest != found.digest:
            here, there = found.digest, self.contract_digest
            raise bad("job/bad-contract", f"contract {found.name} is {here} here, the job says {there}")
        return found


# ---- results -------------------------------------------------------------------------------------------------------


class Timing(_Model):
    """Samples of one contender in microseconds per launch, each the mean of a batch of `batch` launches.

    `cv` is the standard deviation of the samples over their mean, `sm_mhz` the mean SM clock while they ran (if read),
    `nodes` what one launch enqueues by kind of graph node (if recorded in a graph). For a baseline, `ratio` is its time
    over the candidate's (above 1: the candidate is faster) with its interval, and `comparison` the verdict by the bench's
    rule; `clock_ratio` the candidate's mean clock over its. `computes` is False for a yardstick that does not compute the
    contract; `verdict` says whether its own results passed the contract.
    """

    name: str
    median_us: float
    mad_us: float
    cv: float | None = None
    samples_us: tuple[float, ...]
    batch: int
    sm_mhz: float | None = None
    nodes: dict[str, float] | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    computes: bool = True
    verdict: str = "passed"
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    clock_ratio: float | None = None
    comparison: Literal["faster", "slower", "inconclusive"] | None = None


BenchVerdict = Literal["faster", "slower", "inconclusive", "measured", "incorrect", "invalid", "error"]
"""Of one shape in one mode; docs/measuring.md, "Timing gate", says what each means."""

VALID: frozenset[str] = frozenset({"faster", "slower", "inconclusive", "measured"})
"""Verdicts of correct results with numbers that may be used."""


class BenchShape(_Model):
    """Timing of one shape in one mode. `baseline` is the fastest one that computes the contract, with its `ratio`; the
    verdict is about that one. `message` says why, for a verdict that is not `VALID` or was withheld. `unavailable` gives the
    reason per baseline that did not run.
    """

    shape: dict[str, int]
    dtypes: dict[str, str] = Field(default_factory=dict)
    mode: Mode
    method: str = ""
    verdict: BenchVerdict
    message: str = ""
    candidate: Timing | None = None
    baselines: tuple[Timing, ...] = ()
    unavailable: dict[str, str] = Field(default_factory=dict)
    baseline: str | None = None
    ratio: float | None = None
    floor_us: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    flops_per_s: float = 0.0
    bytes_per_s: float = 0.0
    checks: tuple[CaseResult, ...] = ()
    conditions: dict[str, Any] = Field(default_factory=dict)


class _Answer(_Model):
    """What every result of a job about a contract says. `seconds`: how long the job took."""

    contract: str
    contract_digest: str
    kernel: str
    passed: bool
    summary: str
    seed: int
    secret: str
    seconds: float


class Bench(_Answer):
    """The result of a bench job. `passed`: every shape is correct and validly timed. `rule`: how verdicts are decided."""

    kind: Literal["bench"] = "bench"
    device: dict[str, Any]
    shapes: tuple[BenchShape, ...]
    rule: str


class Profile(_Answer):
    """The result of a profile job, of one shape. `shape` is the warm timing of the plain kernel, judged like any other.

    `timeline` is that of docs/measuring.md, `counters` holds `metrics` by the names of `corpus.profiling.metrics` and
    `instructions` (offset in bytes, samples, stalls by reason, warp instructions executed). A part that could not be
    had is {"unavailable": what to do}.
    """

    kind: Literal["profile"] = "profile"
    device: dict[str, Any]
    shape: BenchShape
    timeline: dict[str, Any]
    counters: dict[str, Any]


class ToolRun(_Model):
    """One compute-sanitizer tool on one launch.

    verdict: clean (warnings may be listed); findings; fault (the launch failed under the tool without a finding of this
    tool); no-end (it hung); unavailable (`message` says why). `limit`: what the tool does not see.
    """

    tool: Tool
    verdict: Literal["clean", "findings", "fault", "no-end", "unavailable"]
    message: str = ""
    findings: tuple[Finding, ...] = ()
    errors: int | None = None
    dropped: int = 0
    limit: str = ""
    seconds: float = 0.0


class Sanitize(_Answer):
    """The result of a sanitize job: a second opinion on one launch. `passed`: every tool ran and found no error."""

    kind: Literal["sanitize"] = "sanitize"
    shape: dict[str, int]
    runs: tuple[ToolRun, ...]
    version: str


# ---- building jobs -------------------------------------------------------------------------------------------------


def parse(obj: object) -> Job:
    """A job from JSON; raises CakeError `job/bad` naming the field."""
    try:
        return Job.model_validate(obj)
    except ValidationError as exc:
        first = exc.errors()[0]
        place = ".".join(map(str, first["loc"])) or "job"
        raise bad("job/bad", f"{place}: {first['msg']}") from exc


def launches(
    bound: BoundKernel, emitted: Any, contract: Contract, shapes: Sequence[Shape], sms: int, cubin_sha256: str,
    *, gate: bool = False,
) -> tuple[list[Launch], list[tuple[Shape, str]]]:  # fmt: skip
    """Launches of a one-kernel program for contract shapes, and the shapes it does not admit with the reason.

    emitted: `lowering.emit(bound)`, built into the cubin of that SHA-256. sms: multiprocessors of the device. gate: with
    what only a check looks at: edge shapes (where `shapes` is the boundary set), launches for fewer multiprocessors,
    and launches of nothing (left out otherwise). Raises CakeError of the first signature difference.
    """
    from lowering.emission import plan

    fit = match(bound, contract)
    if not fit:
        raise CakeError(fit.diagnostics[0])
    made, skipped = [], []
    edges = gate_shapes(bound, contract, shapes) if gate else ()
    unordered = float_sums(bound)
    for i, shape in enumerate([*shapes, *edges]):
        scalars = scalar_values(bound, contract, shape)
        try:
            dims = solve_dims(bound, contract, shape)
        except CakeError as exc:
            skipped.append((shape, exc.diagnostic.message))
            continue
        why = refused(bound, dims, scalars)
        if why is not None:
            skipped.append((shape, why))
            continue
        try:
            concrete = plan(emitted, dims, scalars, sms, cubin_sha256=cubin_sha256)
            fewer = _fewer(
                lambda n, d=dims, s=scalars: plan(emitted, d, s, n, cubin_sha256=cubin_sha256), concrete.grid
            )
        except CakeError as exc:
            if exc.diagnostic.rule != "lowering/shape-not-admitted":
                raise
            skipped.append((shape, exc.diagnostic.message))
            continue
        if not concrete.grid and not gate:
            skipped.append((shape, "there is nothing to launch"))
            continue
        made.append(
            Launch(
                shape=dict(shape), plans=(concrete.to_json(),) if concrete.grid else (), dtypes=dict(fit.dtypes),
                edge=i >= len(shapes), fewer=fewer if gate else None, unordered=unordered,
            )
        )  # fmt: skip
    return made, skipped


def _fewer(plan_for: Callable[[int], LaunchPlan], grid: int) -> FewerSms | None:
    """The launch for as few multiprocessors as give about a third of the grid; None where the grid does not depend on them."""
    for sms in range(max(1, grid // 3), grid):
        try:
            found = plan_for(sms)
        except CakeError:  # fewer than the kernel can do with, such as less than one cluster
            continue
        if 0 < found.grid < grid:
            return FewerSms(sms=sms, plans=(found.to_json(),))
        if found.grid == grid:
            return None
    return None


def job(kind: Kind, contract: Contract, made: Sequence[Launch], cubins: Sequence[bytes], **more: Any) -> Job:
    """A job around launches and cubins; `more` are further fields of `Job`."""
    return Job(
        kind=kind, contract=contract.name, contract_digest=contract.digest, launches=tuple(made),
        cubins={hashlib.sha256(c).hexdigest(): base64.b64encode(c).decode() for c in cubins}, **more,
    )  # fmt: skip


def bad(code: str, message: str) -> CakeError:
    """A job error."""
    return CakeError(error(code, "data", message, contract="A GPU job names its contract, cubins and launch plans."))
