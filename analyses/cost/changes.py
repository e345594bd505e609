"""Which neighbours a program has: what its author could turn, found in its syntax tree.

Tunables go to the neighbouring values of their domains; literals in declarations (`stages=4`, `swizzle=128`, `cluster=2`, `count=2`)
and named constants that declarations are made from are changed in the text. What a tunable, constant or literal *is* (the stages of
a ring, the extent of a tile, the size of the cluster) follows from the declarations that its value reaches, never from its name or
the kernel's. Whether a neighbour is a program at all is not asked here: `analyses.cost.sensitivity` does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from analyses.fixtext import Source
from cake_ir import syntax as S
from cake_ir.diagnostics import Edit

Value = int | float | bool | str

Kind = Literal[
    "stages",
    "tile",
    "cluster",
    "swizzle",
    "roles",
    "dependent launch",
    "registers",
    "occupancy",
    "order",
    "grid",
    "other",
]
KINDS: tuple[Kind, ...] = (
    "cluster", "roles", "dependent launch", "tile", "stages", "swizzle", "order", "occupancy", "registers", "grid", "other",
)  # fmt: skip
"""What a change does, from what decides most: a number that sets the size of the cluster and a tile's extent is the cluster's."""
TRIED: tuple[Kind, ...] = (
    "stages", "tile", "roles", "cluster", "swizzle", "dependent launch", "order", "occupancy", "other", "registers", "grid"
)  # fmt: skip
"""The order in which changes are tried, where not all are."""
SWIZZLES = (32, 64, 128)
STRIDES = (1, 2, 4, 8, 16, 32, 64)
"""How far a number with a range as domain moves: the first step that the program admits counts, extents are seldom free to move by 1."""
FAR = 256
"""How far from a value its neighbours in a range are looked for."""
MOST_STAGES = 16
"""Literal stages grow no further."""
_LAYOUTS = ("vec", "wgmma_d", "wgmma_a", "mma_a", "mma_b", "mma_d")


@dataclass(frozen=True)
class Change:
    """One neighbour. `bindings`: the tunable that changes, with its new value; `edits`: what changes in the text. `group` names what is
    turned, up or down: of several changes with the same group the first that the program admits counts. `after`: the group of a
    smaller step in the same direction, without whose help this one is not worth a try."""

    what: str
    kind: Kind
    bindings: Mapping[str, Value]
    edits: tuple[Edit, ...]
    group: str
    after: str = ""


@dataclass(frozen=True)
class Sink:
    """A place where a static number shapes the program: an argument of a declaration, or a layout. `name`: what is declared."""

    kind: Kind
    name: str
    expr: Any


class Flow:
    """From static numbers to what they shape, in one kernel's syntax tree."""

    def __init__(self, kernel: S.Kernel) -> None:
        self.kernel = kernel
        self.defined: dict[str, Any] = {}
        self.declared: dict[str, S.Call] = {}
        for s in kernel.body:
            if isinstance(s, S.Assign) and len(s.targets) == 1:
                name, value = s.targets[0].id, s.value
                if isinstance(value, S.Call) and _callee(value) in _SINKS:
                    self.declared[name] = value
                else:
                    self.defined.setdefault(name, value)
        self.nodes = list(nodes(kernel.body))
        self.calls = [n for n in self.nodes if isinstance(n, S.Call)]
        self.launch = next((c for c in self.calls if _callee(c) == "launch"), None)
        self.counters = {n.target.id for n in self.nodes if isinstance(n, S.AugAdd)}
        """Names that are counted up."""

    def roots(self, node: Any, compared: bool = False) -> set[str]:
        """Names that an expression reads, directly or through the names that it is made from. compared: also what it only compares, which
        chooses between values and is none of them."""
        found: set[str] = set()
        todo = [node]
        while todo:
            for n in nodes(todo.pop(), () if compared else (S.Compare,)):
                if isinstance(n, S.Name) and n.id not in found:
                    found.add(n.id)
                    todo.append(self.defined.get(n.id))
        return found

    @cached_property
    def _by_root(self) -> Mapping[str, list[Sink]]:
        found: dict[str, list[Sink]] = defaultdict(list)
        for sink in self._sinks():
            for name in self.roots(sink.expr, compared=sink.kind == "dependent launch"):
                found[name].append(sink)
        return found

    def reached(self, name: str) -> tuple[Sink, ...]:
        """What a name shapes."""
        return tuple(self._by_root.get(name, ()))

    def _sinks(self) -> Iterator[Sink]:
        for name, call in self.declared.items():
            yield from _arguments(call, name)
        if self.launch is not None:
            yield from _arguments(self.launch, "")
        for n in self.nodes:
            if isinstance(n, S.Index) and _layout(n):
                for item in n.items:
                    yield Sink("tile", "", item)
            if isinstance(n, S.If) and any(
                isinstance(c, S.Call) and _callee(c).startswith("griddep_") for c in nodes(n.body)
            ):
                yield Sink("dependent launch", "", n.cond)


_SINKS: Mapping[str, Mapping[str, Kind]] = {
    "smem": {"": "tile", "stages": "stages", "swizzle": "swizzle"},
    "tmem": {"": "tile", "stages": "stages"},
    "mbarrier": {"stages": "stages"},
    "named_barrier": {},
    "role": {"count": "roles", "registers": "registers"},
    "tile_space": {"": "tile", "group": "order"},
    "launch": {"cluster": "cluster", "ctas": "grid", "ctas_per_sm": "occupancy"},
}
"""Arguments of declarations and what they shape; "" the positional ones."""


def _arguments(call: S.Call, name: str) -> Iterator[Sink]:
    kinds = _SINKS[_callee(call)]
    for arg in call.args if "" in kinds else ():
        yield Sink(kinds[""], name, arg)
    for k in call.keywords:
        if k.name in kinds:
            yield Sink(kinds[k.name], name, k.value)


def _callee(call: Any) -> str:
    return call.func.id if isinstance(call.func, S.Name) else ""


def _layout(n: S.Index) -> bool:
    base: Any = n.value
    while isinstance(base, (S.Attribute, S.Call)):
        base = base.value if isinstance(base, S.Attribute) else base.func
    return isinstance(base, S.Name) and base.id in _LAYOUTS


def nodes(node: Any, without: tuple[type, ...] = ()) -> Iterator[Any]:
    """All nodes below (and with) a node, a tuple of nodes or None; none of some types, nor what is below those."""
    if isinstance(node, tuple):
        for item in node:
            yield from nodes(item, without)
    elif isinstance(node, S.Node) and not isinstance(node, without):
        yield node
        for value in vars(node).values():
            if isinstance(value, (S.Node, tuple)):
                yield from nodes(value, without)


# ---- changes


def changes(text: str, kernel: S.Kernel, values: Mapping[str, Any], features: frozenset[str]) -> list[Change]:
    """The neighbours of a kernel.

    text: the text that `kernel` was parsed from. values: the values of its tunables, as the bound kernel has them (dtypes, and
    what the signature's extents are made from, are left alone: they change what the kernel is called with). features: of "cluster"
    and "griddepcontrol" those that the target has.
    """
    flow = Flow(kernel)
    source = Source(text)
    found: list[Change] = []
    outside = {n.id for n in nodes(kernel.tensors) if isinstance(n, S.Name)}  # what callers pass depends on those
    for t in kernel.tunables:
        if t.name not in outside:
            found += _of_tunable(flow, t, values[t.name])
    for name, value in flow.defined.items():
        if isinstance(value, S.Num) and isinstance(value.value, int):
            found += _of_constant(flow, name, value)
    found += [*_of_rings(flow), *_of_swizzles(flow), *_of_roles(flow)]
    if "cluster" in features:
        found += _of_cluster(flow)
    if "griddepcontrol" in features:
        found += _of_dependence(flow, source)
    return sorted(found, key=lambda c: TRIED.index(c.kind))


def _of_tunable(flow: Flow, t: S.Tunable, value: Any) -> Iterator[Change]:
    sinks = flow.reached(t.name)
    if isinstance(t.domain, S.Tuple) and set(near(t.domain, 0)) <= {0, 1}:  # a switch
        sinks = tuple(s for s in sinks if s.kind == "dependent launch")
    kind = _kind(sinks)

    def change(new: Any, step: int = 0) -> Change:
        group = f"{t.name} {'up' if new > value else 'down'}"
        what = f"{_words(flow, kind, sinks, value, new)} ({t.name} {value} -> {new})"
        return Change(what, kind, {t.name: new}, (), *_chain(group, step))

    if kind == "stages":
        every = near(t.domain, value)
        for step, new in enumerate(_growing(value, [v for v in every if v > value])):
            yield change(new, step)
        yield from (change(v) for v in [v for v in every if v < value][-1:])
    else:
        yield from (change(v) for v in _neighbours(t.domain, value, STRIDES if kind == "tile" else (1,)))


def _chain(group: str, step: int) -> tuple[str, str]:
    """(group, the one before it) of the step-th of growing changes."""
    return (f"{group} {step}", f"{group} {step - 1}" if step > 1 else group) if step else (group, "")


def _growing(value: int, larger: Sequence[int]) -> Iterator[int]:
    """The next of sorted larger numbers, then the next that is at least twice that, and so on, up to the last."""
    least = value + 1
    while rest := [v for v in larger if v >= least]:
        yield rest[0]
        least = 2 * rest[0] if rest[-1] >= 2 * rest[0] else max(rest[-1], rest[0] + 1)


def _neighbours(domain: Any, value: Any, strides: tuple[int, ...]) -> Iterator[Any]:
    """Values next to one in a domain, up first; in a range as far away as the strides say."""
    if isinstance(domain, S.Tuple):
        known = [i.value for i in domain.items if isinstance(i, (S.Num, S.Bool))]
        if isinstance(value, bool):
            yield from (v for v in known if v is not value)
        elif isinstance(value, (int, float)):
            yield from sorted(v for v in known if v > value)[:1]
            yield from sorted((v for v in known if v < value), reverse=True)[:1]
    elif isinstance(domain, S.Call) and isinstance(value, int):
        every = near(domain, value)
        for sign in (1, -1):
            yield from (v for k in strides if (v := value + sign * k) in every)


def near(domain: Any, value: int) -> list[int]:
    """The numbers of a domain that are not far from a value, sorted."""
    if isinstance(domain, S.Tuple):
        return sorted(int(i.value) for i in domain.items if isinstance(i, (S.Num, S.Bool)))
    every = range(*[int(a.value) for a in domain.args if isinstance(a, S.Num)])
    return [v for v in range(value - FAR, value + FAR + 1) if v in every]


def _of_constant(flow: Flow, name: str, num: S.Num) -> Iterator[Change]:
    """A named constant that declarations are made from."""
    sinks, value = flow.reached(name), int(num.value)
    kind = _kind(sinks)
    if kind not in ("stages", "tile", "roles", "cluster"):
        return
    steps = (value + 1, value - 1) if kind == "stages" or _ones(flow, sinks) else (value * 2, value // 2)
    for new in steps:
        if new >= 1:
            what = f"{_words(flow, kind, sinks, value, new)} ({name} = {new} for {value})"
            yield Change(what, kind, {}, (_put(num, new),), f"{name} {'up' if new > value else 'down'}")


def _of_rings(flow: Flow) -> Iterator[Change]:
    """Literal stages: declarations that one counter numbers are one ring, and `wait(free[n - 4])` of a ring of four goes with it."""
    for names, stages in _rings(flow):
        arguments = [k.value for n in names for k in flow.declared[n].keywords if k.name == "stages"]
        literals = [n for n in (*arguments, *(b.right for b in _behind(flow, names, stages))) if isinstance(n, S.Num)]
        sinks = tuple(Sink("stages", n, None) for n in names)
        more = list(_growing(stages, range(stages + 1, MOST_STAGES + 1)))
        for step, new in [*enumerate(more), (0, stages - 1)]:
            if new >= 1:
                what = f"{_words(flow, 'stages', sinks, stages, new)} (stages {stages} -> {new})"
                edits = tuple(_put(n, new) for n in literals)
                group = f"{names[0]} {'up' if new > stages else 'down'}"
                yield Change(what, "stages", {}, edits, *_chain(group, step))


def _rings(flow: Flow) -> list[tuple[tuple[str, ...], int]]:
    """(declarations, stages) of each ring with literal stages."""
    staged = {
        name: int(k.value.value)
        for name, call in flow.declared.items()
        for k in call.keywords
        if k.name == "stages" and isinstance(k.value, S.Num)
    }
    counters: dict[str, set[str]] = defaultdict(set)
    static = {*flow.defined, *(t.name for t in flow.kernel.tunables)} - flow.counters
    for n in flow.nodes:
        if isinstance(n, S.Index) and isinstance(n.value, S.Name) and n.value.id in staged:
            counters[n.value.id] |= {x.id for x in nodes(n.items[0]) if isinstance(x, S.Name)} - static
    rings: list[tuple[set[str], set[str], int]] = []
    for name, by in counters.items():
        same = [r for r in rings if r[2] == staged[name] and r[1] & by]
        rings = [r for r in rings if r not in same]
        rings.append(({name}.union(*(r[0] for r in same)), by.union(*(r[1] for r in same)), staged[name]))
    order = list(flow.declared)
    return [(tuple(sorted(names, key=order.index)), stages) for names, _, stages in rings]


def _behind(flow: Flow, names: tuple[str, ...], stages: int) -> Iterator[S.Binary]:
    """`n - STAGES` in the waits of a ring's barriers."""
    for call in flow.calls:
        if _callee(call) == "wait":
            for n in nodes(call.args):
                if isinstance(n, S.Index) and isinstance(n.value, S.Name) and n.value.id in names:
                    item = n.items[0]
                    if isinstance(item, S.Binary) and item.op == "-" and item.right == S.Num(value=stages):
                        yield item


def _of_swizzles(flow: Flow) -> Iterator[Change]:
    """Literal swizzles: all tiles with the same one together, since operands of a product seldom differ."""
    by_value: dict[int, list[tuple[str, S.Num]]] = defaultdict(list)
    for name, call in flow.declared.items():
        for k in call.keywords:
            if k.name == "swizzle" and isinstance(k.value, S.Num) and k.value.value in SWIZZLES:
                by_value[int(k.value.value)].append((name, k.value))
    for value, tiles in by_value.items():
        for new in _around(SWIZZLES, value):
            edits = tuple(_put(num, new) for _, num in tiles)
            what = f"swizzle {new} for {value} in {_list(n for n, _ in tiles)}"
            yield Change(what, "swizzle", {}, edits, f"swizzle {value} {'up' if new > value else 'down'}")


def _of_roles(flow: Flow) -> Iterator[Change]:
    """Literal counts of roles: warps double or halve, warpgroups are one more or one fewer."""
    for name, call in flow.declared.items():
        if _callee(call) != "role":
            continue
        sink = (Sink("roles", name, None),)
        for k in call.keywords:
            if k.name == "count" and isinstance(k.value, S.Num):
                value = int(k.value.value)
                for new in (value + 1, value - 1) if _ones(flow, sink) else (value * 2, value // 2):
                    if new >= 1:
                        what = f"{_words(flow, 'roles', sink, value, new)} (count {value} -> {new})"
                        yield Change(
                            what, "roles", {}, (_put(k.value, new),), f"{name} {'up' if new > value else 'down'}"
                        )


def fewer_registers(kernel: S.Kernel, role: str, counts: Sequence[int]) -> Iterator[Change]:
    """A role with a literal number of registers gets fewer: each count only if the larger one helps."""
    flow = Flow(kernel)
    given = next((k.value for k in flow.declared[role].keywords if k.name == "registers"), None)
    if not isinstance(given, S.Num):
        return
    for step, new in enumerate(counts):
        what = f"fewer registers of {role} (registers {given.value} -> {new})"
        yield Change(what, "registers", {}, (_put(given, new),), *_chain(f"{role} registers down", step))


def _of_cluster(flow: Flow) -> Iterator[Change]:
    if flow.launch is None:
        return
    given = next((k.value for k in flow.launch.keywords if k.name == "cluster"), None)
    if given is None and flow.launch.keywords:
        last = flow.launch.keywords[-1].value.span
        at = last.model_copy(update={"line": last.end_line, "col": last.end_col})
        yield Change("a cluster of two (cluster=2)", "cluster", {}, (Edit(span=at, new=", cluster=2"),), "cluster up")
    elif isinstance(given, S.Num):
        value = int(given.value)
        for new in (value * 2, value // 2):
            if new >= 1:
                word = "larger" if new > value else "smaller"
                what = f"a {word} cluster (cluster {value} -> {new})"
                yield Change(what, "cluster", {}, (_put(given, new),), f"cluster {'up' if new > value else 'down'}")


def _of_dependence(flow: Flow, source: Source) -> Iterator[Change]:
    """A kernel without dependent launch: both ops before its first statement that is not a declaration."""
    if any(_callee(c).startswith("griddep_") for c in flow.calls):
        return
    first = next((s for s in flow.kernel.body if not _declares(flow, s)), None)
    if first is not None:
        edit = source.before(first.span.line, "griddep_wait()", "griddep_launch()")
        yield Change(
            "dependent launch behind another kernel (griddep_wait, griddep_launch)",
            "dependent launch",
            {},
            (edit,),
            "dependent launch",
        )


def _declares(flow: Flow, s: Any) -> bool:
    if isinstance(s, S.CallStmt):
        return _callee(s.call) in ("launch", "where")
    known = {*flow.declared, *flow.defined} - flow.counters
    return isinstance(s, S.Assign) and len(s.targets) == 1 and s.targets[0].id in known


# ---- words


def _kind(sinks: tuple[Sink, ...]) -> Kind:
    kinds = {s.kind for s in sinks} or {"other"}
    return next(k for k in KINDS if k in kinds)


def _ones(flow: Flow, sinks: tuple[Sink, ...]) -> bool:
    """Whether the number counts warpgroups, which come one by one."""
    return any(s.kind == "roles" and _unit(flow, s.name) == "warpgroup" for s in sinks)


def _unit(flow: Flow, role: str) -> str:
    args = flow.declared[role].args
    return args[0].id if args and isinstance(args[0], S.Name) else ""


def _words(flow: Flow, kind: Kind, sinks: tuple[Sink, ...], value: Any, new: Any) -> str:
    """What a change is in an engineer's words."""
    up = new > value
    names = list(dict.fromkeys(s.name for s in sinks if s.kind == kind and s.name))
    tiles = [n for n in names if _callee(flow.declared[n]) in ("smem", "tmem")]
    if kind == "stages":
        n = abs(new - value)
        count = ("one more stage" if up else "one stage fewer") if n == 1 else f"{n} {'more' if up else 'fewer'} stages"
        return f"{count} of {_list(tiles or names)}"
    if kind == "tile":
        return f"a {'larger' if up else 'smaller'} tile" + (f" of {_list(tiles)}" if tiles else "")
    if kind == "roles":
        unit = _unit(flow, names[0])
        return f"{'more' if up else 'fewer'} {unit}s of {_list(names)}"
    if kind == "cluster":
        return f"a {'larger' if up else 'smaller'} cluster"
    if kind == "dependent launch":
        return f"{'dependent' if up else 'no dependent'} launch behind another kernel"
    if kind == "swizzle":
        return f"another swizzle of {_list(tiles)}"
    if kind == "order":
        return "another order of tiles"
    if kind == "registers":
        return f"{'more' if up else 'fewer'} registers of {_list(names)}"
    if kind == "occupancy":
        return f"{'more' if up else 'fewer'} CTAs an SM"
    if kind == "grid":
        return "another grid"
    return "another value"


def _list(names: Any) -> str:
    return ", ".join(names)


def _around(known: tuple[int, ...], value: int) -> list[int]:
    return [v for v in known if v > value][:1] + [v for v in reversed(known) if v < value][:1]


def _put(num: S.Num, new: int) -> Edit:
    return Edit(span=num.span, new=str(new))
