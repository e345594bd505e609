"""Where the timeline's marks stand in a role's projection, and their emission.

A statement is of one *kind*, read off its op's declaration: `wait` blocks; `store` writes global memory, or registers to memory;
`issue` starts a copy into the chip; `compute` is everything else that takes time. Bookkeeping (arrive, expect, commit, fence) and
scalar assignments have no kind: they cost a few cycles and share the span they stand in, those behind a wait the span that
follows, if one follows in their block. A mark stands before a statement wherever the kind may differ from what ran before,
along every path; each wait has a mark of its own, so that a hung role names it. Loops and branches of one kind without waits
count as one statement: no mark stands inside unrolled arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cake_ir import bound as B
from lowering.emission.project import Block, Node
from lowering.emission.scalars import add, sx_text
from lowering.timeline import MAX_MARKS, Mark

if TYPE_CHECKING:
    from lowering.emission.context import Context

# These names hold a pair of underscores, which no name of the program does after `writer.Names`.
BLOCKS, HALF, SKIP, AT, ON = (f"timeline__{x}" for x in ("blocks", "half", "skip", "at", "on"))
PARAMETERS: list[tuple[str, Any, str]] = [
    ("timeline", None, f"cake::u64 {BLOCKS}"),
    ("timeline_capacity", None, f"cake::u32 {HALF}"),
    ("timeline_stride", None, f"cake::u32 {SKIP}"),
]
VARIABLES = [f"cake::u64 {AT} = 0u;", f"bool {ON} = false;"]
"""Of every thread: the place of its next record, and whether it records."""


@dataclass(eq=False)
class Stretch:
    """What runs from one mark on: of one kind. `id` is given when the mark is emitted."""

    kind: str
    line: int
    end_line: int
    ops: list[str] = field(default_factory=list)
    wait: dict[str, Any] | None = None
    id: int | None = None

    def add(self, stmts: list[Any]) -> None:
        """These statements run in it too."""
        for stmt in stmts:
            name = stmt.name if isinstance(stmt, B.Op) else "elementwise"
            if name not in self.ops:
                self.ops.append(name)
            if self.kind != "wait":
                self.end_line = max(self.end_line, stmt.span.line)


State = frozenset[Stretch]
"""The stretches that may be running at a place, all of one kind; empty: of several."""


def op_kind(op: B.Op) -> str | None:
    """wait, issue, compute or store; None for bookkeeping."""
    decl = op.decl
    if decl.completion == "blocks":
        return "wait"
    if decl.syncs and not decl.accesses:
        return None
    if decl.family == "matrix":
        return "compute"
    written = [a for a in decl.accesses if a.mode != "read" and a.proxy != "register"]
    if not written:
        return "compute"
    if any(isinstance(op.operands.get(a.operand), B.Region) for a in written):
        return "store"
    from_registers = any(p.kind in ("value", "scalar") and p.required for p in decl.params)
    return "store" if from_registers else "issue"


def _leaf_kind(stmt: Any) -> str | None:
    if isinstance(stmt, B.Op):
        return op_kind(stmt)
    return "compute" if isinstance(stmt, B.Let) and stmt.value is not None else None


def _polls(node: Node) -> bool:
    """A loop that only reads memory until it changes: it waits."""
    inner = [n.stmt for b in node.blocks for n in b.nodes]
    quiet = all(isinstance(s, B.SetScalar) or (isinstance(s, B.Op) and s.name == "load_scalar") for s in inner)
    return isinstance(node.stmt, B.While) and quiet and any(isinstance(s, B.Op) for s in inner)


def _timed(nodes: list[Node]) -> Iterator[Any]:
    """The statements inside that take time or keep books."""
    for node in nodes:
        if node.blocks:
            for b in node.blocks:
                yield from _timed(b.nodes)
        elif isinstance(node.stmt, B.Op) or _leaf_kind(node.stmt) is not None:
            yield node.stmt


def _kinds(node: Node) -> set[str]:
    if _polls(node):
        return {"wait"}
    if not node.blocks:
        kind = _leaf_kind(node.stmt)
        return set() if kind is None else {kind}
    return set().union(*(_kinds(n) for b in node.blocks for n in b.nodes))


def _join(a: State, b: State) -> State:
    """Both paths meet: known only if both are of one kind."""
    return a | b if a and b and next(iter(a)).kind == next(iter(b)).kind else frozenset()


def _kind(state: State) -> str | None:
    return next(iter(state)).kind if state else None


class Marks:
    """The marks of one kernel: placed per role (`place`), written by `statements`, listed in `table`."""

    def __init__(self, kernel: B.BoundKernel) -> None:
        self.kernel = kernel
        self._emitted: list[tuple[str, Stretch]] = []
        self._stretches: dict[Any, Stretch] = {}
        self._role = ""
        self.sites = 0
        self.first: dict[str, int] = {}
        self.tracks = 0
        for role in kernel.roles:
            self.first[role.name] = self.tracks
            self.tracks += role.count

    # ---- places ----

    def place(self, role: B.Role, block: Block) -> Stretch:
        """Put marks on the nodes of a role's projection; the stretch that its start opens."""
        self._role = role.name
        start = Stretch("compute", role.span.line, role.span.line, ["start"])
        self._visit(block, frozenset((start,)))
        return start

    def _visit(self, block: Block, state: State) -> State:
        for i, node in enumerate(block.nodes):
            node.mark = None
            state = self._node(block.nodes, i, node, state)
        return state

    def _node(self, nodes: list[Node], i: int, node: Node, state: State) -> State:
        kinds = _kinds(node)
        inside = list(_timed([node]))
        if not kinds:
            return self._bookkeeping(nodes, i, inside, state) if inside else state
        if node.blocks and not _polls(node) and (len(kinds) > 1 or "wait" in kinds):
            return self._compound(node, state)
        kind = kinds.pop()
        if kind != "wait" and _kind(state) == kind:
            for stretch in state:
                stretch.add(inside)
            return state
        return self._open(node, kind, inside)

    def _bookkeeping(self, nodes: list[Node], i: int, inside: list[Any], state: State) -> State:
        """Joins what runs; behind a wait (on some path) it opens what follows, so that a wait ends where its op does."""
        if _kind(state) in ("wait", None):
            for later in nodes[i + 1 :]:
                kinds = _kinds(later)
                if kinds:
                    if len(kinds) == 1 and "wait" not in kinds:
                        return self._open(nodes[i], kinds.pop(), inside)
                    break
        for stretch in state:
            stretch.add(inside)
        return state

    def _compound(self, node: Node, state: State) -> State:
        if isinstance(node.stmt, B.For | B.While):
            around = self._visit(node.blocks[0], frozenset())
            out = self._visit(node.blocks[0], _join(state, around))
            return _join(state, out)
        ends = [self._visit(b, state) for b in node.blocks]
        if isinstance(node.stmt, B.If):
            return _join(*ends)
        return ends[0]

    def _open(self, node: Node, kind: str, inside: list[Any]) -> State:
        first = inside[0]
        key = (self._role, kind, first.span.line, first.span.col, getattr(first, "name", ""))
        stretch = self._stretches.get(key)
        if stretch is None:
            stretch = self._stretches[key] = Stretch(
                kind, first.span.line, first.span.line, wait=_waited(first) if kind == "wait" else None
            )
        stretch.add(inside)
        node.mark = stretch
        return frozenset((stretch,))

    def table(self, file: str) -> dict[str, Any]:
        """What a decoder must know, as JSON: the marks that were emitted, the tracks of one CTA in order, and in how many places
        of the text marks stand."""
        marks = [Mark(s.id or 0, s.kind, role, s.line, s.end_line, tuple(s.ops), s.wait) for role, s in self._emitted]
        tracks = [[role.name, i] for role in self.kernel.roles for i in range(role.count)]
        return {"kernel": self.kernel.name, "file": file, "marks": [m.to_json() for m in marks], "tracks": tracks,
                "sites": self.sites}  # fmt: skip

    # ---- emission ----

    def start(self, c: Context, stretch: Stretch, condition: str) -> None:
        """The recording thread of this role instance (`condition`, empty: the only one here) opens its track."""
        instance = c.instance()
        timed = f"{c.sx(instance)} == 0" if not self._emitted else "false"  # one track of a CTA reads the slow timer
        index = c.sx.top(add(instance, self.first[self._role]))
        begin = f"{c.helpers.use('timeline_start')}({BLOCKS}, {HALF}, {SKIP}, {self.tracks}u, {index}, {timed})"
        c.out.line(f"if ({condition}) {AT} = {begin};" if condition else f"{AT} = {begin};")
        c.out.line(f"{ON} = {AT} != 0u;")
        self.mark(c, stretch)

    def mark(self, c: Context, stretch: Stretch) -> None:
        """One mark, by the recording thread alone."""
        if stretch.id is None:
            self._emitted.append((self._role, stretch))
            stretch.id = len(self._emitted)
            if stretch.id > MAX_MARKS:
                raise c.unsupported(f"a timeline of more than {MAX_MARKS} marks")
        self._write(c, stretch.id)

    def turn(self, c: Context, body: Block) -> None:
        """At the head of a loop's body: if there are marks in it, the ring may have to begin anew."""
        if _marked(body):
            c.out.line(f"{c.helpers.use('timeline_turn')}({AT}, {HALF});")

    def _write(self, c: Context, number: int) -> None:
        self.sites += 1
        c.out.line(f"{c.helpers.use('timeline_mark')}({AT}, {ON}, {number}u);")

    def tail(self, c: Context, op: B.Op) -> None:
        """A rendezvous behind the roles' branches, where all of them wait."""
        self._role = "all"
        c.out.at(op.span)
        self.mark(c, Stretch("wait", op.span.line, op.span.line, [op.name], _waited(op)))

    def end(self, c: Context) -> None:
        """Every recording thread closes its track."""
        self._write(c, 0)


def _marked(block: Block) -> bool:
    return any(n.mark is not None or any(map(_marked, n.blocks)) for n in block.nodes)


def _waited(stmt: Any) -> dict[str, Any] | None:
    """What a wait waits for: the text of the op, and its barrier with the number of its stages."""
    if not isinstance(stmt, B.Op):
        return None
    bar = stmt.operands.get("bar")
    if isinstance(bar, B.BarUse):
        use = sx_text(bar.use).replace("+ -", "- ")
        use = use[1:-1] if use.startswith("(") else use
        return {
            "text": f"{stmt.name}({bar.barrier.name}[{use}])",
            "barrier": bar.barrier.name,
            "stage": use,
            "stages": bar.barrier.stages,
        }
    source = stmt.operands.get("src")
    if isinstance(source, B.Region):
        return {"text": f"load({source.tensor.name}) until it changes"}
    role = stmt.operands.get("role")
    what = role.name if isinstance(role, B.Role) else stmt.attrs.get("scope", stmt.attrs.get("k", ""))
    return {"text": f"{stmt.name}({what})"}
