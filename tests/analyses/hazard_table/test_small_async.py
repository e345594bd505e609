"""Small programs, right and wrong, about bulk stores, reductions and register operands that engines still use."""

from __future__ import annotations

import pytest

from analyses import verify_text

XY = "x: In[f32, M, 128], y: Out[f32, M, 128]"
CASES: list[tuple[str, str | None, str, str, str]] = []


def add(name: str, rule: str | None, body: str, sig: str = XY, target: str = "sm_90a") -> None:
    """One program: its only error, or None."""
    CASES.append((name, rule, body, sig, target))


SIG_S = "x: In[bf16, M, 64], y: Out[bf16, M, 64]"
TWO_TEXT = """
where(M > 0)
launch(ctas=1)
a = role(thread)
b = role(thread)
s = smem(bf16, 64, 64, stages=3, swizzle=128)
full = mbarrier(stages=3)
free = mbarrier(stages=3)
for n in range(ceil_div(M, 64)):
    with a:
        wait(free[n - 3])
        expect(full[n])
        tma_load(s[n], x[64 * n:, :], signal=full[n])
    with b:
        wait(full[n])
        tma_store(y[64 * n:, :], s[n])
        bulk_commit()
        {w}
        arrive(free[n])
{e}
"""
add("two roles", None, TWO_TEXT.format(w="bulk_wait_read(0)", e=""), sig=SIG_S)
add(
    "two roles no wait",
    "data/bulk-wait-depth",
    TWO_TEXT.format(w="k = 0", e="with b:\n    bulk_wait_read(0)"),
    sig=SIG_S,
)
add(
    "two roles fence only",
    "data/bulk-wait-depth",
    TWO_TEXT.format(w="fence_async()", e="with b:\n    bulk_wait_read(0)"),
    sig=SIG_S,
)
add(
    "two roles depth 1",
    "data/bulk-wait-depth",
    TWO_TEXT.format(w="bulk_wait_read(1)", e="with b:\n    bulk_wait_read(0)"),
    sig=SIG_S,
)
ONE_TEXT = """
where(M > 0)
launch(ctas=1)
a = role(thread)
s = smem(bf16, 64, 64, stages=3, swizzle=128)
full = mbarrier(stages=3)
for n in range(ceil_div(M, 64)):
    with a:
        {w}
        expect(full[n])
        tma_load(s[n], x[64 * n:, :], signal=full[n])
        wait(full[n])
        tma_store(y[64 * n:, :], s[n])
        bulk_commit()
with a:
    bulk_wait_read(0)
"""
add("one thread", None, ONE_TEXT.format(w="bulk_wait_read(2)"), sig=SIG_S)
add("one thread depth 3", "data/bulk-wait-depth", ONE_TEXT.format(w="bulk_wait_read(3)"), sig=SIG_S)
add("one thread none", "data/bulk-wait-depth", ONE_TEXT.format(w="k = 0"), sig=SIG_S)
# accumulate by tma_reduce while next math writes
RED_TEXT = """
where(M > 0)
launch(ctas=min(ceil_div(M, 64), device.sms))
t = role(warpgroup)
s = smem(f32, 64, 64)
with t:
    for n in range(3):
        {w}
        sync(warpgroup)
        store(s, load(x[64 * cta:, :], vec(4, 16)[64, 64]))
        {f}
        sync(warpgroup)
        with elected():
            tma_reduce(z[64 * cta:, :], s, op=add)
            bulk_commit()
    with elected():
        bulk_wait_read(0)
"""
SIG_R = "x: In[f32, M, 64], z: InOut[f32, M, 64]"
add("reduce", None, RED_TEXT.format(w="with elected():\n            bulk_wait_read(0)", f="fence_async()"), sig=SIG_R)
add("reduce no wait", "data/bulk-wait-depth", RED_TEXT.format(w="k = 0", f="fence_async()"), sig=SIG_R)
add(
    "reduce no fence",
    "data/proxy-fence-missing-write",
    RED_TEXT.format(w="with elected():\n            bulk_wait_read(0)", f="k = 0"),
    sig=SIG_R,
)
add("reduce wait by all", None, RED_TEXT.format(w="bulk_wait_read(0)", f="fence_async()"), sig=SIG_R)
add(
    "reduce wait elsewhere",
    "data/group-owner",
    RED_TEXT.format(
        w="with warps() as v:\n            if v == 2:\n                with elected():\n                    bulk_wait_read(0)",
        f="fence_async()",
    ),
    sig=SIG_R,
)
# register operand of a pending wgmma
RS_TEXT = """
where(K > 0)
launch(ctas=1)
p = role(thread, warps=4)
m = role(warpgroup)
b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
full = mbarrier(stages=2)
free = mbarrier(stages=2)
with m:
    acc = fragment(f32, wgmma_d[64, 64], 0)
    a = load(x[0:, 0:], wgmma_a[64, 64])
for k in range(ceil_div(K, 64)):
    with p:
        wait(free[k - 2])
        expect(full[k])
        tma_load(b_s[k], w[0:, k * 64:], signal=full[k])
    with m:
        wait(full[k])
        wgmma(acc, a, b_s[k])
        wgmma_commit()
        {q}
        arrive(free[k])
with m:
    wgmma_wait(0)
    store(y[0:, :], acc)
"""
SIG_W = "x: In[bf16, 64, K], w: In[bf16, 64, K], y: Out[f32, 64, 64]"
add("rs", None, RS_TEXT.format(q="wgmma_wait(0)\n        a = load(x[0:, (k + 1) * 64:], wgmma_a[64, 64])"), sig=SIG_W)
add(
    "rs early",
    "data/accumulator-read-early",
    RS_TEXT.format(q="a = load(x[0:, (k + 1) * 64:], wgmma_a[64, 64])\n        wgmma_wait(0)"),
    sig=SIG_W,
)
# 2-CTA, DSMEM ring: CTA 0 sends tiles to CTA 1 through stores and remote arrives
DSMEM_TEXT = """
where(M > 0)
launch(ctas=2, cluster=2)
t = role(warp)
s = smem(f32, 128, stages=2)
full = mbarrier(stages=2)
free = mbarrier(stages=2)
with t:
    for n in range(M):
        if cluster_rank == 0:
            wait(free[n - 2])
            store(s[n].on(1), load(x[n, :], vec(4).cols[128]))
            arrive(full[n].on(1))
        else:
            wait(full[n])
            store(y[n, :], load(s[n], vec(4).cols[128]))
            arrive(free[n].on(0))
sync(cluster)
"""
add("dsmem ring", None, DSMEM_TEXT, sig=XY)
add("no free wait", "data/overwritten-while-read", DSMEM_TEXT.replace("            wait(free[n - 2])\n", ""), sig=XY)
add("no full wait", "data/unsynchronised-read", DSMEM_TEXT.replace("            wait(full[n])\n", ""), sig=XY)
add("local arrive", "sync/deadlock", DSMEM_TEXT.replace("arrive(full[n].on(1))", "arrive(full[n])"), sig=XY)
add("local free", "sync/deadlock", DSMEM_TEXT.replace("arrive(free[n].on(0))", "arrive(free[n])"), sig=XY)
add("exit", "sync/cluster-exit", DSMEM_TEXT.replace("sync(cluster)\n", ""), sig=XY)
add("local store", "data/uninitialised-memory", DSMEM_TEXT.replace("s[n].on(1)", "s[n]"), sig=XY)
add(
    "elected arrive no sync",
    "sync/release-misses-lanes",
    DSMEM_TEXT.replace(
        "            arrive(full[n].on(1))", "            with elected():\n                arrive(full[n].on(1))"
    ),
    sig=XY,
)
add(
    "read before release",
    "data/released-before-read",
    DSMEM_TEXT.replace(
        "            store(y[n, :], load(s[n], vec(4).cols[128]))\n            arrive(free[n].on(0))",
        "            arrive(free[n].on(0))\n            store(y[n, :], load(s[n], vec(4).cols[128]))",
    ),
    sig=XY,
)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_only_this_error(case: tuple[str, str | None, str, str, str]) -> None:
    _, rule, body, sig, target = case
    inner = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    report = verify_text(f'@kernel(target="{target}")\ndef k({sig}):\n{inner}')
    errors = [d.rule for d in report.diagnostics if d.severity == "error"]
    assert errors == ([rule] if rule else []), [d.render() for d in report.diagnostics]
