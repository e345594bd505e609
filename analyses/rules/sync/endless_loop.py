"""**Checks.** Every loop comes to its end. The step of a `range` is positive for every shape and CTA (found on the witness shapes, or
for all shapes from the text). A `while` over index arithmetic is run on the witness shapes; where two rounds find the same numbers,
no later round differs. A `while` on data is run by the value reading with random tensors, positive ones and negative ones, and judged
in the same way. No run is needed where no round changes what the condition follows from, or where a counter moves away from its limit.

**Why.** The warp spins for ever, its block never ends, and the launch hangs until a watchdog kills the context.

**Limits.** That a `while` ends on all data is not proved: progress of such a kernel is *checked*, and *undecided* where a loop still runs
after 300 rounds. A loop that polls memory which another block writes is a matter of progress, see `sync/spin-without-residency`.
"""

from __future__ import annotations

from analyses.rules import Rule

RULE = Rule(
    id="sync/endless-loop",
    severity="error",
    layer="progress",
    title="A loop that does not end",
    source="PTX ISA, 'bra'; Cake language reference, while",
    line=10,
)

REJECTED = """
@kernel(target="sm_90a")
def clamp_lowest(x: In[f32, M, 128], y: Out[f32, M, 128]):
    launch(ctas=ceil_div(M, 4))
    t = role(warp, count=4)
    with t as w:
        r = 4 * cta + w
        if r < M:
            v = load(x[r, :], vec(4).cols[128])
            low, at = row_argmin(v, col_index(v))
            while low < 0.0:
                v = select(col_index(v) == at, low, v)
                low, at = row_argmin(v, col_index(v))
            store(y[r, :], v)
"""

ACCEPTED = """
@kernel(target="sm_90a")
def clamp_lowest(x: In[f32, M, 128], y: Out[f32, M, 128]):
    launch(ctas=ceil_div(M, 4))
    t = role(warp, count=4)
    with t as w:
        r = 4 * cta + w
        if r < M:
            v = load(x[r, :], vec(4).cols[128])
            low, at = row_argmin(v, col_index(v))
            while low < 0.0:
                v = select(col_index(v) == at, 0.0, v)
                low, at = row_argmin(v, col_index(v))
            store(y[r, :], v)
"""
