"""The two readings agree: whatever the verifier accepts runs right under every schedule that the interpreter tries.

Every synchronising line of a kernel is deleted, weakened or swapped with the next one. An accepted mutant that computes
wrong numbers, meets poison or hangs would be a hole in the verifier. (The reverse is no fault: one shape under a few
schedules does not show every race.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from analyses import verify
from cake_ir import bind, parse
from tests.analyses.test_value_kernels import PLAIN, PROGRAMS

SYNC = re.compile(
    r"^(wait|arrive|expect|sync|fence_async|wgmma_commit|wgmma_wait|bulk_commit|bulk_wait_read|cp_async_commit|cp_async_wait"
    r"|tmem_load_wait|tcgen05_commit|griddep_wait)\("
)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _alone(lines: list[str], i: int) -> int | None:
    """The header of the block when line i is all it holds."""
    head = next(j for j in range(i - 1, -1, -1) if lines[j].strip() and _indent(lines[j]) < _indent(lines[i]))
    follows = i + 1 < len(lines) and lines[i + 1].strip() and _indent(lines[i + 1]) >= _indent(lines[i])
    return head if head == i - 1 and not follows else None


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """(what was done, the text): one synchronising line deleted, weakened or swapped."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        code = line.strip()
        if not SYNC.match(code):
            continue
        head = _alone(lines, i)
        yield f"{i + 1} without {code}", "\n".join(lines[: i if head is None else head] + lines[i + 1 :])
        depth = re.search(r"_(?:wait|wait_read)\((\d+)\)", code)
        if depth:
            weaker = line.replace(f"({depth[1]})", f"({int(depth[1]) + 1})")
            yield f"{i + 1} weaker {code}", "\n".join([*lines[:i], weaker, *lines[i + 1 :]])
        use = re.match(r"(?:wait|arrive)\((\w+)\[([^\]]*)\]", code)
        if use:
            earlier = line.replace(f"{use[1]}[{use[2]}]", f"{use[1]}[{use[2]} - 1]", 1)
            yield f"{i + 1} earlier use {code}", "\n".join([*lines[:i], earlier, *lines[i + 1 :]])
        if i + 1 < len(lines) and _indent(lines[i + 1]) == _indent(line) and not lines[i + 1].endswith(":"):
            yield f"{i + 1} behind the next line {code}", "\n".join([*lines[:i], lines[i + 1], line, *lines[i + 2 :]])


@pytest.mark.parametrize("name", ["k-means", "gemm sm_80", "softmax"])
def test_accepted_mutants_run_right(name: str) -> None:
    program, more = PROGRAMS[name]
    text = re.sub(r"(, )?arrivals=[^,)\n]*(?=[,)])", "", program.path.read_text())
    accepted = rejected = 0
    for what, mutant in mutants(text):
        parsed = parse(mutant)
        bound = bind(parsed.file, program.bindings, program.target, program.kernel).bound if parsed.file else None
        if bound is None:
            continue
        if not verify(bound).accepted:
            rejected += 1
            continue
        accepted += 1
        outcomes = {s: program.outcome(bound, s) for s in (*PLAIN, *more)}
        assert set(outcomes.values()) == {"right"}, (what, outcomes)
    assert rejected > accepted, "most mutants are faulty"
