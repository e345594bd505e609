"""Predicted times, and which candidates are worth a compile and a measurement.

The cost model (`analyses.estimate`) orders schedules; it does not see everything, so what it cannot tell apart is ordered by
the shared memory that a schedule keeps in flight, members take turns at every shape, and candidates are dropped
only where they are predicted to lose by more than `Settings.within`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from cake_ir.diagnostics import CakeError
from corpus.contract import Contract, Shape
from corpus.executable import Executable
from corpus.tuning.candidates import Candidate

Predicted = Mapping[int, float]
"""Shape number -> microseconds; shapes that the candidate does not take are absent."""
Progress = Callable[[int, int, str], None]
SAME = 2
"""Candidates of one member with equal predictions (to four digits) that are tried before others."""


def predict(subject: Executable, contract: Contract, shapes: Sequence[Shape]) -> dict[int, float]:
    """Predicted microseconds per shape number; shapes that are not taken are left out."""
    found = {}
    for i, shape in enumerate(shapes):
        try:
            found[i] = subject.predicted_us(contract, shape)
        except CakeError:
            continue
    return found


def predict_all(
    candidates: Sequence[Candidate], shapes: Sequence[Shape], progress: Progress = lambda done, total, what: None
) -> dict[str, dict[int, float]]:
    """`predict` of every candidate, by id."""
    out = {}
    for i, c in enumerate(candidates):
        progress(i, len(candidates), f"predicting {c.id}")
        out[c.id] = predict(c.executable, c.contract, shapes)
    return out


def in_flight(c: Candidate) -> int:
    """Shared memory of a CTA, the largest of its kernels, in bytes."""
    from cake_ir.derive import derive

    return max(derive(k).smem_bytes for k in c.executable.kernels)


def order(
    candidates: Sequence[Candidate], predicted: Mapping[str, Predicted], shape: int, memory: Mapping[str, int]
) -> list[Candidate]:
    """The candidates that take a shape, best prediction first, equal ones by memory in flight (most first), then by id. Of those
    of one member that the model cannot tell apart only the first `SAME` stand in their place, the others follow at the end:
    a place is better given to a schedule that is predicted to differ."""
    fitting = [c for c in candidates if shape in predicted[c.id]]

    def rounded(c: Candidate) -> float:
        return float(f"{predicted[c.id][shape]:.3e}")

    ranked = sorted(fitting, key=lambda c: (rounded(c), -memory[c.id], c.id))
    seen: dict[tuple[str, float], int] = defaultdict(int)
    first, rest = [], []
    for c in ranked:
        seen[c.seed.kernel, rounded(c)] += 1
        (first if seen[c.seed.kernel, rounded(c)] <= SAME else rest).append(c)
    return first + rest


def shortlist(
    candidates: Sequence[Candidate], predicted: Mapping[str, Predicted], shapes: int, most: int, within: float
) -> list[Candidate]:
    """At most `most` candidates to compile, per element type: round after round every member's next best at every shape, those
    that most shapes ask for first; none at a shape where it is predicted to take more than `within` times the best of all members."""
    memory = {c.id: in_flight(c) for c in candidates}
    chosen: dict[str, Candidate] = {}
    for dtype in dict.fromkeys(c.seed.dtype for c in candidates):
        own = [c for c in candidates if c.seed.dtype == dtype]
        queues: list[list[Candidate]] = []
        for shape in range(shapes):
            ranked = order(own, predicted, shape, memory)
            if not ranked:
                continue
            limit = predicted[ranked[0].id][shape] * within
            by_member: dict[str, list[Candidate]] = defaultdict(list)
            for c in ranked:
                if predicted[c.id][shape] <= limit:
                    by_member[c.seed.kernel].append(c)
            queues += by_member.values()
        taken: set[str] = set()
        depth = 0
        while len(taken) < most and any(len(q) > depth for q in queues):
            votes: dict[str, int] = defaultdict(int)
            for q in queues:
                if len(q) > depth:
                    votes[q[depth].id] += 1
            for name in sorted(votes, key=lambda n: (-votes[n], n)):
                if len(taken) < most:
                    taken.add(name)
            depth += 1
        chosen |= {c.id: c for c in own if c.id in taken}
    return list(chosen.values())


def to_measure(
    compiled: Sequence[Candidate], predicted: Mapping[str, Predicted], shape: int, most: int, within: float
) -> list[str]:
    """Ids of the candidates to measure at a shape: every member's best, then by prediction up to `most`."""
    memory = {c.id: in_flight(c) for c in compiled}
    ranked = order(compiled, predicted, shape, memory)
    if not ranked:
        return []
    limit = predicted[ranked[0].id][shape] * within
    first = {c.seed.kernel: c for c in reversed(ranked)}
    wanted = [c for c in ranked if first[c.seed.kernel] is c]
    wanted += [c for c in ranked if c not in wanted and predicted[c.id][shape] <= limit]
    return [c.id for c in ranked if c in wanted[:most]]
