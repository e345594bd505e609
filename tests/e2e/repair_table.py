"""The table of repairs: per planted fault the rule that found it, how far from the edit, and what the repair cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from mcp import Client

from cake_ir import content_id, parse
from tests.e2e.faults import FAULTS, Fault
from tests.e2e.repair_client import Outcome, RepairClient, caller

DOCS = Path(__file__).resolve().parents[2] / "docs" / "repair.md"
HEAD = ("planted fault", "kernel", "rule", "lines off", "tries", "bytes", "repaired")


@dataclass(frozen=True)
class Row:
    """One fault and what became of it."""

    fault: Fault
    outcome: Outcome

    @property
    def restored(self) -> bool:
        """Whether the repaired program is the one before the fault, comments and spacing apart."""
        return self.outcome.repaired and _content(self.outcome.text) == _content(self.fault.right)

    @property
    def cells(self) -> tuple[str, ...]:
        o = self.outcome
        found = (o.rule, str(self.fault.distance(o.line))) if o.rule else ("none", "")
        verdict = ("restored" if self.restored else "differently") if o.repaired else "no"
        return (self.fault.name, self.fault.kernel, *found, str(o.tries), str(o.repair_bytes), verdict)


def _content(text: str) -> str:
    file = parse(text).file
    if file is None:
        raise ValueError("the program does not parse")
    return content_id(file)


async def plant_and_repair(client: Client, part: str = "", *, show: bool = False) -> list[Row]:
    """Repair every planted fault whose kernel and name contain `part`; with `show`, say how each one went."""
    rows = []
    for fault in FAULTS:
        if part not in f"{fault.kernel} {fault.name}":
            continue
        outcome = await RepairClient(caller(client)).repair(fault.broken, fault.contract, fault.shapes)
        rows.append(Row(fault, outcome))
        if show:
            how = "; ".join(outcome.titles) or "not repaired"
            print(f"{fault.kernel}, {fault.name}: {outcome.rule or 'no finding'} -> {how}", flush=True)
    return rows


def render(rows: Sequence[Row]) -> str:
    """A Markdown table and a sentence of totals."""
    lines = [HEAD, tuple("---" for _ in HEAD), *(r.cells for r in rows)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    done = [r.outcome for r in rows if r.outcome.repaired]
    if not done:
        return f"{table}\n\nNone of {len(rows)} repaired.\n"
    sizes = [o.repair_bytes for o in done]
    same = sum(r.restored for r in rows)
    return (
        f"{table}\n\n{len(done)} of {len(rows)} repaired, {sum(o.tries == 1 for o in done)} with one fix, {same} restored "
        f"to the program before the fault; bytes per repair: median {median(sizes):.0f}, most {max(sizes)}.\n"
    )


def write_docs(rows: Sequence[Row]) -> None:
    """Put the table in the place of the one in docs/repair.md: from its head to the end of the page."""
    text = DOCS.read_text(encoding="utf-8")
    DOCS.write_text(text[: text.index(f"| {HEAD[0]} |")] + render(rows), encoding="utf-8")
