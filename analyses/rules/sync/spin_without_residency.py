"""**Checks.** A kernel whose `while` polls global memory that the kernel itself writes, or that has a `sync(grid)`, launches no
more blocks than the device can hold at once: `ctas=` stays within `device.sms * ctas_per_sm` on every witness shape.

**Why.** A block that waits for another one occupies its SM. If the other block has not started, because all SMs hold
waiting blocks, nothing moves any more. No order of dispatch is promised. With `sync(grid)` the launch itself is refused.

**Limits.** Which block sets the flag is not followed; a flag that another grid sets is not looked at. Loads are acquired only
as far as the flag's own line goes: order of other global data is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.bound import Op, Region, While, walk
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="sync/spin-without-residency",
    severity="error",
    layer="resources",
    title="Blocks wait for blocks that may not have started",
    source="CUDA C++ Programming Guide, 'Thread Hierarchy' (blocks run in any order); NVIDIA/cutlass issue 1296",
    line=8,
)

REJECTED = """
@kernel(target="sm_90a")
def serial(x: In[f32, M, 32], turn: InOut[i32, 1], y: InOut[f32, 32]):
    where(M > 0)
    launch(ctas=M)
    team = role(warp)
    with team:
        seen = load(turn[0])
        while seen != cta:
            seen = load(turn[0])
        store(y[:], load(y[:], vec(1).cols[32]) + load(x[cta, :], vec(1).cols[32]))
        sync(warp)
        with elected():
            store(turn[0], cta + 1)
"""

ACCEPTED = REJECTED.replace("where(M > 0)", "where(M > 0, M <= 64)").replace("ctas=M", "ctas=min(M, device.sms)")


def check(ctx: Context) -> Iterator[Diagnostic]:
    crowded = [w for w in ctx.derived.witnesses if w.cta_count > w.sms * max(1, ctx.bound.launch.ctas_per_sm or 1)]
    if not crowded:
        return
    for op in ctx.named("sync"):
        if op.attrs.get("scope") == "grid":
            yield ctx.finding(
                RULE.id,
                "error",
                f"all blocks meet here, but {crowded[0].cta_count} blocks are launched where {crowded[0].sms} fit "
                f"({crowded[0].describe()}): the launch is refused; bound ctas= by device.sms",
                op.span,
                contract="Blocks that wait for each other are resident together.",
                op="sync",
            )
            return
    written = {
        region.tensor for op, mode, region in ctx.regions if mode != "read" and op.name not in ("load", "load_scalar")
    }
    for loop in (s for s in ctx.statements if isinstance(s, While)):
        for op in walk(loop.prelude + loop.body):
            src = op.operands.get("src") if isinstance(op, Op) and op.name == "load_scalar" else None
            if isinstance(src, Region) and src.tensor in written:
                yield ctx.finding(
                    RULE.id,
                    "error",
                    f"this loop waits for another block to write {src.tensor.name}, but {crowded[0].cta_count} blocks are "
                    f"launched where {crowded[0].sms} fit ({crowded[0].describe()}); bound ctas= by device.sms",
                    loop.span,
                    contract="Blocks that wait for each other are resident together.",
                    related=((op.span, "polled here"),),
                    resource=src.tensor.name,
                    op="load",
                )
                break
