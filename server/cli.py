"""The `cake` command: the same engine for people.

Exit codes: 0 accepted or passed, 1 rejected or failed, 2 cannot (bad arguments, missing file, unknown name, no GPU).
`--json` prints the tool's structured result. Imports are lazy: `cake serve` must answer its first request quickly.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from server import __version__
from server.cli_calibrate import COMMANDS as CALIBRATE
from server.cli_common import (
    finish,
    json_option,
    parse_shape,
    program_options,
    read_program,
    ref_of,
    replace_file,
    shared_options,
    write_artifacts,
)
from server.cli_estimate import COMMANDS as ESTIMATE
from server.cli_evidence import COMMANDS as EVIDENCE
from server.cli_knowledge import COMMANDS as KNOWLEDGE
from server.cli_report import report
from server.cli_tune import COMMANDS as TUNE

if TYPE_CHECKING:
    from server.catalog import Catalog
    from server.engine import Engine


class Settings:
    """Options of every command (set by `shared_options`); the engine is made when a command first needs it."""

    def __init__(self) -> None:
        self.workspace: Path | None = None
        self.contracts: Path | None = None
        self.no_gpu = self.debug = self.read_only = False

    def engine(self, *, keep: bool = True) -> Engine:
        """`keep=False`: what is only looked at makes no workspace; one that is there is used."""
        import logging

        import structlog

        from server.engine import Config, Engine, default_workspace
        from server.logs import log_to_stderr

        if not structlog.is_configured():
            log_to_stderr(logging.WARNING)
        workspace = self.workspace or default_workspace()
        read_only = self.read_only or not (keep or os.path.exists(workspace))
        return Engine(Config(workspace, self.no_gpu, read_only, self.contracts))

    def catalog(self) -> Catalog:
        """Listings need no workspace, so none is made."""
        from server.catalog import Catalog

        return Catalog(None, self.contracts, no_gpu=self.no_gpu)


class Command(click.Group):
    """Turns anticipated failures into one line on stderr and exit code 2."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """A fresh `Settings` for every run, there before the options that fill it are read."""
        return super().make_context(*args, **{"obj": Settings(), **extra})

    def invoke(self, ctx: click.Context) -> Any:
        from cake_ir.diagnostics import CakeError
        from server.errors import EngineError

        try:
            return super().invoke(ctx)
        except EngineError as exc:
            click.echo(f"error[{exc.code}]: {exc.message}" + (f"\n  {exc.next}" if exc.next else ""), err=True)
            ctx.exit(2)
        except CakeError as exc:
            click.echo(f"error[{exc.diagnostic.rule}]: {exc.diagnostic.message}", err=True)
            ctx.exit(2)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            click.echo(
                "interrupted: the work was given up and its processes ended; what was stored is intact", err=True
            )
            ctx.exit(130)
        except Exception as exc:
            if ctx.obj is not None and ctx.obj.debug:
                raise
            where = f"{type(exc).__module__}.{type(exc).__qualname__}"
            click.echo(f"error[internal/unexpected]: {where}: {exc}\n  run `cake --debug ...` for the trace", err=True)
            ctx.exit(2)


@click.group(cls=Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cake")
def cli() -> None:
    """Verify, estimate, compile, check and time Cake IR kernels."""


cli.params[:0] = shared_options()


# ---- programs -----------------------------------------------------------------------------------------------------


@cli.command()
@program_options
@click.option("--prove", is_flag=True, help="Try to prove for all shapes what is only checked; takes seconds.")
@click.pass_context
def verify(
    ctx: click.Context,
    file: Path,
    settings: tuple[str, ...],
    target: str | None,
    kernel: str | None,
    as_json: bool,
    prove: bool,
) -> None:
    """Run every gate on FILE."""
    ref = ref_of(file, settings, target, kernel)
    result = ctx.obj.engine(keep=False).verify(ref, "detailed", prove)
    from server.terminal import show_properties

    finish(ctx, result, as_json, text=ref.text, name=str(file), show=show_properties)


@cli.command()
@program_options
@click.option(
    "--emit", type=click.Choice(["cuda", "ptx", "cubin", "sass"]), help="Write this form to stdout, or to --output."
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File for --emit.")
@click.pass_context
def build(
    ctx: click.Context,
    file: Path,
    settings: tuple[str, ...],
    target: str | None,
    kernel: str | None,
    as_json: bool,
    emit: str | None,
    output: Path | None,
) -> None:
    """Compile FILE (no GPU needed)."""
    from server.errors import BadArgument
    from server.terminal import show_data, working

    if output is not None:
        if emit is None:
            raise BadArgument("-o belongs to --emit", "name the form to write, e.g. --emit cuda")
        if not output.parent.is_dir():
            raise BadArgument(f"{output} cannot be written: {output.parent} is not a directory", code="args/file")
    engine = ctx.obj.engine()
    ref = ref_of(file, settings, target, kernel)
    with working("compiling") as control:
        result = engine.evaluate.build(ref, control, "detailed")
    if emit and not as_json and result.status == "passed":
        raw = engine.artifact(result.ids["build_id"], emit)
        assert raw is not None
        if output:
            try:
                output.write_bytes(raw)
            except OSError as exc:
                raise BadArgument(f"{output} cannot be written: {exc.strerror}", code="args/file") from exc
        else:
            sys.stdout.buffer.write(raw)
            sys.stdout.buffer.flush()
        ctx.exit(0)
    finish(ctx, result, as_json, text=ref.text, name=str(file), show=show_data)


@cli.command()
@program_options
@click.option("--contract", required=True, help="Workload contract.")
@click.option("--shape", "shape", multiple=True, metavar="M=..,N=..", help="One shape instead of a set.")
@click.option("--shapes", "shape_set", default="boundary", show_default=True, help="Shape set of the contract.")
@click.option(
    "--on", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True, help="Interpret, or run on the GPU."
)
@click.option("--fresh", is_flag=True, help="Repeat although the same check is stored.")
@click.option(
    "--sanitize",
    metavar="TOOL,..|all",
    help="With --on gpu: a second opinion by compute-sanitizer (memcheck, racecheck, synccheck, initcheck).",
)
@click.pass_context
def check(
    ctx: click.Context,
    file: Path,
    settings: tuple[str, ...],
    target: str | None,
    kernel: str | None,
    as_json: bool,
    contract: str,
    shape: tuple[str, ...],
    shape_set: str,
    on: str,
    fresh: bool,
    sanitize: str | None,
) -> None:
    """Compare FILE with a contract's oracle."""
    from server.terminal import show_cases, working

    engine = ctx.obj.engine()
    ref = ref_of(file, settings, target, kernel)
    shapes = [parse_shape(shape)] if shape else shape_set
    tools = [t.strip() for t in (sanitize or "").split(",") if t.strip()]
    with working("checking") as control:
        result = engine.evaluate.check(
            ref, contract, shapes, on=on, fresh=fresh, sanitize=tools, control=control, detail="detailed"
        )
    finish(ctx, result, as_json, text=ref.text, name=str(file), show=show_cases)


@cli.command()
@program_options
@click.option("--contract", required=True, help="Workload contract.")
@click.option("--shapes", "shape_set", default="tuning", show_default=True, help="Shape set of the contract.")
@click.option("--shape", "shape", multiple=True, metavar="M=..,N=..", help="One shape instead of a set.")
@click.option("--fresh", is_flag=True, help="Measure again although stored.")
@click.pass_context
def bench(
    ctx: click.Context,
    file: Path,
    settings: tuple[str, ...],
    target: str | None,
    kernel: str | None,
    as_json: bool,
    contract: str,
    shape_set: str,
    shape: tuple[str, ...],
    fresh: bool,
) -> None:
    """Time FILE beside the contract's baselines (needs a GPU)."""
    from server.terminal import show_data, working

    engine = ctx.obj.engine()
    ref = ref_of(file, settings, target, kernel)
    shapes = [parse_shape(shape)] if shape else shape_set
    with working("timing") as control:
        result = engine.evaluate.bench(ref, contract, shapes, fresh=fresh, control=control, detail="detailed")
    finish(ctx, result, as_json, text=ref.text, name=str(file), show=show_data)


@cli.command()
@program_options
@click.option("--contract", required=True, help="Workload contract that supplies inputs.")
@click.option("--shape", "shape", multiple=True, metavar="M=..,N=..", help="Shape (default: the first tuning shape).")
@click.option("--compare", metavar="ID", default="", help="Set it beside the profile of this measurement_id.")
@click.option("--compare-anyway", is_flag=True, help="Compare although device, contract or shape differ.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write the page of the profile here.")
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write the timeline here, for Perfetto.")
@click.option(
    "--profile",
    "raw",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the whole profile here (JSON), for `cake report`.",
)
@click.pass_context
def profile(
    ctx: click.Context,
    file: Path,
    settings: tuple[str, ...],
    target: str | None,
    kernel: str | None,
    as_json: bool,
    contract: str,
    shape: tuple[str, ...],
    compare: str,
    compare_anyway: bool,
    html: Path | None,
    trace: Path | None,
    raw: Path | None,
) -> None:
    """Profile FILE on the GPU at one shape: what bounds it, and which lines cost the most."""
    from server.terminal import show_profile, working

    engine = ctx.obj.engine()
    ref = ref_of(file, settings, target, kernel)
    with working("profiling") as control:
        result = engine.evaluate.profile(
            ref,
            contract,
            parse_shape(shape),
            compare_with=compare,
            compare_anyway=compare_anyway,
            control=control,
            detail="detailed",
        )
    write_artifacts(engine, result, {"timeline": html, "trace": trace, "profile": raw})
    finish(ctx, result, as_json, text=ref.text, name=str(file), show=show_profile)


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--check", "only_check", is_flag=True, help="Change nothing; exit 1 if the file is not in canonical form."
)
@json_option
@click.pass_context
def fmt(ctx: click.Context, file: Path, only_check: bool, as_json: bool) -> None:
    """Rewrite FILE in canonical form."""
    from cake_ir import parse, print_file
    from server.results import Result, add_diagnostics

    text = read_program(file)
    parsed = parse(text)
    if parsed.file is None:
        result = add_diagnostics(
            Result(summary=f"{file} does not parse", status="rejected"), parsed.diagnostics, text, "detailed"
        )
        finish(ctx, result, as_json, text=text, name=str(file))
        return
    canonical = print_file(parsed.file)
    same = canonical == text
    if not same and not only_check:
        replace_file(file, canonical, "the old text is untouched", mode=None)
    words = "is canonical" if same else "is not in canonical form" if only_check else "rewritten"
    finish(
        ctx,
        Result(
            summary=f"{file} {words}", status="failed" if only_check and not same else "ok", data={"changed": not same}
        ),
        as_json,
    )


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def show(ctx: click.Context, file: Path, as_json: bool) -> None:
    """Print FILE canonically, or its JSON form with --json."""
    import json

    from cake_ir import parse, print_file, to_json
    from server.results import Result, add_diagnostics

    text = read_program(file)
    parsed = parse(text)
    if parsed.file is None:
        result = add_diagnostics(
            Result(summary=f"{file} does not parse", status="rejected"), parsed.diagnostics, text, "detailed"
        )
        finish(ctx, result, as_json, text=text, name=str(file))
        return
    click.echo(
        json.dumps(to_json(parsed.file), indent=1, ensure_ascii=False) if as_json else print_file(parsed.file),
        nl=as_json,
    )


# ---- serving ------------------------------------------------------------------------------------------------------


@cli.command()
@click.option(
    "--http",
    "port",
    type=click.IntRange(0, 65535),
    help="Serve streamable HTTP on 127.0.0.1:PORT instead of stdio (0: any free port).",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Bearer token for --http (default: made in the workspace).",
)
@click.option("--read-only", is_flag=True, help="Offer only tools that change nothing.")
@click.pass_context
def serve(ctx: click.Context, port: int | None, token_file: Path | None, read_only: bool) -> None:
    """Serve the MCP tools on stdio, or on loopback HTTP."""
    from server.errors import BadArgument
    from server.logs import log_to_stderr
    from server.serve import make_token, read_token, serve_http, serve_stdio, warn_of_problems

    if token_file is not None and port is None:
        raise BadArgument("--token-file belongs to --http")
    log_to_stderr()
    ctx.obj.read_only = read_only
    engine = ctx.obj.engine()
    warn_of_problems(engine)
    if port is None:
        serve_stdio(engine)
        return
    if token_file is None:
        if read_only:
            raise BadArgument("--read-only with --http needs --token-file: the workspace may not be written")
        token_file = make_token(engine.config.workspace)
        click.echo(f"cake: bearer token in {token_file}", err=True)
    serve_http(engine, port, read_token(token_file))


@cli.command()
@click.option("--http", "over_http", is_flag=True, help="Use streamable HTTP instead of stdio.")
@click.pass_context
def demo(ctx: click.Context, over_http: bool) -> None:
    """Run the whole loop on a k-means kernel through a real MCP client."""
    from server.demo import run_demo

    ctx.exit(run_demo(no_gpu=ctx.obj.no_gpu, over_http=over_http))


for _command in (*ESTIMATE, *KNOWLEDGE, *EVIDENCE, *TUNE, *CALIBRATE, report):
    cli.add_command(_command)
for _command in cli.commands.values():
    _command.params += shared_options()


def main() -> None:
    """Console entry."""
    cli(prog_name="cake")


if __name__ == "__main__":
    main()
