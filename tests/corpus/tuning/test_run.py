"""A campaign on a played GPU: what it finds, what it survives, and what it writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cake_ir.diagnostics import CakeError
from corpus import routes
from corpus.tuning import campaign as campaigns
from corpus.tuning import run, table
from corpus.tuning.decide import decide
from corpus.tuning.journal import Journal, read, standing
from corpus.tuning.measure import Fault
from tests.corpus.tuning import small
from tests.corpus.tuning.conftest import Start
from tests.corpus.tuning.played import SMS


def by_width(kernel: str, b: Mapping[str, Any], dims: Mapping[str, int]) -> float:
    """DP 64 wins where it is admitted, two warpgroups on few points, and the depth of the ring does nothing."""
    us = 10.0 + dims["B"] * dims["N"] / 100
    us *= 1.0 if b["DP"] == 64 else 1.4
    return us * (0.8 if (b["WG"] == 2) == (dims["B"] * dims["N"] <= 256) else 1.0)


def test_the_known_best_route_is_found(played: Start) -> None:
    directory, out, gpu = played(by_width)
    summary = run.attempt(directory, out, budget_s=60, env=gpu.env())
    found = summary["dtypes"]["bf16"]
    assert summary["complete"] and found["sets"]["tuned"]["worst"] < 1.01 and found["sets"]["heldout"]["worst"] < 1.01
    journal = Journal(out, campaigns.read(directory).id)
    made = table.make(small.FAMILY, campaigns.read(directory), journal, command="cake tune small", date="2026-11-30")
    for b, n, d in ((1, 128, 16), (2, 512, 24), (1, 130, 64), (2, 500, 88), (1, 200, 128)):
        choice = routes.choose(made.table, small.shape(b, n, 100, d), "bf16", SMS)
        assert choice.variant.bindings["DP"] == (64 if d <= 64 else 128), (b, n, d)
        assert choice.variant.bindings["WG"] == (2 if b * n <= 256 else 3), (b, n, d, choice.reason)
    assert all(r.evidence and r.gain > 1.01 for r in made.table.routes)
    ids = {m["measurement_id"] for m in made.measurements}
    assert len(ids) == len(made.measurements) and all(set(r.evidence) <= ids for r in made.table.routes)
    assert routes.Table.from_json(made.table.to_json()).to_json() == made.table.to_json()


def test_noise_makes_no_routes(played: Start) -> None:
    directory, out, gpu = played(lambda k, b, dims: 10.0 * (1.5 if b["DP"] == 128 else 1.0), noise=0.02)
    found = run.attempt(directory, out, budget_s=60, env=gpu.env())["dtypes"]["bf16"]
    # one route for the narrow kernel, which is quicker by half; nothing among the equals
    assert (
        len(found["routes"]) == 1 and 1.4 < found["routes"][0]["gain"] < 1.6 and "DP64" in found["routes"][0]["variant"]
    )


def test_the_same_campaign_gives_the_same_bytes(played: Start, tmp_path: Path) -> None:
    directory, out, gpu = played(by_width)
    run.attempt(directory, out, budget_s=60, env=gpu.env())
    told = []
    for n in range(2):
        journal = Journal(out, campaigns.read(directory).id)
        made = table.make(
            small.FAMILY, campaigns.read(directory), journal, command="cake tune small", date="2026-11-30"
        )
        told.append([p.read_bytes() for p in table.write(made, tmp_path / f"t{n}", tmp_path / f"r{n}")])
    assert told[0] == told[1]
    record = json.loads(told[0][1])
    assert (
        record["kind"] == "tuning"
        and record["gates"]["seeds"] == 8
        and record["validation"]["bf16"]["probes"]["hole"] is None
    )


def test_a_wrong_candidate_serves_nothing(played: Start) -> None:
    directory, out, gpu = played(lambda k, b, dims: 5.0 if b["STAGES"] == 8 else 10.0)
    gpu.wrong = ("STAGES8",)
    found = run.attempt(directory, out, budget_s=60, env=gpu.env())["dtypes"]["bf16"]
    used = [r["variant"] for r in found["routes"]] + found["fallback"]
    assert used and not any("STAGES8" in name for name in used)
    checks = {n: c["check"] for e in read(out) if e["kind"] == "shape" for n, c in e["contenders"].items()}
    assert {n for n, c in checks.items() if c == "failed"} == {n for n in checks if "STAGES8" in n} != set()


def test_a_broken_device_costs_the_candidate_and_nothing_else(played: Start) -> None:
    directory, out, gpu = played(by_width)
    gpu.faults = ("DP64-WG2-STAGES2",)
    with pytest.raises(Fault):
        run.attempt(directory, out, budget_s=60, env=gpu.env())
    before = [e for e in read(out) if e["kind"] == "shape"]
    summary = run.attempt(directory, out, budget_s=60, env=gpu.env())
    lost = [e["candidate"] for e in read(out) if e["kind"] == "lost"]
    assert len(lost) == 1 and "DP64-WG2-STAGES2" in lost[0] and summary["complete"]
    after = [e for e in read(out) if e["kind"] == "shape"]
    assert after[: len(before)] == before
    assert not any("DP64-WG2-STAGES2" in n for e in after[len(before) :] for n in e["contenders"])


def test_a_killed_run_goes_on_where_it_ended(played: Start) -> None:
    directory, out, gpu = played(by_width)

    class Killed(BaseException):
        pass

    def stop(done: float, total: float | None, what: str) -> None:
        if done == 4:
            raise Killed

    with pytest.raises(Killed):
        run.attempt(directory, out, budget_s=60, env=gpu.env(), progress=stop)
    kept = [e for e in read(out) if e["kind"] == "shape"]
    assert len(kept) == 4
    with out.open("ab") as handle:
        handle.write(b'{"kind": "shape", "torn')  # what a writer that is killed in the middle leaves
    assert run.attempt(directory, out, budget_s=60, env=gpu.env())["complete"]
    entries = [e for e in read(out) if e["kind"] == "shape" and e["phase"] == "tune"]
    assert len(entries) == len(small.SMALL) and entries[:4] == kept
    secrets = {e["secret"] for e in read(out) if e["kind"] == "start"}
    assert len(secrets) == 1


def test_who_was_launched_last_is_lost_when_the_process_dies(played: Start) -> None:
    directory, out, gpu = played(by_width)
    campaign = campaigns.read(directory)
    journal = Journal(out, campaign.id)
    name = campaign.candidates[0].id
    journal.begin(name, small.SMALL[0])
    journal.close()
    found = standing(out)
    assert found is not None and found["candidate"] == name
    run.attempt(directory, out, budget_s=60, env=gpu.env())
    assert [e["candidate"] for e in read(out) if e["kind"] == "lost"] == [name] and standing(out) is None
    assert name not in gpu.launched


def test_a_short_budget_ends_early_with_a_table(played: Start) -> None:
    directory, out, gpu = played(by_width)
    assert not run.attempt(directory, out, budget_s=0.5, env=gpu.env())["complete"]
    measured = [e for e in read(out) if e["kind"] == "shape"]
    assert measured
    assert decide(
        small.FAMILY, campaigns.read(directory), Journal(out, campaigns.read(directory).id), "bf16", SMS
    ).named


def test_what_is_no_campaign_or_no_journal_is_refused(played: Start, tmp_path: Path) -> None:
    directory, out, gpu = played(by_width)
    with pytest.raises(CakeError, match="cannot be read"):
        campaigns.read(tmp_path)
    out.write_text('{"kind": "start", "campaign": "tc_other"}\n')
    with pytest.raises(CakeError, match="belongs to another campaign"):
        run.attempt(directory, out, env=gpu.env())
    out.write_text("[1]\n")
    with pytest.raises(CakeError, match="line 1"):
        run.attempt(directory, out, env=gpu.env())
    out.write_text('{"kind": "shape", "contenders": {"a": {"check": "passed", "us": -1}}}\n')
    with pytest.raises(CakeError, match="line 1"):
        list(read(out))
    sha = next(iter(campaigns.read(directory).candidates[0].cubins.values()))
    (directory / "cubins" / sha).write_bytes(b"other code")
    with pytest.raises(CakeError, match="does not have that SHA-256"):
        campaigns.cubin(directory, sha)
    with pytest.raises(CakeError, match="is no SHA-256"):
        campaigns.cubin(directory, "../" + sha[:61])
