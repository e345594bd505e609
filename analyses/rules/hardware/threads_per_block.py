"""**Checks.** Warps of all roles times 32 is at most 1024, and with `ctas_per_sm=n` n blocks fit into the threads of an
SM.

**Why.** The assembler accepts 1025 threads; the launch then fails with an error that names no line.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="hardware/threads-per-block",
    severity="error",
    layer="resources",
    title="The roles add up to more threads than a block or SM holds",
    source="CUDA C++ Programming Guide, 'Technical Specifications per Compute Capability'",
    line=4,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M)
    team = role(warp, count=33)
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
    target, roles, n = ctx.bound.target, ctx.bound.roles, ctx.bound.launch.ctas_per_sm
    threads, limit = ctx.bound.threads, target.value("max_threads_per_block")
    if not roles:
        return
    largest = max(roles, key=lambda r: r.warps)
    parts = " + ".join(f"{r.name} {32 * r.warps}" for r in roles)
    contract = f"A block has at most {limit} threads, an SM of {target.name} {target.value('threads_per_sm')}."
    if threads > limit:
        yield ctx.finding(
            RULE.id,
            "error",
            f"the block has {threads} threads ({parts})",
            largest.span,
            contract=contract,
            role=largest.name,
        )
    elif n * threads > target.value("threads_per_sm"):
        yield ctx.finding(
            RULE.id,
            "error",
            f"ctas_per_sm={n} needs {n * threads} threads per SM ({parts} each)",
            ctx.bound.launch.span,
            contract=contract,
        )
