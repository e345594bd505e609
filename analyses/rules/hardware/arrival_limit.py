"""**Checks.** The derived arrival count of every mbarrier is between 1 and 2^20 - 1.

**Why.** The assembler does not check it; a count beyond the field makes a barrier that completes at the wrong time.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="hardware/arrival-limit",
    severity="error",
    layer="resources",
    title="A barrier has more arrivals than it can count",
    source="PTX ISA, 'mbarrier: Size and alignment, Contents'",
    line=6,
)

REJECTED = """
@kernel(target="sm_90a")
def count(y: Out[f32, M, 32]):
    launch(ctas=M)
    many = role(warpgroup)
    one = role(warp)
    ready = mbarrier()
    with many:
        for i in range(9000):
            cp_async_arrive(ready[0])
    with one:
        wait(ready[0])
        store(y[cta, :], fragment(f32, vec(1).cols[32], 1.0))
"""

ACCEPTED = """
@kernel(target="sm_90a")
def count(y: Out[f32, M, 32]):
    launch(ctas=M)
    many = role(warpgroup)
    one = role(warp)
    ready = mbarrier()
    with many:
        cp_async_arrive(ready[0])
    with one:
        wait(ready[0])
        store(y[cta, :], fragment(f32, vec(1).cols[32], 1.0))
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    limit = ctx.bound.target.value("mbarrier_count_max")
    for bar, n in ctx.derived.arrivals.items():
        if not 1 <= n <= limit:
            yield ctx.finding(
                RULE.id,
                "error",
                f"{n} arrivals complete a use of {bar.name}; a barrier counts 1 .. {limit}",
                bar.span,
                contract="The arrival count of an mbarrier is between 1 and 2^20 - 1.",
                resource=bar.name,
            )
