"""Checking a compiled kernel on a device against its contract.

Per case: fresh inputs, outputs and workspaces poisoned with alternating patterns, at least two runs (three by default)
that must agree bit by bit, guard bands and inputs verified after every run, launch and sticky errors checked after
every launch, comparison with the float64 oracle (on the device when torch is there). Once per job the judge must
reject a launch that never happened and a result with one wrong tile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cake_ir.diagnostics import CakeError
from corpus import compare as cmp
from corpus.check import CaseResult, CheckResult, broken, conclude, from_verdict, judge_selftest, shape_text, spoil
from corpus.contract import Case, Contract
from corpus.gpu_buffers import Buffers, Env, Run
from corpus.jobs import Job, Launch

Progress = Callable[[int, int, str], None]
FATAL = ("lowering/device-fault", "lowering/no-gpu")
"""Rules after which the process cannot use the device any more."""


def run_check(env: Env, job: Job, contract: Contract, secret: int, progress: Progress) -> CheckResult:
    """Check every launch of the job under every distribution. A device fault ends the job and is its verdict."""
    start = time.monotonic()
    names = tuple(contract.distributions if job.distributions is None else job.distributions)
    dtypes = job.launches[0].dtypes if job.launches else {}
    selftest = judge_selftest(contract, dtypes=dtypes, seed=job.seed, secret=secret)
    cases: list[CaseResult] = []
    failures, dead, controlled = 0, "", False
    for i, launch in enumerate(job.launches):
        for j, name in enumerate(names):
            progress(i * len(names) + j, len(job.launches) * len(names), f"{shape_text(launch.shape)} {name}")
            if dead or failures >= job.stop_after:
                cases.append(outcome(launch, name, "skipped", "skipped", dead or "after earlier failures"))
                continue
            case = Case(launch.shape, name, job.seed, secret, launch.dtypes)
            try:
                # equal or tied outputs (all zeros, all ones) cannot tell a wrong tile from a right one
                control = not controlled and name == contract.distributions[0]
                result = run_case(env, job, contract, launch, case, control=control)
                controlled = controlled or (control and result.verdict == "passed")
            except CakeError as exc:
                if exc.diagnostic.rule == "contract/judge-broken":
                    raise
                result = outcome(launch, name, "error", exc.diagnostic.rule, exc.diagnostic.message)
                if exc.diagnostic.rule in FATAL:
                    dead = "the device context did not survive an earlier fault"
            cases.append(result)
            failures += result.verdict in ("failed", "error")
    if not dead and not env.device.healthy():
        text = "the device does not answer a health probe after the last launch"
        cases.append(outcome(job.launches[-1], names[-1], "error", "lowering/device-fault", text))
    if controlled:
        selftest += "; on the device it rejects a launch that never happened and one wrong tile"
    return CheckResult(
        contract=contract.name, contract_digest=contract.digest, kernel=job.kernel, on="gpu", seed=job.seed,
        secret=f"{secret:032x}", cases=tuple(cases), judge_selftest=selftest,
        seconds=round(time.monotonic() - start, 3), **conclude(cases),
    )  # fmt: skip


def outcome(launch: Launch, name: str, verdict: Any, cause: str, message: str) -> CaseResult:
    """A case result without a comparison."""
    return CaseResult(
        shape=launch.shape, distribution=name, dtypes=launch.dtypes, verdict=verdict, cause=cause, message=message
    )


def allocate(env: Env, contract: Contract, launch: Launch) -> Buffers:
    """Buffers for all tensors and workspaces of a launch; inputs are not loaded yet."""
    buffers = Buffers(env)
    try:
        for t in contract.tensors:
            buffers.add(t.name, contract.dtype(t, launch.dtypes), contract.extents(t, launch.shape))
        for name, w in launch.workspaces.items():
            buffers.add(name, w.dtype, w.extents)
    except CakeError:
        buffers.close()
        raise
    return buffers


def launcher(env: Env, job: Job, launch: Launch, pointers: dict[str, int]) -> Run:
    """A function that enqueues the whole program once."""
    steps = [env.prepare(job.cubin(str(p.get("cubin_sha256"))), p, pointers) for p in launch.plans]
    if len(steps) == 1:
        return steps[0]

    def run(stream: int) -> None:
        for step in steps:
            step(stream)

    return run


def run_case(env: Env, job: Job, contract: Contract, launch: Launch, case: Case, *, control: bool) -> CaseResult:
    """One shape and distribution. Driver failures pass through as CakeError."""
    start = time.monotonic()
    buffers = allocate(env, contract, launch)
    try:
        run = launcher(env, job, launch, buffers.pointers)
        trial = Trial(buffers, contract, launch, case, contract.inputs(case), run)
        verdict = trial.judge(job.repeats)
        if verdict.ok and control:
            trial.controls()
    finally:
        buffers.close()
    common = {"shape": dict(case.shape), "distribution": case.distribution, "dtypes": dict(case.dtypes)}
    return from_verdict(verdict, common, (f"{job.repeats} launches",), time.monotonic() - start)


@dataclass
class Trial:
    """One case on the device: buffers, host inputs, and the function that launches."""

    buffers: Buffers
    contract: Contract
    launch: Launch
    case: Case
    inputs: dict[str, np.ndarray]
    run: Run
    originals: dict[str, Any] = field(default_factory=dict)
    expected: Any = None
    first: dict[str, Any] = field(default_factory=dict)

    def judge(self, repeats: int) -> cmp.Verdict:
        """Load inputs, run `repeats` (>= 2) times from poisoned outputs, and judge."""
        b, c = self.buffers, self.contract
        for name, values in self.inputs.items():
            b.load(name, values)
        b.env.sync()
        self.originals = {n: b.snapshot(n) for n in self.inputs}
        self.expected = cmp.run_oracle(b.math, c, self.originals) if c.judge is None else None
        verdict = cmp.Verdict(True, "not run")
        for i in range(repeats):
            self.reset(i)
            self.run(b.env.stream)
            b.env.sync()
            trouble = self.side_effects()
            if trouble is not None:
                return trouble
            out = {t.name: b.snapshot(t.name) for t in c.outputs}
            if i == 0:
                self.first = out
                verdict = cmp.judge(b.math, c, self.case, self.originals, out, self.expected)
                continue
            agree = all(b.same(self.first[n], out[n]) for n in out)
            if i == 1 and not agree:
                # two runs from different poison that agree have written everything
                hosts = tuple({n: b.on_host(v) for n, v in o.items()} for o in (self.first, out))
                verdict = cmp.unwritten(hosts) or verdict  # type: ignore[arg-type]
            if not verdict.ok:
                return verdict
            if not agree:
                hosts = tuple({n: b.on_host(v) for n, v in o.items()} for o in (self.first, out))
                return cmp.Verdict(False, f"run {i + 1} gives another result: {cmp.same_bits(*hosts)}", "repeat")
        return verdict

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
