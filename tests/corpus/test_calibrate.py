"""Calibration: the microbenchmarks, their jobs, the run on a played driver, and what is recorded of it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analyses.cost import calibration as reading
from analyses.cost.machine import Machine
from cake_ir import parse, print_file, targets
from cake_ir.diagnostics import CakeError, error
from corpus.calibrate import prepare, record, run
from corpus.calibrate.probe import CLOCKS, Probe
from corpus.calibrate.probes import probes
from lowering.plan import LaunchPlan
from lowering.runtime import device, errors, tensor_map

FILES = sorted(prepare.DIRECTORY.glob("*.cake"))
PROBES = probes()
MHZ = 1500.0


def rule(found: pytest.ExceptionInfo[CakeError]) -> str:
    return found.value.diagnostic.rule


def probe(rate: str) -> Probe:
    return next(p for p in PROBES if p.rate == rate)


# ---- the programs ----------------------------------------------------------------------------------------------------


def test_rates_are_distinct_and_every_program_measures_one() -> None:
    assert len({p.rate for p in PROBES}) == len(PROBES) > 100
    written = {(f.stem, k.name) for f in FILES for k in parse(f.read_text()).file.kernels}  # type: ignore[union-attr]
    assert written == {(p.file, p.kernel) for p in PROBES}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_texts_are_canonical(path: Path) -> None:
    file = parse(path.read_text()).file
    assert file is not None and print_file(file) == path.read_text()


@pytest.mark.parametrize("file", [f.stem for f in FILES])
def test_every_probe_is_accepted_by_the_verifier(file: str) -> None:
    """One of each kernel; `prepare` verifies all."""
    seen = {p.kernel: p for p in PROBES if p.file == file}
    assert seen
    for one in seen.values():
        assert prepare.bound_of(one).name == one.kernel


def test_runs_are_long_enough_for_the_event_clock_and_short_beside_the_power_cap() -> None:
    for p in PROBES:
        few, many = p.counts(132)
        assert 2 <= few < many and many >= 3 * few
        if p.trips is None:
            assert 0.9 * CLOCKS <= many * p.expect <= 1.2 * CLOCKS


# ---- jobs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two cheap ones, compiled."""
    folder = tmp_path_factory.mktemp("jobs")
    made = prepare.prepare(folder, sms=16, only="barrier.named.role.groups")
    assert prepare.read(folder) == json.loads(json.dumps(made))
    return made


def test_a_job_holds_two_runs_of_one_cubin(jobs: dict[str, Any]) -> None:
    assert [j["rate"] for j in jobs["jobs"]] == [f"barrier.named.role.groups{n}" for n in (1, 2, 3)]
    job = jobs["jobs"][1]
    plans = [LaunchPlan.from_json(r["plan"]) for r in job["runs"]]
    assert plans[0].cubin_sha256 == plans[1].cubin_sha256 == job["cubin"] in jobs["cubins"]
    few, many = probe(job["rate"]).counts(16)
    assert [r["trips"] for r in job["runs"]] == [few, many]
    assert [[a.value for a in p.args if a.kind == "i32"][-1] for p in plans] == [few, many]
    assert job["content_id"].startswith("ir_") and jobs["clock"]["cubin"] in jobs["cubins"]


def test_a_loop_that_the_compiler_removed_is_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hollow = replace(probe("barrier.named.role.groups1"), sass={"BAR": 1, "HGMMA": 4})
    monkeypatch.setattr(prepare, "probes", lambda: (hollow,))
    with pytest.raises(CakeError) as found:
        prepare.prepare(tmp_path)
    assert rule(found) == "corpus/bad-probe" and "0 of 4 HGMMA" in found.value.diagnostic.message
    doubled = replace(hollow, sass={}, most={"BAR": 0})
    monkeypatch.setattr(prepare, "probes", lambda: (doubled,))
    with pytest.raises(CakeError) as found:
        prepare.prepare(tmp_path)
    assert rule(found) == "corpus/bad-probe" and "1 BAR, not 0" in found.value.diagnostic.message


def test_a_target_without_microbenchmarks_is_said(tmp_path: Path) -> None:
    with pytest.raises(CakeError) as found:
        prepare.prepare(tmp_path, target="sm_80")
    assert rule(found) == "corpus/no-probes"
    with pytest.raises(CakeError) as found:
        prepare.read(tmp_path)
    assert rule(found) == "corpus/bad-jobs"


# ---- the run ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, jobs: dict[str, Any]) -> Any:
    """A device that takes 7 us and 20 ns a trip for every launch, at 1500 MHz."""
    fake = importlib.import_module("tests.lowering.toolchain_fake_driver").FakeDriver()
    for module in (errors, device, tensor_map):
        monkeypatch.setattr(module, "driver", lambda: fake)
    trips = {json.dumps(r["plan"]): r["trips"] for j in jobs["jobs"] for r in j["runs"]}

    def ready(_: Any, cubin: bytes, plan: LaunchPlan, pointers: dict[str, int]) -> Callable[[int], None]:
        us = 7 + 0.02 * trips.get(json.dumps(plan.to_json()), 0)
        return lambda stream: fake.work(us)

    monkeypatch.setattr(run, "prepare", ready)
    monkeypatch.setattr(run._Clock, "mhz", lambda self: MHZ)
    monkeypatch.setitem(
        importlib.import_module("tests.lowering.toolchain_fake_driver").ATTRIBUTES, "MULTIPROCESSOR_COUNT", 16
    )
    return fake


def test_the_slope_is_free_of_launch_and_set_up(jobs: dict[str, Any], played: Any) -> None:
    seen: list[str] = []
    found = run.measure(jobs, each=lambda rate, answer: seen.append(rate))
    assert seen == list(found["rates"]) == [j["rate"] for j in jobs["jobs"]]
    assert not played.memory, "a buffer was leaked"
    found["telemetry"] = {"driver": "580.1"}
    made = record.calibration(jobs, found)
    for rate in made["rates"].values():
        assert rate["value"] == pytest.approx(0.02 * MHZ, rel=0.02) and rate["low"] <= rate["value"] <= rate["high"]
        assert len(rate["few_us"]) == run.ROUNDS and rate["sm_mhz"] == MHZ


def test_a_clock_that_settles_is_read_from_an_idle_device_on(
    jobs: dict[str, Any], played: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(run.time, "sleep", slept.append)
    one = {**jobs["jobs"][0], "mode": "settling", "after_ms": 4}
    found = run.measure({**jobs, "jobs": [one]})["rates"][one["rate"]]
    single = 7 + 0.02 * one["runs"][1]["trips"]
    assert slept.count(run.IDLE_S) == run.STRETCHES == len(found["many_us"])
    assert found["many_us"] == pytest.approx([single] * run.STRETCHES, rel=0.02) and set(found["many_mhz"]) == {MHZ}


def test_other_devices_are_refused(jobs: dict[str, Any], played: Any) -> None:
    with pytest.raises(CakeError) as found:
        run.measure({**jobs, "sms": 132})
    assert rule(found) == "corpus/other-device"


def test_a_refused_launch_is_an_answer(jobs: dict[str, Any], played: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    good = run.prepare

    def prepare_one(d: Any, cubin: bytes, plan: LaunchPlan, pointers: dict[str, int]) -> Any:
        if plan.threads == 256:
            raise CakeError(error("lowering/launch-refused", "hardware", "no"))
        return good(d, cubin, plan, pointers)

    monkeypatch.setattr(run, "prepare", prepare_one)
    found = run.measure(jobs)
    assert [("error" in a) for a in found["rates"].values()] == [False, True, False]
    found["telemetry"] = {}
    with pytest.raises(CakeError) as why:
        record.calibration(jobs, found)
    assert rule(why) == "corpus/bad-answers" and "launch-refused" in why.value.diagnostic.message


# ---- what is recorded ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "want"), [
    ("per_clk", 4096 / (2.0 * 1500)),  # amount over clocks of a trip: 2 us at 1500 MHz are 3000
    ("per_s", 4096 * 132 / 2e-6),
    ("clk", 3000 / 4096),
    ("us", 2.0 / 4096),
])  # fmt: skip
def test_forms(form: Any, want: float) -> None:
    one = replace(PROBES[0], form=form, amount=4096.0)
    assert record.value(one, 2.0, 1500.0, 132) == pytest.approx(want)


def answers(jobs: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Ten rounds of 10 + 0.5 trips microseconds at 2000 MHz while short and 1000 MHz while long: the same clocks a trip."""
    rates = {}
    for j in jobs["jobs"]:
        few, many = (r["trips"] for r in j["runs"])
        rates[j["rate"]] = {
            "trips": [few, many],
            "few_us": [5 + 0.5 * few] * 9, "few_mhz": [2000.0] * 9, "many_us": [10 + 1.0 * many] * 9, "many_mhz": [1000.0] * 9,
        }  # fmt: skip
    info = {"name": "Test GPU", "sms": 16, "driver": "13.0"}
    return {
        "form": run.FORM, "target": "sm_90a", "device": info, "date": "2026-11-30", "command": "run", "rates": rates, "faults": [],
        "telemetry": {"driver": "580"}, **changes,
    }  # fmt: skip


def test_a_rate_is_made_of_clocks_so_that_a_clock_that_fell_in_between_does_not_show(
    jobs: dict[str, Any], tmp_path: Path
) -> None:
    path = record.record(jobs, answers(jobs), tmp_path)
    assert path.name == "test_gpu.json"
    made = reading.parse(json.loads(path.read_text()), path.name)
    assert made.value("barrier.named.role.groups2") == pytest.approx(1000.0)  # 0.5 us at 2000 MHz, 1 us at 1000 MHz
    assert made.source == "Test GPU, 2026-11-30, driver 580, 3 rates"
    assert reading.find("sm_90a", "Test GPU", tmp_path) == made
    with pytest.raises(CakeError) as found:
        made.value("tensor.none")
    assert rule(found) == "cost/rate-missing"


def test_a_file_says_which_commit_and_command_made_it_and_holds_a_rate_a_line(
    jobs: dict[str, Any], tmp_path: Path
) -> None:
    text = record.record({**jobs, "commit": "abc"}, answers(jobs), tmp_path).read_text()
    made = json.loads(text)
    assert made["command"] == "run" and made["commit"] == "abc"
    assert all((r["commit"], r["date"]) == ("abc", "2026-11-30") for r in made["rates"].values())
    assert sum('"few_us"' in line for line in text.splitlines()) == len(made["rates"])


def test_a_clock_under_load_knows_how_busy_the_tensor_cores_were(jobs: dict[str, Any], tmp_path: Path) -> None:
    p = probe("clock.under.gemm.duty50")
    job = {
        **jobs["jobs"][0],
        "rate": p.rate,
        "content_id": prepare.content_of(p),
        "runs": [{"trips": 10}, {"trips": 50}],
    }
    given = answers({**jobs, "jobs": [job]})
    us = 50 * p.tensor / 4096 / 0.4 / MHZ  # two fifths of the peak
    given["rates"][p.rate] |= {"few_us": [], "few_mhz": [], "many_us": [us] * 5, "many_mhz": [MHZ] * 5}
    path = record.record({**jobs, "jobs": [job]}, given, tmp_path)
    made = reading.parse(json.loads(path.read_text()), path.name).rates[p.rate]
    assert made.tensor_share == pytest.approx(0.4, rel=1e-4) and (made.value, made.unit) == (MHZ, "MHz")


def test_a_part_replaces_its_rates_in_the_file_of_the_same_device_only(jobs: dict[str, Any], tmp_path: Path) -> None:
    path = record.record(jobs, answers(jobs), tmp_path)
    one = answers(jobs)
    one["rates"] = {"barrier.named.role.groups1": one["rates"]["barrier.named.role.groups1"]}
    one["rates"]["barrier.named.role.groups1"]["many_mhz"] = [2000.0] * 9
    record.record(jobs, one, tmp_path)
    rates = json.loads(path.read_text())["rates"]
    assert [rates[f"barrier.named.role.groups{n}"]["sm_mhz"] for n in (1, 2, 3)] == [2000.0, 1000.0, 1000.0]
    with pytest.raises(CakeError) as found:
        record.record(jobs, {**one, "telemetry": {"driver": "590"}}, tmp_path)
    assert "another driver" in found.value.diagnostic.message
    for damaged in ("{", "[]", "{}", "[" * 100000):
        path.write_text(damaged)
        with pytest.raises(CakeError, match="bad-answers"):
            record.record(jobs, one, tmp_path)


@pytest.mark.parametrize(("changes", "words"), [
    ({"form": "x"}, "form"),
    ({"faults": ["the device was throttled: power brake"]}, "disturbed"),
    ({"rates": {}}, "no rate"),
    ({"rates": {"made.up": {}}}, "no job"),
])  # fmt: skip
def test_answers_that_do_not_stand_up_are_refused(jobs: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CakeError) as found:
        record.calibration(jobs, answers(jobs, **changes))
    assert rule(found) == "corpus/bad-answers" and words in found.value.diagnostic.message


@pytest.mark.parametrize("value", [None, [], "../../x", 10**400, float("nan")])
@pytest.mark.parametrize("path", [
    ("rates",), ("device",), ("device", "name"), ("telemetry",), ("rates", "barrier.named.role.groups1"),
    ("rates", "barrier.named.role.groups1", "trips"), ("rates", "barrier.named.role.groups1", "many_us"),
    ("rates", "barrier.named.role.groups1", "few_mhz"), ("faults",),
])  # fmt: skip
def test_answers_of_anything_write_in_their_folder_or_are_refused(
    jobs: dict[str, Any], tmp_path: Path, path: tuple[str, ...], value: Any
) -> None:
    given = answers(jobs)
    spot: Any = given
    for key in path[:-1]:
        spot = spot[key]
    spot[path[-1]] = value
    try:
        assert record.record(jobs, given, tmp_path).parent == tmp_path
    except CakeError as found:
        assert found.diagnostic.rule in ("corpus/bad-answers", "cost/bad-calibration")


@pytest.mark.parametrize("jobs_of", [{}, {"jobs": 7, "target": "sm_90a"}, {"jobs": [{}], "target": "sm_90a"}, []])
def test_jobs_of_anything_are_refused(jobs: dict[str, Any], jobs_of: Any) -> None:
    with pytest.raises(CakeError, match="bad-answers"):
        record.calibration(jobs_of, answers(jobs))


def test_a_longer_run_that_took_less_time_is_refused(jobs: dict[str, Any]) -> None:
    given = answers(jobs)
    given["rates"]["barrier.named.role.groups1"]["many_us"][4] = 1.0
    with pytest.raises(CakeError, match="less time"):
        record.calibration(jobs, given)


# ---- which device ----------------------------------------------------------------------------------------------------


def test_devices_with_a_data_sheet_only_have_no_calibration(tmp_path: Path) -> None:
    for name, target in reading.DATASHEET.items():
        assert reading.find(target, name, tmp_path) is None
    assert reading.find("sm_80", None, tmp_path) is None


@pytest.mark.parametrize(
    ("target", "name", "advice"),
    [
        ("sm_90a", "NVIDIA H20", "cake calibrate"),
        ("sm_80", "NVIDIA H200", "bind it for sm_90a"),
        ("sm_90a", "../secrets", "cake calibrate"),
        ("sm_90a", "x" * 5000, "at most 100 characters"),
    ],
)
def test_unknown_devices_are_declined(target: str, name: str, advice: str, tmp_path: Path) -> None:
    with pytest.raises(CakeError) as found:
        reading.find(target, name, tmp_path)
    assert rule(found) == "cost/unknown-device" and advice in found.value.diagnostic.message


NO_SMS = '{"form": "cake-calibration-1", "rates": {}, "device": {"sms": 0, "name": "d"}}'


@pytest.mark.parametrize("text", ["[]", "{", '{"form": "cake-calibration-1"}', "null", "[" * 100_000, NO_SMS])
def test_a_file_that_is_no_calibration_is_said(text: str, tmp_path: Path) -> None:
    (tmp_path / "nvidia_h200.json").write_text(text)
    with pytest.raises(CakeError) as found:
        reading.find("sm_90a", None, tmp_path)
    assert rule(found) == "cost/bad-calibration"


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"classes": []}', '{"classes": {}}', '{"classes": {"all": [2, 1]}}', "[" * 100_000]
)
def test_a_spread_that_is_none_is_said(text: str, tmp_path: Path) -> None:
    assert reading.spread("d", tmp_path) == {}
    (tmp_path / "d.json").write_text(text)
    with pytest.raises(CakeError, match=r"d\.json gives no intervals") as found:
        reading.spread("d", tmp_path)
    assert rule(found) == "cost/bad-calibration"


@pytest.mark.parametrize(
    "lacks", ["hbm.read.", ("hbm.copy.", "flight.hbm.copy."), "clock.under.memory", "issue.minmax"]
)
def test_a_calibration_without_a_rate_that_nothing_stands_for_says_which(lacks: Any) -> None:
    found = reading.find("sm_90a")
    assert found is not None
    rates = {k: r for k, r in found.rates.items() if not k.startswith(lacks)}
    with pytest.raises(CakeError, match=lacks if isinstance(lacks, str) else lacks[0]) as refused:
        Machine.of(targets.get("sm_90a"), replace(found, rates=rates))
    assert rule(refused) == "cost/rate-missing"


@pytest.mark.parametrize("wait_clk", [20.0, 80.0])
def test_how_reads_wait_among_others_is_read_from_loads_in_flight(wait_clk: float) -> None:
    """512 bytes a warp and latency, where latency = 800 clocks + wait x / (1 - x) at a part x of the peak."""
    found = reading.find("sm_90a")
    assert found is not None
    peak, clock = found.best("hbm.read."), found.value("clock.under.memory") * 1e6
    rates = {k: r for k, r in found.rates.items() if not k.startswith("flight.hbm.read.")}
    for x in (0.4, 0.6, 0.8):
        latency = (800 + wait_clk * x / (1 - x)) / clock
        warps = round(x * peak * latency / (512 * found.sms))
        rates[f"flight.hbm.read.warps{warps}.loads1"] = replace(found.rates["hbm.read.ctas2"], value=512 * warps * found.sms / latency)
    rates["flight.hbm.read.warps4.loads1"] = replace(found.rates["hbm.read.ctas2"], value=4 * 512 * found.sms / (800 / clock))
    m = Machine.of(targets.get("sm_90a"), replace(found, rates=rates))
    assert m.latency["crowd_hbm"] == pytest.approx(wait_clk, rel=0.2)  # whole warps


# ---- the committed files ---------------------------------------------------------------------------------------------


def test_the_h200_is_calibrated_with_the_programs_of_this_checkout() -> None:
    """A changed microbenchmark makes its rate stale: measure again with `cake calibrate`."""
    path = reading.DIRECTORY / "nvidia_h200.json"
    rates = json.loads(path.read_text())["rates"]
    known = {p.rate: p for p in PROBES if p.target == "sm_90a"}
    assert set(rates) <= set(known) and len(rates) >= 0.9 * len(
        known
    )  # a microbenchmark may be younger than the measurement
    for name, found in rates.items():
        p = known[name]
        assert found["content_id"] == prepare.content_of(p), f"{p.rate} is stale"
        assert (found["bindings"], found["kernel"], found["unit"]) == (dict(p.bindings), p.kernel, found["unit"])
        assert found["trips"] == list(p.counts(132)) and found["low"] <= found["value"] <= found["high"]


@pytest.mark.parametrize("path", sorted(reading.DIRECTORY.glob("*.json")), ids=lambda p: p.stem)
def test_committed_rates_follow_from_their_samples(path: Path) -> None:
    made = json.loads(path.read_text())
    found = reading.parse(made, path.name)
    assert path.stem == found.slug and found.sms > 0
    for name, rate in made["rates"].items():
        if name.startswith(record.CLOCK) or not rate["few_us"]:
            continue
        few, many = rate["trips"]
        clocks = sorted(us * mhz for us, mhz in zip(rate["few_us"], rate["few_mhz"], strict=True))
        base = clocks[len(clocks) // 2]
        again = sorted(
            (us - base / mhz) / (many - few) * mhz for us, mhz in zip(rate["many_us"], rate["many_mhz"], strict=True)
        )
        clk = again[len(again) // 2]
        p = probe(name)
        assert rate["value"] == pytest.approx(
            record.value(p, clk / rate["sm_mhz"], rate["sm_mhz"], rate["ctas"]), rel=0.02
        ), name


def test_where_clusters_fit_is_the_drivers_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = importlib.import_module("tests.lowering.toolchain_fake_driver").FakeDriver()
    fake.resident = 15
    for module in (errors, device, tensor_map):
        monkeypatch.setattr(module, "driver", lambda: fake)
    monkeypatch.setattr(run._Clock, "mhz", lambda self: MHZ)
    made = prepare.prepare(tmp_path, only="cluster.sms.ctas8")
    found = run.measure(made)
    found["telemetry"] = {"driver": "580"}
    rate = record.calibration(made, found)["rates"]["cluster.sms.ctas8"]
    assert (rate["value"], rate["unit"]) == (120, "SMs")
