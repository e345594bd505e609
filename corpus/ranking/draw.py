"""Bindings drawn by a seed from the domains that the kernels' texts declare.

First a pool is drawn for all shapes of a workload together, since a compile costs a second and serves every shape that admits it:
again and again at the shape for which it holds least, a kernel of those that serve the shape, then a binding of its tunables, each
uniformly. What the gates of tuning reject (`corpus.tuning.candidates`) is recorded and drawn anew. Then every shape draws its own
candidates from what the pool holds for it, by a seed of its own, a kernel and then a binding. Predictions have no part in it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cake_ir.binding import domain
from cake_ir.diagnostics import CakeError
from cake_ir.dtypes import DType
from corpus.contract import Contract, contracts
from corpus.families import Member, Shape
from corpus.ranking.workloads import Workload
from corpus.tuning.candidates import Candidate, Rejection, Seed, Source, examine, member_source, verify_and_compile

SMS = 132
"""Multiprocessors of the H200, for which is drawn."""
MOST_TRIES = 20_000
"""Bindings looked at of one kernel; of larger products so many are sampled."""
Progress = Callable[[int, int, str], None]


@dataclass
class Drawn:
    """The pool in the order of drawing. tried: bindings that were looked at; legal: those that bind and pass the static rules;
    verified: those that the whole verifier accepts."""

    pool: list[Candidate] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    tried: int = 0
    legal: int = 0
    verified: int = 0


class Space:
    """The bindings of one kernel at the shapes with the same fitting values, in an order drawn by `source`."""

    def __init__(self, kernel: str, domains: dict[str, Sequence[Any]], dtype: str, source: random.Random) -> None:
        self.kernel, self.domains, self.dtype = kernel, domains, dtype
        self.size = 1
        for values in domains.values():
            self.size *= len(values)
        self._numbers = iter(source.sample(range(self.size), min(self.size, MOST_TRIES)))

    def at(self, number: int) -> dict[str, Any]:
        """Binding `number` of `size`."""
        out = {}
        for name, values in reversed(self.domains.items()):
            number, digit = divmod(number, len(values))
            out[name] = values[digit]
        return {n: out[n] for n in self.domains}

    def __iter__(self) -> Iterator[Seed]:
        for number in self._numbers:
            yield Seed(self.kernel, self.at(number), self.dtype)


class Draw:
    """Draws of one workload; `pool` is the result."""

    def __init__(self, workload: Workload, shapes: Sequence[Shape], target: str, seed: int) -> None:
        self.workload, self.shapes, self.target, self.seed = workload, shapes, target, seed
        self.source = random.Random(f"{workload.name} pool {seed}")
        self.contract: Contract = contracts()[workload.contract]
        self.known: dict[str, Candidate | Rejection] = {}
        self.admitted: dict[str, frozenset[int]] = {}
        self._spaces: dict[tuple[Any, ...], Iterator[Seed]] = {}
        self._spent: set[tuple[str, int]] = set()
        self._taken: set[str] = set()

    @cached_property
    def sources(self) -> dict[str, Source]:
        """The kernels' texts, parsed. Raises CakeError for a kernel that is not written for the target."""
        return {k: member_source(Member(k), self.target) for k in self.workload.kernels}

    def domains(self, kernel: str, shape: Shape) -> dict[str, Sequence[Any]]:
        """What is drawn per tunable of a kernel at a shape; empty values where none fits."""
        entry = self.sources[kernel].entry
        (text,) = [k for k in self.sources[kernel].file.kernels if entry.kernel in (None, k.name)]
        out: dict[str, Sequence[Any]] = {}
        for t in text.tunables:
            values: Sequence[Any] = domain(t)
            fit = self.workload.fits.get(t.name)
            if any(isinstance(v, DType) for v in values):
                values = (self.workload.dtype,)
            elif fit is not None:
                values = fit.values(values, shape)
            out[t.name] = tuple(values)
        return out

    def pool(self, size: int, cache_dir: Path | None, progress: Progress = lambda done, total, what: None) -> Drawn:
        """Draw and compile until the pool holds `size`, or nothing is left to draw."""
        drawn = Drawn()
        while batch := self._batch(drawn, size - len(drawn.pool)):
            drawn.legal += len(batch)
            verified, kept, rejected = verify_and_compile(batch, cache_dir, progress)
            drawn.verified += verified
            drawn.pool += kept
            drawn.rejections += rejected
        return drawn

    def _batch(self, drawn: Drawn, most: int) -> list[Candidate]:
        """Up to `most` further candidates that bind and pass the static rules."""
        held = [sum(s in self.admitted[c.id] for c in drawn.pool) for s in range(len(self.shapes))]
        out: list[Candidate] = []
        while len(out) < most:
            able = [s for s in range(len(held)) if any((k, s) not in self._spent for k in self.workload.kernels)]
            if not able:
                break
            found = self._one(min(able, key=lambda s: held[s]), drawn)
            if found is not None:
                out.append(found)
                for s in self.admitted[found.id]:
                    held[s] += 1
        return out

    def _one(self, shape: int, drawn: Drawn) -> Candidate | None:
        """One that is new and that the shape admits; None when the kernel that was drawn has no more."""
        kernel = self.source.choice([k for k in self.workload.kernels if (k, shape) not in self._spent])
        for seed in self._space(kernel, shape):
            if seed.id not in self.known:
                self.known[seed.id] = self._examine(seed, drawn)
            done = self.known[seed.id]
            if isinstance(done, Candidate) and shape in self.admitted[done.id] and done.id not in self._taken:
                self._taken.add(done.id)
                return done
        self._spent.add((kernel, shape))
        return None

    def _examine(self, seed: Seed, drawn: Drawn) -> Candidate | Rejection:
        drawn.tried += 1
        done = examine(self.sources[seed.kernel], seed, self.contract, self.target)
        if isinstance(done, Rejection):
            drawn.rejections.append(done)
        else:
            self.admitted[done.id] = frozenset(s for s, dims in enumerate(self.shapes) if self.takes(done, dims))
        return done

    def _space(self, kernel: str, shape: int) -> Iterator[Seed]:
        domains = self.domains(kernel, self.shapes[shape])
        key = (kernel, *domains.values())
        if key not in self._spaces:
            own = random.Random(f"{self.workload.name} {kernel} {key} {self.seed}")
            self._spaces[key] = iter(Space(kernel, domains, self.workload.dtype, own))
        return self._spaces[key]

    def takes(self, c: Candidate, shape: Shape) -> bool:
        """Whether the kernel admits the shape and its fitting tunables are among those drawn there."""
        from lowering.recipe import concrete

        domains = self.domains(c.seed.kernel, shape)
        if any(c.seed.bindings[n] not in domains[n] for n in self.workload.fits if n in domains):
            return False
        try:
            concrete(c.executable.recipe, shape, self.contract.scalar_values(), SMS)
        except CakeError as exc:
            return (
                exc.diagnostic.rule != "lowering/shape-not-admitted"
            )  # what cannot be emitted is the compiler's to reject
        return True


def at_shape(name: str, shape: Shape, pool: Sequence[tuple[str, str]], seed: int, most: int) -> list[str]:
    """Up to `most` ids of (id, kernel) in the order of drawing: uniform over the kernels that have some left, then over those."""
    source = random.Random(f"{name} {sorted(shape.items())} {seed}")
    left: dict[str, list[str]] = defaultdict(list)
    for id_, kernel in pool:
        left[kernel].append(id_)
    out: list[str] = []
    while left and len(out) < most:
        kernel = source.choice(list(left))
        out.append(left[kernel].pop(source.randrange(len(left[kernel]))))
        if not left[kernel]:
            del left[kernel]
    return out
