"""**Checks.** `fence_async()` stands in a role that touches shared memory with plain accesses, in a kernel where some
asynchronous copy or matrix product touches shared memory.

**Why.** The fence costs time on the critical path of a ring and suggests a hazard that is not there.

**Limits.** Decided per role and kernel, not per tile.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.bound import View
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="performance/fence-redundant",
    severity="advice",
    layer="performance",
    title="A proxy fence with nothing to order",
    source="PTX ISA, 'membar/fence' and 'Proxies'; NVIDIA/Fuser pull request 4804",
    line=10,
)

REJECTED = """
@kernel(target="sm_90a")
def shared_copy(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 16))
    team = role(warp)
    tile = smem(bf16, 16, 64)
    with team:
        cp_async(tile, x[16 * cta:, :])
        cp_async_commit()
        cp_async_wait(0)
        fence_async()
        sync(warp)
        store(y[16 * cta:, :], load(tile, vec(8, 8)[16, 64]))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def shared_copy(x: In[bf16, M, 64], y: Out[bf16, M, 64]):
    launch(ctas=ceil_div(M, 16))
    team = role(warp)
    tile = smem(bf16, 16, 64)
    with team:
        cp_async(tile, x[16 * cta:, :])
        cp_async_commit()
        cp_async_wait(0)
        sync(warp)
        store(y[16 * cta:, :], load(tile, vec(8, 8)[16, 64]))
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    generic: set[str | None] = set()
    copies = False
    for op in ctx.ops:
        for access in op.decl.accesses:
            value = op.operands.get(access.operand)
            shared = isinstance(value, View) and value.buffer.space == "smem"
            if shared and access.proxy == "generic":
                generic.add(op.role)
            copies = copies or (shared and access.proxy == "async")
    for fence in ctx.named("fence_async"):
        if fence.attrs.get("space", "shared") != "shared" or (copies and fence.role in generic):
            continue
        why = (
            f"role {fence.role} makes no plain access of shared memory"
            if copies
            else "no asynchronous op touches shared memory"
        )
        yield ctx.finding(
            RULE.id, "advice", f"this fence orders nothing: {why}", fence.span, role=fence.role, op="fence_async"
        )
