"""From evidence to the report's model: order, staleness, units, what is missing, records of another form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corpus import evidence
from corpus.contract import contracts
from server.report import collect, evidence_page, units
from server.report.model import Comparison, Contender, overall
from server.store import Store
from tests.server.report.samples import HOSTILE, bench, profile, shape

NOW = "2026-11-30T06:00:00+00:00"
VARIANT = "v_" + "1" * 32
PROGRAM = "ir_" + "2" * 32


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "ws")
    made.put_variant(VARIANT, PROGRAM, {"STAGES": 4}, "sm_90a", "gemm_sm90")
    return made


def keep(store: Store, kind: str, raw: dict[str, Any], digest: str = "") -> None:
    store.put_measurement(
        VARIANT, "gemm_bf16", {}, "NVIDIA H200", kind, "passed", {"contract_digest": digest, "raw": raw}
    )


def gather(store: Store, **more: Any) -> Any:
    return collect.stored(store, [VARIANT], contracts(), title="t", scope="s", generated=NOW, **more)


def test_losses_come_first_then_inconclusive_then_wins_by_ratio(store: Store) -> None:
    rows = [
        shape(256, "faster", 1.9), shape(512, "slower", 0.8), shape(768, "inconclusive", 1.0), shape(1024, "slower", 0.5),
        shape(1280, "faster", 1.2), shape(1536, "incorrect", None), shape(1792, "measured", None),
    ]  # fmt: skip
    keep(store, "bench", bench("gemm_sm90", rows))
    found = gather(store)
    assert [(r.verdict, r.timing.shape.split()[0]) for r in found.rows()] == [
        ("incorrect", "M=1536"), ("slower", "M=1024"), ("slower", "M=512"), ("inconclusive", "M=768"), ("faster", "M=1280"),
        ("faster", "M=256"), ("measured", "M=1792"),
    ]  # fmt: skip
    assert found.tally()[0] == ("incorrect", 1)
    # A yardstick is nobody's rival: it is neither among the rows nor does it make a verdict.
    assert {r.comparison.baseline.name for r in found.rows(yardsticks=True)} == {"device_copy"}


def test_of_one_shape_and_mode_the_latest_timing_counts_and_modes_stay_apart(store: Store) -> None:
    keep(store, "bench", bench("gemm_sm90", [shape(256, "slower", 0.5), shape(256, "faster", 2.0, mode="cold")]))
    keep(store, "bench", bench("gemm_sm90", [shape(256, "faster", 1.5)]))
    assert {(t.mode, t.verdict) for t in gather(store).timings} == {("warm", "faster"), ("cold", "faster")}
    assert gather(store, contract="rmsnorm").timings == ()


def test_evidence_under_another_contract_is_stale_and_named(store: Store) -> None:
    keep(store, "bench", bench("gemm_sm90", [shape(256, "slower", 0.5)]), digest="ct_old")
    found = gather(store)
    (why,) = found.stale
    assert "the contract has changed" in why and found.stale[why] == ["timing of gemm_sm90 M=256 N=512 K=512, warm"]
    assert why in evidence_page(found) and found.stale_count == 1


def test_a_stored_timing_keeps_secret_conditions_and_work(store: Store) -> None:
    keep(store, "bench", bench("gemm_sm90", [shape(256, "slower", 0.5)]))
    (t,) = gather(store).timings
    assert (
        t.provenance.secret.startswith("feedface")
        and t.provenance.seed == "3"
        and t.judged == "all 1 passed: before timing"
    )
    c = t.conditions
    assert (c.sm_mhz_min, c.sm_mhz_max, c.power_w_max, c.reasons, c.other_processes) == (
        1965,
        1980,
        430.5,
        ("power cap",),
        0,
    )
    assert t.flop_unit == "bf16" and t.flops == 2.0 * 256 * 512 * 512 and t.of_floor == 0.5
    assert t.candidate is not None and t.candidate.cv is not None and 0 < t.candidate.cv < 0.02


def test_what_is_missing_is_said_with_the_command(store: Store) -> None:
    found = gather(store, absent=["other.cake"])
    words = "\n".join(w for part in found.missing.values() for w in part)
    for command in (
        "cake bench FILE",
        "cake check FILE",
        "cake build FILE",
        "cake profile FILE",
        "cake bench other.cake",
    ):
        assert command in words
    page = evidence_page(found)
    assert page.count('class="empty"') >= 6 and "no timing stored for gemm_sm90" in page


def test_records_of_another_form_are_named_not_fatal(store: Store) -> None:
    keep(store, "bench", {"shapes": [{"nothing": 1}]})
    keep(store, "check-cpu", {"passed": True, "cases": "many"})
    keep(store, "profile", {"timeline": {"tracks": [{"cta": 1}]}, "shape": {}})
    store.put_build("b_" + "3" * 32, VARIANT, "sm_90a", "passed", {"resources": {}})
    found = gather(store)
    for section in ("timings", "judgements", "resources"):
        assert any("not in a form that this version reads" in w for w in found.missing[section]), section
    assert "the profile is not of the form" in evidence_page(found)


def test_a_second_opinion_names_its_findings(store: Store) -> None:
    finding = {
        "tool": "racecheck",
        "kind": "shared-race",
        "sites": [{"line": 0}, {"line": 40}],
        "message": "two writers",
    }
    runs = [
        {"tool": "memcheck", "verdict": "clean", "limit": "tensor copies"},
        {"tool": "racecheck", "verdict": "findings", "findings": [finding]},
    ]
    keep(
        store, "sanitize", {"passed": False, "runs": runs, "seed": 1, "secret": "00", "device": {"name": "NVIDIA H200"}}
    )
    (j,) = gather(store).judgements
    assert (j.verdict, j.cases, j.findings) == ("failed", 2, ("racecheck, line 40: two writers",))
    page = evidence_page(gather(store))
    assert "racecheck, line 40: two writers" in page and "memcheck: tensor copies" in page


def test_builds_give_resources(store: Store) -> None:
    used = {
        "registers": 168,
        "spill_store_bytes": 8,
        "spill_load_bytes": 16,
        "stack_bytes": 0,
        "static_smem": 0,
        "dynamic_smem": 230448,
    }
    record = {
        "resources": {**used, "barriers": 4}, "blocks_per_sm": 1, "limited_by": "shared memory", "nvrtc": "13.5", "cubin_sha256": "ab" * 32,
    }  # fmt: skip
    store.put_build("b_" + "3" * 32, VARIANT, "sm_90a", "passed", record)
    (r,) = gather(store).resources
    assert (r.registers, r.spill_bytes, units.size(r.dynamic_smem)) == (168, 24, "225.0 KiB")
    assert r.subject.compiler == "NVRTC 13.5" and gather(store).subjects[0].cubin_sha256 == "ab" * 32


def test_the_program_of_a_build_gives_registers_by_role(tmp_path: Path) -> None:
    from server.engine import Config, Engine
    from server.programs import Ref
    from tests.server.report.samples import GEMM

    engine = Engine(Config(tmp_path / "ws", no_gpu=True))
    unit = engine.programs.units(engine.programs.load(Ref(text=GEMM)))[0]
    used = dict.fromkeys(
        ("spill_store_bytes", "spill_load_bytes", "stack_bytes", "static_smem", "dynamic_smem", "barriers"), 0
    )
    record = {"resources": {**used, "registers": 168}, "blocks_per_sm": 1, "limited_by": "threads"}
    engine.store.put_build("b_" + "3" * 32, unit.variant_id, unit.target, "passed", record)
    found = collect.stored(engine.store, [unit.variant_id], contracts(), title="t", scope="s", generated=NOW)
    engine.close()
    assert [(r.role, r.threads, r.budget) for r in found.resources[0].roles] == [
        ("producer", 128, 40),
        ("math", 256, 232),
    ]


def test_committed_rows_are_one_timing_per_shape_with_every_baseline() -> None:
    rows = evidence.results()
    found = collect.committed(contracts(), generated=NOW)
    assert len(found.rows()) + len(found.rows(yardsticks=True)) == len(rows) > 0
    ranks = [r.order[0] for r in found.rows()]
    assert ranks == sorted(ranks)
    assert {t.subject.kernel for t in collect.committed(contracts(), generated=NOW, kernels=["softmax"]).timings} == {
        "softmax"
    }
    stale = {r.stale for r in rows if r.stale}
    assert stale <= set(found.stale)


def test_committed_rows_of_a_changed_kernel_are_stale_by_name(tmp_path: Path) -> None:
    plain = json.loads((evidence.DIRECTORY / "softmax.json").read_text())
    for r in plain["rows"]:
        r["content_id"] = "ir_" + "0" * 32
    (tmp_path / "softmax.json").write_text(json.dumps(plain))
    found = collect.committed(contracts(), generated=NOW, directory=tmp_path)
    (why,) = found.stale
    assert "the kernel has changed" in why and "softmax" in found.stale[why][0]


def test_committed_profiles_are_read_with_their_text(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "gemm.json").write_text(json.dumps(profile()))
    (tmp_path / "profiles" / "bad.json").write_text("{")
    found = collect.committed(contracts(), generated=NOW, directory=tmp_path)
    assert [p.subject.kernel for p in found.profiles] == ["gemm_sm90"] and "def gemm_sm90" in found.profiles[0].source
    assert any("bad.json" in w for w in found.missing["profiles"])
    assert 'class="timeline"' in evidence_page(found)


def test_hostile_names_stay_text(store: Store) -> None:
    timed = shape(256, "slower", 0.5, name=HOSTILE)
    timed["unavailable"] = {HOSTILE: HOSTILE}
    timed["baselines"][0]["versions"] = {HOSTILE: HOSTILE}
    timed["conditions"]["notes"] = [HOSTILE]
    timed["checks"][0]["message"] = HOSTILE
    store.put_variant("v_" + "4" * 32, PROGRAM, {"A": HOSTILE.encode(errors="replace").decode()}, "sm_90a", "k<b>")
    keep(store, "bench", {**bench("x", [timed]), "rule": HOSTILE, "secret": HOSTILE, "device": {"name": HOSTILE}})
    found = collect.stored(
        store, [VARIANT, "v_" + "4" * 32], contracts(), title=HOSTILE, scope=HOSTILE, generated=HOSTILE
    )
    page = evidence_page(found)
    page.encode()
    assert "<script" not in page and "<img" not in page and "<b>k" not in page and "k&lt;b&gt;" in page
    assert "\x00" not in page and page.count("</style>") == 1


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 0.0, -1.0, 1e300])
def test_odd_numbers_do_not_break_a_page(store: Store, odd: float) -> None:
    timed = shape(256, "slower", 0.5)
    timed["candidate"]["samples_us"][3] = timed["baselines"][0]["median_us"] = timed["floor_us"] = odd
    other = shape(512, "slower", odd)
    other["candidate"]["median_us"] = other["flops"] = odd
    keep(store, "bench", bench("x", [timed, other]))
    found = gather(store)
    assert "Speed-ups, losses first" in evidence_page(found)
    assert len(found.timings) + len(found.missing["timings"]) == 2 and any(
        "outside 0 to" in w for w in found.missing["timings"]
    )


def test_numbers_beyond_all_floats_are_named_not_fatal(store: Store) -> None:
    huge = shape(256, "slower", 0.5)
    huge["shape"]["M"] = 10**400
    other = shape(512, "slower", 0.5)
    other["candidate"]["batch"] = float("inf")
    keep(store, "bench", bench("x", [huge, other, shape(1024, "faster", 1.5)]))
    endless = profile(ctas=1, steps=2)
    endless["timeline"]["kernel_us"] = float("inf")
    keep(store, "profile", endless)
    found = gather(store)
    assert "not of the form" in evidence_page(found)
    assert (
        len(found.timings) + len(found.missing["timings"]) >= 3
        and "does not count the work" in found.missing["roofline"][0]
    )


def test_no_row_of_a_broken_timing_looks_won(store: Store) -> None:
    rows = [{**shape(256, "faster", 2.0), "verdict": "invalid", "message": "throttled"}, shape(512, "slower", 0.5)]
    withheld = {**shape(768, "faster", 2.0), "verdict": "inconclusive", "message": "the clocks differed"}
    keep(store, "bench", bench("x", [*rows, withheld]))
    assert [r.verdict for r in gather(store).rows()] == ["invalid", "slower", "inconclusive"]
    assert "throttled" in evidence_page(gather(store))


@pytest.mark.parametrize(
    ("stored", "comparison", "verdict"),
    [
        ("measured", "faster", "faster"), ("rejected", "faster", "invalid"), ("failed", None, "incorrect"), ("slower", "slower", "slower"),
        ("no baseline", None, "measured"), ("invalid", "faster", "invalid"),
    ],
)  # fmt: skip
def test_verdicts_of_older_evidence_read_as_todays(stored: str, comparison: str | None, verdict: str) -> None:
    beside = Comparison(Contender("b", (1.0,), 1.0), 1.0, 0.9, 1.1, comparison or "")
    assert overall(stored, [beside] if comparison else []) == verdict


def test_the_verdict_is_about_the_fastest_baseline_that_computes_the_contract() -> None:
    slow = Comparison(Contender("slow", (), 9.0), 3.0, 2.9, 3.1, "faster")
    fast = Comparison(Contender("fast", (), 2.0), 0.7, 0.6, 0.8, "slower")
    wrong = Comparison(Contender("wrong", (), 1.0), 0.1, 0.1, 0.1, "inconclusive", results="failed")
    copy = Comparison(Contender("copy", (), 0.5), 0.1, 0.1, 0.1, "inconclusive", yardstick=True)
    assert overall("measured", [slow, fast, wrong, copy]) == "slower"
    assert overall("measured", [copy]) == "measured"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (float("nan"), "–"), (0.0, "0"), (395.376, "395.4"), (1528.18, "1,528"), (66.788, "66.79"), (0.04567, "0.04567"),
     (12345678.0, "12,345,678"), (1980, "1,980"), (3.2e18, "3.200e+18"), (True, "–"), ("x", "–"), (-2.5, "-2.500")],
)  # fmt: skip
def test_numbers_have_four_digits(value: Any, text: str) -> None:
    assert units.number(value) == text


def test_units() -> None:
    assert units.scaled(8.055e14, "FLOP/s") == "805.5 TFLOP/s" and units.scaled(None, "B") == "–"
    assert units.size(229440) == "224.1 KiB" and units.size(12) == "12 B" and units.percent(0.1234) == "12.3 %"
    assert units.ratio(0.99312) == "0.993" and units.day("2026-11-29T22:27:23+00:00") == "2026-11-29 22:27 UTC"
    assert units.day(HOSTILE) == HOSTILE
    assert units.ranges([1, 2, 3, 7, 9, 10]) == "1 to 3, 7, 9, 10" and units.ranges([]) == ""
    assert units.counted_up(["set 0", "end", "set 1", "set 2"]) == ["set 0 to 2", "end"]
