"""Samples and spans by line of the program and by role.

Samples belong to instructions, instructions to lines by the line table of the cubin (`lowering.sass`, which follows
inlined helpers to the line that called them). A line belongs to the role whose block it stands in; an instruction of a
shared loop, branch or scalar belongs to the role whose instructions surround it in the code; an op that all roles
execute (a cluster barrier) stays nobody's, for there the warps wait that have nothing else to do. What no line can be
named for (set-up, code behind the last line) is kept as line 0, never dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corpus.profiling.facts import SHARED, Facts, Line
from corpus.profiling.metrics import STALLS
from lowering.sass import Instruction, Sass

UNNAMED = Line(("generated code",))
"""Line 0: instructions without a line of the program."""

CONTROL = frozenset({"for", "while", "if", "elected", "warps", "scalar"})
"""What a line may hold and yet belong to the code around it."""

DEFERRED = 12
"""Instructions behind a BAR.SYNC.DEFER_BLOCKING at which its barrier may still hold the warp (4 seen on an H200)."""

IDLE = frozenset({"selected", "not_selected"})
"""Reasons that are no stall: the warp issued, or was ready."""


@dataclass
class Cell:
    """Samples of one line and role."""

    line: int
    role: str
    ops: tuple[str, ...]
    samples: int = 0
    executed: int = 0
    stalls: Counter[str] = field(default_factory=Counter)

    def top(self, count: int = 3) -> dict[str, int]:
        """The most frequent reasons, issue included."""
        return dict(self.stalls.most_common(count))


def align(
    sass: Sass, instructions: Sequence[Mapping[str, Any]], symbol: str
) -> list[tuple[Instruction, Mapping[str, Any]]]:
    """Our disassembly of `symbol` beside the profiler's rows, by offset. Raises ValueError when they are not of one cubin."""
    ours = {i.offset: i for i in sass.instructions if not symbol or i.function == symbol}
    missing = [r["offset"] for r in instructions if r["offset"] not in ours]
    if missing:
        raise ValueError(f"the profile has an instruction at {missing[0]:#x}, the cubin has none there")
    return [(ours[r["offset"]], r) for r in instructions]


def roles_of(code: Sequence[Instruction], facts: Facts) -> list[str]:
    """The role of each instruction in program order: of its line, or of the code around it when that is one role's."""
    nothing = Line(())
    lines = [facts.lines.get(i.line, nothing) for i in code]
    named = [line.role for line in lines]
    before, last = [], SHARED
    for role in named:
        last = role or last
        before.append(last)
    after, last = [], SHARED
    for role in reversed(named):
        last = role or last
        after.append(last)
    after.reverse()
    around = [b if b == a else SHARED for b, a in zip(before, after, strict=True)]
    return [x.role or (near if CONTROL.issuperset(x.ops) else SHARED) for x, near in zip(lines, around, strict=True)]


def samples_by_line(
    sass: Sass, instructions: Sequence[Mapping[str, Any]], facts: Facts, symbol: str = ""
) -> list[Cell]:
    """One cell per (line, role), most samples first. The samples of all cells add up to those of all instructions."""
    pairs = _at_barriers(align(sass, instructions, symbol))
    roles = roles_of([i for i, _ in pairs], facts)
    cells: dict[tuple[int, str], Cell] = {}
    for (instruction, row), role in zip(pairs, roles, strict=True):
        known = facts.lines.get(instruction.line)
        at = instruction.line if known or facts.text(instruction.line) else 0
        ops = (known.ops or (facts.text(at),)) if known else (("code",) if at else UNNAMED.ops)
        cell = cells.setdefault((at, role), Cell(at, role, ops))
        cell.samples += row["samples"]
        cell.executed += row["executed"]
        cell.stalls.update(row["stalls"])
    return sorted((c for c in cells.values() if c.samples), key=lambda c: -c.samples)


def _at_barriers(pairs: list[tuple[Instruction, Mapping[str, Any]]]) -> list[tuple[Instruction, Mapping[str, Any]]]:
    """Barrier stalls moved to their BAR instruction: it issues and goes on, and the warp is held a few instructions later."""
    out = [(i, dict(row)) for i, row in pairs]
    for at, (instruction, row) in enumerate(out):
        if "barrier" not in row["stalls"] or instruction.opcode in ("BAR", "UCGABAR_WAIT"):
            continue
        bar = next((r for i, r in reversed(out[max(0, at - DEFERRED) : at]) if i.opcode == "BAR"), None)
        if bar is not None:
            count = row["stalls"]["barrier"]
            row |= {
                "samples": row["samples"] - count,
                "stalls": {k: n for k, n in row["stalls"].items() if k != "barrier"},
            }
            held = {**bar["stalls"], "barrier": bar["stalls"].get("barrier", 0) + count}
            bar |= {"samples": bar["samples"] + count, "stalls": held}
    return [(i, row) for i, row in out]


def by_role(cells: Sequence[Cell]) -> dict[str, Cell]:
    """The cells of each role added up; the key "" holds what all roles execute."""
    out: dict[str, Cell] = {}
    for c in cells:
        total = out.setdefault(c.role, Cell(0, c.role, ()))
        total.samples += c.samples
        total.executed += c.executed
        total.stalls.update(c.stalls)
    return out


def sass_listing(sass: Sass, text: str, instructions: Sequence[Mapping[str, Any]], symbol: str = "") -> str:
    """Machine code with the program beside it: per instruction its line, samples and most frequent stall; the program's
    line is printed where it changes. `instructions` may be empty: then the columns stay so. Raises ValueError when they
    are not of this cubin."""
    source = text.split("\n")
    rows = {i.offset: row for i, row in align(sass, instructions, symbol)} if instructions else {}
    total = sum(r["samples"] for r in rows.values())
    out = [f"{'offset':>7} {'line':>5} {'samples':>8} {'share':>6} {'executed':>10}  {'top stall':<18} instruction"]
    last = -1
    for i in sass.instructions:
        if symbol and i.function != symbol:
            continue
        if i.line != last:
            last = i.line
            known = 0 < last <= len(source)
            out.append(f"# {last}: {source[last - 1].strip()}" if known else "# code of no line")
        row = rows.get(i.offset, {"samples": 0, "executed": "", "stalls": {}})
        stalls = Counter({k: n for k, n in row["stalls"].items() if k not in IDLE})
        top = stalls.most_common(1)
        stall = f"{top[0][0]} {top[0][1]}" if top else ""
        samples = row["samples"] or ""
        share = f"{row['samples'] / total:.1%}" if row["samples"] else ""
        guard = f"@{i.predicate} " if i.predicate else ""
        code = f"{guard}{i.mnemonic} {i.operands}".rstrip()
        out.append(
            f"{i.offset:>7x} {i.line or '':>5} {samples:>8} {share:>6} {row['executed']:>10}  {stall:<18} {code}"
        )
    return "\n".join(out) + "\n"


def words(reason: str) -> str:
    """What a warp stood for, in words."""
    return STALLS.get(reason, reason)
