"""The mbarrier as a state machine, and the parity a waiter needs.

Source: PTX ISA, "mbarrier": phase completion, arrive, expect-tx, test_wait with phase parity.
"""

from __future__ import annotations

from dataclasses import dataclass

COUNT_MAX = (1 << 20) - 1
TX_MAX = (1 << 20) - 1


class BarrierError(RuntimeError):
    """Undefined behaviour of the barrier object."""


@dataclass
class Mbarrier:
    """One barrier of `expected` arrivals per phase; `phase` counts completed phases since initialisation."""

    expected: int
    phase: int = 0
    pending: int = 0
    tx: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.expected <= COUNT_MAX:
            raise BarrierError(f"the arrival count must be 1..{COUNT_MAX}")
        self.pending = self.expected

    def arrive(self, count: int = 1) -> None:
        """`count` arrivals."""
        if count > self.pending:
            raise BarrierError("more arrivals than the phase expects")
        self.pending -= count
        self._close()

    def expect_tx(self, nbytes: int) -> None:
        """Announce bytes."""
        self.tx += nbytes
        self._check_tx()

    def arrive_expect_tx(self, nbytes: int) -> None:
        """Announce bytes, then arrive once."""
        self.expect_tx(nbytes)
        self.arrive()

    def complete_tx(self, nbytes: int) -> None:
        """Bytes were delivered; may run ahead of the announcement within a phase."""
        self.tx -= nbytes
        self._check_tx()
        self._close()

    def test_parity(self, parity: int) -> bool:
        """Whether the phase of that parity has completed, as test_wait/try_wait answers.

        A fresh barrier answers True for parity 1 (the phase before the first) and False for parity 0.
        """
        return (self.phase & 1) != parity

    def wait_for(self, completion: int) -> bool:
        """Whether completion number `completion` (0 = first) has happened, asked through its parity.

        Raises BarrierError when the parity would alias: only the current phase and the one before can be asked for.
        """
        if completion not in (self.phase - 1, self.phase):
            raise BarrierError(f"completion {completion} is asked for when {self.phase} are done: the parity aliases")
        return self.test_parity(completion & 1)

    def _check_tx(self) -> None:
        if not -TX_MAX <= self.tx <= TX_MAX:
            raise BarrierError(f"tx-count {self.tx} leaves its range")

    def _close(self) -> None:
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.expected


def ring(use: int, stages: int) -> tuple[int, int]:
    """(slot, parity to wait with) of completion number `use` of a ring of `stages` barriers."""
    if use < 0:
        raise BarrierError("completions below 0 are never waited for")
    return use % stages, (use // stages) & 1
