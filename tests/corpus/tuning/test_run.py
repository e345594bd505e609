"""A campaign on a played GPU: what it finds, what it survives, and what it writes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
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
    journal = Journal(out, campaign.id, write=True)
    name = campaign.candidates[0].id
    journal.begin(name, small.SMALL[0])
    journal.close()
    found = standing(out)
    assert found is not None and found["candidate"] == name
    run.attempt(directory, out, budget_s=60, env=gpu.env())
    assert [e["candidate"] for e in read(out) if e["kind"] == "lost"] == [name] and standing(out) is None
    assert name not in gpu.launched


def test_a_short_budget_ends_early_with_a_table(played: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, out, gpu = played(by_width)
    ticks = itertools.count()
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))  # a second per look
    assert not run.attempt(directory, out, budget_s=10, env=gpu.env())["complete"]
    measured = [e for e in read(out) if e["kind"] == "shape"]
    assert measured
    assert decide(
        small.FAMILY, campaigns.read(directory), Journal(out, campaigns.read(directory).id), "bf16", SMS
    ).named


def test_what_is_no_campaign_or_no_journal_is_refused(played: Start, tmp_path: Path) -> None:
    directory, out, gpu = played(by_width)
    with pytest.raises(CakeError, match="cannot be read"):
        campaigns.read(tmp_path)
    start = {"kind": "start", "campaign": "tc_other", "secret": "0" * 32, "device": {"sms": 132}, "date": ""}
    out.write_text(json.dumps(start) + "\n")
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


def test_two_runs_of_one_journal_do_not_tear_each_others_lines(played: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corpus.tuning.journal.LOCK_S", 0.0)
    directory, out, gpu = played(by_width)
    campaign = campaigns.read(directory)
    first = Journal(out, campaign.id, write=True)
    with pytest.raises(CakeError, match="tuning/busy"):
        run.attempt(directory, out, env=gpu.env())
    first.close()
    assert run.attempt(directory, out, budget_s=60, env=gpu.env())["complete"]


def test_who_reads_a_journal_leaves_it_to_its_writer(played: Start) -> None:
    """Half a line may be on its way while it is recorded."""
    directory, out, _gpu = played(by_width)
    campaign = campaigns.read(directory)
    writer = Journal(out, campaign.id, write=True)
    writer.lost("a", {}, "worker/hung", "")
    line = b'{"kind":"lost","candidate":"b","dims":{}}\n'
    with out.open("ab") as handle:
        handle.write(line[:20])
        handle.flush()
        assert Journal(out, campaign.id).lost_ids == {"a"}
        handle.write(line[20:])
    writer.lost("c", {}, "worker/hung", "")
    assert Journal(out, campaign.id).lost_ids == {"a", "b", "c"}


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "start", "campaign": "x"}, {"kind": "start", "campaign": "x", "secret": "../", "device": {"sms": 1}, "date": ""},
        {"kind": "start", "campaign": "x", "secret": "0" * 32, "device": "x", "date": ""}, {"kind": "lost", "candidate": "a", "dims": 3},
        {"kind": "start", "campaign": "x", "secret": "0" * 32, "device": {"sms": []}, "date": ""}, {"kind": "end", "complete": []},
    ],
)  # fmt: skip
def test_lines_have_their_forms(tmp_path: Path, line: dict[str, Any]) -> None:
    (tmp_path / "j").write_text(json.dumps(line) + "\n")
    with pytest.raises(CakeError, match="bad-journal"):
        list(read(tmp_path / "j"))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(target="/../../../../evil"), lambda c: c.update(family="../x"), lambda c: c.update(seed=10**300),
        lambda c: c["candidates"][0]["recipe"]["admits"].append(7), lambda c: c["candidates"][0]["recipe"].update(launches=[0]),
        lambda c: c["shapes"][0]["dims"].update(N=1 << 70), lambda c: c["contracts"]["bf16"].pop("name"),
        lambda c: c["candidates"][0].update(twins={"f16": "nobody"}), lambda c: c.update(predictions={}),
    ],
)  # fmt: skip
def test_a_campaign_of_anything_else_is_refused(played: Start, change: Any) -> None:
    """A target becomes part of a file's name: it is a name, and no way out of the folder."""
    directory, _out, _gpu = played(by_width)
    made = json.loads((directory / "campaign.json").read_text())
    change(made)
    (directory / "campaign.json").write_text(json.dumps(made))
    with pytest.raises(CakeError, match=r"bad-campaign|bad-table"):
        campaigns.read(directory)
