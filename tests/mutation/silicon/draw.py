"""Which mutants go to the device: a seeded draw, in turn by kind and by program, until every class has its number."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from tests.mutation.mutants import Entry

Class = Literal["refuted", "accepted", "other function", "false accept"]
"""refuted: the verifier rejects it. accepted: the verifier accepts it and the judge finds it right. other function: the
verifier accepts it, every schedule gives the same defined result, which is not the contract's. false accept: accepted, and
the judge finds a fault."""

CLASSES: tuple[Class, ...] = ("refuted", "accepted", "other function", "false accept")


def order(plan: Sequence[Entry], seed: int) -> list[Entry]:
    """All entries, the kinds in turn, within a kind the programs in turn, within both by chance of the seed."""
    pools: dict[str, dict[str, list[Entry]]] = {}
    for e in sorted(plan, key=lambda e: e.id):
        pools.setdefault(e.kind, {}).setdefault(e.subject, []).append(e)
    chance = random.Random(seed)
    queues: list[list[Entry]] = []
    for kind in sorted(pools):
        programs = [pools[kind][name] for name in sorted(pools[kind])]
        chance.shuffle(programs)
        for p in programs:
            chance.shuffle(p)
        queues.append(_in_turn(programs))
    return _in_turn(queues)


def _in_turn(queues: Sequence[Sequence[Entry]]) -> list[Entry]:
    longest = max((len(q) for q in queues), default=0)
    return [q[i] for i in range(longest) for q in queues if i < len(q)]


def draw(
    plan: Sequence[Entry],
    seed: int,
    wanted: dict[str, int],
    look: Callable[[Sequence[Entry]], Sequence[str]],
    *,
    batch: int = 34,
    tries: int = 40,
) -> dict[str, list[Entry]]:
    """Entries by class, at most `wanted` of each. look: the class of each entry, or another word for one that cannot run.

    First no kind gives more than its share of a class; kinds that have too few after `tries` looks each leave the rest to
    the others. Classes that `wanted` does not name are taken whole. The result depends on plan, seed and looks alone.
    """
    kinds = sorted({e.kind for e in plan})
    share = {c: -(-n // max(len(kinds), 1)) for c, n in wanted.items()}
    found: dict[str, list[Entry]] = {c: [] for c in CLASSES}
    spare: dict[str, list[Entry]] = {c: [] for c in wanted}
    taken: Counter[tuple[str, str]] = Counter()
    looked: Counter[str] = Counter()

    def full() -> bool:
        return all(len(found[c]) >= n for c, n in wanted.items())

    def needs(kind: str) -> bool:
        return any(len(found[c]) < n and taken[c, kind] < share[c] for c, n in wanted.items())

    def fill() -> None:
        for c, n in wanted.items():
            while spare[c] and len(found[c]) < n:
                found[c].append(spare[c].pop(0))

    waiting = order(plan, seed)
    for first in (True, False):
        left: list[Entry] = []
        while waiting and not full():
            group: list[Entry] = []
            while waiting and len(group) < batch:
                e = waiting.pop(0)
                if first and (looked[e.kind] >= tries or not needs(e.kind)):
                    left.append(e)
                    continue
                looked[e.kind] += 1
                group.append(e)
            for e, c in zip(group, look(group), strict=True):
                if c not in found:
                    continue
                if c not in wanted or (len(found[c]) < wanted[c] and (not first or taken[c, e.kind] < share[c])):
                    taken[c, e.kind] += 1
                    found[c].append(e)
                elif first:
                    spare[c].append(e)
        fill()
        waiting = left
    return found


def spread(entries: Sequence[Entry], number: int, seed: int) -> list[str]:
    """Ids of `number` entries, the kinds in turn."""
    return [e.id for e in order(entries, seed)[:number]]
