"""Commands about evidence: the committed measurements, bundles from other machines, and the self-test that makes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from server.cli_common import finish, finish_rows, json_option, refuse_device

if TYPE_CHECKING:
    from server.results import Result

FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.option(
    "--import", "bundle", type=click.Path(dir_okay=False, path_type=Path), help="Check a bundle of `cake selftest`, add its rows."
)  # fmt: skip
@click.option("--into", type=FOLDER, help="Directory of results (default: the one that comes with Cake).")
@click.option("--rebuild", is_flag=True, help="Build every measured variant again; say which rows are stale.")
@click.option("--mark", is_flag=True, help="With --rebuild: record what is stale, for readers without a compiler.")
@json_option
@click.pass_context
def results(
    ctx: click.Context, bundle: Path | None, into: Path | None, rebuild: bool, mark: bool, as_json: bool
) -> None:
    """List the committed measurements, losses first; add to them, or see which are stale."""
    from corpus.evidence import DIRECTORY
    from server.errors import BadArgument

    if mark and not rebuild:
        raise BadArgument("--mark records what --rebuild finds", "give both")
    if bundle is not None and rebuild:
        raise BadArgument("--import and --rebuild are two steps", "import first, then run `cake results --rebuild`")
    directory = into or DIRECTORY
    if bundle is not None:
        finish(ctx, take_in(bundle, directory), as_json, show=show_rows)
    if into is not None and not into.is_dir():
        raise BadArgument(f"{into} is no directory", code="args/file")
    catalog = ctx.obj.catalog()
    if not rebuild:
        finish_rows(ctx, catalog.results(directory), as_json, "results")
    finish_rows(ctx, rebuild_all(ctx.obj.engine(keep=False), directory, mark), as_json, "results")


def take_in(bundle: Path, directory: Path) -> Result:
    """Check a bundle and write the rows that stand up. `failed` when any job of it is refused."""
    from corpus import evidence, intake
    from corpus.bundle import read
    from server.errors import EngineError
    from server.results import Result, clean
    from server.terminal import working

    given = read(bundle)
    try:
        with evidence.editing(directory), working("checking the bundle"):
            found = intake.judge(given, directory)
            paths = intake.write(found, directory)
    except OSError as exc:
        raise EngineError(
            "storage/unavailable", f"{directory} cannot be written: {exc.strerror}", "name another with --into"
        ) from exc
    m = given.manifest
    where = clean(f"{m.device.get('name', 'an unnamed device')}, driver {m.driver}, {m.compiler}", 200)
    words = [
        f"{n} {what}" for what in ("added", "replaced", "kept", "refused", "no result") if (n := found.count(what))
    ]
    cut = "" if m.complete else "; the run was cut short"
    rows = [{k: clean(v, 400) for k, v in row.items()} for row in intake.table(found.lines)]
    return Result(
        summary=f"bundle of {m.date} from {where}: {', '.join(words) or 'nothing in it'}{cut}",
        status="failed" if found.refused else "ok",
        data={"rows": rows, "written": [str(p) for p in paths], "bundle_sha256": given.sha256},
        next="run `cake results --rebuild --mark` when machine code was not reproduced" if paths else "",
    )


def rebuild_all(engine: Any, directory: Path, mark: bool) -> Result:
    """Rows with staleness from a fresh build. `failed` when that is not what `stale.json` records."""
    from corpus import rebuild
    from server.terminal import working

    with working("building measured variants"):
        found = rebuild.find_marks(directory, engine.cubin_dir() if engine.config.workspace.exists() else None)
    new = {rebuild.Record("", m).variant: str(m["why"]) for m in found}
    same = new == rebuild.marks(directory)
    if mark and not same:
        rebuild.write_marks(found, directory)
    result = engine.catalog.results(directory, new)
    variants = len({r.variant for r in rebuild.records(directory)})
    result.summary += f"; {variants} variants looked at, {len(found)} build to other machine code now"
    if not same:
        result.summary += ", recorded" if mark else ", which stale.json does not say (--mark records it)"
        result.status = "ok" if mark else "failed"
    return result


@click.command()
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default="cake-selftest.zip", show_default=True, help="The bundle."
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Few distributions, one tuning shape, warm only: a few minutes.")
@click.option("--kernels", "names", metavar="NAME,..", help="Only these corpus kernels.")
@json_option
@click.pass_context
def selftest(ctx: click.Context, out: Path, quick: bool, names: str | None, as_json: bool) -> None:
    """Run every corpus kernel of this GPU through numbers and timing, into one evidence bundle."""
    from server import selftest as work
    from server.results import Result
    from server.terminal import working

    refuse_device(out)
    indices = ctx.obj.catalog().gpu_indices()
    only = [n.strip() for n in (names or "").split(",") if n.strip()]
    command = "cake selftest" + " --quick" * quick + (f" --kernels {','.join(only)}" if only else "")
    with working("self-test") as control:
        done = work.run(
            indices[0] if indices else None, out, control, only=only, quick=quick, command=command,
            tell=lambda row: click.echo(f"{row['kernel']} {row['kind']}: {row['status']}", err=True),
        )  # fmt: skip
    count = {s: sum(p.entry.status == s for p in done.parts) for s in ("passed", "failed", "error")}
    words = ", ".join(f"{n} {s}" for s, n in count.items() if n)
    result = Result(
        summary=f"{len(done.parts)} jobs on {done.device['name']}: {words}; evidence in {out}",
        status="passed" if done.passed else "failed",
        data={"rows": done.rows(), "bundle": str(out), "device": work.bundle.public(done.device)},
        next="send the bundle to the maintainers; `cake results --import BUNDLE` checks and adds it",
    )
    finish(ctx, result, as_json, show=show_rows)


def show_rows(result: Result) -> None:
    """`data.rows` as a table."""
    from rich.markup import escape
    from rich.table import Table

    from server.results import clean
    from server.terminal import console

    rows = result.data["rows"]
    if not rows:
        return
    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(escape(clean(f"{v:.1f}" if isinstance(v, float) else str(v), 300)) for v in row.values()))
    console().print(table)


COMMANDS = (results, selftest)
