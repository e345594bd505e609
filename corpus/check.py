"""Checking a kernel against its contract on the CPU, through the value reading, with a self-test of the judge.

Every case runs under several schedules (greedy, random, one role starved): a missing synchronisation shows as a
difference between them; only a kernel that adds floats to global memory may differ, within the tolerance. Outputs start
from two poison patterns; inputs must come back unchanged.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NoReturn

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from cake_ir.bound import BoundKernel, Op, Region, walk
from cake_ir.diagnostics import CakeError, Diagnostic, error
from corpus import compare as cmp
from corpus import distributions as dist
from corpus.arrays import Math, bits
from corpus.contract import Case, Contract, Expected, Shape
from corpus.edges import DISTRIBUTIONS as EDGE_DISTRIBUTIONS
from corpus.edges import gate_shapes
from corpus.signature import match, refused, scalar_values, solve_dims

Interpret = Callable[..., dict[str, np.ndarray]]
Progress = Callable[[int, int, str], None]
"""(done, total, what) -> None, called before each case."""

QUICK: tuple[str, ...] = ("normal", "small_int", "one_hot", "alternating")
"""Distributions of a quick check, which also takes those that a contract adds to the battery (masks, NaN, infinities);
`distributions=None` takes the contract's whole battery."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CaseResult(_Model):
    """One shape and distribution. `excess` is the worst error over tolerance (1 is the limit).

    `where` says in words which indices are wrong; `diagnostic` is the located fault that ended the run, or the op that
    wrote the wrong element. `at`: that element, {"tensor", "index"} (and "sms" where the launch was made for fewer
    multiprocessors); `owner`: who wrote it (`analyses.owners`). `inputs`: SHA-256 per input. `secret`: where the case was
    not drawn from the result's own. `edge`: the shape comes from the kernel's tiles, not from the contract.
    """

    shape: dict[str, int]
    distribution: str
    dtypes: dict[str, str] = Field(default_factory=dict)
    verdict: Literal["passed", "failed", "skipped", "error"]
    cause: str = "ok"
    message: str = ""
    bad: int = 0
    total: int = 0
    excess: float | str = 0.0
    where: str = ""
    worst: dict[str, Any] | None = None
    at: dict[str, Any] | None = None
    owner: dict[str, Any] | None = None
    diagnostic: Diagnostic | None = None
    facts: dict[str, Any] = Field(default_factory=dict)
    inputs: dict[str, str] = Field(default_factory=dict)
    secret: str | None = None
    edge: bool = False
    schedules: tuple[str, ...] = ()
    seconds: float = 0.0


class CheckResult(_Model):
    """The check of one kernel. `passed` needs at least one case that ran and none that failed.

    `secret` is the secret half of the seed, disclosed after the run so that it can be repeated. `soak`: how many launches
    of one small shape ran back to back on a device, and what error rate that bounds.
    """

    contract: str
    contract_digest: str
    kernel: str
    on: Literal["cpu", "gpu"]
    passed: bool
    summary: str
    seed: int
    secret: str
    cases: tuple[CaseResult, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    judge_selftest: str = ""
    soak: str = ""
    seconds: float = 0.0


def check_cpu(
    bound: BoundKernel,
    contract: Contract,
    shapes: str | Sequence[Shape] = "boundary",
    *,
    interpret: Interpret,
    distributions: Sequence[str] | None = QUICK,
    seed: int = 0,
    secret: int | None = None,
    schedules: Sequence[str] | None = None,
    progress: Progress | None = None,
    stop_after: int = 3,
    budget_s: float | None = None,
) -> CheckResult:
    """Interpret the kernel on every shape and distribution and compare with the contract.

    shapes: a shape set of the contract or explicit shapes; with the boundary set go the edge shapes of the kernel's own
    tiles (`corpus.edges`), on one distribution. interpret: `analyses.interpret`. The first distribution of a
    shape runs under all `schedules`, the others, and edge shapes, under the greedy one. stop_after: give up after so many failures.
    budget_s: cases that would start later, or by themselves take longer, are reported as skipped.
    Returns a result for every outcome but a broken
    judge, which raises CakeError `contract/judge-broken`.
    """
    start = time.monotonic()
    secret = dist.fresh_secret() if secret is None else secret
    fit = match(bound, contract)
    common = {
        "contract": contract.name, "contract_digest": contract.digest, "kernel": bound.name, "on": "cpu",
        "seed": seed, "secret": f"{secret:032x}",
    }  # fmt: skip
    if not fit:
        count = len(fit.diagnostics)
        text = f"{bound.name} does not have the signature of {contract.name} ({count} difference{'s' * (count != 1)})"
        return CheckResult(passed=False, summary=text, diagnostics=fit.diagnostics, **common)
    wanted = named_shapes(contract, shapes)
    names = tuple(contract.distributions if distributions is None else distributions)
    if distributions is QUICK:
        names += tuple(n for n in contract.distributions if n not in dist.BATTERY)
    selftest = judge_selftest(contract, dtypes=fit.dtypes, seed=seed, secret=secret)
    plan = schedules if schedules is not None else default_schedules(bound, seed)
    cases: list[CaseResult] = []
    failures = 0
    expected_s = seconds_per_run(bound, contract, wanted, interpret, Case({}, names[0], seed, secret, fit.dtypes))
    first_runs = 1 + len(plan)
    whole_s = sum(expected_s) * (first_runs + 2 * (len(names) - 1))
    if progress and whole_s > WORTH_SAYING_S:
        limit = "" if budget_s is None else f"; cases that would start after {duration(budget_s)} are skipped"
        progress(0, len(wanted) * len(names), f"about {duration(whole_s)} of interpretation{limit}")
    edges = gate_shapes(bound, contract, wanted)
    total = len(wanted) * len(names) + len(edges)
    for i, shape in enumerate(wanted):
        for j, name in enumerate(names):
            if budget_s is not None and expected_s[i] * first_runs > budget_s:
                why = f"too large: about {duration(expected_s[i] * first_runs)} to interpret, at most {duration(budget_s)}"
                cases.append(_skip(shape, name, fit.dtypes, why, "too-large"))
                continue
            if progress:
                progress(i * len(names) + j, total, f"{shape_text(shape)} {name}")
            if failures >= stop_after or (budget_s is not None and time.monotonic() - start > budget_s):
                late = f"{duration(budget_s or 0)} were used up; about {duration(whole_s)} are needed"
                why = "after earlier failures" if failures >= stop_after else late
                cases.append(_skip(shape, name, fit.dtypes, why))
                continue
            case = Case(dict(shape), name, seed, secret, fit.dtypes)
            cases.append(_run(bound, contract, case, interpret, plan if j == 0 else plan[:1]))
            failures += cases[-1].verdict in ("failed", "error")
    name = next((n for n in EDGE_DISTRIBUTIONS if n in contract.distributions), names[0])
    for i, shape in enumerate(edges):
        if progress:
            progress(total - len(edges) + i, total, f"{shape_text(shape)} {name}")
        if failures >= stop_after or (budget_s is not None and time.monotonic() - start > budget_s):
            cases.append(
                _skip(shape, name, fit.dtypes, "after earlier failures, or out of time").model_copy(
                    update={"edge": True}
                )
            )
            continue
        done = _run(bound, contract, Case(dict(shape), name, seed, secret, fit.dtypes), interpret, plan[:1])
        cases.append(done.model_copy(update={"edge": True}))
        failures += done.verdict in ("failed", "error")
    seconds = time.monotonic() - start
    narrow = narrow_sums(bound, contract)
    faults = {(d.rule, str(d.span)): d for d in (*narrow, *(c.diagnostic for c in cases if c.diagnostic is not None))}
    done = conclude(cases)
    if narrow:
        said = str(done["summary"]).removeprefix("passed: ").removeprefix("failed: ")
        text = f"failed: {narrow[0].message} (line {narrow[0].span.line}), but the contract keeps sums in f32; {said}"
        done = {"passed": False, "summary": text}
    return CheckResult(
        **common, cases=tuple(cases), diagnostics=tuple(faults.values()), judge_selftest=selftest,
        seconds=round(seconds, 3), **done,
    )  # fmt: skip


def narrow_sums(bound: BoundKernel, contract: Contract) -> tuple[Diagnostic, ...]:
    """`contract/narrow-sum` findings of the kernel's text, where the contract's sums are f32."""
    from analyses.accumulation import narrow_sums as found

    return tuple(found(bound)) if contract.accumulate == "f32" else ()


WORTH_SAYING_S = 20.0
PILOT_FACTOR = 8.0


def seconds_per_run(
    bound: BoundKernel, contract: Contract, shapes: Sequence[Shape], interpret: Interpret, like: Case
) -> list[float]:
    """About how long one interpretation of each shape takes, scaled by operations from the largest boundary shape.

    Zeros when no shape has much more work than that one (nothing to warn of), or when the kernel does not run it.
    """
    known = max(contract.shapes["boundary"], key=contract.flops)
    unit = max(contract.flops(known), 1.0)
    if all(contract.flops(s) <= PILOT_FACTOR * unit for s in shapes):
        return [0.0] * len(shapes)
    pilot = _run(bound, contract, replace(like, shape=dict(known)), interpret, ("greedy",))
    if pilot.verdict != "passed":
        return [0.0] * len(shapes)
    # a passing case interprets twice, once per poison
    return [pilot.seconds / 2 * contract.flops(s) / unit for s in shapes]


def duration(seconds: float) -> str:
    """`40 s`, `9 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def conclude(cases: Sequence[CaseResult]) -> dict[str, Any]:
    """`passed` and `summary` of a list of case results."""
    count = {v: sum(c.verdict == v for c in cases) for v in ("passed", "failed", "error", "skipped")}
    passed = count["passed"] > 0 and not count["failed"] and not count["error"]
    parts = [f"{n} {v}" for v, n in count.items() if n]
    text = f"{'passed' if passed else 'failed'}: {', '.join(parts) or 'no cases'}"
    first = next((c for c in cases if c.verdict in ("failed", "error")), None)
    if first is not None:
        text += f"; first at {shape_text(first.shape)} ({first.distribution}): {first.message}"
    elif count["passed"] and count["skipped"]:
        text += f"; skipped: {'; '.join(sorted({c.message for c in cases if c.verdict == 'skipped'})[:2])}"
    elif not count["passed"]:
        why = {c.message for c in cases}
        text += f"; nothing ran: {'; '.join(sorted(why)[:2])}" if why else ""
    return {"passed": passed, "summary": text}


def named_shapes(contract: Contract, shapes: str | Sequence[Shape]) -> tuple[Shape, ...]:
    """A shape set by name, or the given shapes validated; raises CakeError `contract/bad-shape`."""
    if isinstance(shapes, str):
        if shapes not in contract.shapes:
            _bad_shape(f"contract {contract.name} has no shape set {shapes!r}; it has {', '.join(contract.shapes)}")
        return contract.shapes[shapes]
    for shape in shapes:
        if set(shape) != set(contract.dims):
            _bad_shape(f"a shape of {contract.name} gives exactly {', '.join(contract.dims)}; got {shape_text(shape)}")
        for name, value in shape.items():
            low = contract.least.get(name, 0)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**31:
                _bad_shape(f"{name} = {value!r} is not an extent ({low} .. 2^31 - 1)")
    return tuple(dict(s) for s in shapes)


def _bad_shape(message: str) -> NoReturn:
    law = "A shape gives every dimension of its contract one extent."
    raise CakeError(error("contract/bad-shape", "data", message, contract=law))


def shape_text(shape: Mapping[str, int]) -> str:
    """`M=1 N=8`."""
    return " ".join(f"{k}={v}" for k, v in shape.items()) or "(no dimensions)"


def default_schedules(bound: BoundKernel, seed: int) -> tuple[str, ...]:
    """Greedy, one random order, and the first and last role starved (as far as there are several roles)."""
    names = [r.name for r in bound.roles]
    starved = list(dict.fromkeys([names[0], names[-1]])) if len(names) > 1 else []
    return ("greedy", f"random:{seed + 1}", *(f"starve:{n}" for n in starved))


def float_sums(bound: BoundKernel) -> tuple[str, ...]:
    """Ops that add floats to global memory, whose order the hardware chooses: `bulk_reduce of out on line 130`."""
    found: dict[str, None] = {}
    for op in walk(bound.body):
        if isinstance(op, Op) and (op.name == "atomic_add" or op.attrs.get("op") == "add"):
            region = op.operands.get("region")
            if isinstance(region, Region) and region.tensor.dtype.kind == "f":
                found[f"{op.name} of {region.tensor.name} on line {op.span.line}"] = None
    return tuple(found)


def _skip(shape: Shape, name: str, dtypes: Mapping[str, str], why: str, cause: str = "skipped") -> CaseResult:
    return CaseResult(shape=shape, distribution=name, dtypes=dict(dtypes), verdict="skipped", cause=cause, message=why)


def _run(
    bound: BoundKernel, contract: Contract, case: Case, interpret: Interpret, schedules: Sequence[str]
) -> CaseResult:
    start = time.monotonic()
    common: dict[str, Any] = {"shape": case.shape, "distribution": case.distribution, "dtypes": dict(case.dtypes)}
    scalars = scalar_values(bound, contract, case.shape)
    try:
        dims = solve_dims(bound, contract, case.shape)
    except CakeError as exc:
        return CaseResult(**common, verdict="skipped", cause="refused", message=exc.diagnostic.message)
    why = refused(bound, dims, scalars)
    if why is not None:
        return CaseResult(**common, verdict="skipped", cause="refused", message=f"the kernel refuses this shape: {why}")
    inputs = contract.inputs(case)
    m = Math()
    expected = None if contract.judge or contract.empty(case.shape) else cmp.run_oracle(m, contract, inputs)
    unordered = float_sums(bound)
    runs: list[dict[str, np.ndarray]] = []
    verdict: cmp.Verdict | None = None
    ran: list[str] = []
    # two greedy runs (one per poison), then one run per further schedule
    for i, schedule in enumerate([schedules[0], *schedules]):
        tensors = {**{k: v.copy() for k, v in inputs.items()}, **contract.outputs_poisoned(case, i)}
        try:
            out = interpret(bound, tensors, scalars, schedule=schedule)
        except CakeError as exc:
            d = exc.diagnostic
            text = f"under schedule {schedule}: {d.render()}"
            return CaseResult(
                **common, verdict="error", cause=d.rule, message=text, diagnostic=d, schedules=(*ran, schedule)
            )
        ran.append(schedule)
        outputs = {t.name: np.asarray(out[t.name]) for t in contract.outputs}
        verdict = _changed_input(contract, inputs, {**tensors, **out})
        verdict = verdict or cmp.judge(m, contract, case, inputs, outputs, expected)
        runs.append(outputs)
        if i == 1:
            verdict = cmp.unwritten((runs[0], runs[1])) or verdict
        # sums in no fixed order may differ: then every run has to match the oracle by itself
        if verdict.ok and i > 0 and not unordered:
            other = cmp.difference(runs[0], outputs)
            if other:
                verdict = cmp.Verdict(
                    False, f"schedule {schedule} gives another result: {other[0]}", "schedule", at=other[1]
                )
        # the first poisoned run alone cannot tell unwritten from wrong, so the second follows in any case
        if not verdict.ok and i > 0:
            if schedule != schedules[0]:
                verdict = replace(verdict, message=f"under schedule {schedule}: {verdict.message}")
            break
    assert verdict is not None
    verdict = replace(verdict, inputs=hashes(inputs))
    done = from_verdict(verdict, common, tuple(dict.fromkeys(ran)), time.monotonic() - start)
    if done.verdict != "failed":
        return done
    from corpus.blame import blame

    return blame(bound, contract, done, INTERPRETED_SMS, inputs)


INTERPRETED_SMS = 4
"""What `analyses.interpret` takes for `device.sms`."""


def hashes(inputs: Mapping[str, np.ndarray]) -> dict[str, str]:
    """SHA-256 of the bytes of each input."""
    return {n: hashlib.sha256(bits(a).reshape(-1).view(np.uint8).data).hexdigest() for n, a in inputs.items()}


def from_verdict(v: cmp.Verdict, common: dict[str, Any], schedules: tuple[str, ...], seconds: float) -> CaseResult:
    """A case result from a comparison."""
    plain = v.to_json()
    excess = plain["worst"]["excess"] if plain["worst"] else 0.0
    return CaseResult(
        **common, verdict="passed" if v.ok else "failed", cause=v.cause, message=v.message, bad=v.bad, total=v.total,
        excess=excess, where=v.where, worst=plain["worst"], facts=plain["facts"] or {}, inputs=dict(v.inputs or {}),
        at=None if v.ok or v.at is None else {"tensor": v.at[0], "index": list(v.at[1])},
        schedules=schedules or v.launches, seconds=round(seconds, 4),
    )  # fmt: skip


def _changed_input(
    contract: Contract, before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]
) -> cmp.Verdict | None:
    for t in contract.tensors:
        if t.direction == "in" and not np.array_equal(bits(before[t.name]), bits(np.asarray(after[t.name]))):
            return cmp.Verdict(False, f"the input {t.name} was changed", "input-changed")
    return None


# ---- the judge judged ----------------------------------------------------------------------------------------------


def judge_selftest(
    contract: Contract, *, dtypes: Mapping[str, str] | None = None, seed: int = 0, secret: int | None = None
) -> str:
    """Prove on one boundary shape that the judge accepts a right result and rejects wrong ones.

    Rejected must be: a launch that writes nothing, and one wrong tile. Returns a sentence; raises CakeError
    `contract/judge-broken` when a wrong result passes (a judge that passes those proves nothing).
    """
    m = Math()
    shape = max(contract.shapes["boundary"], key=lambda s: (contract.bytes(s) <= 1 << 20, contract.bytes(s)))
    secret = dist.fresh_secret() if secret is None else secret
    case = Case(dict(shape), contract.distributions[0], seed, secret, dict(dtypes or {}))
    inputs = contract.inputs(case)
    noop = (contract.outputs_poisoned(case, 0), contract.outputs_poisoned(case, 1))
    pure = [t for t in contract.outputs if t.direction == "out"]
    if pure and cmp.unwritten(noop) is None:
        broken(contract, "a launch that writes nothing passes as written")
    start = {t.name: inputs[t.name] for t in contract.outputs if t.direction == "inout"}
    if cmp.judge(m, contract, case, inputs, {**start, **noop[1]}).ok:
        broken(contract, "a launch that writes nothing passes")
    right, expected = perfect(contract, case, inputs)
    verdict = cmp.judge(m, contract, case, inputs, right, expected)
    if not verdict.ok:
        broken(contract, f"the exact result, rounded once, fails: {verdict.message}")
    for t in contract.outputs:
        wrong = {k: v.copy() for k, v in right.items()}
        spoil(wrong[t.name])
        if cmp.judge(m, contract, case, inputs, wrong, expected).ok:
            broken(contract, f"a result with one wrong tile of {t.name} passes")
    return f"{contract.name}: the judge accepts the rounded exact result and rejects a no-op and one wrong tile"


def spoil(output: np.ndarray) -> None:
    """Overwrite the last tile (16 per dimension): labels move by one, in range but wrong; floats become 0, zeros 1."""
    tile = output[tuple(slice(max(0, n - 16), n) for n in output.shape)]
    span = max(2, int(np.max(output)) + 1) if tile.dtype.kind in "iu" else 0
    tile[...] = (tile + 1) % span if span else np.where(tile == 0, 1, 0).astype(tile.dtype)


def perfect(
    contract: Contract, case: Case, inputs: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], Mapping[str, Expected] | None]:
    """The outputs of a kernel that makes no error but the last rounding, and the oracle's answer where there is one."""
    if contract.oracle is None:
        assert contract.solution is not None
        return contract.solution(inputs), None
    expected = cmp.run_oracle(Math(), contract, inputs)
    return {
        t.name: cmp.cast_output(expected[t.name].value, contract.dtype(t, case.dtypes)) for t in contract.outputs
    }, expected


def broken(contract: Contract, what: str) -> NoReturn:
    """Raise CakeError `contract/judge-broken`."""
    raise CakeError(
        error(
            "contract/judge-broken",
            "numeric",
            f"the judge of contract {contract.name} is broken: {what}",
            contract="A judge rejects a launch that writes nothing and a result with one wrong tile.",
        )
    )
