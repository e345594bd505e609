"""One shape on the GPU: the candidates checked by the contract's judge, then timed interleaved, then checked again.

All candidates read the same inputs and write the same outputs. Before timing each one runs once on poisoned outputs and
is judged on every element; a result that is bitwise that of a judged one has its verdict. Timing is `lowering.runtime.bench`
in warm mode with short samples; the first candidate takes part twice, so that every shape says what equal kernels differ
by. After timing each runs a few times back to back on poisoned outputs and must give what it gave before. What a kernel
updates in place (`inout`) has its first value again before each run that is judged, which is then one launch; the timed
launches go on from one another.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cake_ir.diagnostics import CakeError
from corpus import compare as cmp
from corpus.contract import Case, Contract, Shape
from corpus.gpu_buffers import Buffers, Env, Run
from corpus.gpu_check import FATAL
from corpus.tuning.campaign import Settings
from lowering.recipe import Concrete, Fill

DRAWN = 4 << 20
"""Elements of inputs up to which they are drawn in full; larger ones are repeated as the family says."""
AGAIN = "again"
"""Name under which the first candidate is timed a second time."""
BACK_TO_BACK = 3
MAX_BATCH = 256


@dataclass(frozen=True)
class Contender:
    """A candidate at a shape: what a call launches (`lowering.recipe.concrete`), and machine code by cubin key."""

    id: str
    call: Concrete
    code: Mapping[str, bytes]


class Fault(Exception):
    """The device did not survive a candidate. `cause`: the diagnostic's rule."""

    def __init__(self, contender: str, cause: str, message: str) -> None:
        super().__init__(message)
        self.contender, self.cause, self.message = contender, cause, message


def drawn_shape(contract: Contract, shape: Shape, dtypes: Mapping[str, str], repeat: Mapping[str, int]) -> Shape:
    """The shape for which inputs are drawn: `shape` itself while that is cheap, else with dims cut to `repeat`."""
    total = sum(math.prod(contract.extents(t, shape)) for t in contract.tensors if t.direction != "out")
    return dict(shape) if total <= DRAWN else {d: min(n, repeat.get(d, n)) for d, n in shape.items()}


def load_inputs(buffers: Buffers, contract: Contract, case: Case, repeat: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Draw the inputs of a case and put them on the device, repeated along the dims that were cut.

    Returns what was drawn. Every tensor repeats alike, so the relation between tensors holds for the whole shape.
    """
    small = drawn_shape(contract, case.shape, case.dtypes, repeat)
    drawn = contract.inputs(Case(small, case.distribution, case.seed, case.secret, case.dtypes))
    torch = buffers.env.torch
    for name, values in drawn.items():
        spec = contract.tensor(name)
        cut = [
            (axis, case.shape[d], small[d])
            for axis, d in enumerate(spec.extents)
            if isinstance(d, str) and small[d] != case.shape[d]
        ]
        if not cut:
            buffers.load(name, values)
        elif torch is None:
            for axis, whole, part in cut:
                values = np.take(values, np.arange(whole) % part, axis=axis)
            buffers.load(name, np.ascontiguousarray(values))
        else:
            raw = torch.from_numpy(np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape, -1)).cuda()
            for axis, whole, part in cut:
                raw = raw.index_select(axis, torch.arange(whole, device="cuda") % part)
            whole_view = buffers.view(name).view(torch.uint8)
            whole_view.reshape(raw.shape).copy_(raw)
    buffers.env.sync()
    return drawn


def runner(env: Env, contender: Contender, pointers: Mapping[str, int]) -> Run:
    """A function that enqueues one call. Raises CakeError as `lowering.runtime.host.prepare` does."""
    steps: list[Run] = []
    for step in contender.call.steps:
        if isinstance(step, Fill):
            steps.append(_fill(env, step, pointers[step.tensor]))
            continue
        code = contender.code[step.cubin_key]
        plan = replace(step.plan, cubin_sha256=hashlib.sha256(code).hexdigest())
        steps.append(env.prepare(code, plan.to_json(), pointers))
    if len(steps) == 1:
        return steps[0]

    def run(stream: int) -> None:
        for one in steps:
            one(stream)

    return run


def _fill(env: Env, step: Fill, pointer: int) -> Run:
    return lambda stream: env.device.fill(pointer, step.count * step.width, step.pattern, step.width, stream)


Begin = Callable[[str], None]
"""Told whose launches come next, so that a hang can be laid to a candidate."""


def measure(
    env: Env, contract: Contract, case: Case, contenders: Sequence[Contender], settings: Settings, *,
    large: bool = False, repeat: Mapping[str, int] | None = None, floor_us: float | None = None,
    begin: Begin = lambda name: None, timed: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Check and time candidates at the shape of `case`; plain JSON (see `docs/tuning.md`, "Record").

    timed False: judge only. Raises Fault when the device is lost; CakeError for a machine without memory for the shape.
    """
    start = time.monotonic()
    buffers = Buffers(env)
    spaces = Buffers(env)
    try:
        for t in contract.tensors:
            buffers.add(t.name, contract.dtype(t, case.dtypes), contract.extents(t, case.shape))
        for c in contenders:
            if c.call.workspace_bytes:
                spaces.add(c.id, "u8", (c.call.workspace_bytes,))
        load_inputs(buffers, contract, case, repeat or {})
        round_ = _Round(env, contract, case, buffers, spaces, begin)
        entries = {c.id: round_.admit(c) for c in contenders}
        live = {n: r for n, r in round_.runs.items() if entries[n]["check"] == "passed"}
        more: dict[str, Any] = {}
        if timed and live:
            more = _time(env, live, entries, settings, large, floor_us, begin)
            for name, run in live.items():
                round_.after(name, run, entries[name])
        return {
            "dims": dict(case.shape), "contenders": entries, **more, "bytes": sum(t.memory.nbytes for t in buffers.all.values()),
            "seconds": round(time.monotonic() - start, 3),
        }  # fmt: skip
    finally:
        spaces.close()
        buffers.close()


class _Round:
    """The checks of one shape."""

    def __init__(
        self, env: Env, contract: Contract, case: Case, buffers: Buffers, spaces: Buffers, begin: Begin
    ) -> None:
        self.env, self.contract, self.case, self.buffers, self.spaces = env, contract, case, buffers, spaces
        self.begin = begin
        self.runs: dict[str, Run] = {}
        self.outputs: dict[str, dict[str, Any]] = {}
        self.judged: list[tuple[dict[str, Any], cmp.Verdict]] = []
        self.updated = tuple(t.name for t in contract.tensors if t.direction == "inout")
        self.originals = {t.name: buffers.snapshot(t.name) for t in contract.tensors if t.direction != "out"}
        self.expected = cmp.run_oracle(buffers.math, contract, self.originals) if contract.judge is None else None

    def admit(self, c: Contender) -> dict[str, Any]:
        """Run a candidate once and judge it: {"check": "passed" | "failed" | "refused", "message"}."""
        self.begin(c.id)
        space = self.spaces.all.get(c.id)
        own = {n: space.memory.pointer + at for n, at in c.call.offsets.items()} if space else {}
        try:
            run = runner(self.env, c, {**self.buffers.pointers, **own})
            if space:
                self.spaces.poison(c.id, 0)
            self._start(0)
            run(self.env.stream)
            self.env.sync()
        except CakeError as exc:
            d = exc.diagnostic
            if d.rule in FATAL:
                raise Fault(c.id, d.rule, d.message) from exc
            return {"check": "refused", "message": f"{d.rule}: {d.message}"[:300]}
        verdict = self._judge(c.id)
        self.runs[c.id] = run
        return {"check": "passed" if verdict.ok else "failed", "message": "" if verdict.ok else verdict.message[:300]}

    def after(self, name: str, run: Run, entry: dict[str, Any]) -> None:
        """What a candidate gives back to back, after timing; a difference is judged anew."""
        self.begin(name)
        before = self.outputs[name]
        self._start(1)
        try:
            for _ in range(1 if self.updated else BACK_TO_BACK):
                run(self.env.stream)
            self.env.sync()
        except CakeError as exc:
            raise Fault(name, exc.diagnostic.rule, exc.diagnostic.message) from exc
        out = {n: self.buffers.snapshot(n) for n in before}
        if all(self.buffers.same(before[n], out[n]) for n in before):
            return
        verdict = self._judge(name)
        entry["message"] = (
            "results differ bitwise between launches" if verdict.ok else f"after timing: {verdict.message}"[:300]
        )
        if not verdict.ok:
            entry["check"] = "failed"

    def _start(self, pattern: int) -> None:
        """Outputs as a launch finds them: poisoned, or with their first value where they are updated."""
        for t in self.contract.outputs:
            if t.name in self.updated:
                self._restore(t.name)
            else:
                self.buffers.poison(t.name, pattern)
        self.env.sync()

    def _restore(self, name: str) -> None:
        b, was = self.buffers, self.originals[name]
        b.view(name).copy_(was) if self.env.torch is not None else b.load(name, was)

    def _judge(self, name: str) -> cmp.Verdict:
        b = self.buffers
        damage = b.damage() or self.spaces.damage()
        if damage:
            return cmp.Verdict(False, damage, "out-of-bounds")
        kept = {n: was for n, was in self.originals.items() if n not in self.updated}
        changed = next((n for n, was in kept.items() if not b.same(was, b.snapshot(n))), None)
        if changed:
            self._restore(changed)
            return cmp.Verdict(False, f"the input {changed} was changed", "input-changed")
        out = {t.name: b.snapshot(t.name) for t in self.contract.outputs}
        self.outputs[name] = out
        for known, verdict in self.judged:
            if all(b.same(known[n], out[n]) for n in out):
                return verdict
        verdict = cmp.judge(b.math, self.contract, self.case, self.originals, out, self.expected)
        self.judged.append((out, verdict))
        return verdict


def _time(
    env: Env, runs: Mapping[str, Run], entries: dict[str, dict[str, Any]], settings: Settings, large: bool,
    floor_us: float | None, begin: Begin,
) -> dict[str, Any]:  # fmt: skip
    """Interleaved samples into the entries; what they have in common is returned."""
    from lowering.runtime import bench

    first, current = next(iter(runs)), ""

    def told(name: str, run: Run) -> bench.Candidate:
        def launch(stream: int) -> None:
            before(0)
            run(stream)

        def before(number: int) -> None:
            nonlocal current
            if current != name:
                current = name
                begin(first if name == AGAIN else name)

        return bench.Candidate(name, [launch], floor_us, before_round=before)

    contenders = [told(name, run) for name, run in [*runs.items(), (AGAIN, runs[first])]]
    how = bench.Settings(
        mode="warm", rounds=settings.rounds, batch_ms=settings.sample_ms, max_batch=MAX_BATCH, warmup_ms=settings.warmup_ms,
        warmup_limit_s=0.05, gap_s=settings.gap_large if large else settings.gap, monitor=False,
    )  # fmt: skip
    try:
        found = bench.bench(env.device, contenders, how, env.stream)
    except CakeError as exc:
        raise Fault(first if current == AGAIN else current, exc.diagnostic.rule, exc.diagnostic.message) from exc
    again: list[float] = []
    for t in found.timings:
        samples = [float(f"{us:.5g}") for us in t.samples_us]
        if t.name == AGAIN:
            again = samples
            continue
        entries[t.name] |= {"us": float(f"{t.summary.median:.5g}"), "samples_us": samples, "batch": t.batch}
    for fault in found.faults:
        hit = [name for name in runs if fault.startswith(name)]
        for name in hit or list(runs):
            entries[name].setdefault("doubt", fault[:200])
    return {
        "again": {"of": first, "samples_us": again}, "method": found.method, "step_us": round(found.step_us, 4),
        "notes": [n[:160] for n in found.notes if "monitor" not in n and "settle" not in n][:4],
    }  # fmt: skip
