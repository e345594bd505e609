"""**Checks.** Every `Out` tensor is the destination of some op, and on the witness shapes the launch writes all of its elements.

**Why.** The caller gets whatever was in the buffer.

**Limits.** Where regions, loops or masks of the writing ops depend on data, elements are not counted; evaluation poisons outputs
and finds the holes. Elements are counted only in programs without other errors.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="data/output-unwritten",
    severity="error",
    layer="resources",
    title="An Out tensor is never written",
    source="Cake language reference, 'A file': Out is written exactly once per element",
    line=2,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32], z: Out[f32, M]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp)
    with team:
        v = load(x[cta, :], vec(1).cols[32])
        store(y[cta, :], v + v)
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    written = {r.tensor for _, mode, r in ctx.regions if mode != "read"}
    for t in ctx.bound.tensors:
        if t.direction == "Out" and t not in written:
            yield ctx.finding(
                RULE.id,
                "error",
                f"'{t.name}' is Out and no op writes it",
                t.span,
                contract="Out: every element is written exactly once.",
                resource=t.name,
            )
