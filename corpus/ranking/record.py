"""`python -m corpus.ranking record DIR OUT`: the journals OUT/WORKLOAD.jsonl of the campaigns DIR/WORKLOAD, as one committed file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError, error
from corpus.ranking import points
from corpus.ranking.workloads import LARGE, SETS, WORKLOADS
from corpus.tuning import campaign as campaigns
from corpus.tuning.campaign import Campaign
from corpus.tuning.decide import TUNE
from corpus.tuning.journal import Journal, shape_key

COMMAND = (
    "python -m corpus.ranking prepare DIR --set {which} --seed {seed}; python -m corpus.ranking run DIR OUT; "
    "python -m corpus.ranking record DIR OUT"
)


def record(directory: Path, out: Path, to: Path = points.DIRECTORY) -> Path:
    """Write `to`/SET.json from whole runs; workloads that the file has and this run does not stay, if they are of the same device and
    seed. Raises CakeError `ranking/bad-run`, `tuning/bad-campaign`, `tuning/bad-journal`."""
    names = [n for n in WORKLOADS if (directory / n / "campaign.json").exists() and (out / f"{n}.jsonl").exists()]
    if not names:
        raise _bad(f"{directory} and {out} have no workload in common")
    made = {n: campaigns.read(directory / n) for n in names}
    journals = {n: Journal(out / f"{n}.jsonl", made[n].id) for n in names}
    which, first = _set(made), made[names[0]]
    devices = {s["device"]["name"] for n in names for s in journals[n].of("start")}
    if len(devices) != 1:
        raise _bad(f"the journals are of {', '.join(sorted(devices)) or 'no device'}; a set is measured on one")
    device = str(devices.pop())
    workloads = {n: _campaigned(made[n], journals[n]) for n in names}
    shapes = {n: _shapes(n, made[n], journals[n]) for n in names}
    if points.path(which, to).exists():
        old = points.read(which, to)
        if (old.device, old.seed, old.target) == (device, first.seed, first.target):
            workloads = {**old.workloads, **workloads}
            shapes = {n: tuple(s for s in old.shapes if s.workload == n) for n in old.workloads} | shapes
    order = [n for n in WORKLOADS if n in workloads]
    found = points.Points(
        set=which, seed=first.seed, target=first.target, device=device, command=COMMAND.format(which=which, seed=first.seed),
        workloads={n: workloads[n] for n in order}, shapes=tuple(s for n in order for s in shapes[n]),
    )  # fmt: skip
    return points.write(found, to)


def _set(made: dict[str, Campaign]) -> Any:
    """The set that all campaigns are of: their shapes, but for those that are called large, are named after it."""
    found = {e.set for m in made.values() for e in m.shapes if e.set != LARGE}
    if len(found) != 1 or not found <= set(SETS):
        raise _bad(f"the campaigns are of the sets {', '.join(sorted(found)) or 'none'}: record one set")
    return found.pop()


def _campaigned(m: Campaign, journal: Journal) -> points.Campaigned:
    (dtype,) = m.contracts
    start, ends = journal.of("start")[0], journal.of("end")
    rejected: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for r in m.rejected:
        rejected[r.kernel][f"{r.gate}: {r.rule}"] += 1
    return points.Campaigned(
        contract=m.contracts[dtype]["name"], contract_digest=m.contracts[dtype]["digest"], dtype=dtype, campaign=m.id, prepared=m.date,
        date=start["date"], commit=m.commit, command=m.command, device=start["device"], compiler=m.compiler,
        packages=start.get("packages", {}), settings=m.settings.model_dump(), telemetry=ends[-1].get("telemetry") or {} if ends else {},
        tried=m.seeds, legal=m.legal, verified=m.verified, compiled=len(m.candidates),
        rejected={k: dict(v) for k, v in rejected.items()},
        lost=tuple({k: e.get(k) for k in ("candidate", "dims", "cause", "message")} for e in journal.of("lost")),
        skipped=tuple({"dims": e["dims"], "why": e["skipped"]} for e in journal.of("shape") if e.get("skipped")),
        variants={
            c.id: points.Variant(
                kernel=c.kernel, bindings=c.bindings, content_id=c.content_id, variant_id=c.variant_id, cubins=tuple(c.cubins.values())
            )
            for c in m.candidates
        },
    )  # fmt: skip


def _shapes(name: str, m: Campaign, journal: Journal) -> Sequence[points.Shaped]:
    """In the order of the campaign, candidates in the order of drawing. Raises CakeError where a shape is missing: half a set is not
    what was drawn."""
    (dtype,) = m.contracts
    out = []
    for entry in m.shapes:
        e = journal.measured(TUNE, dtype, entry.dims)
        if e is None:
            raise _bad(f"{name} was not measured at {entry.dims}; run it again with the same OUT, it goes on there")
        if "again" not in e:
            continue
        said = e["contenders"]
        out.append(
            points.Shaped(
                workload=name, shape=dict(entry.dims), set=entry.set, again_of=e["again"]["of"], again_us=e["again"]["samples_us"],
                method=e["method"], step_us=e["step_us"],
                measured=tuple(
                    points.Measured(id=c, **{k: v for k, v in said[c].items() if k != "us"}) for c in entry.candidates[dtype] if c in said
                ),
            )
        )  # fmt: skip
    assert len({shape_key(s.shape) for s in out}) == len(out)
    return out


def _bad(message: str) -> CakeError:
    law = "Evidence is recorded from a whole run of `python -m corpus.ranking run DIR OUT`."
    return CakeError(error("ranking/bad-run", "data", message, contract=law))
