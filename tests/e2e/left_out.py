"""Every synchronisation line of every corpus kernel, left out one at a time: faults that nobody chose, to see how far the
fixes reach beyond the planted ones. Accepted counts as repaired here; the contract is checked for the planted faults."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from mcp import Client

from tests.e2e.faults import KERNELS
from tests.e2e.repair_client import RepairClient, caller

SYNCHRONISES = re.compile(r"(wait|arrive|expect|sync|fence_async|\w+_(commit|wait|wait_read))\(")


def left_out(text: str) -> Iterator[tuple[int, str]]:
    """(line number, text without that line); a block that would be empty goes too."""
    lines = text.split("\n")
    for n, line in enumerate(lines, 1):
        if SYNCHRONISES.match(line.strip()):
            rest, at = lines[: n - 1] + lines[n:], n - 2
            while rest[at].rstrip().endswith(":") and _depth(rest[at + 1]) <= _depth(rest[at]):
                del rest[at]
                at -= 1
            yield n, "\n".join(rest)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" ")) if line.strip() else 0


async def sweep(client: Client) -> str:
    """Repairs them all; says how many per kernel, and which ones not."""
    done: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    kept: list[str] = []
    for path in sorted(KERNELS.glob("*.cake")):
        text = path.read_text(encoding="utf-8")
        for n, broken in left_out(text):
            outcome = await RepairClient(caller(client)).repair(broken)
            seen[path.stem] += 1
            done[path.stem] += outcome.repaired and outcome.tries > 0
            if not outcome.repaired or not outcome.tries:
                kept.append(f"{path.stem}:{n} {text.split(chr(10))[n - 1].strip()} ({outcome.rule or 'no finding'})")
    parts = [f"{kernel} {done[kernel]} of {seen[kernel]}" for kernel in seen]
    return "\n".join([f"{done.total()} of {seen.total()} repaired: {', '.join(parts)}", *kept])
