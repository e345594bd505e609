"""`cake calibrate`: measure what this GPU does, for the cost model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from server.cli_common import finish, json_option

if TYPE_CHECKING:
    from server.results import Result

FOLDER = click.Path(file_okay=False, path_type=Path)
RUN_S = 300.0
"""Longest run of all microbenchmarks; they take about a minute."""
NO_GPU_NEXT = (
    "here: `cake calibrate --prepare DIR`; on the GPU machine: `python -m corpus.calibrate.run DIR OUT`; then here: "
    "`cake calibrate --record DIR OUT`"
)


@click.command()
@click.option(
    "--prepare", "into", type=FOLDER, metavar="DIR", help="Only prepare: write the jobs for a GPU machine into DIR."
)
@click.option(
    "--record", type=FOLDER, nargs=2, metavar="DIR OUT", help="Only record: the answers in OUT to the jobs of DIR."
)  # fmt: skip
@click.option("--show", is_flag=True, help="Show the rates that are recorded, and the devices without any.")
@click.option(
    "--records", is_flag=True, help="List times outside their prediction that were reported in this workspace."
)
@click.option("--target", default="sm_90a", show_default=True, help="Target of the microbenchmarks.")
@click.option("--sms", type=click.IntRange(1, 1024), help="SMs of the device (default: of the target's full product).")
@click.option("--only", default="", metavar="PREFIX", help="Rates that begin with this, e.g. tensor or tma.l2.")
@click.option(
    "--files", "where", type=FOLDER, metavar="DIR", help="Calibration files (default: those that come with Cake)."
)
@json_option
@click.pass_context
def calibrate(
    ctx: click.Context, into: Path | None, record: tuple[Path, Path] | None, show: bool, records: bool, target: str, sms: int | None,
    only: str, where: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure what this GPU does (products, copies, barriers, instructions, launches) for `cake estimate`."""
    from analyses.cost.calibration import DIRECTORY
    from server.errors import BadArgument
    from server.terminal import show_listing

    directory = where or DIRECTORY
    if sum((into is not None, record is not None, show, records)) > 1:
        raise BadArgument("--prepare, --record, --show and --records are steps of their own", "give one of them")
    if records:
        finish(ctx, ctx.obj.engine(keep=False).calibration_records(), as_json, show=show_listing)
    if show:
        finish(ctx, shown(directory, only), as_json, show=show_listing)
    if record is not None:
        finish(ctx, recorded(*record, directory), as_json, show=show_listing)
    if into is not None:
        count = prepared(ctx.obj.engine(), into, target, sms, only)
        finish(ctx, told_prepared(count, into), as_json)
    finish(ctx, run_here(ctx.obj.engine(), target, sms, only, directory), as_json, show=show_listing)


def prepared(engine: Any, into: Path, target: str, sms: int | None, only: str) -> int:
    """Write the jobs; how many. Raises CakeError, or EngineError storage/unavailable."""
    from corpus.calibrate.prepare import prepare
    from server.terminal import working

    with working("preparing") as control:
        try:
            jobs = prepare(
                into,
                target,
                sms,
                only=only,
                cache_dir=engine.cubin_dir(),
                each=lambda rate, i, of: control.progress(i, of, rate),
            )
        except OSError as exc:
            from server.tuning import unwritable

            raise unwritable(into, exc) from exc
    return len(jobs["jobs"])


def told_prepared(count: int, into: Path) -> Result:
    from server.results import Result

    step = f"`python -m corpus.calibrate.run {into} OUT`"
    return Result(
        summary=f"{count} microbenchmarks in {into}; run {step} on the GPU machine", status="ok", data={"jobs": count},
        next=f"{step} there, then here: `cake calibrate --record {into} OUT`",
    )  # fmt: skip


def recorded(jobs: Path, answers: Path, directory: Path) -> Result:
    """Write the calibration file. Raises CakeError `corpus/bad-answers`, EngineError args/file or storage/unavailable."""
    import json

    from corpus.calibrate import record
    from corpus.calibrate.prepare import read
    from corpus.calibrate.run import ANSWERS
    from server.errors import BadArgument

    made = read(jobs)
    try:
        given = json.loads((answers / ANSWERS).read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        raise BadArgument(
            f"{answers / ANSWERS} is no answer of a run ({exc})", "name the OUT of `python -m corpus.calibrate.run DIR OUT`",
            code="args/file",
        ) from None  # fmt: skip
    try:
        path = record.record(made, given, directory)
    except OSError as exc:
        from server.tuning import unwritable

        raise unwritable(directory, exc) from exc
    return shown(path.parent, "", path.stem)


def run_here(engine: Any, target: str, sms: int | None, only: str, directory: Path) -> Result:
    """All steps on a GPU of this machine, under its lock. Raises Missing gpu/none, EngineError of what ended the worker."""
    from server.errors import Missing
    from server.terminal import working
    from server.worker import gpu_lock, run_worker

    engine.store.require()
    found = engine.catalog.gpu_indices()
    if not found:
        raise Missing("gpu/none", "this machine has no GPU (or it is switched off by --no-gpu)", NO_GPU_NEXT)
    home = engine.config.workspace / "calibration"
    prepared(engine, home, target, sms, only)
    with working("measuring") as control, gpu_lock(found[0], control):
        job = {"directory": str(home.resolve()), "out": str(home.resolve()), "only": only}
        run_worker("corpus.calibrate.run", job, timeout_s=RUN_S, control=control)
    return recorded(home, home, directory)


def shown(directory: Path, only: str, device: str = "") -> Result:
    """Recorded rates (of one device, by its file's name, or of all), and the devices that have a data sheet only."""
    import json

    from analyses.cost.calibration import DATASHEET, parse, slug
    from server.errors import BadArgument
    from server.results import Result

    if not directory.is_dir():
        raise BadArgument(f"{directory} is no directory", "measure first: `cake calibrate`", code="args/file")
    files = [p for p in sorted(directory.glob("*.json")) if not device or p.stem == device]
    found = []
    for path in files:
        try:
            found.append(parse(json.loads(path.read_bytes()), path.name))
        except OSError as exc:
            raise BadArgument(f"{path} cannot be read: {exc.strerror}", code="args/file") from None
        except (ValueError, RecursionError) as exc:
            raise BadArgument(f"{path} is not JSON ({exc})", code="args/file") from None
    rows = [
        {"rate": name, "device": c.device, "unit": r.unit, **{k: float(f"{getattr(r, k):.4g}") for k in ("value", "low", "high")}}
        for c in found
        for name, r in c.rates.items()
        if name.startswith(only)
    ]  # fmt: skip
    if only and found and not rows:
        raise BadArgument(f"no recorded rate begins with {only!r}", "`cake calibrate --show` lists all of them")
    measured = {c.slug for c in found}
    sheets = [d for d in DATASHEET if slug(d) not in measured]
    words = "; ".join(f"{c.source}, NVRTC {c.compiler}" for c in found) or "nothing is calibrated"
    return Result(
        summary=words + (f"; data sheet only: {', '.join(sheets)}" if not device else ""), status="ok",
        data={"rows": rows, "uncalibrated": sheets, "files": [str(p) for p in files]},
        next="`cake estimate FILE --shape ..` uses these rates" if rows else "measure: `cake calibrate`",
    )  # fmt: skip


COMMANDS = (calibrate,)
