"""`cake tune`: prepare a campaign here, run it on a GPU of this machine under its lock, and record what it led to.

The campaign and its journal lie in the workspace, so a tuning that was killed goes on where it ended: shapes that are in the
journal are not measured again. A candidate that hangs costs its process and is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus import files
from corpus.families import DIRECTORY, Family, Shape
from corpus.tuning import campaign as campaigns
from corpus.tuning import table
from corpus.tuning.campaign import Campaign, Settings
from corpus.tuning.journal import Journal
from corpus.tuning.prepare import entries, prepare
from corpus.tuning.run import ATTEMPTS, now
from server.errors import EngineError, Missing
from server.results import Result, clean
from server.worker import Control, WorkerDied, gpu_lock, run_worker

if TYPE_CHECKING:
    from server.engine import Engine

TARGET = "sm_90a"
RESTARTED = ("worker/hung", "worker/timeout", "worker/killed", "worker/crashed", "lowering/device-fault")
"""How a GPU process ends when a candidate breaks it; the next one goes on without that candidate."""
NO_GPU_NEXT = (
    "here: `cake tune FAMILY --prepare DIR`; on the GPU machine: `python -m corpus.tuning.run DIR OUT`; then here: "
    "`cake tune FAMILY --record DIR OUT`"
)


def prepare_into(
    engine: Engine, family: Family, directory: Path, settings: Settings, seed: int, only: Sequence[Shape], command: str,
    control: Control, commit: str,
) -> Campaign:  # fmt: skip
    """Write a campaign folder. Raises EngineError storage/* where that is impossible, CakeError for what the family says."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return prepare(
            family, directory, target=TARGET, settings=settings, seed=seed, command=command, date=now(), commit=commit,
            cache_dir=engine.cubin_dir(), only=only, progress=control.progress,
        )  # fmt: skip
    except OSError as exc:
        raise unwritable(directory, exc) from exc


def current(directory: Path, family: Family, settings: Settings, seed: int, only: Sequence[Shape]) -> Campaign | None:
    """The campaign of a folder when it is what would be prepared now: same texts, contracts, shapes, settings and seed."""
    from cake_ir.diagnostics import CakeError
    from corpus.contract import contracts
    from corpus.kernels import kernel

    try:
        found = campaigns.read(directory)
    except CakeError:
        return None
    wanted = [(n, s) for n, s in entries(family, only)]
    digests = {d: {"name": n, "digest": contracts()[n].digest} for d, n in family.contracts.items()}
    fresh = all(k.text == kernel(name).text() for name, k in found.kernels.items())
    same = (found.family, found.settings, found.seed, found.contracts) == (family.name, settings, seed, digests)
    return found if fresh and same and [(e.set, e.dims) for e in found.shapes] == wanted else None


def run_here(engine: Engine, directory: Path, out: Path, budget_s: float, control: Control) -> dict[str, Any]:
    """Measure on this machine's GPU; the run's summary. Raises Missing gpu/none, EngineError of what ended it for good."""
    found = engine.catalog.gpu_indices()
    if not found:
        raise Missing("gpu/none", "this machine has no GPU (or it is switched off by --no-gpu)", NO_GPU_NEXT)
    job = {"directory": str(directory.resolve()), "out": str(out.resolve()), "device": found[0], "budget_s": budget_s}
    last: EngineError | None = None
    with gpu_lock(found[0], control):
        for _ in range(ATTEMPTS):
            try:
                return run_worker("corpus.tuning.run", job, timeout_s=budget_s + 240, control=control)
            except EngineError as exc:
                if exc.code not in RESTARTED and not isinstance(exc, WorkerDied):
                    raise
                last = exc
    assert last is not None
    raise EngineError(
        "tuning/given-up", f"{ATTEMPTS} processes in a row ended: {last.message}",
        "what was measured is in the workspace; see `cake doctor`, then run the same command again to go on",
    )  # fmt: skip


def record(
    engine: Engine, family: Family, directory: Path, out: Path, into: Path | None, command: str, commit: str = ""
) -> Result:
    """Decide, write table and record, and put the campaign into the evidence store."""
    campaign = campaigns.read(directory)
    if campaign.family != family.name:
        raise EngineError(
            "tuning/bad-campaign", f"{directory} is a campaign of {campaign.family}, not of {family.name}", ""
        )
    if not out.is_file():
        raise EngineError(
            "args/file", f"{out} is no file", "name the journal that `python -m corpus.tuning.run DIR OUT` wrote"
        )
    journal = Journal(out, campaign.id)
    try:
        starts = journal.of("start")
        date = str(starts[-1]["date"]) if starts else ""
        made = table.make(family, campaign, journal, command=command, date=date, commit=commit)
    finally:
        journal.close()
    store(engine, campaign, made)
    try:
        paths = table.write(made, into or DIRECTORY, into / "tuning" if into else table.RESULTS)
    except OSError as exc:
        raise unwritable(into or DIRECTORY, exc) from exc
    return told(made, campaign, [str(p) for p in paths])


def store(engine: Engine, campaign: Campaign, made: table.Made) -> None:
    """Texts, variants and measurements, all measurements in one transaction; storing the same again changes nothing."""
    kept = engine.store
    kept.require()
    for name, k in campaign.kernels.items():
        kept.put_program(k.content_id, kept.put_source(k.text), name)
    for c in campaign.candidates:
        kept.put_variant(c.variant_id, c.content_id, dict(c.bindings), campaign.target, c.kernel)
    kept.put_measurements(made.measurements)


def told(made: table.Made, campaign: Campaign, paths: Sequence[str]) -> Result:
    """The answer: losses first."""
    g = made.record["gates"]
    stopped = sum(r["seeds"] for r in g["rejected"])
    first = next(iter(made.record["validation"].values()), None)
    sets = {n: v["loss"] for n, v in first["sets"].items()} if first else {}
    words = ", ".join(f"{n} {v:.3f}" for n, v in sets.items())
    cut = "" if made.record["complete"] else "; the run was cut short"
    return Result(
        summary=f"{campaign.family} on {made.record['device'].get('name')}: {len(made.table.routes)} routes over "
        f"{len(made.table.variants)} variants; served time over best: {words}; gates stopped {stopped} of {g['seeds']} seeds "
        f"({g['gpu_s_not_spent']:.0f} GPU s not spent){cut}",
        status="ok",
        ids={"campaign": campaign.id},
        data={
            "rows": [{k: clean(str(v), 300) for k, v in r.items()} for r in table.summary_rows(made)],
            "gates": g,
            "written": list(paths),
        },
        next=f"cake routes {campaign.family} --shape ... explains a choice",
    )


def prepared(campaign: Campaign, directory: Path) -> Result:
    """The answer of --prepare."""
    counted: dict[str, int] = {}
    for r in campaign.rejected:
        counted[f"{r.gate} {r.rule}"] = counted.get(f"{r.gate} {r.rule}", 0) + 1
    own = [c for c in campaign.candidates if not c.twin]
    pairs = sum(len(ids) for e in campaign.shapes for ids in e.candidates.values())
    bare = [e.dims for e in campaign.shapes if not e.candidates]
    rows: list[Mapping[str, Any]] = [{"what": f"stopped by {k}", "seeds": n} for k, n in sorted(counted.items())]
    rows += [{"what": "left out by prediction", "seeds": campaign.left_out}]
    hole = f"; {len(bare)} shapes are taken by no candidate, e.g. {table.text(bare[0])}" if bare else ""
    return Result(
        summary=f"{campaign.family}: {campaign.seeds} seeds, {campaign.legal} legal, {campaign.verified} verified, {len(own)} compiled "
        f"({len(campaign.candidates) - len(own)} twins), {pairs} to measure at {len(campaign.shapes)} shapes, "
        f"in {campaign.prepare_s:.0f} s{hole}",
        status="ok",
        ids={"campaign": campaign.id},
        data={"rows": [dict(r) for r in rows], "directory": str(directory)},
        next=f"on the GPU machine: python -m corpus.tuning.run {directory} OUT; then: cake tune {campaign.family} --record {directory} OUT",
    )


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """Make the folder and be the only tuning in it. Raises EngineError tuning/busy, storage/*."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        handle = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as exc:
        raise unwritable(home, exc) from exc
    try:
        if not files.lock(handle, 0.0):
            raise EngineError(
                "tuning/busy",
                f"another tuning of {home.name} is under way in this workspace",
                "wait for its end, or name another --workspace",
            )
        yield
    finally:
        os.close(handle)


def forget(home: Path) -> None:
    """Make room for another campaign: the journal of the old one is kept beside it under its date, never deleted."""
    journal = home / "journal.jsonl"
    try:
        if journal.exists():
            journal.rename(home / f"journal-{now().replace(':', '')}.jsonl")
    except OSError as exc:
        raise unwritable(home, exc) from exc


def unwritable(where: Path, exc: OSError) -> EngineError:
    """A folder that cannot be written."""
    import errno

    full = exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    code = "storage/full" if full else "storage/unavailable"
    return EngineError(
        code,
        f"{where} cannot be written: {exc.strerror}",
        "free space or name another folder; what was stored is intact",
    )
