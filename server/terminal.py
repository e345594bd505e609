"""Results for people: source excerpts with carets, tables, a progress bar on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from server.results import DiagnosticOut, Result, TextEdit, clean
from server.worker import Control, kill_all

_STYLE = {"error": "bold red", "warning": "yellow", "advice": "cyan"}
_STATUS = {
    "accepted": "bold green",
    "passed": "bold green",
    "ok": "green",
    "rejected": "bold red",
    "failed": "bold red",
    "unavailable": "yellow",
    "running": "cyan",
    "cancelled": "yellow",
    "error": "bold red",
}


def console(stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def print_result(
    result: Result, text: str | None = None, name: str = "", show: Callable[[Result], None] | None = None
) -> None:
    """Diagnostics with their source lines, then what the command has to show, then the summary."""
    out = console()
    lines = text.split("\n") if text is not None else []
    for found in result.diagnostics:
        print_diagnostic(out, found, lines, name)
    for rule, count in result.omitted.items():
        out.print(f"[dim]... and {count} more of {escape(rule)}[/dim]")
    if show is not None:
        show(result)
    out.print(f"[{_STATUS[result.status]}]{result.status}[/]: {escape(result.summary)}")
    if result.status in ("unavailable", "error", "cancelled") and result.next:
        out.print(f"  {escape(result.next)}")


def print_diagnostic(out: Console, found: DiagnosticOut, lines: Sequence[str], name: str = "") -> None:
    """One finding in the way compilers do it: message, place, source line, caret, further places, fix."""
    style = _STYLE[found.severity]
    out.print(
        f"[{style}]{found.severity}[{escape(found.rule)}][/]: {escape(found.message)}".replace(
            f"[{found.rule}]", escape(f"[{found.rule}]"), 1
        )
    )
    out.print(f"  [blue]-->[/blue] {escape(name or 'program')}:{found.line}:{found.col}")
    _excerpt(out, lines, found.line, found.col, style)
    for place in found.related:
        out.print(f"  [blue]note[/blue] {place.line}:{place.col}: {escape(place.message)}")
        if place.line != found.line:
            _excerpt(out, lines, place.line, place.col, "blue")
    for number, step in enumerate(found.evidence, 1):
        out.print(f"   {number:2}. {step.line}:{step.col}: {escape(step.message)}")
    if found.contract:
        out.print(f"  [dim]rule:[/dim] {escape(found.contract)}")
    for fix in found.fixes:
        out.print(f"  [green]fix:[/green] {escape(fix.title)}")
        _edits(out, fix.edits, lines)
        if fix.verified:
            out.print("      [dim]passes the verifier; its results are unchecked[/dim]")
    out.print()


def _excerpt(out: Console, lines: Sequence[str], line: int, col: int, style: str) -> None:
    if 0 < line <= len(lines):
        shown = clean(lines[line - 1], 200)
        out.print(f"[blue]{line:5} |[/blue] {escape(shown)}")
        out.print(f"[blue]      |[/blue] {' ' * min(max(col - 1, 0), 200)}[{style}]^[/]")


def _edits(out: Console, edits: Sequence[TextEdit], lines: Sequence[str]) -> None:
    """The edits as numbered lines with a neighbour on each side. They apply from the end backwards, so that the numbers are
    those of the text as it stands."""
    import difflib

    text = "\n".join(lines)
    for edit in edits:
        at = text.find(edit.old)
        first = text[: max(at, 0)].count("\n") + 1
        old, new = edit.old.split("\n"), edit.new.split("\n")
        for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(1):
            for kind, i, j, k, m in group:
                for n in range(i, j):
                    colour = "dim" if kind == "equal" else "red"
                    mark = " " if kind == "equal" else "-"
                    number = first + n if at >= 0 else ""
                    out.print(f"  [{colour}]{number:>5} | {mark} {escape(clean(old[n], 200))}[/]")
                for n in range(k, m) if kind != "equal" else ():
                    out.print(f"  [green]      | + {escape(clean(new[n], 200))}[/]")
        if at >= 0:
            text = text[:at] + edit.new + text[at + len(edit.old) :]


# ---- what commands show besides findings --------------------------------------------------------------------------


#: Columns of listings that hold more than fits a line; --json has everything.
_COLUMNS = {
    "results": (
        "kernel", "bindings", "shape", "device", "mode", "time_us", "baseline", "baseline_us", "ratio", "verdict", "stale",
    ),
    "kernels": ("name", "target", "contract", "bindings", "file"),
    "families": ("family", "tables", "shapes", "file", "kernels"),
}  # fmt: skip


def print_rows(result: Result, key: str) -> None:
    """A listing and what sums it up."""
    show_listing(result, key)
    console().print(f"[dim]{escape(result.summary)}[/dim]")


def show_listing(result: Result, key: str = "rows") -> None:
    """A listing as a table of its text columns. What all rows share stands above it; where the terminal is too narrow, what
    holds several values (shapes, bindings) stands on a line of its own below its row, so that no number is broken.
    """
    rows = result.data[key]
    out = console()
    if rows:
        shown = [
            n for n in _COLUMNS.get(key, tuple(rows[0])) if any(row.get(n) not in (None, "", {}, []) for row in rows)
        ]
        shared = [n for n in shown[1:] if len(rows) > 2 and len({_cell(row.get(n)) for row in rows}) == 1]
        if shared:
            out.print("[dim]" + escape(", ".join(f"{n} {_cell(rows[0].get(n))}" for n in shared)) + "[/dim]")
        names = [n for n in shown if n not in shared]
        width = {n: max(len(n), *(len(_cell(row.get(n))) for row in rows)) for n in names}
        above, below = list(names), []
        while len(above) > 1 and sum(width[n] + 2 for n in above) > out.width:
            several = [n for n in above if any(isinstance(row.get(n), Mapping | list) for row in rows)]
            below.append(max(several or above[1:], key=lambda n: width[n]))
            above.remove(below[-1])
        table = _rows_table(rows, above, [n for n in names if n in below])
        out.print(table)
        for reason in dict.fromkeys(row["stale"] for row in rows if row.get("stale")):
            out.print(f"[yellow]stale[/]: {escape(reason)}")


def _rows_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], below: Sequence[str]) -> Table | Group:
    """One table, or with `below` one whose first column holds a second, dim line."""
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    parts: list[Any] = []
    for row in rows:
        cells = [escape("stale" if name == "stale" and row[name] else _cell(row.get(name))) for name in names]
        parts.append((cells, "  ".join(escape(_cell(row.get(n))) for n in below if row.get(n))))
    if not below:
        for cells, _ in parts:
            table.add_row(*cells)
        return table
    # Columns keep one width over all rows: each row is a table of its own, and a dim line follows it.
    widths = [max(len(n), *(len(cells[k]) for cells, _ in parts)) for k, n in enumerate(names)]

    def grid(cells: Sequence[str], style: str = "") -> Table:
        made = Table.grid(padding=(0, 2, 0, 0))
        for width in widths:
            made.add_column(min_width=width, overflow="fold", style=style)
        made.add_row(*cells)
        return made

    lines: list[Any] = [grid(list(names), "bold")]
    for cells, more in parts:
        lines += [grid(cells), f"  [dim]{more}[/dim]"]
    return Group(*lines)


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{k}={v}" for k, v in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


_VERDICT = {"proved": "green", "checked": "cyan", "refuted": "bold red", "undecided": "yellow"}


def show_properties(result: Result) -> None:
    """What was proved, checked, refuted or left undecided, and what was not looked at."""
    out = console()
    rows = result.data.get("properties")
    if isinstance(rows, list) and rows:
        table = Table(box=None, pad_edge=False)
        for name in ("kernel", "property", "verdict", "scope", "reason"):
            table.add_column(name, overflow="fold")
        for row in rows:
            verdict = f"[{_VERDICT[row['verdict']]}]{row['verdict']}[/]"
            table.add_row(row["kernel"], row["name"], verdict, escape(row["scope"]), escape(row["reason"]))
        out.print(table)
    for text in result.data.get("not_checked", []):
        out.print(f"[dim]not checked: {escape(text)}[/dim]")


def show_data(result: Result) -> None:
    """The members of `data`, indented."""
    _tree(console(), result.data, 0)


def _tree(out: Console, value: Any, depth: int) -> None:
    pad = "  " * depth
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        if isinstance(item, Mapping | list) and item and depth < 4:
            out.print(f"{pad}[bold]{escape(str(key))}[/bold]")
            _tree(out, item, depth + 1)
        else:
            out.print(f"{pad}{escape(str(key))}: {escape(_cell(item))}")


def show_estimate(result: Result) -> None:
    """What costs the time, where the critical path goes, what neighbouring schedules would take, and what to try."""
    out, data = console(), result.data
    for n, x in enumerate(data.get("limiters", ()), 1):
        out.print(f"[bold]{n}. {escape(x['what'])}[/bold]: {_cell(x['cost_us'])} us ({x['share']:.0%})")
        if x.get("message"):
            out.print(f"   [dim]{escape(x['message'])}[/dim]")
    if data.get("path"):
        rows = [
            {**{k: x[k] for k in ("role", "line", "op", "why", "us")}, "share": f"{x['share']:.0%}"}
            for x in data["path"]
        ]
        _print_table(out, rows, "critical path")
    tried = data.get("sensitivity", ())
    if tried:
        rows = [
            {"change": x["what"], "us": x.get("time_us"), "saves us": x.get("saves_us"), "rejected by": x.get("rule", "")} for x in tried
        ]  # fmt: skip
        _print_table(out, rows, "neighbouring schedules, predicted")
    for x in data.get("advice", ()):
        out.print(f"[green]try[/] {escape(x['title'])}: {escape(x['why'])}")
    bounds = ", ".join(f"{k} {_cell(v)}" for k, v in data.get("bounds_us", {}).items())
    if bounds:  # a refusal has none
        out.print(f"[dim]{escape(f'us that each resource needs alone: {bounds}')}[/dim]")
    for text in data.get("assumptions", ()):
        out.print(f"[dim]{escape(text)}[/dim]")


def show_ranking(result: Result) -> None:
    """Candidates in order, then the rejected with their reasons, then what the order is worth."""
    out, data = console(), result.data
    rows = [
        {
            "": f"{row['place']}{'=' if row.get('tied') else ''}", "candidate": row["name"], "us": row["time_us"],
            "interval": f"{_cell(row['low_us'])} to {_cell(row['high_us'])}" if "high_us" in row else "",
            "x best": row["times_best"], "bound by": row["bound"], "verified": "yes" if row.get("verified") else "",
        }
        for row in data.get("ranking", ())
    ]  # fmt: skip
    if rows:
        _print_table(out, rows, "predicted, not measured (=: not told apart from the one before)")
    for row in data.get("rejected", ()):
        at = f" (line {row['line']})" if row["line"] else ""
        out.print(f"[red]rejected[/] {escape(row['name'])}: {escape(row['rule'])}: {escape(row['message'])}{at}")
    for key, count in data.get("not_shown", {}).items():
        out.print(f"[dim]{count} more of {escape(key)}; --json names the artifact that has all[/dim]")


def show_cases(result: Result) -> None:
    """Cases of a check in a narrow table; below it, what is wrong with those that did not pass."""
    out = console()
    cases = result.data.get("cases", [])
    table = Table(box=None, pad_edge=False)
    for name in ("shape", "distribution", "verdict", "error/tolerance"):
        table.add_column(name, overflow="fold")
    said: dict[str, list[str]] = {}
    for case in cases:
        verdict = case["verdict"]
        colour = "green" if verdict == "passed" else "red" if verdict in ("failed", "error") else "dim"
        excess = "" if verdict == "skipped" else _cell(case.get("excess"))
        table.add_row(_cell(case["shape"]), case["distribution"], f"[{colour}]{verdict}[/]", excess)
        if verdict != "passed":
            text = f"{verdict}: {case.get('message', '')}"
            said.setdefault(text, []).append(f"{_cell(case['shape'])} {case['distribution']}")
    if cases:
        out.print(table)
    for text, where in said.items():
        more = f" and {len(where) - 1} more" if len(where) > 1 else ""
        out.print(f"{escape(where[0])}{more}: {escape(text)}")


def show_profile(result: Result) -> None:
    """What bounds a kernel: limiters with their evidence, time by role, counters, and what moved against a reference."""
    out, data = console(), result.data
    for n, x in enumerate(data.get("limiters", ()), 1):
        where = f"line {x['line']}" + (f" ({x['role']})" if x["role"] else "")
        out.print(f"[bold]{n}. {escape(where)}[/bold] {escape(x['what'])}: {_cell(x['us'])} us")
        out.print(f"   [dim]{escape(x['evidence'])}[/dim]")
    roles = data.get("timeline", {}).get("roles", {})
    if roles:
        _print_table(out, [{"role": r, **us} for r, us in roles.items()], "us per role instance")
    if data.get("counters"):
        out.print(escape("counters: " + ", ".join(f"{k} {v}" for k, v in data["counters"].items())))
    found = data.get("comparison", {})
    moved = [{"role": x["role"] or "all", "line": " -> ".join("-" if at is None else str(at) for at in x["line"]),
              "ops": " ".join(x["ops"]), "change, us": f"{x['delta_us']:+.4g}"}
             for x in found.get("lines", ())[:10] if x["delta_us"]]  # fmt: skip
    if moved:
        _print_table(out, moved, "against the reference")
    for note in (*found.get("notes", ()), *data.get("notes", ())):
        out.print(f"[dim]{escape(note)}[/dim]")


def _print_table(out: Console, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="dim")
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(escape(_cell(v)) for v in row.values()))
    out.print(table)


def show_page(result: Result) -> None:
    """A Markdown page; plain when stdout is not a terminal."""
    page = result.data["page"]
    if sys.stdout.isatty():
        from rich.markdown import Markdown

        console().print(Markdown(page))
    else:
        print(page)


def show_checks(result: Result) -> None:
    out = console()
    for check in result.data["checks"]:
        mark = "[green]ok  [/green]" if check["ok"] else "[yellow]--  [/yellow]"
        out.print(
            f"{mark}{check['check']:10} {escape(check['found'])}"
            + (f"  ({escape(check['remedy'])})" if "remedy" in check else "")
        )


LINE_EVERY_S = 5.0


@contextmanager
def working(what: str) -> Iterator[Control]:
    """A progress bar on a terminal; elsewhere a line on stderr every few seconds. Ctrl-C ends the worker."""
    control = Control()
    if sys.stderr.isatty():
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        shown: AbstractContextManager[Any] = (bar := Progress(*columns, console=console(stderr=True), transient=True))
        task = bar.add_task(what, total=None)
        control.on_progress = lambda done, total, message: bar.update(
            task, completed=done, total=total, description=escape(message or what)
        )
    else:
        shown = nullcontext()
        control.on_progress = line_printer(what)
    with shown:
        try:
            yield control
        except KeyboardInterrupt:
            kill_all()
            raise


def line_printer(what: str) -> Callable[[float, float | None, str], None]:
    """Progress for logs: nothing for quick work, then a line every `LINE_EVERY_S` seconds and what is expected at once."""
    begin = time.monotonic()
    last = begin

    def show(done: float, total: float | None, message: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_EVERY_S or message.startswith("about "):
            last = now
            of = f"{done:g}/{total:g} " if total else ""
            print(f"{what}: {of}{message} ({now - begin:.0f} s)", file=sys.stderr, flush=True)

    return show
