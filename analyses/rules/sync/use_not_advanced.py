"""**Checks.** The use number of an `expect` changes in every iteration of the innermost runtime loop around it: it
depends on the loop variable or on a counter that the loop advances.

**Why.** Every iteration announces bytes for the same completion: the second one waits for a phase that has passed,
or hangs. Usually `n += 1` is missing or stands outside the loop.

**Limits.** That the number changes does not make it right; the derivation and the order reading decide that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.bound import (
    SX,
    ElectedBlock,
    For,
    If,
    Op,
    RoleBlock,
    ScalarVar,
    SConst,
    SetScalar,
    WarpsBlock,
    While,
    sx_vars,
    walk,
)
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="sync/use-not-advanced",
    severity="error",
    layer="resources",
    title="A use number that stands still in a loop",
    source="PTX ISA, 'mbarrier': each phase completes once",
    line=13,
)

REJECTED = """
@kernel(target="sm_90a")
def stream(x: In[bf16, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 16, 64, stages=2)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    n = 0
    for k in range(ceil_div(M, 16)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(tile[n], x[16 * k:, :], signal=full[n])
        with reader:
            wait(full[n])
            v = load(tile[n], vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * k:, :], cast(v, f32))
        n = 0
"""

ACCEPTED = """
@kernel(target="sm_90a")
def stream(x: In[bf16, M, 64], y: Out[f32, M, 64]):
    launch(ctas=1)
    producer = role(thread)
    reader = role(warp)
    tile = smem(bf16, 16, 64, stages=2)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    n = 0
    for k in range(ceil_div(M, 16)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(tile[n], x[16 * k:, :], signal=full[n])
        with reader:
            wait(full[n])
            v = load(tile[n], vec(8, 8)[16, 64])
            fence_async()
            arrive(free[n])
            store(y[16 * k:, :], cast(v, f32))
        n += 1
"""


def _around(body: tuple[Any, ...], loop: For | While | None) -> Iterator[tuple[Op, For | While | None]]:
    """Every op with the innermost runtime loop around it."""
    for s in body:
        if isinstance(s, Op):
            yield s, loop
        elif isinstance(s, (For, While)):
            yield from _around(s.body, s)
        elif isinstance(s, If):
            yield from _around((*s.then, *s.orelse), loop)
        elif isinstance(s, (RoleBlock, ElectedBlock, WarpsBlock)):
            yield from _around(s.body, loop)


def _changes(use: SX, loop: For | While, definitions: dict[ScalarVar, SX]) -> bool:
    """Whether the value can differ between iterations."""
    moving = {s.var for s in walk(loop.body) if isinstance(s, SetScalar) and not isinstance(s.value, SConst)}
    moving |= {v for s in walk(loop.body) if isinstance(s, Op) for v in s.results if isinstance(v, ScalarVar)}
    moving |= {s.var for s in walk(loop.body) if isinstance(s, For)}
    if isinstance(loop, For):
        moving.add(loop.var)
    todo, seen = list(sx_vars(use)), set()
    while todo:
        var = todo.pop()
        if var in definitions:
            # computed from others: moves only if they do
            if var not in seen:
                seen.add(var)
                todo += sx_vars(definitions[var])
        elif var in moving:
            return True
    return False


def check(ctx: Context) -> Iterator[Diagnostic]:
    definitions = ctx.bound.notes.get("definitions", {})
    for op, loop in _around(ctx.bound.body, None):
        if op.name != "expect" or loop is None:
            continue
        bar = op.operands["bar"]
        if isinstance(loop, For):
            low, high = ctx.bounds(loop.start)[1], ctx.bounds(loop.stop)[1]
            if high - low <= 1:
                continue
        if not _changes(bar.use, loop, definitions):
            yield ctx.finding(
                RULE.id,
                "error",
                f"every iteration of the loop at line {loop.span.line} expects the same use of {bar.barrier.name};"
                " the use number does not advance in the loop",
                op.span,
                contract="A use of a barrier completes once; the next iteration needs the next use number.",
                related=((loop.span, "this loop"),),
                role=op.role,
                resource=bar.barrier.name,
                op="expect",
            )
