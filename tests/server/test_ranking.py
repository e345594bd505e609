"""Several candidates through `estimate_cost`, and what becomes of predictions that were measured."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner
from mcp import Client

from analyses.cost import history
from corpus.jobs import BenchShape, BenchVerdict, Timing
from server import mcp_server, ranking
from server.cli import cli
from server.cli_estimate import binding_sets, values_of
from server.engine import Engine
from server.errors import BadArgument, Cancelled
from server.mcp_server import CakeServer
from server.predictions import predicted
from server.programs import Ref
from server.results import CONCISE_BYTES, DETAILED_BYTES, Result, size_of
from server.worker import Control, WorkerDied
from tests.analyses.test_cost_rank import EVIDENCE
from tests.server.conftest import BROKEN, KMEANS, call

pytestmark = pytest.mark.anyio

SHAPE = {"B": 2, "N": 8192, "C": 512, "D": 64}
SOFTMAX = (Path(ranking.__file__).parents[1] / "corpus/kernels/softmax.cake").read_text()
ROWS = {"M": 512, "N": 2048}
DEVICE = "NVIDIA H200"


async def test_bindings_are_ordered_with_what_is_rejected_and_what_is_verified(client: Client) -> None:
    two = {"STAGES": 2}
    known = await call(client, "verify", text=KMEANS, bindings=two)
    got = await call(client, "estimate_cost", text=KMEANS, shape=SHAPE, vary={"STAGES": [4, 2, 3, 99, 4]})
    data = got["data"]
    assert data["counts"] == {"asked": 5, "ranked": 3, "rejected": 1, "merged": 1, "verified": 1}
    assert [r["place"] for r in data["ranking"]] == [1, 2, 3] and size_of(got) < CONCISE_BYTES
    times = [r["time_us"] for r in data["ranking"]]
    assert times == sorted(times) and data["ranking"][0]["times_best"] == 1.0
    verified = [r for r in data["ranking"] if r.get("verified")]
    assert [(r["name"], r["variant_id"]) for r in verified] == [("STAGES=2", known["ids"]["variant_id"])]
    out = data["rejected"][0]
    assert out["name"] == "STAGES=99" and out["rule"] == "language/tunable-domain" and out["line"] > 0
    assert "not measurements" in got["summary"] and got["artifacts"][0]["kind"] == "ranking"
    one = await call(client, "estimate_cost", ir_id=data["ranking"][0]["variant_id"], shape=SHAPE)
    assert one["data"]["time_us"] == times[0], "the handle of a place is the candidate that was estimated"


async def test_programs_are_ordered_beside_each_other(client: Client) -> None:
    candidates = [
        {"text": SOFTMAX, "bindings": {"WARPS": 4}},
        {"text": SOFTMAX},
        {"text": SOFTMAX, "bindings": {"WARPS": 8}},
        {"text": KMEANS},
        {"ir_id": "ir_" + "0" * 32},
        {"text": "nonsense("},
    ]
    got = await call(client, "estimate_cost", candidates=candidates, target="sm_90a", shape=ROWS, detail="detailed")
    ranked = {r["name"]: r for r in got["data"]["ranking"]}
    assert set(ranked) == {"#1 softmax WARPS=4", "#2 softmax"} and ranked["#2 softmax"]["also"] == ["#3"]
    why = {r["name"].split()[0]: r["rule"] for r in got["data"]["rejected"]}
    assert why == {"#4": "language/shape", "#5": "args/unknown-id", "#6": "language/syntax"}
    assert got["status"] == "ok" and size_of(got) < DETAILED_BYTES


async def test_what_a_verification_rejected_does_not_rank(client: Client) -> None:
    await call(client, "verify", text=BROKEN)
    got = await call(client, "estimate_cost", candidates=[{"text": BROKEN}, {"text": KMEANS}], shape=SHAPE)
    assert [r["name"] for r in got["data"]["ranking"]] == ["#2 kmeans_assign"]
    assert "an earlier verify rejected it" in got["data"]["rejected"][0]["message"]
    none = await call(client, "estimate_cost", text=KMEANS, shape={"B": 1}, sets=[{}, {"STAGES": 3}])
    assert none["status"] == "rejected" and "none of 2 candidates ranks" in none["summary"]


async def test_requests_without_an_order_are_refused(client: Client) -> None:
    for arguments, says in (
        ({"text": KMEANS, "vary": {"STAGES": []}}, "no value for STAGES"),
        ({"text": KMEANS, "vary": {"STAGES": [*range(15)], "BC": [*range(15)]}}, "225 candidates; at most 200"),
        ({"text": KMEANS, "candidates": [{"text": KMEANS}]}, "candidates several"),
        ({"candidates": [{"txt": ""}]}, "txt"),
        ({"vary": {"STAGES": [1]}}, "exactly one of an id and a text"),
        ({"text": KMEANS, "vary": {"STAGES": [*range(1000)], "BC": [*range(1000)]}}, "1000000 candidates"),
    ):
        got = await call(client, "estimate_cost", shape=SHAPE, **arguments)
        assert got["status"] == "error" and got["code"] == "args/invalid" and says in got["summary"]


async def test_what_no_edit_mends_says_what_does(client: Client) -> None:
    for arguments, rule, says in (
        ({"text": KMEANS, "device": "NVIDIA Unheard"}, "cost/unknown-device", "cake calibrate --show"),
        (
            {"text": SOFTMAX, "target": "sm_90a", "shape": {"M": 1, "N": 1}},
            "language/where-unsatisfied",
            "give a shape",
        ),
    ):
        one = await call(client, "estimate_cost", **({"shape": SHAPE} | arguments))
        several = await call(client, "estimate_cost", **({"shape": SHAPE, "sets": [{}, {"NOPE": 1}]} | arguments))
        assert one["diagnostics"][0]["rule"] == several["data"]["rejected"][0]["rule"] == rule
        assert says in one["next"] and says in several["next"]


@pytest.mark.parametrize("extent", [-1, 2**31, 2**40, 1.5, True, "8", None, math.nan])
def test_extents_that_no_tensor_has_are_refused(engine: Engine, extent: Any) -> None:
    ref, shape = Ref(text=SOFTMAX, target="sm_90a"), {"M": extent, "N": 2048}
    for ask in (engine.estimate, lambda r, s: engine.rank(ranking.Request([r], [{}, {}]), s)):
        with pytest.raises(BadArgument, match="extent M must be an integer"):
            ask(ref, shape)


async def test_many_go_to_a_worker_and_come_back_in_order(
    cake: CakeServer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ranking.Request([Ref(text=SOFTMAX, target="sm_90a")], vary={"WARPS": [4, 8, 16]})
    here = engine.rank(request, ROWS)
    monkeypatch.setattr(ranking, "HERE", 0)
    monkeypatch.setattr(ranking.os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(mcp_server, "PROGRESS_EVERY_S", 0.02)
    heard: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(str(message))

    arguments = {"text": SOFTMAX, "target": "sm_90a", "shape": ROWS, "vary": dict(request.vary)}
    async with Client(cake.build()) as client:
        there = await client.call_tool("estimate_cost", arguments, progress_callback=hear)
    assert there.structured_content is not None and there.structured_content["data"] == here.compact()["data"]
    assert heard


def test_a_worker_that_dies_costs_its_own_candidates_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from server.assess import assess

    def run(module: str, job: dict[str, Any], *, control: Control, **more: Any) -> dict[str, Any]:
        control.check()
        if any(i["bindings"].get("WARPS") == 8 for i in job["items"]):
            raise WorkerDied("worker/killed", "ended by SIGKILL", "log", "again")
        return {"outcomes": assess(job, {})}

    monkeypatch.setattr(ranking, "HERE", 0)
    monkeypatch.setattr(ranking, "run_worker", run)
    monkeypatch.setattr(ranking.os, "sched_getaffinity", lambda _: {0, 1})
    bases = [Ref(text=SOFTMAX, target="sm_90a", bindings={"WARPS": w}) for w in (4, 8, 16)]
    got = engine.rank(ranking.Request(bases), ROWS)
    assert [r["name"] for r in got.data["rejected"]] == ["#2 softmax WARPS=8"] and got.data["counts"]["ranked"] == 2
    control = Control()
    control.cancel.set()
    with pytest.raises(Cancelled):
        engine.rank(ranking.Request(bases), ROWS, control=control)


async def test_a_cancelled_call_ends_its_ranking(
    cake: CakeServer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def slow(request: Any, shape: Any, detail: Any, device: Any, l2: Any, control: Control) -> Any:
        control.cancel.wait(20)
        ended.set()
        control.check()

    monkeypatch.setattr(engine, "rank", slow)
    async with Client(cake.build()) as client:
        with anyio.move_on_after(0.3) as scope:
            await client.call_tool("estimate_cost", {"text": KMEANS, "shape": SHAPE, "vary": {"STAGES": [2, 3]}})
    assert scope.cancelled_caught and await anyio.to_thread.run_sync(ended.wait, 10)


@pytest.mark.parametrize(("detail", "limit"), [("concise", CONCISE_BYTES), ("detailed", DETAILED_BYTES)])
def test_long_orders_keep_the_limits_and_count_what_is_not_shown(detail: Any, limit: int) -> None:
    row = {"place": 1, "name": "A_LONG_TUNABLE=123456 " * 12, "time_us": 1.0, "variant_id": "v_" + "0" * 32}
    data = {"ranking": [row] * 150, "rejected": [{"name": "x" * 300, "message": "y" * 300}] * 50}
    got = ranking._shortened(Result(summary="s" * 300, status="ok", data=data), detail)
    left = got.data["not_shown"]
    assert size_of(got.compact()) <= limit and "left_out" not in got.data
    assert len(got.data["ranking"]) + left["ranking"] == 150 and len(got.data["rejected"]) + left["rejected"] == 50
    assert got.data["ranking"] and got.data["rejected"]


# ---- prior error ---------------------------------------------------------------------------------------------------


def timed(us: float, shape: dict[str, int], mode: Any = "warm", verdict: BenchVerdict = "measured") -> dict[str, Any]:
    candidate = Timing(name="candidate", median_us=us, mad_us=0.1, samples_us=(us,) * 5, batch=10)
    return BenchShape(shape=shape, mode=mode, verdict=verdict, candidate=candidate).model_dump(mode="json")


def kept(engine: Engine, bindings: dict[str, Any], factor: float, device: str = DEVICE) -> str:
    """A timing in the store, `factor` times what the model predicts for warm launches; twice that for cold ones."""
    unit = engine.programs.units(engine.programs.load(Ref(text=SOFTMAX, target="sm_90a", bindings=bindings)))[0]
    spec = engine.catalog.contract("softmax")
    (said,) = predicted(unit.bound, spec, DEVICE, [timed(1.0, ROWS)])
    rows = [timed(said["time_us"] * factor, ROWS), timed(2 * said["time_us"] * factor, ROWS, "cold", "invalid")]
    record = {"raw": {"shapes": rows}, "model": predicted(unit.bound, spec, DEVICE, rows)}
    return engine.store.put_measurement(
        unit.variant_id, "softmax", {"shapes": [ROWS]}, device, "bench", "passed", record
    )


@pytest.fixture
def evidence(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(history, "committed", lambda: history.parse(EVIDENCE, "cost-ranking.json"))
    yield


def test_an_order_comes_with_the_prior_error_of_its_family(engine: Engine, evidence: None) -> None:
    request = ranking.Request([Ref(text=SOFTMAX, target="sm_90a")], vary={"WARPS": [4, 8, 16]})
    first = engine.rank(request, ROWS, l2="warm")
    assert [(p["origin"], p["family"]) for p in first.data["prior"]] == [("committed", "rows")]
    for warps, factor in ((4, 1.1), (8, 1.0), (16, 0.8)):
        kept(engine, {"WARPS": warps}, factor)
    kept(engine, {"WARPS": 4}, 1.25)
    got = engine.rank(request, ROWS, l2="warm")
    own = got.data["prior"][1]
    assert (own["origin"], own["family"], own["points"], own["shapes"]) == ("workspace", "softmax", 3, 1), (
        "latest rows count"
    )
    assert own["error_median"] == pytest.approx(0.2, abs=0.01) and "spearman_median" not in own, "three have no order"
    assert "workspace, 3 points" in got.summary and got.data["ranking"] == first.data["ranking"]
    cold = engine.rank(request, ROWS)
    assert len(cold.data["prior"]) == 1 and "with a warm L2" in cold.data["prior_note"], "invalid times are no evidence"
    other = engine.rank(ranking.Request([Ref(text=KMEANS)], vary={"STAGES": [2, 3]}), SHAPE)
    assert other.data["prior"][0]["family"] == "all" and "no measured family" in other.data["prior_note"]


# ---- calibration records -------------------------------------------------------------------------------------------


async def test_a_time_outside_its_interval_opens_a_calibration_record(client: Client, engine: Engine) -> None:
    ir = (await call(client, "propose_ir", text=SOFTMAX))["ids"]["ir_id"]
    nothing = await call(client, "report_failure", symptom="mispredicted_time", ir_id=ir)
    assert nothing["data"]["owner"] == "cost_model" and "time it with compile_and_bench" in nothing["next"]
    good = kept(engine, {}, 1.0)
    holds = await call(client, "report_failure", symptom="mispredicted_time", measurement_id=good)
    assert holds["data"]["records"] == 0 and "the prediction holds" in holds["summary"]
    bad = kept(engine, {}, 3.0)
    for count in (1, 2):  # found by the program, whose first target is another one than was timed
        got = await call(client, "report_failure", symptom="mispredicted_time", ir_id=ir, shape=ROWS)
        row = got["data"]["rows"][0]
        assert got["data"]["owner"] == "cost_model" and got["ids"]["measurement_id"] == bad and row["count"] == count
        assert row["measured_us"] > row["high_us"] > row["predicted_us"] > row["low_us"] and row["l2"] == "warm"
    listed = engine.calibration_records().data["rows"]
    assert [(r["kernel"], r["shape"], r["device"], r["measurement_id"]) for r in listed] == [
        ("softmax", ROWS, DEVICE, bad)
    ]
    assert listed[0]["bound"] and listed[0]["count"] == 2
    wrong = await call(client, "report_failure", symptom="hang", measurement_id=bad)
    assert wrong["code"] == "args/invalid"
    unknown = await call(client, "report_failure", symptom="mispredicted_time", measurement_id="m_" + "0" * 32)
    assert unknown["code"] == "args/unknown-id"
    elsewhere = await call(client, "report_failure", symptom="mispredicted_time", measurement_id=bad, shape={"M": 1})
    assert elsewhere["code"] == "args/invalid" and "no valid time at M=1" in elsewhere["summary"]


def test_a_device_without_calibration_claims_no_interval(engine: Engine) -> None:
    bad = kept(engine, {}, 3.0, "NVIDIA Unheard")
    got = engine.report_failure(symptom="mispredicted_time", measurement_id=bad)
    assert "no interval is claimed" in got.summary and "NVIDIA Unheard" in got.summary
    assert engine.store.failures() == []


# ---- command line --------------------------------------------------------------------------------------------------


def test_options_name_sets_and_values() -> None:
    assert binding_sets(["A=1", "B=2,C=x"]) == [{"A": 1, "B": 2, "C": "x"}] and binding_sets([]) == [{}]
    assert binding_sets(["A=1,B=2", "A=2"]) == [{"A": 1, "B": 2}, {"A": 2}], "bound twice: each is a set"
    assert values_of(["A=1,2", "B=true", "A=3"]) == {"A": [1, 2, 3], "B": [True]}
    for wrong in ("A", "A=", "=1"):
        with pytest.raises(BadArgument):
            values_of([wrong])


def test_the_command_orders_files_and_lists_records(tmp_path: Path, engine: Engine) -> None:
    file = tmp_path / "softmax.cake"
    file.write_text(SOFTMAX)
    shape = ",".join(f"{k}={v}" for k, v in ROWS.items())
    asked = ["estimate", str(file), "--target", "sm_90a", "--shape", shape, "--vary", "WARPS=4,8,9", "--l2", "warm"]
    got = CliRunner().invoke(cli, [*asked, "--workspace", str(tmp_path / "none")])
    assert got.exit_code == 0 and "WARPS=4" in got.output and "rejected WARPS=9" in got.output, got.output
    assert not (tmp_path / "none").exists(), "looking makes no workspace"
    refused = CliRunner().invoke(cli, ["estimate", "/dev/null", "--shape", "M=1", "--no-gpu"])
    assert refused.exit_code == 1 and "language/empty" in refused.output and "resource needs" not in refused.output
    engine.report_failure(symptom="mispredicted_time", measurement_id=kept(engine, {}, 3.0))
    listed = CliRunner().invoke(cli, ["calibrate", "--records", "--json", "--workspace", str(engine.config.workspace)])
    assert json.loads(listed.output)["data"]["rows"][0]["kernel"] == "softmax"
