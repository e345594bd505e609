"""What the commands share: reading programs and options, printing results, exit codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from server.programs import Ref
    from server.results import Result


def read_program(path: Path) -> str:
    """The text of a .cake file. Raises BadArgument when it cannot be read."""
    from server.errors import BadArgument
    from server.programs import MAX_TEXT

    try:
        return read_bounded(path, MAX_TEXT, "a program").decode("utf-8")
    except UnicodeDecodeError as exc:
        raise BadArgument(f"{path} is not UTF-8 text (byte {exc.start})", code="args/file") from exc


def read_bounded(path: Path, most: int, what: str) -> bytes:
    """The bytes of a file, which may be a pipe or an endless device. Raises BadArgument beyond `most` bytes."""
    from server.errors import BadArgument

    try:
        with path.open("rb") as handle:
            data = handle.read(most + 1)
    except OSError as exc:
        raise BadArgument(f"{path} cannot be read: {exc.strerror}", code="args/file") from exc
    if len(data) > most:
        raise BadArgument(f"{path} is too large: {what} has at most {most} bytes", code="args/file")
    return data


def refuse_device(path: Path) -> None:
    """Raises BadArgument where a file is to be written and something else stands (a device, a pipe): a rename would
    replace it."""
    from server.errors import BadArgument

    if path.exists() and not path.resolve().is_file():
        raise BadArgument(f"{path} cannot be written: it is no regular file", code="args/file")


def parse_value(text: str) -> bool | int | float | str:
    """A tunable's value as written: true/false, an integer, a number, else a name."""
    if text in ("true", "True", "false", "False"):
        return text in ("true", "True")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_pairs(texts: tuple[str, ...], what: str) -> dict[str, Any]:
    """`A=1,B=2` and repeated options to a dict. Raises BadArgument."""
    from server.errors import BadArgument

    out: dict[str, Any] = {}
    for part in (p for text in texts for p in text.split(",") if p):
        name, eq, value = part.partition("=")
        if not eq or not name or not value:
            raise BadArgument(f"{what} wants NAME=VALUE, got {part!r}")
        out[name.strip()] = parse_value(value.strip())
    return out


def parse_shape(texts: tuple[str, ...]) -> dict[str, int]:
    from server.errors import BadArgument

    out = parse_pairs(texts, "--shape")
    bad = [k for k, v in out.items() if isinstance(v, bool) or not isinstance(v, int)]
    if bad:
        raise BadArgument(f"--shape: {bad[0]} must be an integer")
    return out


def ref_of(file: Path, settings: tuple[str, ...], target: str | None, kernel: str | None) -> Ref:
    from server.programs import Ref

    return Ref(text=read_program(file), bindings=parse_pairs(settings, "--set"), target=target, kernel=kernel)


def program_options(fn: Callable[..., Any]) -> Callable[..., Any]:
    """FILE and how to bind it."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the structured result."),
        click.option("--kernel", metavar="NAME", help="Kernel, if the file has several."),
        click.option("--target", metavar="TARGET", help="One of the program's targets."),
        click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Bind a tunable (repeatable)."),
        click.argument("file", type=click.Path(path_type=Path)),
    ):
        fn = option(fn)
    return fn


json_option = click.option("--json", "as_json", is_flag=True, help="Print the structured result.")


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Callback: an option given after the command counts as given before it."""
    if value is not None and value is not False:
        setattr(ctx.obj, str(param.name), value)


def shared_options() -> list[click.Option]:
    """The options that hold for every command; they may stand before or after it."""
    folder = click.Path(file_okay=False, path_type=Path)
    rows: list[tuple[str, dict[str, Any]]] = [
        ("--workspace", {"type": folder, "help": "Evidence store (default: .cake here)."}),
        ("--no-gpu", {"is_flag": True, "help": "Do not use a GPU even if there is one."}),
        (
            "--contracts",
            {
                "type": click.Path(exists=True, file_okay=False, path_type=Path),
                "help": "Directory of your own contracts (trusted Python).",
            },
        ),
        ("--debug", {"is_flag": True, "help": "Show the trace of an unexpected failure."}),
    ]
    return [click.Option([name], expose_value=False, callback=_remember, **more) for name, more in rows]


def write_artifacts(engine: Any, result: Result, paths: dict[str, Path | None]) -> None:
    """Write artifacts of a result to files, by kind. What the result does not have is said on stderr.

    Raises EngineError storage/unavailable when a file cannot be written."""
    from server.errors import EngineError

    owners = {a.kind: a.uri.removeprefix("cake://artifact/").split("/")[0] for a in result.artifacts}
    for kind, path in paths.items():
        if path is None:
            continue
        raw = engine.artifact(owners[kind], kind) if kind in owners else None
        if raw is None:
            click.echo(f"{path} not written: this result has no {kind}", err=True)
            continue
        try:
            path.write_bytes(raw)
        except OSError as exc:
            message = f"{path} cannot be written: {exc.strerror}"
            raise EngineError(
                "storage/unavailable", message, f"the {kind} is stored as {kind} of {owners[kind]}"
            ) from exc


def finish(
    ctx: click.Context,
    result: Result,
    as_json: bool,
    *,
    text: str | None = None,
    name: str = "",
    show: Callable[[Result], None] | None = None,
) -> None:
    """Print and exit with the result's code."""
    if as_json:
        import json

        click.echo(json.dumps(result.compact(), indent=2, ensure_ascii=False))
    else:
        from server.terminal import print_result

        print_result(result, text, name, show)
    ctx.exit(result.exit_code)


def finish_rows(ctx: click.Context, result: Result, as_json: bool, key: str) -> None:
    """Listings: `--json` prints the bare list, for scripts."""
    import json

    if as_json:
        click.echo(json.dumps(result.data[key], indent=2, ensure_ascii=False))
    else:
        from server.terminal import print_rows

        print_rows(result, key)
    ctx.exit(result.exit_code)


def replace_file(path: Path, text: str, advice: str, mode: int | None = 0o644) -> None:
    """Write a file whole or not at all. Raises EngineError storage/unavailable with `advice` as what to do."""
    from corpus.files import replace
    from server.errors import EngineError

    try:
        replace(path, text.encode("utf-8"), mode=mode)
    except OSError as exc:
        raise EngineError("storage/unavailable", f"{path} cannot be written: {exc.strerror}", advice) from exc
