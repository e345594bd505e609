"""No synchronisation line of a right program is spare: leaving any one out is found, by derive or by the order reading."""

from __future__ import annotations

import pytest

from tests.analyses.order.programs import KERNELS, SPLIT_K, TURNS, read

SYNC = ("wait(", "arrive(", "expect(", "sync(", "fence_async(", "bulk_commit(", "bulk_wait", "wgmma_commit(", "wgmma_wait(",
        "cp_async_commit(", "cp_async_wait(", "tcgen05_commit(", "tmem_load_wait(", "griddep_wait(")  # fmt: skip
PROGRAMS = {path.stem: path.read_text() for path in sorted(KERNELS.glob("*.cake"))} | {
    "split_k": SPLIT_K,
    "turns": TURNS,
}


def cases() -> list[tuple[str, int]]:
    return [
        (name, number)
        for name, text in PROGRAMS.items()
        for number, line in enumerate(text.split("\n"))
        if line.strip().startswith(SYNC)
    ]


def name_of(case: tuple[str, int]) -> str:
    name, number = case
    return f"{name}:{number + 1}:{PROGRAMS[name].split(chr(10))[number].strip()}"


@pytest.mark.parametrize("case", cases(), ids=name_of)
def test_leaving_the_line_out_is_found(case: tuple[str, int]) -> None:
    name, number = case
    lines = PROGRAMS[name].split("\n")
    indent = len(lines[number]) - len(lines[number].lstrip())
    lines[number] = " " * indent + "unused = 0"
    found = read("\n".join(lines))
    assert any(d.severity == "error" for d in found), name_of(case)
    assert len(found) <= 2, [d.render() for d in found]
