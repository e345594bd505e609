"""`cake estimate`: predict one kernel at one shape, or order several candidates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from server.cli_common import finish, json_option, parse_pairs, parse_shape, parse_value, read_program


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--shape", "shape", multiple=True, required=True, metavar="M=..,N=..", help="Every dimension of the kernel."
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE,..",
    help="Bind tunables. Repeated for the same tunable, each is a candidate of its own.",
)  # fmt: skip
@click.option(
    "--vary", multiple=True, metavar="NAME=V1,V2", help="Order the candidates of all combinations (repeatable)."
)
@click.option("--target", metavar="TARGET", help="One of the programs' targets.")
@click.option("--kernel", metavar="NAME", help="Kernel, if a file has several.")
@click.option("--device", metavar="NAME", help='CUDA name, e.g. "NVIDIA H200" (default: the product of the target).')
@click.option(
    "--l2", type=click.Choice(["cold", "warm"]), default="cold", show_default=True,
    help="Whether what fits L2 is there when the kernel starts.",
)  # fmt: skip
@json_option
@click.pass_context
def estimate(
    ctx: click.Context, files: tuple[Path, ...], shape: tuple[str, ...], settings: tuple[str, ...], vary: tuple[str, ...],
    target: str | None, kernel: str | None, device: str | None, l2: Any, as_json: bool,
) -> None:  # fmt: skip
    """Predict time and bounds of FILE at one shape; of several candidates, their order."""
    from server.programs import Ref
    from server.ranking import Request
    from server.terminal import show_estimate, show_ranking, working

    wanted = parse_shape(shape)
    sets, varied = binding_sets(settings), values_of(vary)
    bases = [Ref(text=read_program(f), target=target, kernel=kernel) for f in files]
    engine = ctx.obj.engine(keep=False)
    if len(bases) == 1 and len(sets) == 1 and not varied:
        ref = Ref(text=bases[0].text, bindings=sets[0], target=target, kernel=kernel)
        result = engine.estimate(ref, wanted, "detailed", device, l2)
        finish(ctx, result, as_json, text=ref.text, name=str(files[0]), show=show_estimate)
    with working("estimating") as control:
        result = engine.rank(Request(bases, sets, varied), wanted, "detailed", device, l2, control)
    finish(ctx, result, as_json, show=show_ranking)


def binding_sets(settings: Sequence[str]) -> list[dict[str, Any]]:
    """One set of bindings of all options, or one per option where a tunable is bound in several. Raises BadArgument."""
    sets = [parse_pairs((s,), "--set") for s in settings]
    names = Counter(name for s in sets for name in s)
    if any(n > 1 for n in names.values()):
        return sets
    return [{name: value for s in sets for name, value in s.items()}]


def values_of(vary: Sequence[str]) -> dict[str, list[Any]]:
    """`NAME=V1,V2` options to the values of each tunable. Raises BadArgument."""
    from server.errors import BadArgument

    out: dict[str, list[Any]] = {}
    for text in vary:
        name, eq, values = text.partition("=")
        found = [parse_value(v.strip()) for v in values.split(",") if v.strip()]
        if not eq or not name.strip() or not found:
            raise BadArgument(f"--vary wants NAME=V1,V2, got {text!r}")
        out.setdefault(name.strip(), []).extend(found)
    return out


COMMANDS = (estimate,)
