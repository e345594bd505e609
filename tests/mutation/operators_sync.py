"""Mutations of one synchronisation op or barrier declaration: targets, ranks, scopes, use numbers, counts, stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cake_ir.syntax import Attribute, Call, CallStmt, Index, Keyword, Name, Num
from tests.mutation.operators import SYNC_OPS, Editor, Mutation, is_sync, short
from tests.mutation.tree import Path, Place, called, get, keyword, nodes, num, op_of, plus, put, remade, without_keyword

SCOPES = ("warp", "warpgroup", "cta", "cluster", "grid")
DEPTHS = ("bulk_wait_read", "bulk_wait", "cp_async_wait", "wgmma_wait")
SAME_GROUP = {"bulk_wait_read": ("bulk_wait",), "bulk_wait": ("bulk_wait_read",)}


def _leaf(p: Place) -> Iterator[tuple[Path, Any]]:
    """All nodes of a simple statement, or of a compound one's header."""
    for path, node in nodes(p.node, p.path):
        if not any(x in ("body", "orelse") for x in path[len(p.path) :]):
            yield path, node


def uses(ed: Editor, p: Place) -> Iterator[tuple[Path, Index]]:
    """All `bar[n]` in a statement."""
    known = {*ed.barriers, *ed.named}
    for path, node in _leaf(p):
        if isinstance(node, Index) and isinstance(node.value, Name) and node.value.id in known:
            yield path, node


def retarget(ed: Editor) -> Iterator[Mutation]:
    """Another barrier, another rank, another scope, another fence space, another receiver set."""
    for p in ed.places:
        for path, use in uses(ed, p):
            assert isinstance(use.value, Name)
            own = use.value.id
            for other in ed.barriers if own in ed.barriers else ed.named:
                if other != own:
                    yield from ed.edit(
                        "retarget", p, f"{short(p.node)}: {other} for {own}",
                        lambda path=path, other=other: put(ed.kernel, (*path, "value"), Name(id=other)),
                        sync=True, more=frozenset({other}),
                    )  # fmt: skip
            yield from _ranks(ed, p, path, use)
        op = op_of(p.node)
        if not isinstance(p.node, CallStmt):
            continue
        call = (*p.path, "call")
        if op == "sync" and isinstance(p.node.call.args[0], Name):
            own = p.node.call.args[0].id
            for scope in (*SCOPES, *ed.roles):
                if scope != own:
                    yield from ed.edit(
                        "retarget", p, f"sync({own}) to sync({scope})",
                        lambda call=call, scope=scope: put(ed.kernel, (*call, "args", 0), Name(id=scope)),
                    )  # fmt: skip
        for other in SAME_GROUP.get(op, ()):
            yield from ed.edit(
                "retarget", p, f"{op} to {other}",
                lambda call=call, other=other: put(ed.kernel, (*call, "func"), Name(id=other)),
            )  # fmt: skip
        if op == "fence_async" and not p.node.call.keywords:
            space = Keyword(name="space", value=Name(id="gmem"))
            yield from ed.edit(
                "retarget", p, "fence_async to global memory",
                lambda call=call, space=space: put(ed.kernel, (*call, "keywords"), (space,)),
            )  # fmt: skip
        yield from _receivers(ed, p, call)


def _ranks(ed: Editor, p: Place, path: Path, use: Index) -> Iterator[Mutation]:
    """`.on(rank)` gone, added or another; only where there is a cluster."""
    outer = get(ed.kernel, path[:-1]) if path[-1] == "value" else None
    at = path[:-2] if isinstance(outer, Attribute) and outer.name == "on" else None
    if at is not None:
        on = get(ed.kernel, at)
        yield from ed.edit("retarget", p, f"{short(p.node)}: without .on()", lambda: put(ed.kernel, at, use), sync=True)
        ranks = [Num(value=0), Num(value=1), Name(id="cluster_rank")]
        for rank in ranks:
            if on.args[0] != rank:
                yield from ed.edit(
                    "retarget", p, f"{short(p.node)}: .on({_text(rank)})",
                    lambda rank=rank: put(ed.kernel, (*at, "args", 0), rank), sync=True,
                )  # fmt: skip
    elif ed.clustered:
        for rank in (Num(value=0), Num(value=1)):
            remote = Call(func=Attribute(value=use, name="on"), args=(rank,))
            yield from ed.edit(
                "retarget", p, f"{short(p.node)}: .on({_text(rank)}) added",
                lambda remote=remote: put(ed.kernel, path, remote), sync=True,
            )  # fmt: skip


def _text(x: Any) -> str:
    return str(x.value) if isinstance(x, Num) else x.id


def _receivers(ed: Editor, p: Place, call: Path) -> Iterator[Mutation]:
    node = get(ed.kernel, call)
    if keyword(node, "multicast") is not None:
        yield from ed.edit(
            "retarget", p, f"{short(p.node)}: without multicast=",
            lambda: put(ed.kernel, call, without_keyword(node, "multicast")), sync=True,
        )  # fmt: skip
    elif called(node) in ("tma_load", "tcgen05_commit") and ed.clustered:
        wide = remade(node, keywords=(*node.keywords, Keyword(name="multicast", value=Name(id="cluster"))))
        yield from ed.edit(
            "retarget", p, f"{short(p.node)}: multicast=cluster added", lambda: put(ed.kernel, call, wide), sync=True
        )


def use_numbers(ed: Editor) -> Iterator[Mutation]:
    """n to n - 1, n + 1, n - 2, n + 2 in every barrier use; counters that advance by 2."""
    for p in ed.places:
        for path, use in uses(ed, p):
            for by in (-1, 1, -2, 2):
                yield from ed.edit(
                    "use", p, f"{short(p.node)}: use number {by:+d}",
                    lambda path=path, use=use, by=by: put(ed.kernel, (*path, "items", 0), plus(use.items[0], by)),
                    sync=True,
                )  # fmt: skip
        if op_of(p.node) == "+=":
            for by in (-1, 1):
                yield from ed.edit(
                    "use", p, f"{p.node.target.id} advances by {by:+d} more",
                    lambda p=p, by=by: put(ed.kernel, (*p.path, "value"), plus(p.node.value, by)), sync=True,
                )  # fmt: skip


def staged(ed: Editor) -> Iterator[Mutation]:
    """n to n - 1, n + 1 in every use of a staged buffer."""
    for p in ed.places:
        for path, node in _leaf(p):
            if isinstance(node, Index) and isinstance(node.value, Name) and node.value.id in ed.buffers:
                for by in (-1, 1):
                    yield from ed.edit(
                        "use", p, f"{short(p.node)}: {node.value.id} slot {by:+d}",
                        lambda path=path, node=node, by=by: put(ed.kernel, (*path, "items", 0), plus(node.items[0], by)),
                        sync=False,
                    )  # fmt: skip


def counts(ed: Editor) -> Iterator[Mutation]:
    """Wait depths, asserted and missing arrival counts, the launch's counts."""
    for p in ed.places:
        op = op_of(p.node)
        if op in DEPTHS:
            k = p.node.call.args[0]
            at = (*p.path, "call", "args", 0)
            options = [plus(k, 1), plus(k, 2), num(0), num(7)]
            if not (isinstance(k, Num) and k.value == 0):
                options.append(plus(k, -1))
            yield from _values(ed, p, at, options, f"{op} depth")
        call, at = _call(p)
        if op in ("mbarrier", "launch", "tile_space", "role", "smem", "tmem") and call is not None:
            for i, k in enumerate(call.keywords):
                if k.name in ("arrivals", "bytes", "ctas_per_sm", "cluster", "group"):
                    here = (*at, "keywords", i, "value")
                    options = [plus(k.value, 1), plus(k.value, -1), num(1), num(2), num(4)]
                    yield from _values(ed, p, here, options, f"{short(p.node)} {k.name}=", sync=op == "mbarrier")
                if k.name == "ctas":
                    here = (*at, "keywords", i, "value")
                    options = [plus(k.value, 1), plus(k.value, -1), num(1)]
                    yield from _values(ed, p, here, options, "launch ctas=", sync=False)
            if op == "mbarrier" and keyword(call, "arrivals") is None:
                for n in (1, 2, 4):
                    more = remade(call, keywords=(*call.keywords, Keyword(name="arrivals", value=Num(value=n))))
                    yield from ed.edit(
                        "count", p, f"{p.node.targets[0].id}: arrivals={n} asserted",
                        lambda at=at, more=more: put(ed.kernel, at, more), sync=True,
                    )  # fmt: skip
    yield from _launch_forms(ed)


def _launch_forms(ed: Editor) -> Iterator[Mutation]:
    for p in ed.places:
        if op_of(p.node) != "launch":
            continue
        call = p.node.call
        for n, name in ((2, "cluster"), (4, "cluster"), (2, "ctas_per_sm")):
            if keyword(call, name) is None:
                more = remade(call, keywords=(*call.keywords, Keyword(name=name, value=Num(value=n))))
                yield from ed.edit(
                    "count", p, f"launch: {name}={n} added",
                    lambda p=p, more=more: put(ed.kernel, (*p.path, "call"), more), sync=False,
                )  # fmt: skip


def stages(ed: Editor) -> Iterator[Mutation]:
    """`stages=` of barriers and buffers, and the number of named barriers."""
    for p in ed.places:
        call, at = _call(p)
        op = op_of(p.node)
        if call is None or op not in ("mbarrier", "smem", "tmem", "named_barrier"):
            continue
        sync = op in ("mbarrier", "named_barrier")
        i = keyword(call, "stages")
        if i is not None:
            value = call.keywords[i].value
            options = [plus(value, 1), plus(value, -1), plus(value, 2), num(1), num(2)]
            yield from _values(
                ed, p, (*at, "keywords", i, "value"), options, f"{p.node.targets[0].id} stages=", "stages", sync
            )
            yield from ed.edit(
                "stages", p, f"{p.node.targets[0].id}: without stages=",
                lambda at=at, call=call: put(ed.kernel, at, without_keyword(call, "stages")), sync=sync,
            )  # fmt: skip
        elif op != "named_barrier":
            for n in (2, 3):
                more = remade(call, keywords=(*call.keywords, Keyword(name="stages", value=Num(value=n))))
                yield from ed.edit(
                    "stages", p, f"{p.node.targets[0].id}: stages={n} added",
                    lambda at=at, more=more: put(ed.kernel, at, more), sync=sync,
                )  # fmt: skip
        else:
            options = [plus(call.args[0], 1), plus(call.args[0], -1), num(17)]
            yield from _values(ed, p, (*at, "args", 0), options, f"{p.node.targets[0].id} count", "stages", sync)


def _call(p: Place) -> tuple[Call | None, Path]:
    if isinstance(p.node, CallStmt):
        return p.node.call, (*p.path, "call")
    value = getattr(p.node, "value", None)
    return (value, (*p.path, "value")) if isinstance(value, Call) else (None, ())


def _values(
    ed: Editor, p: Place, at: Path, options: list[Any], what: str, kind: str = "count", sync: bool | None = None
) -> Iterator[Mutation]:
    """Every option that differs from the value at a path and from the options before it."""
    seen = [get(ed.kernel, at)]
    for x in options:
        if x in seen:
            continue
        seen.append(x)
        label = x.value if isinstance(x, Num) else f"option {len(seen) - 1}"
        yield from ed.edit(kind, p, f"{what} {label}", lambda x=x: put(ed.kernel, at, x), sync=sync)


def synchronisation(ed: Editor) -> Iterator[Mutation]:
    """All mutations of this module."""
    yield from retarget(ed)
    yield from use_numbers(ed)
    yield from staged(ed)
    yield from counts(ed)
    yield from stages(ed)


__all__ = ["SYNC_OPS", "is_sync", "synchronisation"]
