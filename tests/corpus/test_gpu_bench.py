"""The timing gate around the protocol: verdicts, what is judged when, contenders; over a device in host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cake_ir.diagnostics import CakeError
from corpus import gpu_bench, jobs
from corpus.contract import contracts
from corpus.gpu_bench import ITSELF, floor_us, rule, run_bench
from corpus.gpu_buffers import Env
from lowering.runtime import device, errors, stats, telemetry
from tests.corpus.fake_device import FakeDevice, env_for
from tests.corpus.test_gpu_jobs import GEMM, PLAN, SHAPE, make, right, tensors
from tests.lowering.toolchain_fake_driver import FakeDriver

ROUND = {"now": -1, "launch": 0}
"""Where the played protocol is: the round (-1 outside of it) and the launch of the contender within."""


def play(
    monkeypatch: pytest.MonkeyPatch, us: Mapping[str, float], faults: tuple[str, ...] = (), message: str = ""
) -> list[Any]:
    """Let the protocol launch as it would and measure `us` for each contender; the candidates it was given."""
    from lowering.runtime import bench

    given: list[Any] = []

    def fake(device: Any, candidates: Sequence[Any], settings: Any, stream: int) -> Any:
        given.extend(candidates)
        for number in range(settings.rounds):
            for c in candidates:
                if c.before_round:
                    c.before_round(number)
                for i, launch in enumerate(c.launches):
                    ROUND.update(now=number, launch=i)
                    launch(stream)
        ROUND.update(now=-1)
        samples = {c.name: [us[c.name]] * settings.rounds for c in candidates}
        rows = [
            SimpleNamespace(
                name=n, summary=stats.summarise(s), samples_us=tuple(s), batch=4, sm_mhz=1980.0, nodes={"kernel": 1.0}
            )
            for n, s in samples.items()
        ]
        first, *rest = samples
        compared = [stats.compare(n, samples[n], samples[first]) for n in rest]
        return SimpleNamespace(
            timings=rows, comparisons=compared, faults=faults, notes=("a note",), telemetry={"reasons": []}, settings={},
            method="graph", step_us=0.032, overhead_us=1.5,
        )  # fmt: skip

    monkeypatch.setattr(bench, "bench", fake)
    return given


def timed(body: Any = right, **more: Any) -> Any:
    env = env_for(body)
    r = run_bench(env, make("bench", **more), GEMM, 5, lambda *a: None)
    assert all(b.freed for b in env.device.buffers)
    return r


def rival() -> dict[str, Any]:
    return {"rivals": make().launches}


def test_checks_come_before_in_and_after_the_timed_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {"candidate": 10.0})
    r = timed()
    (s,) = r.shapes
    assert r.passed and s.verdict == "measured" and s.candidate.median_us == 10.0 and s.message == ""
    assert [c.message.split(":")[0] for c in s.checks] == [
        "before timing", *(f"after timing, buffer set {i}" for i in range(4)), "on changed inputs",
        "on changed inputs from poison",
    ]  # fmt: skip
    assert s.unavailable == {"torch_matmul": "torch is not installed with CUDA"}
    assert s.flops_per_s == pytest.approx(2 * 17 * 24 * 16 / 10e-6)
    assert (
        s.conditions["notes"] == ["a note"]
        and s.conditions["event_step_us"] == 0.032
        and s.conditions["buffer_sets"] == 4
    )
    assert (s.candidate.cv, s.candidate.sm_mhz, s.candidate.nodes) == (0.0, 1980.0, {"kernel": 1.0})
    assert r.rule == rule()


def test_every_repetition_has_pointers_of_its_own_and_declares_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    given = play(monkeypatch, {"candidate": 10.0, ITSELF: 10.0})

    def noted(device: FakeDevice, pointers: Mapping[str, int]) -> None:
        seen.append(pointers["d"])
        right(device, pointers)

    timed(noted, **rival())
    candidate, itself = given
    assert (candidate.kernels, itself.kernels, len(candidate.launches), len(itself.launches)) == (1, 1, 4, 4)
    assert len(set(seen)) == 8, "outputs are rotated too, and shared by no two contenders"


@pytest.mark.parametrize(
    ("us", "verdict"), [(10.0, "inconclusive"), (10.05, "inconclusive"), (10.5, "faster"), (9.5, "slower")]
)
def test_the_verdict_is_that_of_the_comparison(monkeypatch: pytest.MonkeyPatch, us: float, verdict: str) -> None:
    play(monkeypatch, {"candidate": 10.0, ITSELF: us})
    r = timed(**rival())
    (s,) = r.shapes
    assert (s.verdict, s.baseline, s.baselines[0].comparison) == (verdict, ITSELF, verdict) and r.passed
    assert s.ratio == pytest.approx(us / 10) and f"({verdict})" in r.summary
    assert s.baselines[0].verdict == "passed" and not s.unavailable


def test_a_baseline_that_is_wrong_is_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {"candidate": 10.0, ITSELF: 5.0})
    other = make().launches[0].model_copy(update={"plans": ({**PLAN, "symbol": "wrong"},)})
    env = env_for(right)
    good = env.prepare

    def prepare(cubin: bytes, plan: Mapping[str, Any], pointers: Mapping[str, int]) -> Any:
        return (lambda stream: None) if plan["symbol"] == "wrong" else good(cubin, plan, pointers)

    env.prepare = prepare
    r = run_bench(env, make("bench", rivals=(other,)), GEMM, 5, lambda *a: None)
    (s,) = r.shapes
    assert s.verdict == "measured" and s.baseline is None and s.baselines[0].verdict.startswith("failed")


def test_rivals_match_the_launches() -> None:
    with pytest.raises(CakeError, match="job/bad"):
        timed(rivals=(jobs.Launch(shape={**SHAPE, "M": 3}, plans=(PLAN,)),))


def test_what_the_protocol_finds_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {"candidate": 1.0, ITSELF: 99.0}, faults=("below its physical floor",))
    r = timed(**rival())
    assert not r.passed and r.shapes[0].verdict == "invalid" and "floor" in r.summary
    assert r.shapes[0].candidate.median_us == 1.0, "the numbers stay, marked"


def incorrect(monkeypatch: pytest.MonkeyPatch, body: Any, when: str) -> None:
    play(monkeypatch, {"candidate": 10.0})
    r = timed(body)
    assert not r.passed and r.shapes[0].verdict == "incorrect" and when in r.shapes[0].message, r.shapes[0].message


def test_a_kernel_that_stops_working_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def lazy(device: FakeDevice, pointers: Mapping[str, int]) -> None:
        if ROUND["now"] != 20:  # works in the check and in all rounds but the last
            right(device, pointers)

    incorrect(monkeypatch, lazy, "after timing, buffer set 0")


def test_results_kept_from_other_inputs_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    memo: list[np.ndarray] = []

    def cached(device: FakeDevice, pointers: Mapping[str, int]) -> None:
        if not memo:
            right(device, pointers)
            memo.append(tensors(pointers)["d"].copy())
        tensors(pointers)["d"][...] = memo[0]

    incorrect(monkeypatch, cached, "on changed inputs")


def test_a_kernel_that_finds_its_work_done_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes whatever is poison, and skips what looks like a result: only new inputs under old outputs tell."""

    def skip(device: FakeDevice, pointers: Mapping[str, int]) -> None:
        d = tensors(pointers)["d"].view(np.uint16)
        if np.all(d == d.flat[0]):
            right(device, pointers)

    incorrect(monkeypatch, skip, "on changed inputs: ")


def test_an_input_changed_by_timed_launches_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def eat(device: FakeDevice, pointers: Mapping[str, int]) -> None:
        right(device, pointers)
        if ROUND == {"now": 20, "launch": 3}:  # the last timed launch, on the last buffer set
            tensors(pointers)["a"][0, 0] += 1

    incorrect(monkeypatch, eat, "buffer set 3: the input a was changed")


def test_a_large_speed_up_is_validated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {"candidate": 10.0, ITSELF: 100.0})
    (s,) = timed(**rival()).shapes
    again = [c.message for c in s.checks if "because of the large speed-up" in c.message]
    assert s.verdict == "faster" and len(again) == 2
    monkeypatch.setattr(gpu_bench, "SUSPICIOUS", 20.0)
    (s,) = timed(**rival()).shapes
    assert not [c for c in s.checks if "speed-up" in c.message]


def test_modes_of_a_shape_share_their_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {"candidate": 10.0})
    drawn: list[Any] = []
    contract = type(GEMM)
    inputs = contract.inputs
    monkeypatch.setattr(contract, "inputs", lambda self, case: drawn.append(case) or inputs(self, case))
    r = timed(modes=("warm", "cold"))
    assert [s.mode for s in r.shapes] == ["warm", "cold"] and r.passed and len(drawn) == 2


def test_a_fault_ends_the_job_and_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, {"candidate": 10.0})
    begun: list[str] = []

    def breaks(device: FakeDevice, pointers: Mapping[str, int]) -> None:
        right(device, pointers)
        if len(begun) == 2:
            device.break_context()

    job = make("bench", modes=("warm", "cold", "warm"))
    r = run_bench(env_for(breaks), job, GEMM, 5, lambda done, total, message: begun.append(message))
    assert [s.verdict for s in r.shapes] == ["measured", "error", "error"] and not r.passed
    assert "did not survive" in r.shapes[2].message


@pytest.mark.parametrize("mode", ["warm", "cold"])
@pytest.mark.parametrize(("slower", "verdict"), [(1.0, "inconclusive"), (1.03, "faster"), (0.97, "slower")])
def test_the_whole_gate_over_a_played_driver(
    monkeypatch: pytest.MonkeyPatch, mode: jobs.Mode, slower: float, verdict: str
) -> None:
    """Nothing but the driver is replaced: graphs replay the work, event times come from its clock with 0.2 % noise."""
    cu = FakeDriver()
    for module in (errors, device):
        monkeypatch.setattr(module, "driver", lambda: cu)
    monkeypatch.setattr(
        telemetry.Monitor,
        "__init__",
        lambda self, uuid: setattr(self, "_nvml", None) or setattr(self, "_why", "no NVML"),
    )
    job = make("bench", modes=(mode,), warmup_ms=1.0, sample_ms=0.5)
    other = job.launches[0].model_copy(update={"plans": ({**PLAN, "symbol": "other"},)})
    with device.Device() as gpu:

        def prepare(cubin: bytes, plan: Mapping[str, Any], pointers: Mapping[str, int]) -> Any:
            us = 100.0 * (slower if plan["symbol"] == "other" else 1.0)
            return lambda stream: cu.work(us, lambda: right(gpu, pointers))  # type: ignore[arg-type]

        env = Env(gpu, None, prepare, gpu.new_stream())
        r = run_bench(env, job.model_copy(update={"rivals": (other,)}), GEMM, 5, lambda *a: None)
    (s,) = r.shapes
    assert (s.verdict, r.passed) == (verdict, True), s.message
    assert s.ratio == pytest.approx(slower, rel=0.002) and s.method == ("graph" if mode == "warm" else "events")
    assert s.conditions["notes"] == ["conditions not recorded: no NVML"] and s.candidate and s.candidate.cv
    assert cu.memory == {}


def test_the_rule_names_its_thresholds() -> None:
    text = rule()
    for word in (
        "99%",
        "1.005",
        "0.995",
        "at least 1.01",
        "100 steps",
        "8 rounds",
        "power cap is only recorded",
        "above 3",
    ):
        assert word in text
    for verdict in ("incorrect", "invalid", "measured", "faster", "slower", "inconclusive"):
        assert f"{verdict}" in text
    assert len(text) < 1200, "it travels with every concise answer"


def test_floor_counts_only_what_the_cache_cannot_hide() -> None:
    env = env_for(right)
    big = jobs.Launch(shape={"M": 4096, "N": 4096, "K": 4096}, plans=(PLAN,))
    us = floor_us(env, make(), GEMM, big, "warm", 0.0)
    assert 100 < us < 140  # 1.37e11 FLOP at 1.07 PFLOP/s
    rms = contracts()["rmsnorm"]
    row = jobs.Launch(shape={"M": 16384, "D": 4096}, plans=(PLAN,))
    cold, warm = (floor_us(env, make(), rms, row, m, 1e9) for m in ("cold", "warm"))
    assert 40 < warm <= cold < 56  # 268 MB at 4.8 TB/s less the cache
    assert floor_us(env, make(), rms, row, "warm", 1e6) < 5
