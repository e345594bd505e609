"""compute-sanitizer on request: findings come back as diagnostics on lines; the device's part is played from real output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from mcp import Client

from corpus import gpu_sanitize
from corpus.contract import contracts
from corpus.jobs import Job, Sanitize, ToolRun
from server import gpu_work
from server.engine import Engine
from server.errors import BadArgument
from server.mcp_server import CakeServer
from server.programs import Ref
from server.results import size_of
from server.second_opinion import watched_shapes
from tests import compiled
from tests.corpus.test_sanitizer import LINES, text
from tests.server.conftest import ROOT, call, play_gpu
from tests.server.test_gpu_path import Played

RMSNORM = (ROOT / "corpus/kernels/rmsnorm.cake").read_text()
SHAPE = {"M": 3, "D": 1024}
SAID = {"memcheck": "memcheck-oob", "racecheck": "racecheck-race"}


class Watched(Played):
    """Plays sanitize jobs too: what the tools of `SAID` printed, nothing from the others; or that there is no tool."""

    installed = True

    def __call__(self, module: str, job: dict[str, Any], **more: Any) -> dict[str, Any]:
        if job.get("kind") != "sanitize":
            return super().__call__(module, job, **more)
        made = Job.model_validate(job)
        self.jobs.append(made)
        made = made.model_copy(update={"lines": LINES})
        runs = tuple(self.one(t, made) for t in made.sanitize)
        return Sanitize(
            contract=made.contract, contract_digest=made.contract_digest, kernel=made.kernel,
            passed=all(r.verdict == "clean" for r in runs), summary="", seed=0, secret="00", shape=made.launches[0].shape,
            runs=runs, version="Version 2025.3.1.0", seconds=1.0,
        ).model_dump(mode="json")  # fmt: skip

    def one(self, tool: Any, job: Job) -> ToolRun:
        if not self.installed:
            return ToolRun(tool=tool, verdict="unavailable", message="compute-sanitizer is not installed")
        return gpu_sanitize.judge(tool, text(SAID.get(tool, "memcheck-right")), "", job, late=False, seconds=1.0)


@pytest.fixture
def watched(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    fake = Watched()
    play_gpu(engine, monkeypatch, fake)
    yield fake


@pytest.mark.anyio
async def test_findings_through_the_tool_are_located_and_short(engine: Engine, watched: Watched) -> None:
    made = CakeServer(engine)
    async with Client(made.build()) as client:
        ir_id = (await call(client, "propose_ir", text=RMSNORM))["ids"]["ir_id"]
        got = await call(
            client, "compile_and_bench", ir_id=ir_id, contract="rmsnorm", shapes=[SHAPE],
            sanitize=["racecheck", "memcheck"], wait_s=120,
        )  # fmt: skip
        assert got["status"] == "failed" and size_of(got) < 4_000
        over, race = sorted(
            (d for d in got["diagnostics"] if d["rule"].startswith("runtime/")), key=lambda d: d["rule"]
        )
        assert (over["rule"], over["line"], over["severity"]) == ("runtime/memcheck-invalid-global-write", 23, "error")
        assert over["source"].startswith("store(y[cta, col:]") and "first by thread 0 of CTA 8" in over["message"]
        assert (race["rule"], race["line"]) == ("runtime/racecheck-shared-race", 20)
        assert race["message"].startswith(
            "the write access on line 20 and the read access on line 22 race on shared memory"
        )
        assert race["related"][0]["line"] == 22
        assert got["data"]["sanitize"]["tools"] == {"memcheck": "findings", "racecheck": "findings"}
        assert "report_failure" in got["next"] and "missing rule" in got["next"]
        assert [j.kind for j in watched.jobs] == ["check", "sanitize"]  # what is found ends the work before timing
        assert watched.jobs[1].sanitize == ("memcheck", "racecheck") and watched.jobs[1].lines["rmsnorm"]
        uri = next(a["uri"] for a in got["artifacts"] if a["kind"] == "sanitize")
        page = await call(client, "read_artifact", uri=uri, grep="invalid-global-write")
        assert "invalid-global-write" in json.dumps(page)
        wrong = await client.call_tool(
            "compile_and_bench", {"ir_id": ir_id, "contract": "rmsnorm", "sanitize": ["valgrind"]}
        )
        assert wrong.is_error
    made.close()


def test_silence_goes_on_to_timing_and_says_what_was_not_seen(engine: Engine, watched: Watched) -> None:
    got = engine.evaluate.compile_and_bench(Ref(text=RMSNORM), "rmsnorm", [SHAPE], sanitize=["synccheck", "initcheck"])
    assert got.status == "passed" and [j.kind for j in watched.jobs] == ["check", "sanitize", "bench"]
    assert got.data["sanitize"]["tools"] == {"synccheck": "clean", "initcheck": "clean"}
    assert "global memory only" in got.data["sanitize"]["not_seen"]["initcheck"]
    again = engine.evaluate.check(Ref(text=RMSNORM), "rmsnorm", [SHAPE], on="gpu", sanitize=["initcheck", "synccheck"])
    assert again.data["sanitize"]["reused"] and len(watched.jobs) == 3
    kinds = [m["kind"] for m in engine.store.measurements(got.ids["variant_id"])]
    assert "sanitize" in kinds


def test_without_the_tool_the_rest_goes_on(engine: Engine, watched: Watched) -> None:
    watched.installed = False
    for _ in range(2):  # an absent tool is no evidence, so nothing is reused
        got = engine.evaluate.check(Ref(text=RMSNORM), "rmsnorm", [SHAPE], on="gpu", sanitize=["all"])
        assert got.status == "passed" and "compute-sanitizer is not installed" in got.summary
    assert [j.kind for j in watched.jobs] == ["check", "sanitize", "sanitize"]
    assert watched.jobs[1].sanitize == ("memcheck", "racecheck", "synccheck", "initcheck")


def test_without_a_gpu_it_is_unavailable(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_work, "run_worker", compiled.worker)
    got = engine.evaluate.compile_and_bench(
        Ref(text=RMSNORM), "rmsnorm", [{"M": 3, "D": 64}], until="check", sanitize=["memcheck"]
    )
    assert (
        got.status == "passed"
        and got.data["sanitize"]["status"] == "unavailable"
        and "no second opinion" in got.summary
    )


def test_wrong_requests_are_coded(engine: Engine) -> None:
    for call_it, says in (
        (lambda: engine.evaluate.check(Ref(text=RMSNORM), "rmsnorm", sanitize=["memcheck"]), "on the GPU"),
        (lambda: engine.evaluate.check(Ref(text=RMSNORM), "rmsnorm", on="gpu", sanitize=["x"]), "no tool 'x'"),
        (lambda: engine.evaluate.compile_and_bench(Ref(text=RMSNORM), None, None, sanitize=["memcheck"]), "contract"),
    ):
        with pytest.raises(BadArgument, match=says):
            call_it()


def test_a_small_shape_is_watched() -> None:
    spec = contracts()["rmsnorm"]
    assert watched_shapes(spec, "tuning")[0] in spec.shapes["boundary"]
    assert watched_shapes(spec, [SHAPE]) == [SHAPE]
