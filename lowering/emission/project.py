"""The body as one role sees it: other roles' blocks gone, dead counters and empty loops gone, names placed in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cake_ir import bound as B
from cake_ir.binding.scalars import const, sop


@dataclass(eq=False)
class Block:
    """A C block."""

    nodes: list[Node] = field(default_factory=list)


@dataclass(eq=False)
class Node:
    """A statement; compound ones carry blocks instead of their own bodies. `split`: where a while's body starts.

    declares: variables of the enclosing C block whose first mention is here. mark: the timeline's mark before it, if any.
    """

    stmt: Any
    blocks: tuple[Block, ...] = ()
    split: int = 0
    declares: list[Any] = field(default_factory=list)
    number: int = 0
    mark: Any = None


def project(body: tuple[Any, ...], role: B.Role) -> Block:
    """The projection of the kernel body on one role."""
    block = _block(body, role)
    while True:
        live = _live(block)
        if not _prune(block, live):
            break
    _place(block)
    return block


def is_wide_sync(stmt: Any) -> bool:
    """sync(cta), sync(cluster), sync(grid): every thread takes part, idle ones too."""
    return isinstance(stmt, B.Op) and stmt.name == "sync" and stmt.attrs.get("scope") in ("cta", "cluster", "grid")


def has_wide_sync(block: Block) -> bool:
    """Whether a wide sync is anywhere inside."""
    return any(is_wide_sync(n.stmt) or any(has_wide_sync(b) for b in n.blocks) for n in block.nodes)


def _block(body: tuple[Any, ...], role: B.Role) -> Block:
    out = Block()
    for stmt in body:
        if isinstance(stmt, B.RoleBlock):
            if stmt.role is role:
                out.nodes.extend(_block(stmt.body, role).nodes)
        elif isinstance(stmt, B.For | B.ElectedBlock | B.WarpsBlock):
            inner = _block(stmt.body, role)
            if inner.nodes:
                out.nodes.append(Node(stmt, (inner,)))
        elif isinstance(stmt, B.While):
            first = _block(stmt.prelude, role)
            split = len(first.nodes)
            first.nodes.extend(_block(stmt.body, role).nodes)
            out.nodes.append(Node(stmt, (first,), split))
        elif isinstance(stmt, B.If):
            blocks = (_block(stmt.then, role), _block(stmt.orelse, role))
            if any(b.nodes for b in blocks):
                out.nodes.append(Node(stmt, blocks))
        elif not isinstance(stmt, B.Assume):
            out.nodes.append(Node(stmt))
    return out


# ---- what a statement reads ------------------------------------------------------------


def reads(x: Any) -> Iterator[Any]:
    """Every ScalarVar and Fragment that an operand or a statement's own expressions read."""
    if isinstance(x, B.ScalarVar | B.Fragment):
        yield x
    elif isinstance(x, B.SVar):
        yield x.var
    elif isinstance(x, B.SOp | B.VOp):
        for arg in x.args:
            yield from reads(arg)
    elif isinstance(x, B.VFrag):
        yield x.frag
    elif isinstance(x, B.VSplat | B.VExpand):
        yield from reads(x.x)
    elif isinstance(x, B.View):
        for part in (x.use, x.row0, x.col0, x.rank):
            yield from reads(part)
    elif isinstance(x, B.BarUse):
        yield from reads(x.use)
        yield from reads(x.rank)
    elif isinstance(x, B.Region):
        for extent in (*x.tensor.extents, *x.tensor.strides):
            yield from reads(extent)
        for dim in x.dims:
            for part in (dim.start, dim.stop, dim.rows):
                yield from reads(part)
    elif isinstance(x, tuple | list):
        for part in x:
            yield from reads(part)


def statement_reads(stmt: Any) -> Iterator[Any]:
    """What the statement itself reads, without its blocks."""
    if isinstance(stmt, B.Op):
        for operand in stmt.operands.values():
            yield from reads(operand)
    elif isinstance(stmt, B.SetScalar | B.Let):
        yield from reads(stmt.value)
    elif isinstance(stmt, B.For):
        yield from reads((stmt.start, stmt.stop, stmt.step))
    elif isinstance(stmt, B.While | B.If):
        yield from reads(stmt.cond)


def _writes(stmt: Any) -> tuple[Any, ...]:
    if isinstance(stmt, B.Op):
        return stmt.results
    if isinstance(stmt, B.SetScalar):
        return (stmt.var,)
    return (stmt.frag,) if isinstance(stmt, B.Let) else ()


def _removable(stmt: Any) -> bool:
    """Whether it does nothing but define its results."""
    return isinstance(stmt, B.SetScalar | B.Let) or (isinstance(stmt, B.Op) and stmt.name == "load_scalar")


def _nodes(block: Block) -> Iterator[Node]:
    for node in block.nodes:
        yield node
        for inner in node.blocks:
            yield from _nodes(inner)


def _live(block: Block) -> set[Any]:
    """Variables that matter: read by something with an effect, or by the definition of a variable that matters."""
    live: set[Any] = set()
    pending = []
    for node in _nodes(block):
        if _removable(node.stmt):
            pending.append(node.stmt)
        else:
            live.update(statement_reads(node.stmt))
    changed = True
    while changed:
        changed = False
        for stmt in list(pending):
            if any(w in live for w in _writes(stmt)):
                live.update(statement_reads(stmt))
                pending.remove(stmt)
                changed = True
    return live


def _prune(block: Block, live: set[Any]) -> bool:
    """Remove dead definitions and empty control; whether anything changed."""
    kept, changed = [], False
    for node in block.nodes:
        for inner in node.blocks:
            changed |= _prune(inner, live)
        stmt = node.stmt
        dead = _removable(stmt) and not any(w in live for w in _writes(stmt))
        empty = bool(node.blocks) and not any(b.nodes for b in node.blocks) and not isinstance(stmt, B.While)
        if dead or empty:
            changed = True
            continue
        closed = _closed_form(node)
        changed |= closed is not None
        kept.extend(closed if closed is not None else [node])
    block.nodes = kept
    return changed


def _closed_form(node: Node) -> list[Node] | None:
    """A loop that only counts, as one assignment per counter."""
    loop = node.stmt
    if not isinstance(loop, B.For) or not all(isinstance(n.stmt, B.SetScalar) for n in node.blocks[0].nodes):
        return None
    changing = {n.stmt.var for n in node.blocks[0].nodes} | {loop.var}
    if len(changing) != len(node.blocks[0].nodes) + 1:
        return None
    trips = sop("max", sop("ceil_div", sop("-", loop.stop, loop.start), loop.step), const(0))
    out = []
    for inner in node.blocks[0].nodes:
        value, target = inner.stmt.value, inner.stmt.var
        if not (
            isinstance(value, B.SOp)
            and value.op == "+"
            and isinstance(value.args[0], B.SVar)
            and value.args[0].var is target
        ):
            return None
        if changing & set(reads(value.args[1])):
            return None
        out.append(Node(B.SetScalar(target, sop("+", value.args[0], sop("*", trips, value.args[1])), inner.stmt.span)))
    return out


# ---- where names are declared ------------------------------------------------------------


def last_reads(block: Block) -> dict[Any, int]:
    """The number (in text order, see `number`) of the last statement that reads each name."""
    found: dict[Any, int] = {}
    for node in _nodes(block):
        for thing in statement_reads(node.stmt):
            found[thing] = node.number
    return found


def number(block: Block) -> None:
    """Number the statements in text order."""
    for i, node in enumerate(_nodes(block)):
        node.number = i


def all_reads(block: Block) -> Iterator[Any]:
    """Everything that some statement reads."""
    for node in _nodes(block):
        yield from statement_reads(node.stmt)


Place = tuple[Block, int]


def _place(block: Block) -> None:
    """Declare every name in the innermost block that holds all its uses, right before the first of them."""
    home: dict[Any, list[Place]] = {}

    def note(thing: Any, path: list[Place]) -> None:
        if isinstance(thing, B.ScalarVar) and thing.kind not in ("local", "loaded"):
            return
        if thing not in home:
            home[thing] = list(path)
            return
        common = list(home[thing])
        length = 0
        while length < min(len(common), len(path)) and common[length][0] is path[length][0]:
            length += 1
            if common[length - 1][1] != path[length - 1][1]:
                # The same block, another statement: the first in the text counts (a while's condition is read early).
                common[length - 1] = (common[length - 1][0], min(common[length - 1][1], path[length - 1][1]))
                break
        home[thing] = common[:length]

    def visit(inner: Block, path: list[Place]) -> None:
        for number, node in enumerate(inner.nodes):
            node.declares = []
            here = [*path, (inner, number)]
            where = here
            if isinstance(node.stmt, B.While):
                where = [*here, (node.blocks[0], node.split)]
            for thing in (*statement_reads(node.stmt), *_writes(node.stmt)):
                note(thing, where)
            for child in node.blocks:
                visit(child, here)

    visit(block, [])
    for thing, path in home.items():
        inner, number = path[-1]
        inner.nodes[min(number, len(inner.nodes) - 1)].declares.append(thing)
