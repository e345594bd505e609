"""Statements of one projection: control, scalars, elementwise assignments; ops go to their family's emission."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir.bound import ScalarVar, SConst
from lowering.emission import asynchronous, matrix, memory, reductions, synchronisation
from lowering.emission.context import Context
from lowering.emission.project import Block, Node, is_wide_sync

EMITTERS = {
    **synchronisation.EMITTERS,
    **asynchronous.EMITTERS,
    **memory.EMITTERS,
    **matrix.EMITTERS,
    **reductions.EMITTERS,
}

_SCALAR_TYPES = {
    "i32": "int",
    "f32": "float",
    "bool": "bool",
    "bf16": "cake::u16",
    "f16": "cake::u16",
    "i64": "long long",
    "u32": "cake::u32",
}


def block(c: Context, b: Block) -> None:
    """All statements of a block, its declarations first."""
    visible = len(c.open_fragments)
    leading = False
    for node in b.nodes:
        if c.led and _by_leader(node) != leading:
            leading = not leading
            c.out.open("if (leader)") if leading else _rejoin(c)
        statement(c, node)
    if leading:
        _rejoin(c)
    del c.open_fragments[visible:]


def _by_leader(node: Node) -> bool:
    """Whether one thread executes it in a thread role whose warps run the control flow together. Plain loads, whose values control
    may need, and barriers of all threads are executed by all."""
    op = node.stmt
    return isinstance(op, B.Op) and not is_wide_sync(op) and not op.results


def _rejoin(c: Context) -> None:
    c.out.close()
    c.out.line("__syncwarp();")


def declare(c: Context, node: Node) -> None:
    """Declarations right before the first mention. Nothing is initialised: a value that is read was written."""
    for thing in node.declares:
        unused = "" if thing in c.read else "[[maybe_unused]] "
        if isinstance(thing, ScalarVar):
            c.out.line(f"{unused}{_SCALAR_TYPES[thing.dtype]} {c.sx(B.SVar(thing))};")
        else:
            c.out.line(f"{unused}{c.tiles.declaration(thing)}")
            c.open_fragments.append(thing)


def statement(c: Context, node: Node) -> None:
    """One statement."""
    stmt = node.stmt
    c.span, c.number = stmt.span, node.number
    c.out.plain()
    if c.marks is not None and node.mark is not None:
        c.marks.mark(c, node.mark)
    if isinstance(stmt, B.SetScalar) and node.declares == [stmt.var]:
        c.out.at(stmt.span)
        c.out.line(f"{_SCALAR_TYPES[stmt.var.dtype]} {c.sx(B.SVar(stmt.var))} = {c.sx.top(stmt.value)};")
        return
    declare(c, node)
    c.out.at(stmt.span)
    c.shared.clear()
    if isinstance(stmt, B.Op):
        emitter = EMITTERS.get(stmt.name)
        if emitter is None:
            raise c.unsupported(f"op {stmt.name}")
        emitter(c, stmt)
    elif isinstance(stmt, B.SetScalar):
        c.out.line(f"{c.sx(B.SVar(stmt.var))} = {c.sx.top(stmt.value)};")
    elif isinstance(stmt, B.Let):
        if stmt.value is not None:
            _let(c, stmt)
    elif isinstance(stmt, B.For):
        _for(c, stmt, node)
    elif isinstance(stmt, B.While):
        _while(c, stmt, node)
    elif isinstance(stmt, B.If):
        _if(c, stmt, node)
    elif isinstance(stmt, B.ElectedBlock):
        _elected(c, node)
    elif isinstance(stmt, B.WarpsBlock):
        _warps(c, stmt, node)
    else:
        raise c.unsupported(f"statement {type(stmt).__name__}")


def _let(c: Context, stmt: B.Let) -> None:
    value: Any = stmt.value
    c.tiles.assign(c.tiles.name(stmt.frag), value)
    c.fresh_values.append(stmt.frag)


def _for(c: Context, stmt: B.For, node: Node) -> None:
    name = c.sx(B.SVar(stmt.var))
    step = c.sx.top(stmt.step)
    advance = f"++{name}" if step == "1" else f"{name} += {step}"
    # Roles are written as the author wrote them; unrolling is the author's (`unroll`), not the compiler's.
    c.out.line("#pragma unroll 1")
    c.out.open(f"for (int {name} = {c.sx.top(stmt.start)}; {name} < {c.sx(stmt.stop)}; {advance})")
    c.loop_marks.append(len(c.open_fragments))
    if c.marks is not None:
        c.marks.turn(c, node.blocks[0])
    block(c, node.blocks[0])
    c.loop_marks.pop()
    c.out.close()


def _while(c: Context, stmt: B.While, node: Node) -> None:
    c.out.line("#pragma unroll 1")
    c.out.open("while (true)")
    inner = node.blocks[0]
    visible = len(c.open_fragments)
    c.loop_marks.append(visible)
    if c.marks is not None:
        c.marks.turn(c, inner)
    for child in inner.nodes[: node.split]:
        statement(c, child)
    c.out.at(stmt.span)
    c.out.line(f"if (!{c.sx(stmt.cond)}) break;")
    for child in inner.nodes[node.split :]:
        statement(c, child)
    del c.open_fragments[visible:]
    c.loop_marks.pop()
    c.out.close()


def _if(c: Context, stmt: B.If, node: Node) -> None:
    then, orelse = node.blocks
    if isinstance(stmt.cond, SConst):
        chosen = then if stmt.cond.value else orelse
        c.out.open("")
        block(c, chosen)
        c.out.close()
        return
    if then.nodes:
        c.out.open(f"if ({c.sx.top(stmt.cond)})")
        block(c, then)
        if orelse.nodes:
            c.out.middle("} else {")
            block(c, orelse)
    else:
        c.out.open(f"if (!{c.sx(stmt.cond)})")
        block(c, orelse)
    c.out.close()


def first_thread(c: Context) -> str:
    """The condition that is true in the unit's first thread only."""
    if c.has("elect"):
        one = f"{c.helpers.use('elect_one')}()"
    else:
        one = f"{c.sx(c.thread('lane'))} == 0"
    return f"{c.sx(c.thread('wwarp'))} == 0 && {one}" if c.unit == "G" else one


def _elected(c: Context, node: Node) -> None:
    unit = c.unit
    c.out.open(f"if ({first_thread(c)})")
    c.unit = "T"
    block(c, node.blocks[0])
    c.unit = unit
    c.out.close()


def _warps(c: Context, stmt: B.WarpsBlock, node: Node) -> None:
    unit = c.unit
    c.out.open("")
    if stmt.warp is not None:
        c.out.line(f"const int {c.sx(B.SVar(stmt.warp))} = {c.sx(c.thread('wwarp'))};")
    c.unit = "W"
    block(c, node.blocks[0])
    c.unit = unit
    c.out.close()
