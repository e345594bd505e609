"""**Checks.** Where columns of one operand of a product are masked by a bound that was loaded (a valid length), the rows of
the other operand behind that bound are written: zeroed by a plain store, or cut off by a `stop` in a cp.async region.

**Why.** The weight of a masked column is 0, but 0 times NaN or infinity is NaN. A tensor copy clips at the tensor's extents
only; what an over-allocated or paged buffer holds between the valid length and its extent reaches the product.

**Limits.** Masks are followed through assignments, conversions and shared memory, not through other units' registers. Any
plain store into the other operand's tile counts as zeroing it. A bound that is an extent needs nothing: copies fill with
zeros there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analyses.context import Context
from analyses.numeric import constant, leaf, place
from analyses.rules import Rule
from cake_ir.bound import Fragment, Let, Op, Region, ScalarVar, SetScalar, SOp, VCoord, View, VOp
from cake_ir.diagnostics import Diagnostic

RULE = Rule(
    id="data/tail-not-zeroed",
    severity="error",
    layer="resources",
    title="Rows behind a valid length enter a product",
    source="IEEE 754: 0 * NaN and 0 * infinity are NaN; Dao-AILab/flash-attention pull request 2407",
    line=19,
)

REJECTED = """
@kernel(target="sm_90a")
def weigh(s: In[f32, 64, 64], v: In[bf16, N, 64], n: In[i32, 1], o: Out[f32, 64, 64]):
    launch(ctas=1)
    producer = role(thread, warps=4)
    math = role(warpgroup)
    v_s = smem(bf16, 64, 64, swizzle=128)
    full = mbarrier()
    length = load(n[0])
    assume(0 <= length <= N)
    with producer:
        expect(full[0])
        tma_load(v_s, v[0:, :], signal=full[0])
    with math:
        x = load(s[:, :], wgmma_d[64, 64])
        p = exp2(select(col_index(x) < length, x, -inf))
        weights = operand_a(cast(p, bf16))
        out = fragment(f32, wgmma_d[64, 64], 0)
        wait(full[0])
        KEEP
        wgmma(out, weights, v_s.T)
        wgmma_commit()
        wgmma_wait(0)
        store(o[:, :], out)
"""

ACCEPTED = REJECTED.replace(
    "        KEEP\n",
    "        zero = fragment(bf16, vec(8, 8)[64, 64], 0)\n"
    "        store(v_s, zero, when=row_index(zero) >= length)\n"
    "        fence_async()\n"
    "        sync(warpgroup)\n",
)
REJECTED = REJECTED.replace("        KEEP\n", "")

_SAME = ("operand_a", "operand_b", "transpose", "warp_part")


class _Tails:
    """Which named values and tiles have columns that a loaded bound masks."""

    def __init__(self, ctx: Context) -> None:
        self.values: dict[Any, list[Any]] = {}
        for s in ctx.statements:
            if isinstance(s, Let) and s.value is not None:
                self.values.setdefault(s.frag, []).append(s.value)
            elif isinstance(s, SetScalar):
                self.values.setdefault(s.var, []).append(s.value)
        self.loaded = {
            r for o in ctx.named("load_scalar") if isinstance(o.operands.get("src"), Region) for r in o.results
        }
        self.masked: set[Any] = set()
        ops = [o for o in ctx.ops if o.name in (*_SAME, "store", "stmatrix", "ldmatrix")]
        size = -1
        while size < len(self.masked):
            size = len(self.masked)
            self.masked |= {name for name, values in self.values.items() if any(self.tail(v) for v in values)}
            for o in ops:
                self._through(o)

    def _through(self, o: Op) -> None:
        if o.name in _SAME and self.tail(o.operands.get("x")):
            self.masked |= set(o.results)
        view = o.operands.get("dst", o.operands.get("view"))
        if isinstance(view, View):
            if o.name in ("store", "stmatrix") and o.operands.get("when") is None and self.tail(o.operands.get("x")):
                self.masked.add(view.buffer)
            elif o.name == "ldmatrix" and view.buffer in self.masked:
                self.masked |= set(o.results)

    def tail(self, x: Any) -> bool:
        if x is None or isinstance(x, (Region, View)):
            return False
        x = leaf(x)
        if isinstance(x, Fragment):
            return x in self.masked
        name = place(x)
        if name is not None:
            return name in self.masked
        if not isinstance(x, (SOp, VOp)):
            return False
        if x.op == "select" and any(constant(a) in (0.0, float("-inf")) for a in x.args[1:]):
            if self.reads(x.args[0], set()) >= {"column", "loaded"}:
                return True
        return any(self.tail(a) for a in x.args)

    def reads(self, x: Any, seen: set[Any]) -> set[str]:
        """Whether a mask looks at the column, and whether at a loaded number."""
        x = leaf(x)
        name = place(x)
        if name is not None:
            if name in seen:
                return set()
            seen.add(name)
            found = {"loaded"} if name in self.loaded else set()
            return found.union(*(self.reads(v, seen) for v in self.values.get(name, ())))
        if isinstance(x, VCoord):
            return {"column"} if x.axis == "col" else set()
        return set().union(*(self.reads(a, seen) for a in x.args)) if isinstance(x, (SOp, VOp)) else set()


def check(ctx: Context) -> Iterator[Diagnostic]:
    products = list(ctx.named("wgmma", "mma", "tcgen05_mma"))
    if not products or not any(isinstance(o.operands.get("src"), Region) for o in ctx.named("load_scalar")):
        return
    tails = _Tails(ctx)
    zeroed = {v.buffer for o in ctx.named("store", "store_scalar") if isinstance(v := o.operands.get("dst"), View)}
    fed: dict[Any, Op] = {}
    for o in ctx.named("tma_load", "bulk_load", "cp_async"):
        if all(d.stop is None for d in o.operands["region"].dims):
            fed.setdefault(o.operands["view"].buffer, o)
    tiles: dict[Fragment | ScalarVar, Any] = {
        r: o.operands["view"].buffer for o in ctx.named("ldmatrix") for r in o.results
    }
    for o in products:
        a, b = o.operands["a"], o.operands["b"]
        source = a.buffer in tails.masked if isinstance(a, View) else tails.tail(a)
        other = b.buffer if isinstance(b, View) else tiles.get(place(b) or b)
        if not source or other is None or other in zeroed or other not in fed:
            continue
        copy = fed[other]
        yield ctx.finding(
            RULE.id,
            "error",
            f"rows of {other.name} behind the loaded bound enter this product with weight 0, but {copy.name} brings "
            "whatever memory holds there, and 0 * NaN is NaN; zero them after the wait",
            o.span,
            contract="Everything that enters a product is defined, also where its weight is zero.",
            related=((copy.span, f"{other.name} is filled here up to the tensor's extent"),),
            role=o.role,
            resource=other.name,
            op=o.name,
        )
