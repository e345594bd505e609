"""**Checks.** `ctas=` is a multiple of `cluster=`: by its factors, or on every witness shape.

**Why.** The launch is refused for exactly those shapes, so it works in the test and fails in the field.

**Limits.** Where the factors do not tell, the witness shapes decide and the property is only checked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from analyses.context import Context
from analyses.rules import Rule
from cake_ir.diagnostics import Diagnostic
from cake_ir.skeleton import compile_skeleton

PROBES = 729

RULE = Rule(
    id="schedule/grid-not-divisible",
    severity="error",
    layer="resources",
    title="The number of CTAs is not a multiple of the cluster",
    source="CUDA C++ Programming Guide, 'Thread Block Clusters': the grid is a multiple of the cluster",
    line=3,
)

REJECTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=M, cluster=4)
    team = role(warp)
    with team:
        v = load(x[cluster_id, :], vec(1).cols[32])
        if cluster_rank == 0:
            store(y[cluster_id, :], v + v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def rows(x: In[f32, M, 32], y: Out[f32, M, 32]):
    launch(ctas=4 * M, cluster=4)
    team = role(warp)
    with team:
        v = load(x[cluster_id, :], vec(1).cols[32])
        if cluster_rank == 0:
            store(y[cluster_id, :], v + v)
"""


def check(ctx: Context) -> Iterator[Diagnostic]:
    launch = ctx.bound.launch
    if launch.cluster == 1:
        return
    d = ctx.divisor(launch.ctas)
    if d == 0 or d % launch.cluster == 0:
        return
    for w in ctx.derived.witnesses:
        if w.cta_count % launch.cluster:
            yield ctx.finding(
                RULE.id,
                "error",
                f"{w.cta_count} CTAs are launched for {w.describe()}; a cluster has {launch.cluster}",
                launch.span,
                contract="The grid is a multiple of the cluster; round it up and mask the work.",
            )
            return
    yield from _small_grids(ctx)


def _small_grids(ctx: Context) -> Iterator[Diagnostic]:
    """One SM more, and extents 1 to 3: the witnesses may all have a multiple by chance (a factor that is large in each of them)."""
    launch = ctx.bound.launch
    skeleton = compile_skeleton(ctx.bound)
    names = list(ctx.bound.dims)
    least = ctx.derived.witnesses[0].sms if ctx.derived.witnesses else 1
    odd = ((w.shape, w.sms + 1) for w in ctx.derived.witnesses)
    small: Iterator[tuple[dict[str, int], int]] = (
        (dict(zip(names, v, strict=True)), least) for v in itertools.product((1, 2, 3), repeat=len(names))
    )
    for shape, sms in itertools.islice(itertools.chain(odd, small), PROBES):
        env = skeleton.environment(shape, {}, sms)
        if not skeleton.admits(env):
            continue
        count = skeleton.cta_count(env)
        if count > 0 and count % launch.cluster:
            said = ", ".join(f"{k}={v}" for k, v in {**shape, "device.sms": sms}.items())
            yield ctx.finding(
                RULE.id,
                "error",
                f"{count} CTAs are launched for {said}; a cluster has {launch.cluster}",
                launch.span,
                contract="The grid is a multiple of the cluster; round it up and mask the work.",
            )
            return
