"""The answer depends on the program alone: not on the process, the hash seed, names, layout, or the order of what is unordered."""

from __future__ import annotations

import ast
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from analyses import verify_text
from cake_ir import parse, print_file

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"


@dataclass(frozen=True)
class Subject:
    """A program, accepted or with one line of it dropped or replaced."""

    path: Path
    old: str = ""
    new: str = ""
    bindings: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        text = self.path.read_text(encoding="utf-8")
        assert self.old in text
        return text.replace(self.old, self.new, 1)

    def __str__(self) -> str:
        return f"{self.path.stem}-{self.old.strip()[:30]}"


SM90 = ROOT / "corpus" / "kernels" / "gemm_sm90.cake"
SM80 = ROOT / "corpus" / "kernels" / "gemm_sm80.cake"
SM100 = ROOT / "corpus" / "kernels" / "gemm_sm100.cake"
MEANS = ROOT / "corpus" / "kernels" / "kmeans_assign.cake"
STORER = DATA / "hazards" / "storer_sm90.cake"
LARGE = DATA / "large" / "fused_sm90.cake"
SUBJECTS = [
    Subject(SM90),
    Subject(SM90, "                wait(full[n])\n"),
    Subject(SM90, "                    bulk_wait_read(1)\n", "                    bulk_wait_read(3)\n"),
    Subject(SM90, "                        arrive(free[n - 1].on(1))\n"),
    Subject(SM80),
    Subject(SM100, "wait(free[n - STAGES])", "wait(free[n])"),
    Subject(MEANS),
    Subject(STORER, "            fence_async()\n"),
    Subject(STORER, "            wait(d_full[t])\n"),
]


def answers(text: str, bindings: dict[str, Any] | None = None, fixes: bool = False) -> dict[str, Any]:
    """The whole report as JSON values."""
    r = verify_text(text, bindings, fixes=fixes)
    return json.loads(
        json.dumps(
            {
                "diagnostics": [d.model_dump(mode="json") for d in r.diagnostics],
                "properties": [[p.name, p.verdict, p.scope, p.reason] for p in r.properties],
                "ledger": r.ledger,
                "memory": r.memory,
                "registers": r.registers,
                "coverage": r.coverage,
                "skipped": r.skipped,
            },
            default=str,
        )
    )


def chosen() -> list[dict[str, Any]]:
    """Full reports, repairs included, of accepted and rejected programs."""
    subjects = [*SUBJECTS[1:8:2], SUBJECTS[6], Subject(LARGE, "                wait(b1_full[n])\n")]
    return [answers(s.text, s.bindings, True) for s in subjects]


CHILD = """
import json
from tests.analyses.test_same_answer import chosen
print(json.dumps(chosen()))
"""


def test_every_process_and_hash_seed_gives_the_same_report() -> None:
    """Two other processes, and this one, which has a seed of its own and has done other work."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1")
    ]
    mine = chosen()
    outputs = [p.communicate(timeout=600)[0] for p in running]
    assert all(p.returncode == 0 for p in running)
    reports = [json.loads(out) for out in outputs]
    assert any(d["fixes"] for r in reports[0] for d in r["diagnostics"])
    assert mine == reports[0] == reports[1]


# ---- texts that mean the same


def verdict(text: str, bindings: dict[str, Any], lines: dict[int, int] | None = None) -> tuple[Any, ...]:
    """Findings with their lines (read backwards through a map from old to new lines), and the verdict of every property."""
    back = {new: old for old, new in (lines or {}).items()}
    r = verify_text(text, bindings)
    found = Counter((d.rule, d.severity, back.get(d.span.line, d.span.line)) for d in r.diagnostics)
    return found, {p.name: p.verdict for p in r.properties}


def spread(text: str, seed: int) -> tuple[str, dict[int, int]]:
    """The text with blank lines and comments between its lines, and the map of lines."""
    chance = random.Random(seed)
    out: list[str] = []
    lines: dict[int, int] = {}
    doc = text.count("\n", 0, text.index('"""', 3)) + 1 if text.startswith('"""') else 0
    depth = 0
    for n, line in enumerate(text.splitlines(), 1):
        if n > doc and depth == 0 and chance.random() < 0.4:
            out += chance.choice(([""], ["# a note"], ["", "# a note", ""]))
        out.append(
            line + chance.choice(("", "   ", "  # why")) if n > doc and depth == 0 and line.endswith(")") else line
        )
        depth += line.count("(") - line.count(")")
        lines[n] = len(out)
    return "\n".join(out) + "\n", lines


def renamed(text: str, seed: int) -> tuple[str, dict[str, str]]:
    """The text with every name that it declares replaced, and the map of names."""
    kernel = next(k for k in ast.parse(text).body if isinstance(k, ast.FunctionDef))
    names = {a.arg for a in (*kernel.args.args, *kernel.args.kwonlyargs)} | {kernel.name}
    for node in ast.walk(kernel):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    for a in kernel.args.args:  # extents are named by the tensors' types
        if isinstance(a.annotation, ast.Subscript):
            names |= {
                n.id
                for n in ast.walk(a.annotation.slice)
                if isinstance(n, ast.Name) and n.id.isupper() and len(n.id) < 3
            }
    order = sorted(names)
    random.Random(seed).shuffle(order)
    table = {name: f"v{i}" for i, name in enumerate(order)}
    head, body = text.split("@kernel", 1)
    return head + "@kernel" + re.sub(
        r"(?<![\w.\"])[A-Za-z_]\w*(?![\w\"])", lambda m: table.get(m[0], m[0]), body
    ), table


def reordered(text: str, seed: int) -> tuple[str, dict[int, int]]:
    """The text with neighbouring declarations of memory and barriers, and neighbouring copies onto one barrier, shuffled."""
    chance = random.Random(seed)
    rows = text.splitlines()
    kind = [
        "memory" if re.match(r"    \w+ = (smem|mbarrier)\(.*\)$", row) and "over=" not in row
        else (m[1] + m[2] if (m := re.match(r"(\s+)tma_load\(.*signal=(\w+).*\)$", row)) else "")
        for row in rows
    ]  # fmt: skip
    out: list[int] = []
    at = 0
    while at < len(rows):
        end = at + 1
        while kind[at] and end < len(rows) and kind[end] == kind[at]:
            end += 1
        part = list(range(at, end))
        chance.shuffle(part)
        out += part
        at = end
    return "\n".join(rows[i] for i in out) + "\n", {old + 1: new + 1 for new, old in enumerate(out)}


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_layout_names_and_order_change_nothing(subject: Subject) -> None:
    text, bindings = subject.text, subject.bindings
    expected = verdict(text, bindings)
    assert bool([k for k in expected[0] if k[1] == "error"]) == bool(subject.old)
    for seed in (1, 2):
        loose, lines = spread(text, seed)
        assert loose != text and verdict(loose, bindings, lines) == expected
    other, table = renamed(text, 3)
    assert verdict(other, {table.get(k, k): v for k, v in bindings.items()}) == expected
    mixed, lines = reordered(text, 4)
    assert mixed != text and verdict(mixed, bindings, lines) == expected


@pytest.mark.parametrize("subject", SUBJECTS[:4], ids=str)
def test_the_canonical_print_has_the_same_findings(subject: Subject) -> None:
    file = parse(subject.text).file
    assert file is not None
    found, properties = verdict(print_file(file), subject.bindings)
    expected, same = verdict(subject.text, subject.bindings)
    assert (
        Counter(k[:2] for k in found.elements()) == Counter(k[:2] for k in expected.elements()) and properties == same
    )
