"""**Checks.** A role that polls global memory in a `while` and then fetches `InOut` data with a TMA or bulk copy executes
`fence_async(space=gmem)` in between.

**Why.** The flag is read through the generic proxy. That read orders later plain reads, but not reads of the async proxy:
the copy may bring bytes from before the flag was set.

**Limits.** Only the role that polls is looked at, in text order; a flag seen by one role and handed on by a barrier to
another role that copies is not followed.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.bound import Op, Region, While, walk
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="data/proxy-fence-global",
    severity="error",
    layer="resources",
    title="Data that a polled flag announces is fetched through the async proxy without a proxy fence",
    source="PTX ISA, 'Proxies' and 'membar/fence'; deepseek-ai/DeepEP pull request 642",
    line=13,
)

REJECTED = """
@kernel(target="sm_90a")
def fetch(flag: InOut[i32, 1], x: InOut[f32, M, 64], y: Out[f32, M, 64]):
    launch(ctas=ceil_div(M, 32))
    producer = role(thread)
    team = role(warp)
    x_s = smem(f32, 32, 64)
    full = mbarrier()
    with producer:
        ready = load(flag[0])
        while ready == 0:
            ready = load(flag[0])
        expect(full[0])
        tma_load(x_s, x[32 * cta:, :], signal=full[0])
    with team:
        wait(full[0])
        store(y[32 * cta:, :], load(x_s, vec(4, 16)[32, 64]))
"""

ACCEPTED = REJECTED.replace("        expect(full[0])\n", "        fence_async(space=gmem)\n        expect(full[0])\n")

COPIES = ("tma_load", "bulk_load")


def check(ctx: Context) -> Iterator[Diagnostic]:
    polled: dict[str | None, Op] = {}
    inside = {id(s) for w in ctx.statements if isinstance(w, While) for s in walk(w.prelude + w.body)}
    for op in ctx.ops:
        src = op.operands.get("src")
        if op.name == "load_scalar" and isinstance(src, Region) and src.tensor.direction == "InOut" and id(op) in inside:
            polled[op.role] = op
        elif op.name == "fence_async" and op.attrs.get("space") == "global":
            polled.pop(op.role, None)
        elif op.name in COPIES and op.role in polled:
            region = op.operands["region"]
            if region.tensor.direction != "InOut":
                continue
            flag = polled.pop(op.role)
            yield ctx.finding(
                RULE.id,
                "error",
                f"{op.name} reads {region.tensor.name} through the async proxy after a flag was polled with plain loads; "
                "no fence_async(space=gmem) stands between",
                op.span,
                contract="What a plain read of global memory announces reaches the async proxy only behind a proxy fence.",
                related=((flag.span, "the flag is polled here"),),
                role=op.role,
                resource=region.tensor.name,
                op=op.name,
            )
