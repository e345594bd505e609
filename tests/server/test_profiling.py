"""Profiles through the real MCP client: jobs are prepared and explained for real, only the device's answer is played."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mcp import Client

from corpus.jobs import BenchShape, Job, Profile, Timing
from lowering.sass import disassemble, parse_sass
from server import profiling
from server.catalog import Catalog
from server.cli import cli
from server.engine import Config, Engine
from server.errors import EngineError
from server.mcp_server import CakeServer
from server.programs import Ref
from server.results import CONCISE_BYTES, size_of
from tests import compiled
from tests.corpus.profiling.synthetic import metrics
from tests.server.conftest import KMEANS, call, play_gpu
from tests.server.test_gpu_path import DEVICE, SHAPE

pytestmark = pytest.mark.anyio

LINES = {
    part: KMEANS[: KMEANS.index(part)].count("\n") + 1
    for part in ("wait(free", "tma_load(c_s", "wait(full", "wgmma(", "score =")
}
COUNTERS = metrics(
    tensor=78.3, alu=45.2, fma=10.3, issue=41.1, dram=3.0, l2=25.2, smem=44.9, occupancy=20.3, eligible_warps=0.838, sm_clock=1.78,
    elapsed_cycles=1000.0, active_cycles=900.0,
)  # fmt: skip


@functools.cache
def code_of(cubin: bytes) -> tuple[int, ...]:
    return tuple(i.offset for i in parse_sass(disassemble(cubin)).instructions)


class Played:
    """A GPU that answers profile jobs; `us` is the time of the next one, `wait` how long math waits of it."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.us, self.wait = 100.0, 30.0
        self.timeline = self.counters = True
        self.verdict: Any = "measured"
        self.message = "label[3] is wrong"
        self.explains: EngineError | None = None

    def __call__(self, module: str, job: dict[str, Any], **more: Any) -> dict[str, Any]:
        if module == "server.cpu_main" and job["kind"] == "explain" and self.explains:
            raise self.explains
        if module != "corpus.gpu_main":
            return compiled.worker(module, job, **more)
        if job["kind"] == "probe":
            return {"kind": "probe", "device": DEVICE}
        ready = Job.model_validate(job)
        self.jobs.append(ready)
        samples = tuple(self.us + d for d in (-0.2, -0.1, 0.0, 0.1, 0.2)) * 5
        timed = Timing(name="candidate", median_us=self.us, mad_us=0.1, samples_us=samples, batch=10)
        usable = self.verdict == "measured"
        shape = BenchShape(
            shape=ready.launches[0].shape, mode="warm", verdict=self.verdict, candidate=timed if usable else None, floor_us=50.0,
            message="" if usable else self.message, flops_per_s=5e14, bytes_per_s=1e12,
        )  # fmt: skip
        return Profile(
            contract=ready.contract, contract_digest=ready.contract_digest, kernel=ready.kernel, passed=usable,
            summary=f"{self.us:g} us" if usable else "incorrect: label[3] is wrong", seed=0, secret="00", device=DEVICE, seconds=1.0,
            shape=shape, timeline=self.spans() if self.timeline and usable else {"unavailable": "not taken"},
            counters=self.read(ready) if self.counters and usable else {"unavailable": "ncu is not installed"},
        ).model_dump(mode="json")  # fmt: skip

    def read(self, job: Job) -> dict[str, Any]:
        cubin = job.cubin(str(job.launches[0].plans[0]["cubin_sha256"]))
        stalls = {"long_sb": 2, "selected": 1}
        rows = [{"offset": at, "samples": 3, "stalls": stalls, "executed": 7} for at in code_of(cubin)]
        return {"metrics": COUNTERS, "instructions": rows}

    def spans(self) -> dict[str, Any]:
        rows = [
            (LINES["wait(free"], "producer", "wait", "wait", 0.95 * self.us),
            (LINES["tma_load(c_s"], "producer", "issue", "tma_load", 0.05 * self.us),
            (LINES["wait(full"], "math", "wait", "wait", self.wait), (LINES["wgmma("], "math", "compute", "wgmma", 40.0),
            (LINES["score ="], "math", "compute", "elementwise", self.us - self.wait - 40.0),
        ]  # fmt: skip
        lines, marks = [], []
        for n, (at, role, kind, op, us) in enumerate(rows, 1):
            lines.append(
                {
                    "line": at,
                    "end_line": at,
                    "role": role,
                    "kind": kind,
                    "ops": [op],
                    "mark": n,
                    "us": us,
                    "share": us / self.us,
                }
            )
            marks.append({"id": n, "kind": kind, "role": role, "line": at, "end_line": at, "ops": [op]})

        def track(role: str, spans: list[list[float]]) -> dict[str, Any]:
            return {
                "cta": 0,
                "sm": 0,
                "role": role,
                "instance": 0,
                "start_us": 0.0,
                "end_us": self.us,
                "spans": spans,
                "dropped": 0,
            }

        def kinds(role: str) -> dict[str, float]:
            return {
                k: sum(x["us"] for x in lines if x["role"] == role and x["kind"] == k)
                for k in ("wait", "issue", "compute", "store")
            }

        return {
            "kernel": "k", "file": "k.cake", "grid": 4, "recorded_ctas": 4, "kernel_us": self.us, "plain_us": self.us,
            "instrumented_us": self.us * 1.03, "overhead": 0.03, "marks": marks, "slots": 4,
            "roles": [{"role": r, "instances": 1, "mean_us": self.us, "busy": 1.0, "covered": 1.0, "us": kinds(r)}
                      for r in ("producer", "math")],
            "lines": sorted(lines, key=lambda x: -x["us"]),
            "tracks": [track("producer", [[1, 0.0, 50.0], [2, 50.0, self.us]]),
                       track("math", [[3, 0.0, self.wait], [4, self.wait, self.us]])],
        }  # fmt: skip


@pytest.fixture
def played(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    fake = Played()
    play_gpu(engine, monkeypatch, fake)
    yield fake


@pytest.fixture
async def client(cake: CakeServer) -> AsyncIterator[Client]:
    async with Client(cake.build()) as made:
        yield made


async def profiled(client: Client, **more: Any) -> dict[str, Any]:
    made = await call(client, "propose_ir", text=KMEANS)
    return await call(
        client,
        "profile",
        **{"ir_id": made["ids"]["ir_id"], "contract": "kmeans_assign", "shape": SHAPE, "wait_s": 120, **more},
    )


async def test_a_profile_names_what_bounds_the_kernel_and_three_lines(
    client: Client, engine: Engine, played: Played
) -> None:
    got = await profiled(client)
    assert got["status"] == "passed" and size_of(got) < CONCISE_BYTES and "left_out" not in got["data"]
    data = got["data"]
    assert (
        data["bound"] == "tensor"
        and data["why"] == "tensor pipe busy 87 %"
        and data["basis"] == "counters and timeline"
    )
    assert [(x["op"], x["role"], x["us"]) for x in data["limiters"]] == [
        ("wgmma", "math", 40.0), ("wait", "math", 30.0), ("elementwise", "math", 30.0),
    ]  # fmt: skip
    assert [x["line"] for x in data["limiters"][:2]] == [LINES["wgmma("], LINES["wait(full"]]
    assert "100 us, bound by tensor" in got["summary"] and "edit what limits it at line" in got["next"]
    assert (
        data["timing"]["tflop_per_s"] == 500
        and data["timeline"]["overhead"] == 0.03
        and data["timeline"]["roles"]["math"]["wait"] == 30
    )
    assert len(data["counters"]) == 10 and data["counters"]["tensor"] == "78.3 %"
    job = played.jobs[0]
    assert job.kind == "profile" and len(job.launches) == 1 and job.launches[0].shape == SHAPE
    kept = engine.store.measurement(got["ids"]["measurement_id"])
    assert kept is not None and kept["kind"] == "profile" and kept["variant_id"] == got["ids"]["variant_id"]
    assert kept["record"]["raw"]["summary"]["bound"] == "tensor"


async def test_its_artifacts_are_readable(client: Client, engine: Engine, played: Played) -> None:
    got = await profiled(client)
    owner = got["ids"]["measurement_id"]
    made = {a["kind"]: engine.artifact(owner, a["kind"]) for a in got["artifacts"]}
    assert set(made) == {"profile", "timeline", "trace", "sass-lines"} and all(made.values())
    assert json.loads(made["profile"])["summary"]["limiters"][0]["op"] == "wgmma"  # type: ignore[arg-type]
    names = [e["name"] for e in json.loads(made["trace"])["traceEvents"] if e["ph"] == "X"]  # type: ignore[arg-type]
    assert f"{LINES['wait(full']}: wait" in names
    listing = made["sass-lines"].decode()  # type: ignore[union-attr]
    at = listing.index(f"# {LINES['tma_load(c_s']}: tma_load(c_s")
    assert "UTMALDG" in listing[at : at + 4000] and "long_sb 2" in listing
    page = made["timeline"].decode()  # type: ignore[union-attr]
    assert page.startswith("<!") and "wgmma" in page and "http://" not in page.replace("http://www.w3.org", "")
    lines = await call(client, "read_artifact", uri=f"cake://artifact/{owner}/sass-lines", grep="HGMMA")
    assert lines["data"]["matching"] > 0


async def test_two_profiles_are_compared_by_the_id_of_the_first(client: Client, played: Played) -> None:
    first = await profiled(client)
    played.us, played.wait = 80.0, 10.0
    got = await profiled(client, compare_with=first["ids"]["measurement_id"])
    assert size_of(got) < CONCISE_BYTES and got["status"] == "passed"
    found = got["data"]["comparison"]
    assert (
        found["ratio"] == 1.25 and found["verdict"] == "faster" and found["reference"] == first["ids"]["measurement_id"]
    )
    moved = {(x["role"], x["ops"][0]): x["delta_us"] for x in found["lines"]}
    assert moved["math", "wait"] == -20 and moved["producer", "wait"] == -19
    assert "1.250 x the reference" in got["summary"] and f"line {LINES['wait(full']} wait: -20 us" in got["summary"]


async def test_a_comparison_that_means_nothing_is_refused_before_the_gpu_is_used(
    client: Client, engine: Engine, played: Played
) -> None:
    first = await profiled(client)
    other = await profiled(client, shape={**SHAPE, "N": 131}, compare_with=first["ids"]["measurement_id"])
    assert other["code"] == "profile/not-comparable" and "N=130" in other["summary"] and "N=131" in other["summary"]
    assert len(played.jobs) == 1
    asked = await profiled(
        client, shape={**SHAPE, "N": 131}, compare_with=first["ids"]["measurement_id"], compare_anyway=True
    )
    assert asked["data"]["comparison"]["notes"] == ["shape B=1,C=200,D=64,N=130 and B=1,C=200,D=64,N=131"]
    for wrong in ("m_" + "0" * 32, "nonsense"):
        unknown = await profiled(client, compare_with=wrong)
        assert unknown["code"] == "args/unknown-id" and "no profile" in unknown["summary"]
    kept = engine.store.put_measurement(
        first["ids"]["variant_id"], "kmeans_assign", SHAPE, "d", "bench", "passed", {"raw": {}}
    )
    assert "is a bench, not a profile" in (await profiled(client, compare_with=kept))["summary"]


async def test_without_a_profiler_the_answer_says_what_it_stands_on(client: Client, played: Played) -> None:
    played.counters = False
    got = await profiled(client)
    assert got["data"]["basis"] == "timeline" and "no counters: ncu is not installed" in got["data"]["notes"]
    played.timeline = False
    got = await profiled(client)
    assert got["data"]["basis"] == "event times against the model's bounds, no profiler" and got["status"] == "passed"
    assert {a["kind"] for a in got["artifacts"]} == {"profile", "timeline", "sass-lines"}


def test_the_next_step_names_the_line_and_the_reference(engine: Engine) -> None:
    raw = {"summary": {"model_us": 60.0, "time_us": 100.0, "limiters": [{"line": 42}]}, "passed": True}
    program = engine.programs.load(Ref(text=KMEANS))
    model = {"measured_us": 100.0, "time_us": 90.0, "low_us": 80.0, "high_us": 110.0}
    said = profiling.next_step(program, "kmeans_assign", raw, "m_1", model)
    assert said == "edit what limits it at line 42, then profile(..., compare_with='m_1') says what the edit changed"
    said = profiling.next_step(program, "kmeans_assign", raw, "m_1", {**model, "low_us": 101.0})
    assert "101 to 110 us: report_failure(symptom='mispredicted_time', measurement_id='m_1')" in said


async def test_a_wrong_kernel_fails_and_is_kept(client: Client, engine: Engine, played: Played) -> None:
    played.verdict = "incorrect"
    got = await profiled(client)
    assert (
        got["status"] == "failed"
        and got["data"]["timing"]["message"] == "label[3] is wrong"
        and "limiters" not in got["data"]
    )
    kept = engine.store.measurement(got["ids"]["measurement_id"])
    assert kept is not None and kept["verdict"] == "failed" and "compile_and_bench" in got["next"]


async def test_a_device_fault_is_an_error_and_no_profile(client: Client, engine: Engine, played: Played) -> None:
    played.verdict, played.message = "error", "error[lowering/device-fault]: an illegal memory access"
    got = await profiled(client)
    assert got["status"] == "error" and got["code"] == "lowering/device-fault" and "f_" in got["ids"]["failure_id"]
    assert engine.store.failures()[0]["symptom"] == "crash" and engine.store.counts()["measurements"] == 0


async def test_a_measurement_is_kept_though_its_explanation_fails(
    client: Client, engine: Engine, played: Played
) -> None:
    played.explains = EngineError("worker/killed", "ended by SIGKILL")
    got = await profiled(client)
    assert got["status"] == "passed" and "not explained: ended by SIGKILL" in got["data"]["notes"]
    assert engine.store.measurement(got["ids"]["measurement_id"]) is not None
    again = await profiled(client, compare_with=got["ids"]["measurement_id"])
    assert again["status"] == "error" and "has no summary to compare with" in again["summary"]


async def test_samples_of_other_machine_code_stay_without_lines(
    client: Client, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Played.__call__

    def changed(self: Played, module: str, job: dict[str, Any], **more: Any) -> dict[str, Any]:
        if job.get("kind") == "explain":
            job = {**job, "cubin_sha256": "0" * 64}
        return whole(self, module, job, **more)

    monkeypatch.setattr(Played, "__call__", changed)
    got = await profiled(client)
    assert (
        any("not the profiled one" in n for n in got["data"]["notes"])
        and "samples" not in got["data"]["limiters"][0]["evidence"]
    )


async def test_gates_come_first_and_without_a_gpu_the_answer_is_unavailable(client: Client, engine: Engine) -> None:
    got = await profiled(client)
    assert got["status"] == "unavailable" and got["code"] == "gpu/none"
    assert "m_" in (await profiled(client, compare_with="m_" + "0" * 32))["summary"], (
        "a wrong id is said without a GPU too"
    )


def test_the_detailed_answer_has_lines_and_roles(engine: Engine, played: Played) -> None:
    got = engine.evaluate.profile(Ref(text=KMEANS), "kmeans_assign", SHAPE, detail="detailed")
    assert {x["role"] for x in got.data["by_role"]} >= {"math", "producer"} and got.data["units"]["tensor"] > 60
    assert size_of(got.compact()) < 20_000
    assert base64.b64decode(played.jobs[0].cubins[str(played.jobs[0].launches[0].plans[0]["cubin_sha256"])])


def test_the_command_shows_limiters_and_writes_the_page_and_the_trace(
    tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Catalog, "gpu_indices", lambda self: [0])
    (tmp_path / "k.cake").write_text(KMEANS)
    shape = ",".join(f"{k}={v}" for k, v in SHAPE.items())
    argv = [
        "--workspace",
        str(tmp_path / "ws"),
        "profile",
        str(tmp_path / "k.cake"),
        "--contract",
        "kmeans_assign",
        "--shape",
        shape,
    ]
    raw, page = tmp_path / "raw.json", tmp_path / "again.html"
    outputs = ["--html", str(tmp_path / "p.html"), "--trace", str(tmp_path / "p.json"), "--profile", str(raw)]
    first = CliRunner().invoke(cli, [*argv, *outputs])
    assert first.exit_code == 0, first.output
    assert (
        f"1. line {LINES['wgmma(']} (math)" in first.stdout
        and "passed: kmeans" in first.stdout
        and "tensor 78.3 %" in first.stdout
    )
    assert (tmp_path / "p.html").read_text().startswith("<!") and json.loads((tmp_path / "p.json").read_text())[
        "traceEvents"
    ]
    assert json.loads(raw.read_text())["timeline"]["tracks"]
    report = CliRunner().invoke(cli, ["--workspace", str(tmp_path / "ws"), "report", str(raw), "-o", str(page)])
    assert report.exit_code == 0 and page.read_text().startswith("<!"), report.output
    reference = Engine(Config(tmp_path / "ws")).store.measurements(played.jobs[0].variant_id, kind="profile")[0][
        "measurement_id"
    ]
    played.us, played.wait, played.timeline = 80.0, 10.0, False
    second = CliRunner().invoke(cli, [*argv, "--compare", reference, "--trace", str(tmp_path / "q.json")])
    assert second.exit_code == 0 and "1.250 x the reference" in second.stdout.replace("\n", " ")
    assert "not written: this result has no trace" in second.stderr and not (tmp_path / "q.json").exists()
    bad = CliRunner().invoke(cli, [*argv, "--html", str(tmp_path / "none" / "p.html")])
    assert bad.exit_code == 2 and "cannot be written" in bad.output
