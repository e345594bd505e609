"""Timing a compiled kernel beside its baselines on a device.

Order for each shape: check the candidate with the inputs that will be timed; time all contenders interleaved (see
`lowering.runtime.bench`), the outputs poisoned once more before the last round; judge what the timed launches left
behind, on every buffer set; then change the input bytes under the finished outputs and judge the same prepared launch,
and once more from poison. A time below the physical floor is invalid, not a record, and a large speed-up is validated
again with other seeds.

The host side is ours: a kernel is data (cubin and launch plan), started on our stream with our arguments, so nothing a
candidate brings can choose a stream, start a thread, or keep a result. A launch enqueues the kernels of its plans and
nothing else, which the timed graph is searched for.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from cake_ir.diagnostics import CakeError
from corpus import compare as cmp
from corpus.baselines import Baseline, Runner, registry
from corpus.check import CaseResult, from_verdict, shape_text
from corpus.contract import Case, Contract
from corpus.distributions import fresh_secret
from corpus.gpu_buffers import Buffers, Env, Run
from corpus.gpu_check import FATAL, Progress, Trial, allocate, launcher, t_bytes
from corpus.jobs import VALID, Bench, BenchShape, BenchVerdict, Job, Launch, Mode, Timing, bad

SUSPICIOUS = 3.0
"""A speed-up over a baseline beyond which the candidate is validated again with fresh seeds."""

ITSELF = "rival"
"""Name of the contender that a job brings along."""

FRESH, FRESH_RATIO, FRESH_US = 3, 2.0, 5.0
"""A launch on bytes it never met may take FRESH_RATIO times as long as a repeated one, and FRESH_US more; a time is
invalid when FRESH such launches in a row take longer."""
LEAD = 3
"""Launches on each other buffer set before one that is timed alone."""

ROTATION = 4
MEMORY_SHARE = 0.4
"""Buffer sets per contender, as far as they fit this share of free device memory."""

_FLOP_PER_CLOCK = {  # dense FLOP per clock and SM by compute capability major (vendor data sheets)
    8: {"bf16": 2048, "f16": 2048, "f32": 256},
    9: {"bf16": 4096, "f16": 4096, "e4m3": 8192, "f32": 256},
    10: {"bf16": 8192, "f16": 8192, "e4m3": 16384, "f32": 256},
    12: {"bf16": 2048, "f16": 2048, "e4m3": 4096, "f32": 256},
}


def peak_flops(major: int, unit: str, sms: int, sm_clock_mhz: float) -> float:
    """FLOP/s by data-sheet rates at a clock; 0 when unknown. major: of the compute capability."""
    return _FLOP_PER_CLOCK.get(major, {}).get(unit, 0) * sms * sm_clock_mhz * 1e6


def peaks(env: Env, job: Job, contract: Contract) -> tuple[float, float]:
    """(FLOP/s, bytes/s) that nothing on this device exceeds: maximum clocks times data-sheet rates; 0 when unknown."""
    info = env.device.info()
    flops = job.peak_flops or peak_flops(info.compute_capability[0], contract.flop_unit, info.sms, info.sm_clock_mhz)
    width = env.device.attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8
    return flops, job.peak_bytes or width * info.memory_clock_mhz * 1e6 * 2


def floor_us(env: Env, job: Job, contract: Contract, launch: Launch, mode: Mode, footprint: float) -> float:
    """The least time any kernel could take. Bytes that may sit in the L2 cache before or after a launch do not count:
    in warm mode the whole L2, in cold mode (inputs evicted) what of the outputs fits it. footprint: bytes rotated over.
    """
    flop_rate, byte_rate = peaks(env, job, contract)
    total = contract.bytes(launch.shape, launch.dtypes)
    l2 = env.device.info().l2_bytes
    written = sum(t_bytes(contract, launch, t.name) for t in contract.outputs)
    traffic = total - min(written, l2) if mode == "cold" else (max(0.0, total - l2) if footprint > l2 else 0.0)
    by_flops = contract.flops(launch.shape) / flop_rate if flop_rate else 0.0
    by_bytes = traffic / byte_rate if byte_rate else 0.0
    return max(by_flops, by_bytes) * 1e6


def rule() -> str:
    """The whole decision rule, thresholds included; travels with every result."""
    from lowering.runtime import bench, stats

    return (
        f"incorrect: wrong outputs before, in or after the timed launches or on changed inputs. invalid: {bench.RULE}, or "
        f"launches on fresh bytes that take more than {FRESH_RATIO:g} times a repeated one and {FRESH_US:g} µs, {FRESH} in a row. "
        f"Against the fastest baseline that computes the contract: {stats.RULE}. measured: no such baseline ran. A ratio "
        f"above {SUSPICIOUS:g} is validated again on fresh inputs"
    )


def run_bench(env: Env, job: Job, contract: Contract, secret: int, progress: Progress) -> Bench:
    """Time every launch in every mode. A device fault ends the job; what was measured before is kept.

    Raises CakeError `job/bad` when rivals do not match the launches.
    """
    _match_rivals(job)
    start = time.monotonic()
    shapes: list[BenchShape] = []
    total = len(job.launches) * len(job.modes)
    inputs = _Inputs(contract)
    dead = ""
    for i, launch in enumerate(job.launches):
        for j, mode in enumerate(job.modes):
            progress(i * len(job.modes) + j, total, f"timing {shape_text(launch.shape)} {mode}")
            if dead:
                shapes.append(_failed(launch, mode, "error", dead))
                continue
            rival = job.rivals[i] if job.rivals else None
            try:
                shapes.append(_Timing(env, job, contract, launch, mode, secret, inputs, rival).measure())
            except CakeError as exc:
                shapes.append(_failed(launch, mode, "error", exc.diagnostic.render()))
                if exc.diagnostic.rule in FATAL:
                    dead = "the device context did not survive an earlier fault"
    return Bench(
        contract=contract.name, contract_digest=contract.digest, kernel=job.kernel,
        passed=bool(shapes) and all(s.verdict in VALID for s in shapes), summary=_summary(shapes), seed=job.seed,
        secret=f"{secret:032x}", device=env.device.info().to_json(), shapes=tuple(shapes), rule=rule(),
        seconds=round(time.monotonic() - start, 3),
    )  # fmt: skip


def _match_rivals(job: Job) -> None:
    if job.rivals and [(r.shape, r.dtypes) for r in job.rivals] != [(x.shape, x.dtypes) for x in job.launches]:
        raise bad("job/bad", "rivals: one per launch, each of that launch's shape and dtypes")


def _summary(shapes: Sequence[BenchShape]) -> str:
    lines = []
    for s in shapes:
        head = f"{shape_text(s.shape)} {s.mode}: "
        if s.verdict not in VALID or s.candidate is None:
            lines.append(f"{head}{s.verdict}: {s.message}")
        elif s.ratio is None:
            lines.append(f"{head}{s.candidate.median_us:.4g} us, no baseline ran")
        else:
            lines.append(f"{head}{s.candidate.median_us:.4g} us, {s.ratio:.3f} x {s.baseline} ({s.verdict})")
    return "; ".join(lines) or "nothing to time"


def _failed(
    launch: Launch, mode: Mode, verdict: BenchVerdict, message: str, checks: Sequence[CaseResult] = ()
) -> BenchShape:
    return BenchShape(
        shape=launch.shape, dtypes=launch.dtypes, mode=mode, verdict=verdict, message=message, checks=tuple(checks)
    )


class _Inputs:
    """Inputs of the cases met last: the modes of a shape share theirs, which cost more to draw than to time."""

    KEPT = 2

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._known: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def of(self, case: Case) -> dict[str, Any]:
        """The inputs of a case, not to be written to."""
        key = repr(case)
        if key not in self._known:
            while len(self._known) >= self.KEPT:
                self._known.popitem(last=False)
            self._known[key] = self._contract.inputs(case)
        self._known.move_to_end(key)
        return self._known[key]


@dataclass
class _Contender:
    """What the candidate is timed beside: one launch per buffer set, with outputs of its own."""

    name: str
    launches: list[Run]
    outputs: Callable[[], Mapping[str, Any]]
    computes: bool = True
    versions: dict[str, str] = field(default_factory=dict)
    kernels: int | None = None


class _Timing:
    """One shape in one mode."""

    def __init__(
        self, env: Env, job: Job, contract: Contract, launch: Launch, mode: Mode, secret: int, inputs: _Inputs,
        rival: Launch | None = None,
    ) -> None:  # fmt: skip
        self.env, self.job, self.contract, self.launch = env, job, contract, launch
        self.inputs, self.rival = inputs, rival
        self.mode: Mode = mode
        self.case = Case(launch.shape, contract.bench_distribution, job.seed, secret, launch.dtypes)
        self.sets: list[Buffers] = []
        self.own: list[Buffers] = []
        self.checks: list[CaseResult] = []
        self.unavailable: dict[str, str] = {}
        self.baseline_verdicts: dict[str, str] = {}
        self.runs: list[Run] = []
        self.faults: list[str] = []

    def measure(self) -> BenchShape:
        """Check, time, check again."""
        try:
            return self._measure()
        finally:
            for b in (*self.sets, *self.own):
                b.close()

    def _measure(self) -> BenchShape:
        env, job, contract, launch = self.env, self.job, self.contract, self.launch
        inputs = self.inputs.of(self.case)
        first = allocate(env, contract, launch)
        self.sets.append(first)
        run = launcher(env, job, launch, first.pointers)
        trial = Trial(first, contract, launch, self.case, inputs, run)
        if not self._record(trial.judge(2), "before timing"):
            return _failed(launch, self.mode, "incorrect", self.checks[-1].message, self.checks)
        self.runs = [run, *(self._another(inputs) for _ in range(self._copies() - 1))]
        contenders = self._contenders()
        result = self._time(self.runs, contenders)
        if not self._after(trial, contenders):
            return _failed(launch, self.mode, "incorrect", self.checks[-1].message, self.checks)
        return self._report(result, contenders)

    # ---- preparation -------------------------------------------------------------------------------------------------

    def _copies(self) -> int:
        """Buffer sets to rotate through: distinct pointers per repetition, as memory allows."""
        size = sum(t.memory.nbytes for t in self.sets[0].all.values())
        free = self.env.device.free_bytes() * MEMORY_SHARE
        return max(1, min(ROTATION, 1 + int(free / max(size, 1))))

    def _another(self, inputs: Mapping[str, Any]) -> Run:
        b = allocate(self.env, self.contract, self.launch)
        self.sets.append(b)
        for name in inputs:
            source, to = self.sets[0].all[name].memory, b.all[name].memory
            self.env.device.copy_device(to.pointer, source.pointer, source.nbytes)
        self.env.sync()
        return launcher(self.env, self.job, self.launch, b.pointers)

    def _contenders(self) -> list[_Contender]:
        if self.rival is not None:
            return [self._rival(self.rival)]
        known = registry()
        wanted = self.contract.baselines if self.job.baselines is None else self.job.baselines
        found = []
        for name in wanted:
            if name not in known:
                self.unavailable[name] = "no such baseline"
                continue
            if self.env.torch is None:
                self.unavailable[name] = "torch is not installed with CUDA"
                continue
            why = known[name].unavailable()
            if why is not None:
                self.unavailable[name] = why
                continue
            try:
                found.append(self._contender(known[name]))
            except CakeError:
                raise
            except Exception as exc:  # a library may fail in any way; the candidate is still worth timing
                self.unavailable[name] = f"{type(exc).__name__}: {str(exc)[:200]}"
        return found

    def _own_outputs(self, b: Buffers, launch: Launch) -> Buffers:
        """Outputs (and workspaces) of a contender beside buffer set `b`, whose inputs it reads."""
        own = Buffers(self.env)
        self.own.append(own)
        for t in self.contract.outputs:
            own.add(t.name, b.all[t.name].dtype, b.all[t.name].extents)
        for name, w in launch.workspaces.items():
            own.add(name, w.dtype, w.extents)
        for name in own.all:
            own.poison(name, 1)
        self.env.sync()
        return own

    def _contender(self, baseline: Baseline) -> _Contender:
        runners: list[Runner] = []
        for b in self.sets:
            own = self._own_outputs(b, Launch(shape=self.launch.shape, plans=()))
            views = {n: (own if n in own.all else b).view(n) for n in b.all if n not in self.launch.workspaces}
            runner = baseline.make(views, self.contract.scalar_values())
            runner.run()
            self.env.sync()
            runners.append(runner)
        return _Contender(
            baseline.name, [lambda stream, r=r: r.run() for r in runners], lambda: dict(runners[0].outputs()),
            baseline.computes, baseline.versions(),
        )  # fmt: skip

    def _rival(self, launch: Launch) -> _Contender:
        runs, owned = [], []
        for b in self.sets:
            own = self._own_outputs(b, launch)
            owned.append(own)
            mixed = {n: (own if n in own.all else b).pointers[n] for n in (*b.all, *launch.workspaces)}
            runs.append(launcher(self.env, self.job, launch, mixed))
            runs[-1](self.env.stream)
            self.env.sync()

        def outputs() -> dict[str, Any]:
            return {t.name: owned[0].snapshot(t.name) for t in self.contract.outputs}

        return _Contender(ITSELF, runs, outputs, kernels=len(launch.plans))

    # ---- timing ------------------------------------------------------------------------------------------------------

    def _time(self, runs: Sequence[Run], contenders: Sequence[_Contender]) -> Any:
        from lowering.runtime import bench

        footprint = len(self.sets) * sum(t.memory.nbytes for t in self.sets[0].all.values())
        self.floor = floor_us(self.env, self.job, self.contract, self.launch, self.mode, footprint)
        self._poison(0)
        last = self.job.samples - 1
        candidates = [
            bench.Candidate(
                "candidate", list(runs), self.floor, kernels=len(self.launch.plans),
                before_round=lambda number: self._poison(1) if number == last else None,
            )
        ]  # fmt: skip
        candidates += [
            bench.Candidate(c.name, c.launches, self.floor if c.computes else None, c.kernels) for c in contenders
        ]
        job = self.job
        settings = bench.Settings(
            mode=self.mode, rounds=job.samples, batch_ms=job.sample_ms, gap_s=job.gap_s, warmup_ms=job.warmup_ms
        )
        return bench.bench(self.env.device, candidates, settings, self.env.stream)

    def _poison(self, pattern: int) -> None:
        """What the timed launches do not write stays poison, another pattern in each buffer set."""
        for i, b in enumerate(self.sets):
            for t in self.contract.outputs:
                if t.direction == "out":
                    b.poison(t.name, pattern + i)
        self.env.sync()

    # ---- afterwards --------------------------------------------------------------------------------------------------

    def _record(self, verdict: cmp.Verdict, when: str, secret: int | None = None) -> bool:
        """Keep a check. secret: what the inputs were drawn from, where not from the job's own."""
        common = {"shape": self.launch.shape, "distribution": self.case.distribution, "dtypes": self.launch.dtypes}
        done = from_verdict(replace(verdict, message=f"{when}: {verdict.message}"), common, (), 0.0)
        self.checks.append(done if secret is None else done.model_copy(update={"secret": f"{secret:032x}"}))
        return verdict.ok

    def _after(self, trial: Trial, contenders: Sequence[_Contender]) -> bool:
        """Judge what the timed launches left, then the prepared launch on other inputs; baselines are judged too."""
        m, c = trial.buffers.math, self.contract
        if any(t.direction == "inout" for t in c.outputs):
            return self._fresh(trial, self.case.secret ^ 1, "after timing")  # repeated launches have no defined result
        for i, b in enumerate(self.sets):
            out = {t.name: b.snapshot(t.name) for t in c.outputs}
            same = i > 0 and all(b.same(trial.first[n], out[n]) for n in out)
            verdict = cmp.Verdict(True, "bitwise equal to the checked result") if same else cmp.judge(
                m, c, self.case, trial.originals, out, trial.expected
            )  # fmt: skip
            damage, changed = b.damage(), [n for n, was in trial.originals.items() if not b.same(was, b.snapshot(n))]
            if damage:
                verdict = cmp.Verdict(False, damage, "out-of-bounds")
            elif changed:
                verdict = cmp.Verdict(False, f"the input {changed[0]} was changed", "input-changed")
            if not self._record(verdict, f"after timing, buffer set {i}"):
                return False
        self.baseline_verdicts = {k.name: self._judge_baseline(trial, k) for k in contenders}
        return self._changed(trial) and self._fresh(trial, self.case.secret ^ 1, "on changed inputs from poison")

    def _changed(self, trial: Trial) -> bool:
        """Other input bytes under the outputs that the timed launches left: work already done must be done again, and
        must take its time. A launch that is much quicker on bytes it has met before keeps results, so its time is no
        kernel's; other bytes are tried before that is said, because one launch may be slow for any reason.
        """
        b, c = trial.buffers, self.contract
        for n in range(1, FRESH + 1):
            case = replace(self.case, secret=self.case.secret ^ n)
            inputs = self.inputs.of(case)
            for name, values in inputs.items():
                b.load(name, values)
            self.env.sync()
            originals = {name: b.snapshot(name) for name in inputs}
            fresh = self._alone()
            expected = cmp.run_oracle(b.math, c, originals) if c.judge is None else None
            out = {t.name: b.snapshot(t.name) for t in c.outputs}
            if not self._record(cmp.judge(b.math, c, case, originals, out, expected), "on changed inputs", case.secret):
                return False
            again = median([self._alone() for _ in range(3)])
            if fresh <= FRESH_RATIO * again + FRESH_US:
                return True
        self.faults.append(
            f"a launch on fresh input bytes took {fresh:.1f} µs, the same launch repeated {again:.1f} µs: "
            "repeated launches do not do the work"
        )
        return True

    def _alone(self) -> float:
        """µs of one launch on the first buffer set, behind launches on the others: clocks and caches are then the same
        whatever the host did before."""
        device, stream = self.env.device, self.env.stream
        first, last = device.event(), device.event()
        try:
            for run in self.runs[1:] * LEAD:
                run(stream)
            first.record(stream)
            self.runs[0](stream)
            last.record(stream)
            last.wait()
            return last.ms_since(first) * 1000
        finally:
            first.close()
            last.close()

    def _fresh(self, trial: Trial, secret: int, when: str) -> bool:
        """The same prepared launch and pointers with other input bytes."""
        case = replace(self.case, secret=secret)
        again = Trial(trial.buffers, self.contract, self.launch, case, self.inputs.of(case), trial.run)
        return self._record(again.judge(2), when, secret)

    def _judge_baseline(self, trial: Trial, contender: _Contender) -> str:
        if not contender.computes:
            return "yardstick"
        out = dict(contender.outputs())
        verdict = cmp.judge(trial.buffers.math, self.contract, self.case, trial.originals, out, trial.expected)
        return "passed" if verdict.ok else f"failed: {verdict.message}"

    def _report(self, result: Any, contenders: Sequence[_Contender]) -> BenchShape:
        launch, contract = self.launch, self.contract
        by_name = {c.name: c for c in contenders}
        compared = {c.baseline: c for c in result.comparisons}
        candidate, *rest = (
            _timing(t, by_name.get(t.name), compared.get(t.name), self.baseline_verdicts) for t in result.timings
        )
        fair = [t for t in rest if t.computes and not t.verdict.startswith("failed")]
        best = min(fair, key=lambda t: t.median_us, default=None)
        flops, size = contract.flops(launch.shape), contract.bytes(launch.shape, launch.dtypes)
        seconds = candidate.median_us * 1e-6
        faults = [*result.faults, *self.faults]
        if faults:
            verdict, message = "invalid", "; ".join(faults)
        elif best is None:
            verdict, message = "measured", ""
        else:
            verdict, message = best.comparison or "inconclusive", compared[best.name].message
        shape = BenchShape(
            shape=launch.shape, dtypes=launch.dtypes, mode=self.mode, method=result.method, verdict=verdict,
            message=message, candidate=candidate, baselines=tuple(rest), unavailable=self.unavailable,
            baseline=best.name if best else None, ratio=best.ratio if best else None, floor_us=self.floor, flops=flops,
            bytes=size, flops_per_s=flops / seconds, bytes_per_s=size / seconds, checks=tuple(self.checks),
            conditions={"telemetry": result.telemetry, "notes": list(result.notes), "settings": result.settings,
                        "buffer_sets": len(self.sets), "event_step_us": result.step_us, "event_overhead_us": result.overhead_us},
        )  # fmt: skip
        if verdict != "invalid" and best and best.ratio and best.ratio > SUSPICIOUS:
            for n in range(2):
                if not self._suspect(fresh_secret(), n):
                    wrong = {"verdict": "incorrect", "message": self.checks[-1].message}
                    return shape.model_copy(update={**wrong, "checks": tuple(self.checks)})
            return shape.model_copy(update={"checks": tuple(self.checks)})
        return shape

    def _suspect(self, secret: int, n: int) -> bool:
        case = replace(self.case, secret=secret)
        run = launcher(self.env, self.job, self.launch, self.sets[0].pointers)
        trial = Trial(self.sets[0], self.contract, self.launch, case, self.contract.inputs(case), run)
        return self._record(trial.judge(2), f"validated again because of the large speed-up ({n + 1})", secret)


def _timing(t: Any, contender: _Contender | None, compared: Any, verdicts: Mapping[str, str]) -> Timing:
    """A row of the result from what the protocol measured; `contender` None: the candidate."""
    versus: dict[str, Any] = {}
    if compared is not None:
        versus = {"ratio": compared.ratio, "ratio_low": compared.low, "ratio_high": compared.high,
                  "clock_ratio": compared.clock_ratio, "comparison": compared.verdict}  # fmt: skip
    if contender is not None:
        versus |= {"versions": contender.versions, "computes": contender.computes,
                   "verdict": verdicts.get(t.name, "not judged")}  # fmt: skip
    return Timing(
        name=t.name, median_us=t.summary.median, mad_us=t.summary.mad, cv=t.summary.cv, samples_us=t.samples_us, batch=t.batch,
        sm_mhz=t.sm_mhz, nodes=t.nodes, **versus,
    )  # fmt: skip
