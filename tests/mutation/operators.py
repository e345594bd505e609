"""What a mutation is, and the mutations of whole statements: drop, duplicate, move.

Every operator is systematic: it enumerates all its edits of a kernel, in text order, without choice or chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from cake_ir.ops import registry
from cake_ir.syntax import Assign, CallStmt, For, If, Kernel, Name, While, With
from tests.mutation.tree import (
    BLOCKS,
    Path,
    Place,
    called,
    declared,
    get,
    names,
    nodes,
    op_of,
    places,
    splice,
)

KINDS = (
    "drop", "duplicate", "move", "retarget", "use", "count", "stages", "offset", "extent", "predicate", "swizzle", "box",
    "form", "role", "alias", "swap", "loop",
)  # fmt: skip
"""The kinds of the report, in its order."""

SYNC_OPS = frozenset(n for n, d in registry().items() if d.syncs)
"""Ops whose declaration has a synchronisation effect."""

STORAGE = ("smem", "tmem", "mbarrier", "named_barrier")
COUNTERS = ("tile_space", "launch", "where", "assume", "role", *STORAGE)
GROUPS = {
    "bulk_commit": "bulk", "bulk_wait_read": "bulk", "bulk_wait": "bulk",
    "tma_store": "bulk", "tma_reduce": "bulk", "bulk_store": "bulk", "bulk_reduce": "bulk",
    "cp_async_commit": "cp_async", "cp_async_wait": "cp_async", "cp_async_arrive": "cp_async", "cp_async": "cp_async",
    "wgmma_commit": "wgmma", "wgmma_wait": "wgmma", "wgmma": "wgmma",
    "tmem_load_wait": "tmem_load", "tmem_load": "tmem_load",
    "tmem_store_wait": "tmem_store", "tmem_store": "tmem_store",
    "tcgen05_commit": "tcgen05", "tcgen05_mma": "tcgen05",
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """One edit. kernel: the edited kernel. marks: paths (in it) of the statements that count as edited: the edited or
    new one, and for what is gone its neighbours. resources: names whose findings are on the counterpart of the edit.
    sync: the edit touches synchronisation. line: of the statement in the unedited text."""

    kind: str
    op: str
    what: str
    sync: bool
    kernel: Kernel
    marks: tuple[Path, ...]
    resources: frozenset[str]
    line: int


class Editor:
    """A kernel with what the operators ask of it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.places = places(kernel)
        self.by_path = {p.path: p for p in self.places}

    @cached_property
    def barriers(self) -> list[str]:
        return list(declared(self.kernel, "mbarrier"))

    @cached_property
    def named(self) -> list[str]:
        return list(declared(self.kernel, "named_barrier"))

    @cached_property
    def roles(self) -> list[str]:
        return list(declared(self.kernel, "role"))

    @cached_property
    def buffers(self) -> list[str]:
        return list(declared(self.kernel, "smem", "tmem"))

    @cached_property
    def tensors(self) -> list[str]:
        return [t.name for t in self.kernel.tensors]

    @cached_property
    def clustered(self) -> bool:
        launch = next((p.node.call for p in self.places if op_of(p.node) == "launch"), None)
        return launch is not None and any(k.name == "cluster" for k in launch.keywords)

    @cached_property
    def _known(self) -> set[str]:
        return {*self.barriers, *self.named, *self.buffers, *declared(self.kernel, "fragment")}

    @cached_property
    def _by_group(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for p in self.places:
            group = GROUPS.get(op_of(p.node))
            if group:
                found.setdefault(group, set()).update(names(p.node) & (self._known | {_target(p.node)}))
        return found

    @cached_property
    def _guarded(self) -> dict[str, set[str]]:
        """barrier -> buffers whose hand-over it is: those of copies that signal it, and those of the ops that follow a wait
        for it in the same block, or in a block inside it."""
        found: dict[str, set[str]] = {}
        waited: dict[Path, set[str]] = {}
        for p in self.places:
            here = names(p.node) if not _compound(p.node) else set()
            bars, tiles = here & set(self.barriers), here & set(self.buffers)
            if op_of(p.node) == "wait":
                waited.setdefault(p.block, set()).update(bars)
            above = (waited.get(p.block[:n], set()) for n in range(len(p.block) + 1))
            for b in bars.union(*above):
                found.setdefault(b, set()).update(tiles)
        return found

    def _counted(self, counter: str) -> set[str]:
        """What is numbered by a counter: barriers and buffers of statements that name it."""
        found: set[str] = set()
        for p in self.places:
            if not _compound(p.node) and counter in names(p.node):
                found |= names(p.node) & self._known
        return found

    def resources(self, p: Place) -> frozenset[str]:
        """What a finding about this statement may name: its barriers, buffers and accumulators; for an op of a commit
        group those of the group; for a fence or rendezvous those of its role block."""
        own = names(p.node) & self._known
        op = op_of(p.node)
        own |= names(p.node) & set(self.tensors) if not _compound(p.node) else set()
        if op == "+=":
            own |= self._counted(p.node.target.id)
        own |= set().union(*(self._guarded.get(b, set()) for b in own & set(self.barriers)))
        own |= self._by_group.get(GROUPS.get(op, ""), set())
        if isinstance(p.node, Assign):
            own |= {t.id for t in p.node.targets}
        if op in ("sync", "fence_async", "griddep_wait", "griddep_launch"):
            wide = set(self.barriers) if "cluster" in names(p.node) else set()  # it orders arrivals in peers, too
            for q in self.places:
                if q.role == p.role or p.role is None:
                    own |= names(q.node) & {*self.buffers, *self.tensors, *wide} if not _compound(q.node) else set()
        return frozenset(own - {""})

    def op(self, s: Any) -> str:
        """The declared op of a statement: `arrive` on a named barrier is `named_arrive`."""
        op = op_of(s)
        return "named_arrive" if op == "arrive" and names(s) & set(self.named) else op

    def edit(
        self, kind: str, p: Place, what: str, make: Callable[[], Kernel], *, sync: bool | None = None,
        marks: tuple[Path, ...] | None = None, op: str = "", more: frozenset[str] = frozenset(),
    ) -> Iterator[Mutation]:  # fmt: skip
        """The mutation, or nothing if text cannot say the edited tree."""
        try:
            kernel = make()
        except ValidationError:
            return
        op = op or self.op(p.node)
        yield Mutation(
            kind, op, what, is_sync(p.node) if sync is None else sync, kernel, marks if marks is not None else (p.path,),
            self.resources(p) | more, p.node.span.line,
        )  # fmt: skip


def _compound(s: Any) -> bool:
    return isinstance(s, (For, While, If, With))


def _target(s: Any) -> str:
    return s.targets[0].id if isinstance(s, Assign) else ""


def is_sync(s: Any) -> bool:
    """Whether a statement is a synchronisation op, or a block that holds nothing else."""
    if _compound(s):
        return all(is_sync(x) for x in s.body) and all(is_sync(x) for x in getattr(s, "orelse", ()))
    return op_of(s) in SYNC_OPS


def short(s: Any) -> str:
    """A statement in a few words."""
    op = op_of(s)
    use = next((n for n in sorted(names(s)) if n != op), "")
    first = getattr(getattr(s, "call", None), "args", ())
    if first and names(first[0]):
        use = next(n.id for _, n in nodes(first[0]) if isinstance(n, Name))
    return f"{op or type(s).__name__.lower()}({use})" if use else op or type(s).__name__.lower()


def _unit(ed: Editor, p: Place) -> Place:
    """The statement, or the outermost elected(), warps() or if block that holds nothing else."""
    while len(p.path) > 2:
        block = get(ed.kernel, p.block)
        parent = ed.by_path.get(p.parent)
        if parent is None or len(block) > 1 or not isinstance(parent.node, (With, If)):
            return p
        if getattr(parent.node, "orelse", ()) or (
            isinstance(parent.node, With) and isinstance(parent.node.context, Name)
        ):
            return p
        p = parent
    return p


def _around(block: Path, at: int, size: int) -> tuple[Path, ...]:
    """Marks for what is gone between positions at - 1 and at of a block that now has `size` statements: its neighbours,
    and the header of the block where it was at an end."""
    found = [(*block, i) for i in (at - 1, at) if 0 <= i < size]
    if at in (0, size) and len(block) > 1:
        found.append(block[:-1])
    return tuple(found)


def _movable(p: Place) -> bool:
    return (isinstance(p.node, CallStmt) and op_of(p.node) in registry()) or op_of(p.node) in ("+=",)


def drop(ed: Editor) -> Iterator[Mutation]:
    """Every op statement, counter advance and initial value of a fragment."""
    for p in ed.places:
        if not _movable(p):
            continue
        u = _unit(ed, p)
        block = get(ed.kernel, u.block)
        if len(block) == 1:
            continue
        yield from ed.edit(
            "drop", p, f"drop {short(p.node)}", lambda u=u: splice(ed.kernel, u.block, u.at, u.at + 1, ()),
            marks=_around(u.block, u.at, len(block) - 1),
        )  # fmt: skip


def duplicate(ed: Editor) -> Iterator[Mutation]:
    """Every op statement and counter advance again: right behind itself, and at the end of its block."""
    for p in ed.places:
        if not _movable(p):
            continue
        block = get(ed.kernel, p.block)
        for at in dict.fromkeys((p.at + 1, len(block))):
            where = "behind itself" if at == p.at + 1 else "at the end of its block"
            yield from ed.edit(
                "duplicate", p, f"duplicate {short(p.node)} {where}",
                lambda p=p, at=at: splice(ed.kernel, p.block, at, at, (p.node,)), marks=(p.path, (*p.block, at)),
            )  # fmt: skip


def relocated(kernel: Kernel, source: Path, block: Path, at: int) -> tuple[Kernel, Path, Path]:
    """The kernel with the statement at `source` moved to position `at` of another (or its own) block; the new paths of
    the statement and of the gap that it left. The block does not lie inside the statement; `at` counts before the move."""
    s = get(kernel, source)
    there = splice(kernel, block, at, at, (s,))
    n = len(block)
    if len(source) > n and source[:n] == block and source[n] >= at:
        source = (*source[:n], source[n] + 1, *source[n + 1 :])
    moved = splice(there, source[:-1], source[-1], source[-1] + 1, ())
    now: Path = (*block, at)
    m = len(source) - 1
    if len(now) > m and now[:m] == source[:m] and now[m] > source[m]:
        now = (*now[:m], now[m] - 1, *now[m + 1 :])
    return moved, now, source


def blocks(ed: Editor) -> Iterator[tuple[Path, str | None, int]]:
    """(path, role, number of statements) of every block of the kernel."""
    yield ("body",), None, len(ed.kernel.body)
    for p in ed.places:
        role = p.role
        if isinstance(p.node, With) and isinstance(p.node.context, Name) and p.node.context.id in ed.roles:
            role = p.node.context.id
        for name in BLOCKS:
            part = getattr(p.node, name, ())
            if part:
                yield (*p.path, name), role, len(part)


def move(ed: Editor) -> Iterator[Mutation]:
    """Every op statement to other places. In its block: by one, by two, to the ends; out of its block; into neighbouring
    blocks; to the start and end of other roles' blocks. A synchronisation op moreover to every place of its own role and
    of the shared part."""
    spots = list(blocks(ed))
    for p in ed.places:
        if not _movable(p):
            continue
        u = _unit(ed, p)
        if len(get(ed.kernel, u.block)) == 1:
            continue
        for block, role, size in spots:
            if block[: len(u.path)] == u.path:
                continue
            for at in range(size + 1):
                if block == u.block and at in (u.at, u.at + 1):
                    continue
                if not _worth(ed, u, p, block, role, at, size):
                    continue
                try:
                    kernel, now, gap = relocated(ed.kernel, u.path, block, at)
                except ValidationError:
                    continue
                marks = (now, *_around(gap[:-1], gap[-1], len(get(kernel, gap[:-1]))))
                if block == u.block:
                    low, high = min(now[-1], gap[-1]), max(now[-1], gap[-1])
                    marks = tuple((*block, i) for i in range(low, min(high + 1, size)))
                what = f"move {short(p.node)} {_way(ed, u, block, role, at, size)}"
                yield from ed.edit("move", p, what, lambda kernel=kernel: kernel, marks=marks)


def _worth(ed: Editor, u: Place, p: Place, block: Path, role: str | None, at: int, size: int) -> bool:
    ends = at in (0, size)
    if role is not None and u.role is not None and role != u.role:
        return ends and ed.by_path[block[:-1]].role is None  # the role's own blocks, not those nested in them
    if is_sync(p.node):
        return role == u.role or role is None
    if block == u.block:
        return ends or at - u.at in (-2, -1, 2, 3)
    if block == u.parent[:-1]:
        return at - u.parent[-1] in (0, 1)
    return block[:-2] == u.block and abs(block[-2] - u.at) == 1 and ends and role == u.role


def _way(ed: Editor, u: Place, block: Path, role: str | None, at: int, size: int) -> str:
    if block == u.block:
        return f"up by {u.at - at}" if at < u.at else f"down by {at - 1 - u.at}"
    where = "the kernel level" if len(block) == 1 else f"the block of line {ed.by_path[block[:-1]].node.span.line}"
    end = "start" if at == 0 else "end" if at == size else f"position {at}"
    other = f", role {role}" if role != u.role and role is not None else ""
    return f"to {where}{other}, {end}"


def whole(ed: Editor) -> Iterator[Mutation]:
    """All mutations of whole statements."""
    yield from drop(ed)
    yield from duplicate(ed)
    yield from move(ed)


__all__ = ["KINDS", "SYNC_OPS", "Editor", "Mutation", "called", "is_sync", "short", "whole"]
