"""Timeline and where jobs on a device in host memory whose kernel writes the records itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from cake_ir.diagnostics import CakeError, error
from corpus import gpu_timeline, gpu_where, jobs
from corpus.contract import contracts
from corpus.gpu_buffers import Env
from corpus.kernels import kernels
from corpus.prepare import prepare
from lowering import timeline as tl
from tests.compiled import cubins
from tests.corpus.fake_device import FakeBuffer, FakeDevice, at
from tests.corpus.test_gpu_jobs import CUBIN, PLAN, SHAPE, right
from tests.lowering.test_timeline import Recorder

GEMM = contracts()["gemm_bf16"]
MARKED = b"not a real cubin either"
GRID = 2
TABLE = {
    "kernel": "k", "file": "k.cake", "tracks": [["producer", 0], ["math", 0]], "sites": 5,
    "marks": [
        {"id": 1, "kind": "compute", "role": "producer", "line": 3, "end_line": 3, "ops": ["start"]},
        {"id": 2, "kind": "wait", "role": "producer", "line": 14, "end_line": 14, "ops": ["wait"],
         "wait": {"text": "wait(free[n - 4])", "barrier": "free", "stage": "n - 4", "stages": 4}},
        {"id": 3, "kind": "compute", "role": "math", "line": 4, "end_line": 4, "ops": ["start"]},
        {"id": 4, "kind": "wait", "role": "math", "line": 22, "end_line": 22, "ops": ["wait"],
         "wait": {"text": "wait(full[n])", "barrier": "full", "stage": "n", "stages": 4}},
    ],
}  # fmt: skip
FORM = jobs.Instrumented(
    plan={
        **PLAN, "cubin_sha256": hashlib.sha256(MARKED).hexdigest(), "grid": GRID,
        "args": [*PLAN["args"], {"kind": "timeline", "value": 0}, {"kind": "timeline_capacity", "value": 1024},
                 {"kind": "timeline_stride", "value": 1}],
    },
    table=TABLE,
)  # fmt: skip
Fill = Callable[[Recorder, int], None]


class HostBuffer(FakeBuffer):
    def read(self) -> bytes:
        return at(self.pointer, self.nbytes).tobytes()


class Event:
    """Done after `polls` questions; None: never."""

    def __init__(self, polls: int | None, fault: CakeError | None) -> None:
        self.polls, self.fault = polls, fault

    def record(self, stream: int) -> None: ...

    def ms_since(self, earlier: Event) -> float:
        return 0.0101

    def close(self) -> None: ...

    def done(self) -> bool:
        if self.fault:
            raise self.fault
        if self.polls is None:
            return False
        self.polls -= 1
        return self.polls < 0


class Device(FakeDevice):
    """`ends`: how often a kernel is asked for before it ends (None: it hangs)."""

    ends: int | None = 1
    launched = False

    def alloc_host(self, nbytes: int) -> HostBuffer:
        buffer = HostBuffer(nbytes, 0)
        buffer.poison(0)
        return buffer

    def event(self) -> Any:
        return Event(self.ends, self.fault)

    def synchronize(self) -> None:
        assert self.ends is not None or not self.launched, "nothing may wait for a hung kernel"
        super().synchronize()


def machine(fill: Fill, body: Callable[[FakeDevice, Mapping[str, int]], None] = right, **more: Any) -> Env:
    """A device where the plain kernel runs `right`, and the instrumented one `body` and leaves what `fill` records."""
    device = Device()
    for name, value in more.items():
        setattr(device, name, value)
    launches = [0]

    def kernel(cubin: bytes, plan: Mapping[str, Any], pointers: Mapping[str, int]) -> Any:
        if cubin == CUBIN:
            return lambda stream: right(device, pointers)
        values = {a["kind"]: a.get("value") for a in plan["args"]}
        shape = tl.Shape(2, GRID, values["timeline_stride"], values["timeline_capacity"])

        def launch(stream: int) -> None:
            device.launched = True
            if device.ends is not None:
                body(device, pointers)
            launches[0] += 1
            r = Recorder(shape)
            fill(r, 20_000_000 * launches[0])
            at(pointers[tl.POINTER], shape.nbytes)[:] = r.words.view(np.uint8)

        return launch

    return Env(device, None, kernel)


def recorded(r: Recorder, now: int) -> None:
    for cta in range(GRID):
        r.track(cta, 0, [(1, now), (2, now + 1000)], end=now + 9_000, sm=cta)
        r.track(cta, 1, [(3, now), (4, now + 2000)], end=now + 10_000, sm=cta)


def job(kind: str, **more: Any) -> jobs.Job:
    launch = jobs.Launch(shape=SHAPE, plans=(PLAN,), timeline=(FORM,))
    return jobs.job(kind, GEMM, [launch], [CUBIN, MARKED], kernel="k", **more)  # type: ignore[arg-type]


def take(env: Env, monkeypatch: pytest.MonkeyPatch, launch: jobs.Launch | None = None) -> dict[str, Any]:
    monkeypatch.setattr(gpu_timeline, "times", lambda env, plain, marked: (100.0, 104.0))
    made = job("profile")
    return gpu_timeline.timeline(env, made, GEMM, launch or made.launches[0], 5)


# ---- timelines -------------------------------------------------------------------------------------------------------------------


def test_a_timeline_is_the_documented_object(monkeypatch: pytest.MonkeyPatch) -> None:
    got = json.loads(json.dumps(take(machine(recorded), monkeypatch)))
    assert {k: got[k] for k in ("kernel", "file", "grid", "recorded_ctas", "kernel_us", "plain_us", "instrumented_us")} == {
        "kernel": "k", "file": "k.cake", "grid": 2, "recorded_ctas": 2, "kernel_us": 10.0, "plain_us": 100.0, "instrumented_us": 104.0,
    }  # fmt: skip
    assert got["overhead"] == pytest.approx(0.04) and got["clock_ghz"] == pytest.approx(2.0, abs=1e-3)
    assert [(r["role"], r["instances"], r["busy"], r["us"]["idle"]) for r in got["roles"]] == [
        ("producer", 1, 0.9, 1.0),
        ("math", 1, 1.0, 0.0),
    ]
    assert [r["covered"] for r in got["roles"]] == [pytest.approx(10 / 10.1, abs=1e-3)] * 2, (
        "against the launch's event time"
    )
    assert got["recorded_us"] == pytest.approx(10.1)
    assert got["lines"][0] == {
        "line": 14, "end_line": 14, "role": "producer", "kind": "wait", "ops": ["wait"], "mark": 2, "us": 8.0, "share": 0.8,
    }  # fmt: skip
    assert len(got["tracks"]) == 4 and got["marks"][1]["wait"]["barrier"] == "free"


def test_a_form_that_computes_other_bits_gives_no_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(device: FakeDevice, pointers: Mapping[str, int]) -> None:
        right(device, pointers)
        at(pointers["d"] + 10, 1)[:] ^= 1

    assert "other bits than the plain one: d" in take(machine(recorded, wrong), monkeypatch)["unavailable"]


def test_a_form_that_writes_outside_its_buffer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def wild(device: FakeDevice, pointers: Mapping[str, int]) -> None:
        right(device, pointers)
        at(pointers[tl.POINTER] - 8, 8)[:] = 3

    assert "outside its timeline's buffer" in take(machine(recorded, wild), monkeypatch)["unavailable"]


def test_a_timeline_that_cannot_be_taken_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = jobs.Launch(shape=SHAPE, plans=(PLAN,))
    assert "no instrumented kernel" in take(machine(recorded), monkeypatch, bare)["unavailable"]
    assert "no track tells" in take(machine(lambda r, now: None), monkeypatch)["unavailable"]

    def full(nbytes: int, **more: Any) -> Any:
        raise CakeError(error("lowering/out-of-memory", "hardware", "no room for the records"))

    env = machine(recorded)
    alloc, calls = env.device.alloc, [0]

    def later(nbytes: int, **more: Any) -> Any:
        calls[0] += 1
        return alloc(nbytes, **more) if calls[0] <= 3 else full(nbytes)

    env.device.alloc = later
    assert take(env, monkeypatch)["unavailable"] == "no room for the records"


def test_lost_records_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_timeline, "CAPACITY", 64)

    def long(r: Recorder, now: int) -> None:
        for cta in range(GRID):
            r.track(cta, 0, [(1 + i % 2, now + 100 * i) for i in range(100)], end=now + 10_000, sm=cta)

    got = take(machine(long), monkeypatch)
    assert (
        got["dropped"] == 2 * (101 - len(got["tracks"][0]["spans"]) - 1) and "records or so are lost" in got["notes"][0]
    )


# ---- where ------------------------------------------------------------------------------------------------------------------------


def standing(env: Env, **more: Any) -> dict[str, Any]:
    return gpu_where.run_where(env, job("where", launch_timeout_s=0.02, **more), GEMM, 5)


def stuck(r: Recorder, now: int) -> None:
    for cta in range(GRID):
        r.track(cta, 0, [(1, now), *[(2, now + 100 * i) for i in range(1, 6)]], end=None, sm=cta)
        r.track(cta, 1, [(3, now), *[(4, now + 100 * i) for i in range(1, 2 + cta)]], end=None, sm=cta)


def test_a_hung_kernel_is_read_without_waiting_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_where, "SETTLE_S", 0.001)
    got = json.loads(json.dumps(standing(machine(stuck, ends=None))))
    assert not got["ended"] and not got["moving"] and "no role moves" in got["message"] and got["waited_s"] >= 0.02
    assert got["summary"] == (
        "math stands at line 22, wait(full[n]) (2 CTAs, time 1 to 2); producer stands at line 14, wait(free[n - 4]) (2 CTAs, time 5)"
    )
    math = got["roles"][0]
    assert (math["op"], math["barrier"], math["stage"], math["stages"], math["instances"], math["passed"]) == (
        "wait", "full", "n", 4, 2, [1, 2],
    )  # fmt: skip
    assert got["tracks"][0] == {
        "cta": 0, "sm": 0, "role": "producer", "instance": 0, "line": 14, "text": "wait(free[n - 4])", "passed": 5,
    }  # fmt: skip


def test_roles_that_ended_and_roles_that_stand_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_where, "SETTLE_S", 0.001)

    def half(r: Recorder, now: int) -> None:
        r.track(0, 0, [(1, now)], end=now + 10)
        r.track(0, 1, [(3, now), (4, now + 5)], end=None)

    got = standing(machine(half, ends=None))
    assert [(x["role"], x["ended"]) for x in got["roles"]] == [("math", False), ("producer", True)]
    assert "producer has ended (1 CTA)" in got["summary"]
    nothing = standing(machine(lambda r, now: None, ends=None))
    assert "no CTA has started" in nothing["message"] and nothing["roles"] == []


def test_a_kernel_that_ends_this_time_is_said_to() -> None:
    got = standing(machine(recorded, ends=2))
    assert got["ended"] and "ended this time" in got["message"] and got["roles"] == []


def test_a_fault_is_placed_by_the_last_marks() -> None:
    env = machine(stuck, ends=None)
    real, events = env.device.event, []

    def faulty() -> Any:
        events.append(real())
        events[-1].fault = CakeError(error("lowering/device-fault", "hardware", "CUDA_ERROR_ILLEGAL_ADDRESS"))
        return events[-1]

    env.device.event = faulty
    got = standing(env)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in got["message"] and len(got["roles"]) == 2


def test_a_where_job_needs_the_instrumented_form() -> None:
    made = jobs.job("where", GEMM, [jobs.Launch(shape=SHAPE, plans=(PLAN,))], [CUBIN], kernel="k")
    with pytest.raises(CakeError, match="instrumented kernel"):
        gpu_where.run_where(machine(stuck), made, GEMM, 5)


def test_the_server_words_what_the_worker_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from server.diagnosis import stood

    monkeypatch.setattr(gpu_where, "SETTLE_S", 0.001)
    words, lines = stood(standing(machine(stuck, ends=None)), [])
    assert words[0].startswith("math stands at line 22, wait(full[n])") and lines == [14, 22]


# ---- jobs --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["profile", "where"])
def test_prepared_jobs_carry_both_forms(kind: Any) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    entry = next(k for k in kernels() if k.name == "rmsnorm")
    shapes = [{"M": 16, "D": 256}, {"M": 3, "D": 8}]
    of: dict[str, Any] = {"target": "sm_90a", "bindings": entry.bindings, "cache_dir": cubins()}
    made, _ = prepare(entry.text(), entry.contract, kind, shapes, **of)
    again = jobs.parse(json.loads(made.model_dump_json()))
    assert len(again.cubins) == 2
    for launch in again.launches:
        (form,), (plain,) = launch.timeline, launch.plans
        assert form.plan["grid"] == plain["grid"] and again.cubin(form.plan["cubin_sha256"]) != again.cubin(
            plain["cubin_sha256"]
        )
        assert form.table["marks"] and form.plan["args"][: len(plain["args"])] == plain["args"]
    checked, _ = prepare(entry.text(), entry.contract, "check", shapes, **of)
    assert len(checked.cubins) == 1 and not checked.launches[0].timeline
