"""`cake report`: one self-contained HTML page from stored evidence, from committed rows, or from one or two profiles."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from server.cli_common import finish, json_option, read_bounded, read_program, refuse_device, replace_file

if TYPE_CHECKING:
    from server.engine import Engine
    from server.report.model import Evidence
    from server.store import Store

MAX_PROFILE = 64 * 2**20


@click.command()
@click.argument("what", nargs=-1, metavar="[ID|FILE]...")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The page to write.")
@click.option("--committed", is_flag=True, help="The committed measurements instead of the workspace.")
@click.option("--contract", metavar="C", help="Only evidence under this contract.")
@click.option("--kernel", metavar="NAME", help="Only this kernel.")
@click.option(
    "--program",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Text whose lines a profile numbers (default: the corpus kernel).",
)
@json_option
@click.pass_context
def report(
    ctx: click.Context,
    what: tuple[str, ...],
    out: Path,
    committed: bool,
    contract: str | None,
    kernel: str | None,
    program: Path | None,
    as_json: bool,
) -> None:
    """Write one HTML page: verdicts, speed-ups, roofline, samples, timelines.

    Each argument is an id (ir_, v_, src_) or a .cake file, of which the workspace holds evidence; without one, all of
    the workspace. One .json profile gives the page of that profile, two give their comparison.
    """
    from server.errors import BadArgument
    from server.results import Result

    if not out.parent.is_dir():
        raise BadArgument(f"{out} cannot be written: {out.parent} is not a directory", code="args/file")
    refuse_device(out)
    if contract is not None:
        ctx.obj.catalog().contract(contract)
    profiles = [w for w in what if w.endswith(".json")]
    if program is not None and not profiles:
        raise BadArgument("--program belongs to a profile (.json)")
    if profiles:
        if len(profiles) != len(what) or len(what) > 2 or committed:
            raise BadArgument(
                "give one or two .json profiles and nothing else", "ids and .cake files make a page of their own"
            )
        page, said, data = _profiles(list(map(Path, profiles)), program)
    else:
        if committed and what:
            raise BadArgument("--committed takes no ids or files", "choose rows with --kernel and --contract")
        evidence = _gather(ctx.obj.engine(keep=False), what, committed, contract, kernel)
        page, said, data = _rendered(evidence)
    replace_file(out, page, "name another with --out")
    size = len(page.encode())
    finish(
        ctx,
        Result(
            summary=f"{out}: {said}, {size // 1024} KiB", status="ok", data={"page": str(out), "bytes": size, **data}
        ),
        as_json,
    )


def _known(kernel: str) -> None:
    """Raises BadArgument where the corpus has no such kernel: a page without rows would read as not measured yet."""
    from corpus.kernels import kernels
    from server.errors import BadArgument
    from server.results import clean

    names = sorted(k.name for k in kernels())
    if kernel not in names:
        raise BadArgument(f"the corpus has no kernel {clean(kernel, 64)!r}", f"it has {', '.join(names)}")


def _gather(engine: Engine, what: Sequence[str], committed: bool, contract: str | None, kernel: str | None) -> Evidence:
    from server.report import collect

    now = datetime.now(UTC).isoformat(timespec="seconds")
    contracts = engine.catalog.contract_registry()
    if committed:
        kernels = [kernel] if kernel else []
        page = collect.committed(contracts, generated=now, kernels=kernels, contract=contract, store=engine.store)
        if kernel and not (page.timings or page.judgements or page.profiles):
            _known(kernel)
        return page
    rows, absent = _variants(engine.store, what)
    rows = [r for r in rows if kernel in (None, r["kernel"])]
    named = ", ".join(dict.fromkeys(r["kernel"] for r in rows))
    scope = f"workspace {engine.config.workspace}"
    scope += f": {', '.join(what)}" if what else ": everything stored"
    scope += (f"; kernel {kernel}" if kernel else "") + (f"; contract {contract}" if contract else "")
    return collect.stored(
        engine.store, [r["variant_id"] for r in rows], contracts, title=f"Evidence on {named}" if named else "Evidence",
        scope=scope, generated=now, contract=contract, absent=absent,
    )  # fmt: skip


def _variants(store: Store, what: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The stored variants that the arguments name, each once, and the arguments of which there are none.

    Raises UnknownId for an id that is not here and BadArgument for what is neither an id nor a readable program.
    """
    from server.errors import BadArgument, UnknownId
    from server.store import is_id

    if not what:
        return store.variants(), []
    found: dict[str, dict[str, Any]] = {}
    absent = []
    for name in what:
        if is_id(name, "v"):
            row = store.variant(name)
            rows = [row] if row else []
        elif is_id(name):
            source = store.source_of(name)
            if source is None:
                raise UnknownId("program", name)
            rows = store.variants(name if is_id(name, "ir") else _content(source[1], name))
        elif name.endswith(".cake") or os.path.exists(name):
            rows = store.variants(_content(read_program(Path(name)), name))
            if not rows:
                absent.append(name)
                continue
        else:
            raise BadArgument(f"{name!r} is neither an id nor a file", "ids look like ir_ or v_ and 32 hex digits")
        if not rows:
            raise UnknownId("variant", name)
        found |= {r["variant_id"]: r for r in rows}
    return list(found.values()), absent


def _content(text: str, name: str) -> str:
    from cake_ir import content_id, parse
    from server.errors import BadArgument

    parsed = parse(text, name)
    if parsed.file is None:
        raise BadArgument(f"{name} does not parse, so nothing is stored under it", "cake verify says what is wrong")
    return content_id(parsed.file)


def _rendered(e: Evidence) -> tuple[str, str, dict[str, Any]]:
    from server.report import evidence_page

    counts = {
        "timings": len(e.timings),
        "checks": len(e.judgements),
        "builds": len(e.resources),
        "profiles": len(e.profiles),
    }
    verdicts = dict(e.tally())
    said = ", ".join(f"{n} {what}" for what, n in counts.items() if n) or "no evidence stored"
    said += f" ({', '.join(f'{n} {v}' for v, n in verdicts.items())})" if verdicts else ""
    said += f", {e.stale_count} stale" if e.stale_count else ""
    missing = {k: list(v[:8]) for k, v in e.missing.items() if v}
    return evidence_page(e), said, {**counts, "verdicts": verdicts, "stale": e.stale_count, "missing": missing}


def _profiles(paths: list[Path], program: Path | None) -> tuple[str, str, dict[str, Any]]:
    from server.errors import BadArgument
    from server.report import comparison_page, timeline_page
    from server.results import clean

    loaded = [_profile(p) for p in paths]
    texts = [read_program(program) if program else _corpus_text(p) for p in loaded]
    names = [clean(str(p.get("kernel", "kernel")), 120) for p in loaded]
    title = f"Profile of {names[0]}" if len(set(names)) == len(names) == 1 else f"Two profiles of {names[0]}"
    title = f"Profiles of {names[0]} and {names[-1]}" if len(set(names)) == 2 else title
    try:
        if len(loaded) == 1:
            page = timeline_page(loaded[0], source=texts[0], title=title)
            return page, f"profile of {names[0]}", {"kernels": names}
        page = comparison_page(loaded[0], loaded[1], first_source=texts[0], second_source=texts[1], title=title)
    except ValueError as exc:
        raise BadArgument(str(exc), code="args/file") from exc
    return page, f"comparison of {paths[0]} and {paths[1]}", {"kernels": names}


def _profile(path: Path) -> dict[str, Any]:
    """A profile from a file; raises BadArgument when it is none."""
    from server.errors import BadArgument

    try:
        found = json.loads(read_bounded(path, MAX_PROFILE, "a profile"))
    except (ValueError, RecursionError) as exc:
        raise BadArgument(f"{path} is not JSON: {exc}", code="args/file") from exc
    if not isinstance(found, dict) or not isinstance(found.get("timeline"), dict):
        raise BadArgument(
            f"{path} is not a profile", "`cake profile` stores one as the artifact `profile`", code="args/file"
        )
    return found


def _corpus_text(profile: dict[str, Any]) -> str:
    """The text of the profiled corpus kernel; empty when the corpus has none of this name, or another text by now."""
    from corpus.evidence import current_id
    from corpus.kernels import kernels

    found = [k for k in kernels() if k.name == profile.get("kernel")]
    content_id = profile.get("content_id")
    if not found or content_id not in (None, "", current_id(found[0])):
        return ""
    return found[0].text()
