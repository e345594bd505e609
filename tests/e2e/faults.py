"""Planted single faults over corpus kernels: one edit each, of the kinds that kernel authors make. The repair client never
sees this module; it is given the broken text and the contract's name, nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[2] / "corpus" / "kernels"

Shapes = tuple[dict[str, int], ...]

#: Small shapes that still have tails, and more K steps than the rings have stages.
SHAPES: dict[str, Shapes] = {
    "kmeans_assign": ({"B": 1, "N": 130, "C": 200, "D": 64}, {"B": 2, "N": 64, "C": 7, "D": 128}),
    "gemm_bf16": ({"M": 129, "N": 136, "K": 8}, {"M": 130, "N": 72, "K": 648}),
    "softmax": ({"M": 3, "N": 1020}, {"M": 1, "N": 8196}),
}
CONTRACTS = {
    "kmeans_assign": "kmeans_assign",
    "gemm_sm90": "gemm_bf16",
    "gemm_sm80": "gemm_bf16",
    "softmax": "softmax",
}


@dataclass(frozen=True)
class Fault:
    """The `nth` place where `old` stands in the corpus kernel, replaced by `new`; None deletes the whole lines.

    `seen` is False for a fault that leaves a legal program: only its numbers are wrong, so no rule can name the edit.
    `repairable` is False for one that a rule names, but whose right text only the author knows.
    """

    name: str
    kernel: str
    old: str
    new: str | None = None
    nth: int = 1
    seen: bool = True
    repairable: bool = True

    @property
    def contract(self) -> str:
        return CONTRACTS[self.kernel]

    @property
    def shapes(self) -> Shapes:
        return SHAPES[self.contract]

    @property
    def right(self) -> str:
        return (KERNELS / f"{self.kernel}.cake").read_text(encoding="utf-8")

    @property
    def broken(self) -> str:
        """The text with the fault. Raises ValueError when the kernel has no such place."""
        text = self.right
        places = [m.start() for m in re.finditer(re.escape(self.old), text)]
        if len(places) < self.nth:
            raise ValueError(f"{self.name}: {self.kernel} has {len(places)} times {self.old!r}")
        start = places[self.nth - 1]
        end = start + len(self.old)
        if self.new is None:
            return text[: text.rfind("\n", 0, start) + 1] + text[text.find("\n", end) + 1 :]
        return text[:start] + self.new + text[end:]

    @property
    def lines(self) -> range:
        """Lines (1-based) of the broken text that the edit touched; after a deletion the line that moved up."""
        was, now = self.right.split("\n"), self.broken.split("\n")
        first = next(i for i, (a, b) in enumerate(zip(was, now, strict=False), 1) if a != b)
        tail = next(i for i, (a, b) in enumerate(zip(was[::-1], now[::-1], strict=False)) if a != b)
        return range(first, max(first, len(now) - tail) + 1)

    def distance(self, line: int) -> int:
        """Lines between a place and the edit; 0 on an edited line."""
        return min(abs(line - n) for n in self.lines)


FAULTS: tuple[Fault, ...] = (
    Fault("dropped wait for a free stage", "kmeans_assign", "wait(free[n - STAGES])"),
    Fault("dropped arrive", "kmeans_assign", "arrive(free[n])"),
    Fault("dropped expect", "kmeans_assign", "expect(full[n])"),
    Fault("dropped wgmma_commit", "kmeans_assign", "wgmma_commit()"),
    Fault("wgmma_wait too shallow", "kmeans_assign", "wgmma_wait(0)", "wgmma_wait(1)"),
    Fault(
        "release before the wait",
        "kmeans_assign",
        "wgmma_wait(0)\n                arrive(free[n])",
        "arrive(free[n])\n                wgmma_wait(0)",
    ),
    Fault("wrong arrivals assertion", "kmeans_assign", "arrivals=4 * WG", "arrivals=WG", nth=2),
    Fault("dropped fence before a release", "kmeans_assign", "fence_async()"),
    Fault("misspelt name", "kmeans_assign", "row_argmin(best, nearest +", "row_argmin(best, nearst +"),
    Fault("waits for the use before", "kmeans_assign", "wait(full[n])", "wait(full[n - 1])"),
    Fault("waits for its own use", "kmeans_assign", "wait(x_free[t - 1])", "wait(x_free[t])"),
    Fault("use number not advanced", "kmeans_assign", "n += 1"),
    Fault("dropped wait for the data", "gemm_sm90", "wait(full[n])"),
    Fault("dropped fence before a store", "gemm_sm90", "fence_async()"),
    Fault("dropped sync(warpgroup)", "gemm_sm90", "sync(warpgroup)", nth=2),
    Fault("dropped bulk_wait_read", "gemm_sm90", "with elected():\n                    bulk_wait_read(1)"),
    Fault("dropped bulk_commit", "gemm_sm90", "bulk_commit()"),
    Fault("dropped drain", "gemm_sm90", "with math as wg:\n        with elected():\n            bulk_wait_read(0)"),
    Fault("dropped sync(cluster)", "gemm_sm90", "sync(cluster)"),
    Fault(
        "releases the use that is read",
        "gemm_sm90",
        "free[n - 1].on(0))\n                        arrive(free[n - 1].on(1))",
        "free[n].on(0))\n                        arrive(free[n].on(1))",
    ),
    Fault("wgmma_wait one too shallow", "gemm_sm90", "wgmma_wait(1)", "wgmma_wait(2)"),
    Fault("row narrower than the swizzle", "gemm_sm90", "BK = 64", "BK = 32"),
    Fault("swizzle that does not exist", "gemm_sm90", "stages=2, swizzle=128", "stages=2, swizzle=96"),
    Fault("missing swizzle", "gemm_sm90", "stages=STAGES, swizzle=128)", "stages=STAGES)"),
    Fault("accumulator never started", "gemm_sm90", ", init=k == 0", ""),
    Fault("missing multicast", "gemm_sm90", ", multicast=cluster", ""),
    Fault("dropped cp_async_commit", "gemm_sm80", "cp_async_commit()", nth=2),
    Fault("dropped sync(math)", "gemm_sm80", "sync(math)"),
    Fault("cp_async_wait too shallow", "gemm_sm80", "cp_async_wait(STAGES - 2)", "cp_async_wait(STAGES - 1)"),
    Fault("wrong K step of a fragment", "gemm_sm80", "(wn, 32).cols(16 * j", "(wn, 32).cols(32 * j"),
    Fault("too many K steps", "gemm_sm80", "unroll(BK // 16)", "unroll(BK // 8)"),
    Fault("wrong K step of a copy", "gemm_sm80", "n * BK", "n * 32", nth=4, repairable=False),
    Fault("dropped sync before a read back", "gemm_sm80", "sync(math)", nth=3),
    Fault("dropped cp_async_wait(0)", "gemm_sm80", "cp_async_wait(0)"),
    Fault("dropped sync(rows)", "softmax", "sync(rows)"),
    Fault("wrong constant", "softmax", "LOG2E = 1.4426950408889634", "LOG2E = 1.5", seen=False),
    Fault("misspelt op", "softmax", "row_max(v)", "row_maxx(v)"),
    Fault("misspelt argument", "softmax", "vec(1).cols[WARPS], fill", "vec(1).cols[WARPS], fil"),
)
