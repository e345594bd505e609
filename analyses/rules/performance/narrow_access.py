"""**Checks.** Loads and stores of global memory with a `vec` layout move at least 4 bytes per thread and instruction.

**Why.** Two bytes per thread need twice the instructions for the same cache lines; `vec(8)` of a 16-bit type moves
16 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.bound import Fragment, Region
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="performance/narrow-access",
    severity="advice",
    layer="performance",
    title="Global accesses move less than four bytes per thread",
    source="CUDA C++ Programming Guide, 'Device Memory Accesses'",
    line=7,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[bf16, M, N], y: Out[bf16, M, N]):
    where(N % 2 == 0, N <= 64)
    launch(ctas=M)
    team = role(warp)
    with team:
        store(y[cta, :], load(x[cta, :], vec(1).cols[64]))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[bf16, M, N], y: Out[bf16, M, N]):
    where(N % 2 == 0, N <= 64)
    launch(ctas=M)
    team = role(warp)
    with team:
        store(y[cta, :], load(x[cta, :], vec(2).cols[64]))
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    seen = set()
    for op in ctx.named("load", "store"):
        region = op.operands.get("src" if op.name == "load" else "dst")
        if not isinstance(region, Region):
            continue
        tile = next((r.type for r in op.results if isinstance(r, Fragment)), None) or getattr(
            op.operands.get("x"), "type", None
        )
        if tile is None or tile.layout.name != "vec" or tile.axis == "rows" or tile.cols < 64 or op.span in seen:
            continue
        width = tile.layout.v * tile.dtype.bits // 8
        if width < 4:
            seen.add(op.span)
            yield ctx.finding(
                RULE.id,
                "advice",
                f"{tile.layout} of {tile.dtype} moves {width} B per thread; vec({128 // tile.dtype.bits}) moves 16",
                op.span,
                role=op.role,
                op=op.name,
            )
