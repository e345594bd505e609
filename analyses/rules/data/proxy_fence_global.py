"""**Checks.** A role that polls global memory in a `while` and then fetches `InOut` data with a TMA or bulk copy executes
`fence_async(space=gmem)` in between; so does a role that stores to an `InOut` tensor that a copy of the same kernel reads,
after the store.

**Why.** Plain loads and stores go through the generic proxy. A flag seen there orders later plain reads, but not reads of
the async proxy: the copy may bring bytes from before the flag was set, or from before the store.

**Limits.** Decided per role in text order; a flag seen by one role and handed on by a barrier to another role that copies
is not followed, and whether the writer's fence comes before its release is not asked.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.bound import Op, Region, While, walk
from cake_ir.diagnostics import Diagnostic, Span

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
    yield from _polled(ctx)
    yield from _written(ctx)


def _polled(ctx: Context) -> Iterator[Diagnostic]:
    """Flags seen by plain loads. A poll at kernel level is made by every role."""
    polled: dict[str | None, Op] = {}
    fenced: set[str | None] = set()
    inside = {id(s) for w in ctx.statements if isinstance(w, While) for s in walk(w.prelude + w.body)}
    for op in ctx.ops:
        src = op.operands.get("src")
        if (
            op.name == "load_scalar"
            and isinstance(src, Region)
            and src.tensor.direction == "InOut"
            and id(op) in inside
        ):
            polled[op.role] = op
            fenced = {r for r in fenced if op.role is not None and r != op.role}
        elif op.name == "fence_async" and op.attrs.get("space") == "global":
            fenced.add(op.role)
        elif op.name in COPIES and op.role not in fenced:
            flag, region = polled.get(op.role) or polled.get(None), op.operands["region"]
            if flag is None or region.tensor.direction != "InOut":
                continue
            fenced.add(op.role)  # one finding per role
            yield _finding(
                ctx,
                op,
                f"{op.name} reads {region.tensor.name} through the async proxy after a flag was polled with plain loads; "
                "no fence_async(space=gmem) stands between",
                (flag.span, "the flag is polled here"),
            )


def _written(ctx: Context) -> Iterator[Diagnostic]:
    """Plain writes of a tensor that a copy of the same kernel reads."""
    copies = {
        o.operands["region"].tensor: o for o in ctx.named(*COPIES) if o.operands["region"].tensor.direction == "InOut"
    }
    for at, op in enumerate(ctx.ops):
        region = op.operands.get("dst") if op.name in ("store", "store_scalar") else None
        if not isinstance(region, Region) or region.tensor not in copies:
            continue
        after = ctx.ops[at:]
        if any(o.name == "fence_async" and o.attrs.get("space") == "global" and o.role == op.role for o in after):
            continue
        copy = copies[region.tensor]
        yield _finding(
            ctx,
            op,
            f"{op.name} writes {region.tensor.name} through the generic proxy and {copy.name} reads it through the async proxy, "
            "with no fence_async(space=gmem) by the writer",
            (copy.span, "the copy"),
        )


def _finding(ctx: Context, op: Op, text: str, other: tuple[Span, str]) -> Diagnostic:
    region = op.operands["region"] if "region" in op.operands else op.operands["dst"]
    return ctx.finding(
        RULE.id,
        "error",
        text,
        op.span,
        contract="Global data of the generic proxy reach the async proxy only behind a fence_async(space=gmem).",
        related=(other,),
        role=op.role,
        resource=region.tensor.name,
        op=op.name,
    )
