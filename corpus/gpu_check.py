"""Checking a compiled kernel on a device against its contract.

Per case: fresh inputs, outputs and workspaces poisoned with alternating patterns, at least two runs (three by default,
the last while a second stream keeps the memory busy) that must agree bit by bit, one more run as planned for fewer
multiprocessors where the grid depends on them, guard bands and inputs verified after every run, launch and sticky
errors checked after every launch, comparison with the float64 oracle (on the device when torch is there). Every other
case runs on pointers that are aligned to 16 bytes and no more. Once per job the judge must reject a launch that never
happened and a result with one wrong tile, and one small shape is launched thousands of times (`corpus.gpu_soak`).

The order in which the hardware starts CTAs cannot be chosen. What is done instead changes it in fact: the load of the
second stream, and the launch for fewer multiprocessors, whose CTAs meet other tiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from cake_ir.diagnostics import CakeError
from corpus import compare as cmp
from corpus.arrays import element
from corpus.check import (
    CaseResult,
    CheckResult,
    broken,
    conclude,
    from_verdict,
    hashes,
    judge_selftest,
    shape_text,
    spoil,
)  # fmt: skip
from corpus.contract import Case, Contract
from corpus.edges import DISTRIBUTIONS as EDGE_DISTRIBUTIONS
from corpus.gpu_buffers import Buffers, Env, Run
from corpus.gpu_soak import ASIDE_BYTES, LARGEST, soak
from corpus.jobs import Job, Launch
from lowering.plan import BASE_ALIGNMENT

Progress = Callable[[int, int, str], None]
PLAIN, UNDER_LOAD = "plain", "under load"
"""How a run was launched; the third way names the multiprocessors it was planned for."""

FATAL = ("lowering/device-fault", "lowering/no-gpu")
"""Rules after which the process cannot use the device any more."""


def run_check(env: Env, job: Job, contract: Contract, secret: int, progress: Progress) -> CheckResult:
    """Check every launch of the job under every distribution. A device fault ends the job and is its verdict."""
    start = time.monotonic()
    dtypes = job.launches[0].dtypes if job.launches else {}
    selftest = judge_selftest(contract, dtypes=dtypes, seed=job.seed, secret=secret)
    cases: list[CaseResult] = []
    failures, dead, controlled = 0, "", False
    todo = [
        (launch, n, j % 2 == 1)
        for launch in job.launches
        for j, n in enumerate(distributions_of(job, contract, launch))
    ]
    for i, (launch, name, unaligned) in enumerate(todo):
        progress(i, len(todo), f"{shape_text(launch.shape)} {name}")
        if dead or failures >= job.stop_after:
            cases.append(outcome(launch, name, "skipped", "skipped", dead or "after earlier failures"))
            continue
        case = Case(launch.shape, name, job.seed, secret, launch.dtypes)
        try:
            # equal or tied outputs (all zeros, all ones) cannot tell a wrong tile from a right one
            control = not controlled and name == contract.distributions[0] and not contract.empty(launch.shape)
            result = run_case(env, job, contract, launch, case, control=control, unaligned=unaligned)
            controlled = controlled or (control and result.verdict == "passed")
        except CakeError as exc:
            if exc.diagnostic.rule == "contract/judge-broken":
                raise
            result = outcome(launch, name, "error", exc.diagnostic.rule, exc.diagnostic.message)
            if exc.diagnostic.rule in FATAL:
                dead = "the device context did not survive an earlier fault"
        cases.append(result)
        failures += result.verdict in ("failed", "error")
    soaked = ""
    if job.soak and not failures and any(c.verdict == "passed" for c in cases):
        progress(len(todo), len(todo), "back to back")
        soaked, trouble = _soak(env, job, contract, secret)
        cases += [trouble] if trouble else []
        dead = "a fault" if trouble and trouble.cause in FATAL else ""
    if not dead and not env.device.healthy():
        text = "the device does not answer a health probe after the last launch"
        cases.append(outcome(job.launches[-1], todo[-1][1], "error", "lowering/device-fault", text))
    if controlled:
        selftest += "; on the device it rejects a launch that never happened and one wrong tile"
    return CheckResult(
        contract=contract.name, contract_digest=contract.digest, kernel=job.kernel, on="gpu", seed=job.seed,
        secret=f"{secret:032x}", cases=tuple(cases), judge_selftest=selftest, soak=soaked,
        seconds=round(time.monotonic() - start, 3), **conclude(cases),
    )  # fmt: skip


def distributions_of(job: Job, contract: Contract, launch: Launch) -> tuple[str, ...]:
    """The distributions of a launch: those of the job, else all of the contract's; of an edge shape a few."""
    if job.distributions is not None:
        return job.distributions
    few = tuple(n for n in EDGE_DISTRIBUTIONS if n in contract.distributions)
    return few or contract.distributions[:1] if launch.edge else contract.distributions


def outcome(launch: Launch, name: str, verdict: Any, cause: str, message: str) -> CaseResult:
    """A case result without a comparison."""
    return CaseResult(
        shape=launch.shape, distribution=name, dtypes=launch.dtypes, verdict=verdict, cause=cause, message=message,
        edge=launch.edge,
    )  # fmt: skip


def allocate(env: Env, contract: Contract, launch: Launch, *, unaligned: bool = False) -> Buffers:
    """Buffers for all tensors and workspaces of a launch; inputs are not loaded yet. unaligned: no base pointer is
    aligned to more than what kernels may assume."""
    buffers = Buffers(env)
    offset = BASE_ALIGNMENT if unaligned else 0
    try:
        for t in contract.tensors:
            buffers.add(t.name, contract.dtype(t, launch.dtypes), contract.extents(t, launch.shape), offset)
        for name, w in launch.workspaces.items():
            buffers.add(name, w.dtype, w.extents, offset)
    except CakeError:
        buffers.close()
        raise
    return buffers


def launcher(
    env: Env, job: Job, launch: Launch, pointers: dict[str, int], plans: Sequence[Mapping[str, Any]] | None = None
) -> Run:
    """A function that enqueues the whole program once. plans: others than the launch's own."""
    wanted = launch.plans if plans is None else plans
    steps = [env.prepare(job.cubin(str(p.get("cubin_sha256"))), p, pointers) for p in wanted]
    if len(steps) == 1:
        return steps[0]

    def run(stream: int) -> None:
        for step in steps:
            step(stream)

    return run


def run_case(
    env: Env, job: Job, contract: Contract, launch: Launch, case: Case, *, control: bool, unaligned: bool = False
) -> CaseResult:
    """One shape and distribution. Driver failures pass through as CakeError."""
    start = time.monotonic()
    buffers = allocate(env, contract, launch, unaligned=unaligned)
    fewer = launch.fewer
    try:
        run = launcher(env, job, launch, buffers.pointers)
        other = launcher(env, job, launch, buffers.pointers, fewer.plans) if fewer else None
        trial = Trial(buffers, contract, launch, case, contract.inputs(case), run, other)
        verdict = trial.judge(job.repeats, thorough=True)
        if verdict.ok and control:
            trial.controls()
    finally:
        buffers.close()
    common = {"shape": dict(case.shape), "distribution": case.distribution, "dtypes": dict(case.dtypes)}
    done = from_verdict(verdict, common, (), time.monotonic() - start)
    at = done.at
    if at is not None and fewer is not None and verdict.launches[-1:] == (f"for {fewer.sms} SMs",):
        at = {**at, "sms": fewer.sms}
    more = {"unaligned": BASE_ALIGNMENT} if unaligned else {}
    return done.model_copy(update={"at": at, "edge": launch.edge, "facts": {**done.facts, **more}})


def t_bytes(contract: Contract, launch: Launch, name: str) -> int:
    """Bytes of one tensor."""
    spec = contract.tensor(name)
    return prod(contract.extents(spec, launch.shape)) * element(contract.dtype(spec, launch.dtypes)).bytes


def _soak(env: Env, job: Job, contract: Contract, secret: int) -> tuple[str, CaseResult | None]:
    """(what was seen, a failing case or None) of many launches of one small shape that passed."""
    size = {
        i: sum(t_bytes(contract, x, t.name) for t in contract.outputs)
        for i, x in enumerate(job.launches)
        if x.plans and not contract.empty(x.shape)
    }
    fitting = {i: n for i, n in size.items() if 0 < n <= LARGEST}
    smallest = min(size, key=lambda i: size[i], default=None)
    if not fitting and (smallest is None or 2 * size[smallest] > ASIDE_BYTES):
        return "not launched back to back: no shape is small enough", None
    launch = job.launches[max(fitting, key=lambda i: fitting[i]) if fitting else smallest or 0]
    name = distributions_of(job, contract, launch)[0]
    case = Case(launch.shape, name, job.seed, secret, launch.dtypes)
    inputs = contract.inputs(case)
    trials: list[Trial] = []
    owned: list[Buffers] = []
    try:
        for unaligned in (False, True):
            owned.append(allocate(env, contract, launch, unaligned=unaligned))
            trials.append(
                Trial(owned[-1], contract, launch, case, inputs, launcher(env, job, launch, owned[-1].pointers))
            )
            verdict = trials[-1].judge(2)
            if not verdict.ok:
                break
        else:
            found = soak(trials, job.soak)
            verdict = found.verdict
            if verdict.ok:
                return found.text, None
    except CakeError as exc:
        return "", outcome(launch, name, "error", exc.diagnostic.rule, exc.diagnostic.message)
    finally:
        for b in owned:
            b.close()
    common = {"shape": dict(case.shape), "distribution": name, "dtypes": dict(case.dtypes)}
    return "", from_verdict(verdict, common, (), 0.0).model_copy(update={"edge": launch.edge})


@dataclass
class Trial:
    """One case on the device: buffers, host inputs, and the function that launches. other: launches for fewer SMs."""

    buffers: Buffers
    contract: Contract
    launch: Launch
    case: Case
    inputs: dict[str, np.ndarray]
    run: Run
    other: Run | None = None
    originals: dict[str, Any] = field(default_factory=dict)
    expected: Any = None
    first: dict[str, Any] = field(default_factory=dict)

    def judge(self, repeats: int, *, thorough: bool = False) -> cmp.Verdict:
        """Load inputs, run `repeats` (>= 2) times from poisoned outputs, and judge. thorough: the last of three or more
        under load, and once more for fewer multiprocessors. The verdict says which launches there were."""
        b, c = self.buffers, self.contract
        for name, values in self.inputs.items():
            b.load(name, values)
        b.env.sync()
        self.originals = {n: b.snapshot(n) for n in self.inputs}
        none = c.judge is not None or c.empty(self.case.shape)
        self.expected = None if none else cmp.run_oracle(b.math, c, self.originals)
        done: list[str] = []
        verdict = self._runs(repeats, thorough, done)
        return replace(verdict, inputs=hashes(self.inputs), launches=tuple(done))

    def _runs(self, repeats: int, thorough: bool, done: list[str]) -> cmp.Verdict:
        b, c, fewer = self.buffers, self.contract, self.launch.fewer
        ways: list[tuple[str, Run]] = [(PLAIN, self.run)] * repeats
        load = b.env.under_load
        if thorough and load is not None and repeats > 2:
            ways[-1] = (UNDER_LOAD, lambda stream: load(self.run, stream))
        if thorough and self.other is not None and fewer is not None:
            ways.append((f"for {fewer.sms} SMs", self.other))
        verdict, different = cmp.Verdict(True, "not run"), 0
        for i, (way, run) in enumerate(ways):
            self.reset(i)
            run(b.env.stream)
            b.env.sync()
            done.append(way)
            trouble = self.side_effects()
            if trouble is not None:
                return _named(trouble, way)
            out = {t.name: b.snapshot(t.name) for t in c.outputs}
            if i == 0:
                self.first, verdict = out, self._compare(out)
                continue
            agree = all(b.same(self.first[n], out[n]) for n in out)
            if i == 1 and not agree:
                # two runs from different poison that agree have written everything
                first, second = self._on_host(self.first), self._on_host(out)
                verdict = cmp.unwritten((first, second)) or verdict
            if not verdict.ok:
                return verdict
            if agree:
                continue
            if way in (PLAIN, UNDER_LOAD) and not self.launch.unordered:
                found = cmp.difference(self._on_host(self.first), self._on_host(out))
                assert found is not None
                return _named(
                    cmp.Verdict(False, f"run {i + 1} gives another result: {found[0]}", "repeat", at=found[1]), way
                )
            # float sums in any order, or the work of a grid of another size: within the tolerance, not bit by bit
            judged = self._compare(out)
            if not judged.ok:
                return _named(judged, way)
            different += 1
        facts = dict(verdict.facts or {})
        if different:
            why = "; ".join(self.launch.unordered) or "another grid"
            facts |= {"runs_that_differ_bitwise": different, "allowed_by": why}
        return replace(verdict, facts=facts)

    def judge_values(self, values: Mapping[str, np.ndarray]) -> cmp.Verdict:
        """Judge outputs from the host as if the last launch had written them; the buffers then hold them."""
        for name, value in values.items():
            self.buffers.load(name, value)
        self.buffers.env.sync()
        return self._compare({n: self.buffers.snapshot(n) for n in values})

    def _compare(self, out: dict[str, Any]) -> cmp.Verdict:
        return cmp.judge(self.buffers.math, self.contract, self.case, self.originals, out, self.expected)

    def _on_host(self, out: dict[str, Any]) -> dict[str, np.ndarray]:
        return {n: self.buffers.on_host(v) for n, v in out.items()}

    def reset(self, run: int) -> None:
        """Poison outputs and workspaces with pattern `run`, restore inout tensors."""
        b = self.buffers
        for t in self.contract.outputs:
            if t.direction == "out":
                b.poison(t.name, run)
            else:
                b.load(t.name, self.inputs[t.name])
        for name in self.launch.workspaces:
            b.poison(name, run)
        b.env.sync()

    def side_effects(self) -> cmp.Verdict | None:
        """Writes outside buffers or to read-only inputs."""
        b = self.buffers
        outside = b.damage()
        if outside:
            return cmp.Verdict(False, outside, "out-of-bounds")
        for t in self.contract.tensors:
            if t.direction == "in" and not b.same(self.originals[t.name], b.snapshot(t.name)):
                return cmp.Verdict(False, f"the input {t.name} was changed", "input-changed")
        return None

    def controls(self) -> None:
        """The judge must reject a launch that never happened, and this very result with one wrong tile."""
        b, c = self.buffers, self.contract
        self.reset(1)
        stale = {t.name: b.snapshot(t.name) for t in c.outputs}
        if self.first and cmp.judge(b.math, c, self.case, self.originals, stale, self.expected).ok:
            broken(c, "on the device, a launch that never happened passes")
        for name, value in self.first.items():
            host = b.on_host(value).copy()
            if host.size:
                spoil(host)
                b.load(name, host)
                wrong = {**self.first, name: b.snapshot(name)}
                if cmp.judge(b.math, c, self.case, self.originals, wrong, self.expected).ok:
                    broken(c, f"on the device, a result with one wrong tile of {name} passes")


def _named(verdict: cmp.Verdict, way: str) -> cmp.Verdict:
    """The verdict saying which launch it is about, where that was no plain one."""
    return verdict if way == PLAIN else replace(verdict, message=f"launched {way}: {verdict.message}")
