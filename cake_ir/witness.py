"""Witness shapes: few, small, and chosen so that rings wrap, tiles repeat per CTA and tails occur.

Unknowns are the extents, `device.sms` (with the real count no small shape gives a CTA two tiles) and assumed data.
For each ring of S stages the goals are 0, 1, S-1, S, S+1 and 2S+1 uses, for persistent kernels 1, 2 and 3 tiles per
CTA, for every tiled extent a full and a minimal last tile. Goals that `where` excludes are listed, not forgotten.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from cake_ir.bound import Assume, BarUse, BoundKernel, Op, SConst, SOp, SVar, View, sx_vars, walk
from cake_ir.controls import DIM_LIMIT, controlling, divisors_of, guarded_by_cta, thresholds
from cake_ir.diagnostics import Span
from cake_ir.events import Endless
from cake_ir.memo import memo
from cake_ir.rehearsal import Tally, rehearsal
from cake_ir.skeleton import (
    AgentTrace,
    AssumeViolated,
    BarAt,
    DataOracle,
    Event,
    Skeleton,
    SkeletonLimit,
    compile_skeleton,
)

MAX_WITNESSES = 12
PROBE_LIMIT = 1200
REACH_TRIES = 11
CORNERS = 4
"""Witnesses at constants in conditions."""
EXTRA = 2
"""Witnesses for extents that only conditions and loops without barriers use."""
RUN_LIMIT = 20_000
"""Events of one witness over all its agents; a shape that needs more is named as undecided."""


@dataclass(frozen=True)
class Witness:
    """One shape to run: extents, arguments, device.sms, traced CTAs (None: all), data, and why it was chosen."""

    dims: tuple[tuple[str, int], ...]
    sms: int
    ctas: tuple[int, ...]
    cta_count: int
    oracle: DataOracle
    goal: str

    @property
    def shape(self) -> dict[str, int]:
        """The extents by name."""
        return dict(self.dims)

    def describe(self) -> str:
        """For messages: extents, SM count and data choice."""
        data = f", data {self.oracle.pattern}, {self.oracle.rounds} rounds" if self.oracle != DataOracle() else ""
        return ", ".join(f"{k}={v}" for k, v in self.dims) + f", device.sms={self.sms}{data}"


@dataclass(frozen=True)
class WitnessSet:
    """The chosen witnesses, the goals they meet and the goals that nothing met."""

    witnesses: tuple[Witness, ...]
    met: tuple[str, ...]
    unmet: tuple[str, ...]
    too_long: Span | None = None
    """A loop that no run within the limit came to the end of."""
    endless: tuple[Span, str, Witness] | None = None
    """A loop that never ends, why, and a shape on which it does not."""


def witnesses(bound: BoundKernel) -> WitnessSet:
    """The witness set of a kernel, computed once per bound object."""
    return memo(bound, "witnesses", lambda: _Search(bound).choose())


def traces(bound: BoundKernel, witness: Witness) -> list[AgentTrace]:
    """The agent traces of a witness, run once."""
    store: dict[Witness, list[AgentTrace]] = memo(bound, "traces", dict)
    found = store.get(witness)
    if found is None:
        skeleton = compile_skeleton(bound)
        found = skeleton.run(witness.shape, None, witness.sms, witness.oracle, witness.ctas, limit=RUN_LIMIT)
        store[witness] = found
    return found


def iter_events(events: list[Event]) -> Any:
    """All events, the warps of a `warps()` block one after the other."""
    for e in events:
        if e.children is not None:
            for child in e.children:
                yield from iter_events(child)
        else:
            yield e


class _Search:
    """Finds base values and steps by running the skeleton of the first cluster at candidate shapes."""

    def __init__(self, bound: BoundKernel) -> None:
        self.bound = bound
        self.skeleton: Skeleton = compile_skeleton(bound)
        used = controlling(bound)
        # integer arguments that loops or conditions name are chosen like extents
        self.unknowns = {**bound.dims, **{a.name: a for a in bound.args if a.dtype == "i32" and a in used}}
        self.names = list(self.unknowns)
        self.by_cta = any(v.kind in ("cta", "cluster_id") for v in used) and guarded_by_cta(bound)
        self.cluster = bound.launch.cluster
        self.stages = sorted(
            {b.stages for b in bound.barriers if b.kind == "mbarrier"} | {b.stages for b in bound.buffers if b.staged}
        )
        self.uses_sms = "sms" in bound.builtins and bound.builtins["sms"] in sx_vars(bound.launch.ctas)
        masks = any(isinstance(s, Op) and s.name == "row_bits" for s in walk(bound.body))
        self.data = bool(self.skeleton.int_loads or self.skeleton.data_control or masks)
        self.bounds = self.data_bounds()
        self.rehearsal = rehearsal(bound)
        self.counted: type = BarUse if any(b.kind == "mbarrier" for b in bound.barriers) else View
        self.uses: dict[int, int] = {}
        for s in walk(bound.body):
            # a closing loop may wait once more for every stage
            if isinstance(s, Op) and s.name != "wait" and (n := _counted(s, self.counted)):
                self.uses[s.site] = n
        self.cache: dict[tuple[int, ...], Any] = {}
        self.too_long: SkeletonLimit | None = None
        self.endless: tuple[Span, str, Witness] | None = None

    # ---- probing

    def admits(self, values: tuple[int, ...], sms: int = 4) -> bool:
        env = self.skeleton.environment(dict(zip(self.names, values, strict=False)), {}, sms)
        return self.skeleton.admits(env)

    def count(self, values: tuple[int, ...], sms: int) -> int:
        env = self.skeleton.environment(dict(zip(self.names, values, strict=False)), {}, sms)
        try:
            return self.skeleton.cta_count(env)
        except ZeroDivisionError:
            return 0

    def feature(self, values: tuple[int, ...], sms: int) -> tuple[int, int] | None:
        """(CTA count with many SMs, largest number of ring uses or loop steps of the first CTA)."""
        key = (*values, sms)
        if key in self.cache:
            return self.cache[key]
        result = None
        count = self.count(values, sms)
        if count > 0:
            for oracle in self.oracles(values, ("step", "const"), 1):
                try:
                    shape = dict(zip(self.names, values, strict=False))
                    depth = self.depth(self.rehearsal.run(shape, sms, oracle, (0,), PROBE_LIMIT, 1))
                except (SkeletonLimit, AssumeViolated, ValueError, ZeroDivisionError):
                    continue
                if result is None or depth > result[1]:
                    result = (count, depth)
        elif self.admits(values, sms):
            result = (0, 0)
        self.cache[key] = result
        return result

    def depth(self, found: Tally) -> int:
        """How often the busiest barrier op ran; without barriers the busiest op on a staged buffer, else loop steps.

        Executions, not use numbers: a number that stands still must not hide that the loop went on.
        """
        most = found.most(self.uses)
        return most if self.counted is BarUse else max(found.steps, most)

    def oracles(self, values: tuple[int, ...], patterns: tuple[str, ...], rounds: int) -> list[DataOracle]:
        """Data choices whose largest value is one of the extents, largest first; those that break an assumption fall
        out."""
        if not self.data:
            return [DataOracle()]
        if not self.skeleton.int_loads:
            return [DataOracle("zero", 0, rounds)]
        tops = sorted({values[i] for i in self.bounds}, reverse=True)
        return [DataOracle(p, top, rounds) for p in patterns for top in (tops if p != "zero" else [0])]

    def data_bounds(self) -> list[int]:
        """Extents that an `assume` names as an upper bound of loaded values; all of them when none does."""
        slots = {v: i for i, v in enumerate(self.bound.dims.values())}
        found: set[int] = set()

        def visit(x: Any) -> None:
            if isinstance(x, SOp):
                if x.op in ("<=", "<") and isinstance(x.args[1], SVar) and x.args[1].var in slots:
                    found.add(slots[x.args[1].var])
                for arg in x.args:
                    visit(arg)

        for s in walk(self.bound.body):
            if isinstance(s, Assume):
                visit(s.cond)
        return sorted(found) or list(range(len(self.names)))

    # ---- choosing

    def base(self) -> tuple[int, ...] | None:
        """Small extents that satisfy `where`."""
        n = len(self.names)
        if n == 0:
            return ()
        common = self.moduli()
        for v in (128, 64, 256, 32, 16, 8, 512, 1024, 4, 2, 1, common, 2 * common):
            if self.admits((v,) * n):
                return (v,) * n
        pool = tuple(dict.fromkeys((128, 8, common, 1, 2, 16, 64, 256, 1024, 4)))
        for values in itertools.islice(itertools.product(pool, repeat=n), 20_000):
            if self.admits(values):
                return values
        return None

    def moduli(self) -> int:
        """The least common multiple of the constants that `where` divides by, as far as it stays small."""
        found = 1

        def visit(x: Any) -> None:
            nonlocal found
            if isinstance(x, SOp):
                if x.op == "%" and isinstance(x.args[1], SConst) and int(x.args[1].value) > 0:
                    both = math.lcm(found, int(x.args[1].value))
                    found = both if both <= DIM_LIMIT else found
                for arg in x.args:
                    visit(arg)

        for w in self.bound.where:
            visit(w.cond)
        return found

    def granule(self, base: tuple[int, ...], i: int) -> int:
        """The least step of extent i that `where` admits."""
        for g in sorted({1, 2, 4, 8, 16, 32, 64, 128, 256, self.moduli()}):
            if any(v != base[i] and self.admits((*base[:i], v, *base[i + 1 :])) for v in (base[i] + g, g)):
                return g
        for g in (1, 8, 16, 32, 64):  # extents tied together move together
            moved = self.tied((*base[:i], base[i] + g, *base[i + 1 :]), [int(j == i) for j in range(len(base))])
            if moved is not None and moved[i] == base[i] + g:
                return g
        return max(1, base[i])

    def choose(self) -> WitnessSet:
        base = self.base()
        if base is None:
            return WitnessSet((), (), ("no extents were found that satisfy `where`",))
        many = 64 * self.cluster
        granules = [self.granule(base, i) for i in range(len(base))]
        divisors = divisors_of(self.bound)
        small = tuple(self.smallest(base, i, granules[i]) for i in range(len(base)))
        if not self.admits(small):
            small = base
        ref = self.feature(small, many)
        steps: dict[int, tuple[str, int]] = {}
        for i in range(len(small)):
            found = self.step_of(small, i, granules[i], divisors, many, ref)
            if found is None and self.uses_sms:
                # a persistent loop over tiles that the launch does not depend on
                found = self.step_of(small, i, granules[i], divisors, self.cluster, self.feature(small, self.cluster))
                found = ("tile", found[1]) if found else None
            if found:
                steps[i] = found
        self.small, self.granules, self.steps, self.many = small, granules, steps, many
        return self.combine()

    def smallest(self, base: tuple[int, ...], i: int, granule: int) -> int:
        for v in (1, 2, 4, 8, granule, 16, 32, 64, 128):
            if v <= base[i] and self.admits((*base[:i], v, *base[i + 1 :])):
                return v
        return base[i]

    def step_of(
        self, small: tuple[int, ...], i: int, granule: int, divisors: list[int], many: int, ref: tuple[int, int] | None
    ) -> tuple[str, int] | None:
        """('tile' | 'depth', step): the extent from which on one more tile or one more loop step appears."""
        if ref is None:
            return None
        candidates = sorted(
            {granule, 1, 2, 4, 8, 16, 32, 64, *divisors, *(d * f for d in divisors for f in (2, 4, 8, self.cluster))}
        )
        failed = 0
        for step in candidates:
            step = max(step, granule)
            if step % granule:
                continue
            value = (*small[:i], max(step, small[i]) + max(granule, 1 if step > 1 else step), *small[i + 1 :])
            if not self.admits(value):
                value = (*small[:i], 2 * step, *small[i + 1 :])
                if not self.admits(value) or 2 * step <= small[i]:
                    moved = self.tied(value, [int(j == i) for j in range(len(small))]) if 2 * step > small[i] else None
                    if moved is None or moved[i] != 2 * step:
                        continue
                    value = moved
            f = self.feature(value, many)
            if f is None:
                failed += 1
                if failed > 2:  # runs beyond the probe limit only get longer
                    return None
                continue
            if f[0] > ref[0]:
                return "tile", step
            if f[1] > ref[1]:
                return "depth", step
        return None

    def value_of(self, i: int, t: int, tail: bool) -> int:
        """Extent with t steps; tail: the last step has one granule only."""
        step, g = self.steps[i][1], self.granules[i]
        if t <= 0:
            return 0
        return (t - 1) * step + min(g, step) if tail else t * step

    def combine(self) -> WitnessSet:
        ring = (
            sorted({0, 1} | {u for s in self.stages if s > 1 for u in (s - 1, s, s + 1, 2 * s + 1)})
            if any(s > 1 for s in self.stages)
            else [0, 1, 2, 3]  # rings of one slot wrap with every use
        )
        ring = [u for u in ring if u >= 0]
        depth_dims = [i for i, (k, _) in self.steps.items() if k == "depth"]
        self.wanted = [2 * (i in depth_dims[:1]) + (i in self.steps) for i in range(len(self.small))]
        tile_dims = [i for i, (k, _) in self.steps.items() if k == "tile"]
        tile_plans = [(1, 1)] if self.uses_sms or not tile_dims else [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)]
        goals: list[tuple[str, tuple[int, ...], int, int]] = []
        for k, uses in enumerate(ring if depth_dims else ring[:3]):
            plan = tile_plans[k % len(tile_plans)]
            values = self.values(depth_dims, uses, k % 2 == 1, tile_dims, plan, k % 2 == 0)
            goals.append((f"{uses} uses of a ring", values, self.cluster * (2 if k == 1 else 1), uses))
        deep = self.stages[-1] if self.stages else 1
        for tiles, depth in (
            ((1, 1), (2, max(1, deep - 1)), (3, min(deep + 1, 3)), (5, 1)) if self.uses_sms else ((3, 2),)
        ):
            values = self.values(depth_dims, depth, tiles == 2, tile_dims, (tiles, 1), tiles == 1)
            goals.append((f"{tiles} tiles per CTA", values, self.cluster, depth * tiles))
        if self.uses_sms and tile_dims:
            values = self.values(depth_dims, 2, False, tile_dims, (3, 1), True)
            goals.append(("3 tiles for 2 clusters", values, 2 * self.cluster, 4))
        return self.realise(goals)

    def values(
        self, depth_dims: list[int], uses: int, tail: bool, tile_dims: list[int], plan: tuple[int, int], tile_tail: bool
    ) -> tuple[int, ...]:
        out = list(self.small)
        for j, i in enumerate(depth_dims):
            out[i] = self.value_of(i, uses if j == 0 else min(uses, 2), tail)
        for j, i in enumerate(tile_dims):
            out[i] = self.value_of(i, plan[j] if j < 2 else 1, tile_tail)
        return tuple(out)

    def realise(self, goals: list[tuple[str, tuple[int, ...], int, int]]) -> WitnessSet:
        chosen: dict[Any, Witness] = {}
        unmet: list[str] = []
        longest: Span | None = None
        for k, (goal, values, sms, uses) in enumerate(goals):
            self.second = k in (1, len(goals) - 1)
            self.too_long = None
            witness, best = None, math.inf
            plain = tuple(
                v if self.steps.get(i, ("", 0))[0] == "depth" else least
                for i, (v, least) in enumerate(zip(values, self.small, strict=True))
            )
            for candidate in dict.fromkeys((values, self.repair(values), plain)):
                if candidate is not None and self.admits(candidate, sms):
                    distance, found_one = self.try_witness(candidate, sms, k, uses, goal)
                    if found_one is not None and distance < best:
                        witness, best = found_one, distance
                    # a goal about tiles is met by the tiles, however many uses its shape gives
                    if distance == 0 or (witness is not None and "tiles" in goal and candidate != plain):
                        break
            if witness is None:
                shape = ", ".join(f"{n}={v}" for n, v in zip(self.names, values, strict=True))
                why = "not possible under `where`"
                if self.too_long is not None:
                    loop = self.too_long.span
                    longest = longest or loop
                    why = f"longer than {RUN_LIMIT} events" + (f" in the loop of line {loop.line}" if loop else "")
                unmet.append(f"{goal}: {why} ({shape})")
            else:
                chosen.setdefault((witness.dims, witness.sms, witness.oracle), witness)
        # the limit is on uses of rings; what comes beyond it stands for something that none of the others can show
        uses = [at for at, w in chosen.items() if "tiles" not in w.goal]
        for at in uses[MAX_WITNESSES:]:
            del chosen[at]
        self.reach(chosen)
        more = [*self.empty(chosen), *self.apart(chosen), *self.corners(chosen)]
        found = (*chosen.values(), *more)
        return WitnessSet(found, *self.coverage(found, unmet), longest, self.endless)

    def reach(self, chosen: dict[Any, Witness]) -> None:
        """Adds witnesses for barrier ops that no chosen one executes: a loop that starts at 1 over an extent which is 1 in
        all of them hides everything inside it, and counts of what never ran mean nothing."""
        missing = {
            s.site
            for s in walk(self.bound.body)
            if isinstance(s, Op) and any(isinstance(v, BarUse) for v in s.operands.values())
        }
        for w in chosen.values():
            missing -= _executed(self.bound, w)
        if not missing or not chosen:
            return
        n = len(self.small)
        larger = [
            tuple(v + (j == i) * k * self.granules[j] for j, v in enumerate(self.small))
            for i in range(n)
            for k in (1, 2)
        ]
        larger.append(tuple(v + 2 * g for v, g in zip(self.small, self.granules, strict=True)))
        for values in larger[-REACH_TRIES:]:
            if not self.admits(values, self.cluster):
                continue
            for k in (0, 1):
                _, w = self.try_witness(values, self.cluster, k, 2, "an op that nothing else reaches")
                if w is not None and _executed(self.bound, w) & missing:
                    chosen.setdefault((w.dims, w.sms, w.oracle), w)
                    missing -= _executed(self.bound, w)
                if not missing:
                    return

    def empty(self, chosen: dict[Any, Witness]) -> list[Witness]:
        """Witnesses in which an extent is 0 that none of the others empties: a path without work may skip its part of a
        handshake, whether or not barriers stand inside the loop."""
        found: list[Witness] = []
        used = controlling(self.bound)
        for i, name in enumerate(self.names):
            values = (*self.small[:i], 0, *self.small[i + 1 :])
            if (
                len(found) == EXTRA
                or self.unknowns[name] not in used
                or any(w.shape[name] == 0 for w in chosen.values())
                or not self.admits(values, self.cluster)
            ):
                continue
            _, w = self.try_witness(values, self.cluster, 0, 0, f"{name} = 0")
            if w is not None:
                found.append(w)
        return found

    def corners(self, chosen: dict[Any, Witness]) -> list[Witness]:
        """Witnesses on both sides of constants with which conditions compare an unknown, where no other witness stands:
        two guards that differ by one differ in one value only."""
        slots: dict[Any, str] = {v: name for name, v in self.unknowns.items()}
        if "sms" in self.bound.builtins:
            slots[self.bound.builtins["sms"]] = "sms"
        found: list[Witness] = []
        for var, v in _ends_first(thresholds(self.bound, slots)):
            name = slots[var]
            if len(found) == CORNERS or any((w.sms if name == "sms" else w.shape[name]) == v for w in chosen.values()):
                continue
            sms, values = (v, self.small) if name == "sms" else (self.cluster, self.small)
            if name != "sms":
                i = self.names.index(name)
                step = self.granules[i]
                near = [(*values[:i], n, *values[i + 1 :]) for n in (v, -(-v // step) * step, v // step * step)]
                values = next(
                    (n for n in near if self.admits(n, sms)),
                    self.tied(near[0], [int(j == i) for j in range(len(values))]),
                )
            if values is None or sms < 1 or not self.admits(values, sms):
                continue
            _, w = self.try_witness(values, sms, 0, v, f"{name} = {v}")
            if w is not None:
                found.append(w)
        return found

    def apart(self, chosen: dict[Any, Witness]) -> list[Witness]:
        """Witnesses in which tensors of loaded integers differ: with one pattern for all of them, counts that are loaded from
        different tensors would be equal by chance."""
        if len({op.operands["src"].tensor for op in self.skeleton.int_loads}) < 2 or not chosen:
            return []
        base = max(chosen.values(), key=lambda w: (len(w.ctas), sum(n for _, n in w.dims)))
        found = []
        for pattern in ("even", "odd"):
            values = tuple(n for _, n in base.dims)
            for oracle in self.oracles(values, (pattern,), 1)[:2]:
                w = Witness(base.dims, base.sms, base.ctas, base.cta_count, oracle, "loaded tensors that differ")
                try:
                    self.rehearsal.run(w.shape, w.sms, oracle, w.ctas, RUN_LIMIT)
                except (SkeletonLimit, AssumeViolated, ZeroDivisionError, IndexError, ValueError):
                    continue
                found.append(w)
                break
        return found

    def coverage(self, found: tuple[Witness, ...], unmet: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(goals met, goals not met), read off the traces: totals of uses per ring length."""
        reached: dict[int, set[int]] = {}
        names: dict[int, str] = {}
        for b in self.bound.barriers:
            if b.kind == "mbarrier" and b.stages > 1:
                names.setdefault(b.stages, b.name)
                reached.setdefault(b.stages, set())
        for w in found if reached else ():
            top: dict[tuple[Any, int], int] = {
                (b, c): 0 for b in self.bound.barriers if b.stages in reached for c in w.ctas
            }
            for t in traces(self.bound, w):
                for e in iter_events(t.events):
                    for v in e.vals.values():
                        if isinstance(v, BarAt) and (v.barrier, v.cta) in top and v.use >= top[(v.barrier, v.cta)]:
                            top[(v.barrier, v.cta)] = v.use + 1
            for (b, _), n in top.items():
                reached[b.stages].add(n)
        met = []
        for s, totals in reached.items():
            for n in sorted({0, 1, s - 1, s, s + 1, 2 * s + 1}):
                (met if n in totals else unmet).append(f"{n} uses of a ring of {s} ({names[s]})")
        return tuple(met), tuple(unmet)

    def repair(self, values: tuple[int, ...]) -> tuple[int, ...] | None:
        """The values rounded up to what `where` admits, one extent at a time."""
        out = [v or least for v, least in zip(values, self.small, strict=False)]
        for i, g in enumerate(self.granules):
            if self.admits(tuple(out)):
                break
            out[i] = max(g, -(-out[i] // g) * g)
        return tuple(out) if self.admits(tuple(out)) else self.tied(tuple(out), self.wanted)

    def tied(self, values: tuple[int, ...], wanted: list[int]) -> tuple[int, ...] | None:
        """The values with one extent moved so that `where` holds, which may tie it to the others (one scale per 64
        columns); one that is not wanted as it is goes first."""
        for i in sorted(range(len(values)), key=lambda i: wanted[i]):
            for v in (*range(1, 65), *(64 * f for f in (2, 3, 4, 5, 6, 7, 8, 9, 16, 32, 64))):
                moved = (*values[:i], v, *values[i + 1 :])
                if self.admits(moved):
                    return moved
        return None

    def try_witness(
        self, values: tuple[int, ...], sms: int, k: int, uses: int, goal: str
    ) -> tuple[float, Witness | None]:
        """(distance from the wanted number of uses, witness) with the data that come nearest to it."""
        count = self.count(values, sms)
        if count <= 0:
            return math.inf, None
        cl = self.cluster
        first = tuple(range(min(cl, count)))
        last = tuple(range(count - cl, count)) if count >= 2 * cl and self.second else ()
        if self.by_cta and count >= 2 * cl:  # neighbours may take different branches
            last = tuple(sorted({*range(cl, 2 * cl), *range(count - cl, count)}))
        patterns = ("step", "ramp", "const", "zero")
        patterns = patterns[k % 4 :] + patterns[: k % 4]
        best: tuple[float, Witness | None] = (math.inf, None)
        for oracle in self.oracles(values, patterns, (1, 2, 0)[k % 3])[:6]:
            w = Witness(tuple(zip(self.names, values, strict=False)), sms, first + last, count, oracle, goal)
            try:
                found = self.rehearsal.run(w.shape, sms, oracle, w.ctas, RUN_LIMIT)
            except SkeletonLimit as fault:
                self.too_long = fault
                if isinstance(fault, Endless) and fault.span is not None:
                    self.endless = self.endless or (fault.span, fault.why, w)
                continue
            except (
                AssumeViolated,
                ZeroDivisionError,
                IndexError,
                ValueError,
            ):  # ValueError: a loop step of 0
                continue
            distance = abs(self.depth(found) - uses)
            if distance < best[0]:
                best = (distance, w)
            if distance == 0:
                break
        return best


def _ends_first(found: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
    """The greatest and the least value of every variable before those between: with the greatest all that is guarded by a
    chain of constants runs together."""
    by: dict[Any, list[int]] = {}
    for var, v in found:
        by.setdefault(var, []).append(v)
    ends = [(var, v) for pick in (max, min) for var, values in by.items() for v in [pick(values)]]
    return list(dict.fromkeys([*ends, *found]))


def _counted(op: Op, kind: type) -> int:
    """Operands of a kind."""
    return sum(isinstance(v, kind) for v in op.operands.values())


def _executed(bound: BoundKernel, w: Witness) -> set[int]:
    """Sites of the ops that a witness runs."""
    return rehearsal(bound).run(w.shape, w.sms, w.oracle, w.ctas, RUN_LIMIT).executed()
