"""Commands about families: tune one, list them, explain a choice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from server.cli_common import finish, finish_rows, json_option, parse_shape
from server.cli_evidence import show_rows

if TYPE_CHECKING:
    from corpus.routes import Table
    from server.results import Result

FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument("name", metavar="FAMILY")
@click.option(
    "--prepare", "into", type=FOLDER, metavar="DIR", help="Only prepare: write the campaign for a GPU machine into DIR."
)
@click.option(
    "--record", type=click.Path(path_type=Path), nargs=2, metavar="DIR OUT", help="Only record the run OUT of campaign DIR."
)  # fmt: skip
@click.option(
    "--seed",
    type=click.IntRange(0, (1 << 63) - 1),
    default=0,
    show_default=True,
    help="Of everything that is drawn: folds, probes, unseen shapes.",
)
@click.option(
    "--budget", type=click.FloatRange(min=5), default=300.0, show_default=True, metavar="SECONDS", help="GPU time."
)
@click.option("--only-shapes", multiple=True, metavar="B=..,N=..", help="Tune on these shapes only (repeatable).")
@click.option("--commit", default="", metavar="HASH", help="Commit of the measured tree, where that is no checkout.")
@click.option("--most", type=click.IntRange(1, 400), help="Compile at most so many candidates.")
@click.option(
    "--tables", type=FOLDER, metavar="DIR", help="Write table and record here instead of where Cake reads them."
)
@json_option
@click.pass_context
def tune(
    ctx: click.Context, name: str, into: Path | None, record: tuple[Path, Path] | None, seed: int, budget: float,
    only_shapes: tuple[str, ...], most: int | None, commit: str, tables: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure the kernels of FAMILY and make its route table: which variant serves which shape."""
    from corpus.families import family
    from corpus.recipes import UNTUNED
    from corpus.tuning.campaign import Settings
    from server import tuning
    from server.errors import BadArgument
    from server.selftest import installed_commit
    from server.terminal import working

    if name in UNTUNED:
        raise BadArgument(
            f"{name} is not tuned: it has one kernel for all shapes",
            "`python -m corpus.recipes untuned TARGET` writes its table",
        )
    chosen = family(name)
    if into is not None and record is not None:
        raise BadArgument(
            "--prepare and --record are two steps", "prepare first, run it on the GPU machine, then record"
        )
    only = [parse_shape((text,)) for text in only_shapes]
    command = " ".join(
        [
            "cake tune",
            name,
            *(["--seed", str(seed)] if seed else []),
            *(["--most", str(most)] if most else []),
            *(f"--only-shapes {t}" for t in only_shapes),
        ]
    )
    engine = ctx.obj.engine()
    if record is not None:
        with working("deciding"):
            result = tuning.record(engine, chosen, record[0], record[1], tables, f"{command} --record DIR OUT", commit)
        finish(ctx, result, as_json, show=show_rows)
    settings = Settings() if most is None else Settings(compiled=most)
    if into is not None:
        with working("preparing") as control:
            made = tuning.prepare_into(
                engine,
                chosen,
                into,
                settings,
                seed,
                only,
                f"{command} --prepare DIR",
                control,
                commit or installed_commit(),
            )
        finish(ctx, tuning.prepared(made, into), as_json, show=show_rows)
    engine.store.require()
    if not engine.catalog.gpu_indices():
        from server.errors import Missing

        raise Missing("gpu/none", "this machine has no GPU (or it is switched off by --no-gpu)", tuning.NO_GPU_NEXT)
    home = engine.config.workspace / "tuning" / name
    with tuning.alone(home):
        with working("tuning") as control:
            if tuning.current(home, chosen, settings, seed, only) is None:
                tuning.forget(home)
                tuning.prepare_into(
                    engine, chosen, home, settings, seed, only, command, control, commit or installed_commit()
                )
            tuning.run_here(engine, home, home / "journal.jsonl", budget, control)
        finish(
            ctx, tuning.record(engine, chosen, home, home / "journal.jsonl", tables, command), as_json, show=show_rows
        )


@click.command()
@json_option
@click.pass_context
def families(ctx: click.Context, as_json: bool) -> None:
    """List the families: their kernels, which targets have a route table, and the file that defines them."""
    from corpus.families import DIRECTORY
    from corpus.families import families as known
    from corpus.recipes import UNTUNED
    from server.results import Result

    rows = [
        {
            "family": f.name, "tables": tables_of(f.name) or "none", "shapes": sum(map(len, f.tuning_shapes().values())),
            "file": f"corpus/families/{f.name}.py", "kernels": list(dict.fromkeys(m.kernel for m in f.kernels)),
            "contracts": dict(f.contracts), "summary": f.summary,
        }
        for f in known().values()
    ] + [
        {
            "family": name, "tables": tables_of(name) or "none", "shapes": 0, "file": "corpus/recipes.py",
            "kernels": list(dict.fromkeys(kernel for kernel, _, _ in members)), "contracts": {},
            "summary": "not tuned: one kernel serves all",
        }
        for name, (_, members) in UNTUNED.items()
    ]  # fmt: skip
    result = Result(
        summary=f"{len(rows)} families; files and route tables (NAME.TARGET.json) lie in {DIRECTORY}; `cake routes FAMILY` shows a table",
        status="ok", data={"families": rows},
    )  # fmt: skip
    finish_rows(ctx, result, as_json, "families")


def tables_of(name: str) -> str:
    """The targets that the family has a committed route table for."""
    from corpus.families import DIRECTORY

    return " ".join(sorted(p.name.split(".")[1] for p in DIRECTORY.glob(f"{name}.*.json")))


@click.command()
@click.argument("name", metavar="FAMILY")
@click.option("--shape", "shape", multiple=True, metavar="B=..,N=..", help="Explain the choice at this shape.")
@click.option("--dtype", help="Element type (default: the first that the table has).")
@click.option("--target", default="sm_90a", show_default=True)
@click.option("--tables", type=FOLDER, metavar="DIR", help="Where the table lies, if not where Cake reads it.")
@json_option
@click.pass_context
def routes(
    ctx: click.Context, name: str, shape: tuple[str, ...], dtype: str | None, target: str, tables: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Show the routes of FAMILY, or explain which one serves a shape and why."""
    from corpus import routes as r
    from corpus.families import family
    from corpus.recipes import UNTUNED
    from server.results import Result

    if name not in UNTUNED:
        family(name)
    table = r.load(name, target, tables or r.DIRECTORY)
    kinds = list(dict.fromkeys(v.dtype for v in table.variants.values()))
    if shape:
        finish(ctx, explain(table, parse_shape(shape), dtype or kinds[0]), as_json, show=show_rows)
    rows: list[dict[str, Any]] = [
        {"route": i, "dtype": table.variants[x.variant].dtype, "guard": " and ".join(map(str, x.guard)) or "every shape",
         "variant": x.variant, "gain": x.gain, "shapes": x.shapes}
        for i, x in enumerate(table.routes)
    ]  # fmt: skip
    rows += [
        {"route": "else", "dtype": table.variants[n].dtype, "guard": "", "variant": n, "gain": 1.0, "shapes": 0}
        for n in table.fallback
    ]
    rows = [row for row in rows if dtype in (None, row["dtype"])]
    untuned = "no measurement made this table" + (
        "" if name in UNTUNED else f"; `cake tune {name}` makes one that is measured"
    )
    where = f"measured on {table.device['name']}, {table.compiler}" if "name" in table.device else untuned
    result = Result(
        summary=f"{name} on {target}: {len(table.routes)} routes over {len(table.variants)} variants; {where}", status="ok",
        data={"rows": rows, "derived": table.derived, "validation": table.validation}, next="--shape explains a choice",
    )  # fmt: skip
    finish(ctx, result, as_json, show=show_rows)


def explain(table: Table, dims: dict[str, int], dtype: str) -> Result:
    """Route by route why it does or does not serve the shape, and the choice."""
    from corpus.routes import choose
    from lowering.sizes import expression
    from server.results import Result

    sms = int(table.device.get("sms", 132))
    choice = choose(table, dims, dtype, sms)
    env = table.environment(dims, sms)
    rows = []
    for i, route in enumerate(table.routes):
        variant = table.variants[route.variant]
        if variant.dtype != dtype:
            continue
        failed = next((c for c in route.guard if not expression(f"({c.term}) {c.op} {c.value}", env)(env)), None)
        why = f"{failed} does not hold" if failed else table.refusal(variant.id, env) or "serves"
        rows.append({"route": i, "variant": variant.id, "why": why})
        if i == choice.index:
            break
    if choice.index < 0:
        rows.append({"route": "else", "variant": choice.variant.id, "why": choice.reason})
    values = {k: v for k, v in env.items() if k not in dims}
    return Result(
        summary=f"{choice.variant.id}: {choice.reason}", status="ok",
        data={"rows": rows, "variant": choice.variant.id, "bindings": choice.variant.bindings, "values": values,
              "evidence": list(choice.evidence)},
        ids={"variant_id": choice.variant.variant_id} if choice.variant.variant_id else {},
    )  # fmt: skip


COMMANDS = (tune, families, routes)
