"""**Checks.** An overlay with its stages rounded to the swizzle period fits into the tile under it.

**Why.** It would run into the next tile although the bare bytes fit.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.derive.memory import buffer_bytes
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="derive/overlay-too-large",
    severity="error",
    layer="resources",
    title="Stages of an overlay reach past the tile under it",
    source="Cake language reference: stages are aligned to the swizzle period",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def overlay(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 4))
    team = role(warp)
    wide = smem(bf16, 12, 64)
    slots = smem(bf16, 4, 64, stages=3, swizzle=128, over=wide)
    with team:
        store(slots[0], load(x[4 * cta:, :], vec(8, 8)[4, 64]))
        sync(warp)
        store(y[4 * cta:, :], load(slots[0], vec(8, 8)[4, 64]))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def overlay(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 4))
    team = role(warp)
    wide = smem(bf16, 24, 64)
    slots = smem(bf16, 4, 64, stages=3, swizzle=128, over=wide)
    with team:
        store(slots[0], load(x[4 * cta:, :], vec(8, 8)[4, 64]))
        sync(warp)
        store(y[4 * cta:, :], load(slots[0], vec(8, 8)[4, 64]))
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    for b in ctx.derived.smem:
        if b.over is None:
            continue
        need, have = buffer_bytes(b), buffer_bytes(b.over)
        if need > have:
            yield ctx.finding(
                RULE.id,
                "error",
                f"'{b.name}' with its stages aligned needs {need} B, '{b.over.name}' under it has {have} B",
                b.span,
                contract="An overlay fits into the tile it lies over.",
                related=((b.over.span, f"'{b.over.name}' is declared here"),),
                resource=b.name,
            )
