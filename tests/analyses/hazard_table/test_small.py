"""Small programs, right and wrong, about syncs inside and between roles, overlays and preloaded tensor memory."""

from __future__ import annotations

import pytest

from analyses import verify_text

XY = "x: In[f32, M, 128], y: Out[f32, M, 128]"
CASES: list[tuple[str, str | None, str, str, str]] = []


def add(name: str, rule: str | None, body: str, sig: str = XY, target: str = "sm_90a") -> None:
    """One program: its only error, or None."""
    CASES.append((name, rule, body, sig, target))


add(
    "scalar then all",
    "data/lane-race",
    """
launch(ctas=M)
t = role(warp)
s = smem(f32, 4)
with t:
    with elected():
        store(s[0], 1.0)
    v = load(s[0])
    store(y[cta, :], load(x[cta, :], vec(4).cols[128]) * v)
""",
)
add(
    "scalar sync all",
    None,
    """
launch(ctas=M)
t = role(warp)
s = smem(f32, 4)
with t:
    with elected():
        store(s[0], 1.0)
    sync(warp)
    v = load(s[0])
    store(y[cta, :], load(x[cta, :], vec(4).cols[128]) * v)
""",
)
LOOP_TEXT = """
launch(ctas=1)
t = role(warp, count=4)
s = smem(f32, 4, 128)
with t as w:
    for i in range(ceil_div(M, 4)):
        store(s.rows(w, 1), load(x[4 * i + w:, :], vec(4)[1, 128]))
        {a}
        v = load(s.rows((w + 1) % 4, 1), vec(4)[1, 128])
        store(y[4 * i + (w + 1) % 4:, :], v)
        {b}
"""
add("exchange both syncs", None, LOOP_TEXT.format(a="sync(t)", b="sync(t)"))
add("exchange no second", "data/overwritten-while-read", LOOP_TEXT.format(a="sync(t)", b="n = 0"))
add("exchange no first", "data/unsynchronised-read", LOOP_TEXT.format(a="n = 0", b="sync(t)"))
TRANS_TEXT = """
launch(ctas=ceil_div(M, 64))
p = role(thread, warps=4)
t = role(warpgroup, count=2)
s = smem(f32, 64, 128)
full = mbarrier()
with p:
    expect(full[0])
    tma_load(s, x[64 * cta:, :], signal=full[0])
with t as w:
    if w == 0:
        wait(full[0])
    {a}
    store(y[64 * cta + 32 * w:, :], load(s.rows(32 * w, 32), vec(4, 32)[32, 128]))
"""
add("transitive", None, TRANS_TEXT.format(a="sync(t)"))
add("not transitive", "data/read-before-arrival", TRANS_TEXT.format(a="n = 0"))
add(
    "elected waits only",
    "data/read-before-arrival",
    TRANS_TEXT.format(a="n = 0").replace(
        "    if w == 0:\n        wait(full[0])", "    with elected():\n        wait(full[0])"
    ),
)
add(
    "elected waits then sync",
    None,
    TRANS_TEXT.format(a="sync(warpgroup)").replace(
        "    if w == 0:\n        wait(full[0])", "    with elected():\n        wait(full[0])"
    ),
)
add(
    "kernel-level sync missing",
    "data/unsynchronised-read",
    """
launch(ctas=M)
a = role(warp)
b = role(warp)
s = smem(f32, 128)
with a:
    store(s, load(x[cta, :], vec(4).cols[128]))
with b:
    store(y[cta, :], load(s, vec(4).cols[128]))
""",
)
add(
    "kernel-level wait",
    None,
    """
launch(ctas=ceil_div(M, 32))
p = role(thread)
a = role(warp)
b = role(warp)
s = smem(f32, 32, 128)
full = mbarrier()
with p:
    expect(full[0])
    tma_load(s, x[32 * cta:, :], signal=full[0])
wait(full[0])
with a:
    store(y[32 * cta:32 * cta + 16, :], load(s.rows(0, 16), vec(4, 32)[16, 128]))
with b:
    store(y[32 * cta + 16:, :], load(s.rows(16, 16), vec(4, 32)[16, 128]))
""",
)
OVER_TEXT = """
launch(ctas=M)
t = role(warp, count=4)
s = smem(f32, 128)
z = smem(f32, 128, over=s)
with t as w:
    store(s.cols(32 * w, 32), load(x[cta, 32 * w:], vec(1).cols[32]))
    sync(t)
    v = load(s.cols(32 * ((w + 1) % 4), 32), vec(1).cols[32])
    {a}
    store(z.cols(32 * w, 32), v)
    sync(t)
    store(y[cta, 32 * w:32 * w + 32], load(z.cols(32 * w, 32), vec(1).cols[32]))
"""
add("overlay ok", None, OVER_TEXT.format(a="sync(t)"))
add("overlay missing", "data/overwritten-while-read", OVER_TEXT.format(a="n = 0"))
add("overlay stale", "data/overlay-stale-read", OVER_TEXT.format(a="sync(t)").replace("load(z.cols", "load(s.cols"))
TM_TEXT = """
launch(ctas=1)
e = role(warpgroup)
p = role(thread)
i = role(thread)
b_s = smem(bf16, 128, 64, swizzle=128)
a_s = smem(bf16, 128, 64, swizzle=128)
acc = tmem(f32, 128, 128, owner=i)
full = mbarrier()
ready = mbarrier()
done = mbarrier()
with p:
    expect(full[0])
    tma_load(a_s, a[0:, :], signal=full[0])
    tma_load(b_s, b[0:, :], signal=full[0])
with e:
    tmem_store(acc, fragment(f32, tmem_d[128, 128], 1.0))
    {w}
    arrive(ready[0])
with i:
    wait(full[0])
    {r}
    tcgen05_mma(acc, a_s, b_s)
    tcgen05_commit(done[0])
with e:
    wait(done[0])
    v = tmem_load(acc, tmem_d[128, 128])
    tmem_load_wait()
    store(y[0:, :], v)
"""
S_TEXT = "a: In[bf16, 128, 64], b: In[bf16, 128, 64], y: Out[f32, 128, 128]"
add("tmem preload", None, TM_TEXT.format(w="tmem_store_wait()", r="wait(ready[0])"), sig=S_TEXT, target="sm_100a")
add(
    "tmem preload no wait",
    "data/tmem-store-wait",
    TM_TEXT.format(w="n = 0", r="wait(ready[0])"),
    sig=S_TEXT,
    target="sm_100a",
)
add(
    "tmem preload unordered",
    "data/unsynchronised-write",
    TM_TEXT.format(w="tmem_store_wait()", r="n = 0"),
    sig=S_TEXT,
    target="sm_100a",
)
add(
    "neighbour's part",
    "data/lane-race",
    """
launch(ctas=M)
t = role(warpgroup)
s = smem(f32, 128)
with t:
    store(s, load(x[cta, :], vec(1).cols[128]))
    with warps() as w:
        sync(warp)
        v = load(s.cols(32 * ((w + 1) % 4), 32), vec(1).cols[32])
        store(y[cta, 32 * ((w + 1) % 4):32 * ((w + 1) % 4) + 32], v)
""",
)
ROWS_TEXT = """
launch(ctas=ceil_div(M, 64))
t = role(warpgroup)
s = smem(f32, 64, 128)
with t:
    store(s, load(x[64 * cta:, :], vec(4, 32)[64, 128]))
    {a}
    with warps() as w:
        {b}
        for i in range(16):
            v = load(s[{r}], vec(4).cols[128])
            store(y[64 * cta + {r}:64 * cta + {r} + 1, :], load(s.rows({r}, 1), vec(4)[1, 128]))
"""
add("rows own", None, ROWS_TEXT.format(a="n = 0", b="sync(warp)", r="4 * i + w"))
add("rows own no sync", "data/lane-race", ROWS_TEXT.format(a="n = 0", b="n = 0", r="4 * i + w"))
add("rows other", "data/lane-race", ROWS_TEXT.format(a="n = 0", b="sync(warp)", r="16 * w + i"))
add("rows other, all met", None, ROWS_TEXT.format(a="sync(warpgroup)", b="n = 0", r="16 * w + i"))
WARPS_TEXT = """
launch(ctas=ceil_div(M, 64))
t = role(warpgroup)
s = smem(f32, 64, 128)
with t:
    store(s, load(x[64 * cta:, :], vec({v}, {l})[64, 128]))
    {a}
    store(y[64 * cta:, :], load(s, vec(4, 32)[64, 128]))
"""
add("whole warpgroup, one layout", None, WARPS_TEXT.format(a="n = 0", v=4, l=32))
add("whole warpgroup, other lanes of a warp", None, WARPS_TEXT.format(a="sync(warp)", v=2, l=32))
add("whole warpgroup, other lanes, none met", "data/lane-race", WARPS_TEXT.format(a="n = 0", v=2, l=32))
add("whole warpgroup, other warps", "data/lane-race", WARPS_TEXT.format(a="sync(warp)", v=4, l=16))
add("whole warpgroup, other warps, all met", None, WARPS_TEXT.format(a="sync(warpgroup)", v=4, l=16))
WRITTEN_SIG = "x: In[f32, M, 64], w: InOut[f32, M, 64], y: Out[f32, M, 64]"
WRITTEN_TEXT = """
where(M > 0)
launch(ctas=min(ceil_div(M, 32), device.sms))
p = role(thread)
t = role(warp)
s = smem(f32, 32, 64)
full = mbarrier()
with t:
    store(w[32 * cta:, :], load(x[32 * cta:, :], vec(4, 16)[32, 64]))
    {f}
sync(grid)
with p:
    expect(full[0])
    tma_load(s, w[32 * cta:, :], signal=full[0])
with t:
    wait(full[0])
    store(y[32 * cta:, :], load(s, vec(4, 16)[32, 64]))
"""
add(
    "written then copied",
    "data/proxy-fence-global",
    WRITTEN_TEXT.format(f="n = 0").replace("where(M > 0)", "where(M > 0, M <= 32)"),
    sig=WRITTEN_SIG,
)
add(
    "written fenced copied",
    None,
    WRITTEN_TEXT.format(f="fence_async(space=gmem)").replace("where(M > 0)", "where(M > 0, M <= 32)"),
    sig=WRITTEN_SIG,
)
POLL_TEXT = """
launch(ctas=ceil_div(M, 32))
p = role(thread)
t = role(warp)
s = smem(f32, 32, 64)
full = mbarrier()
ready = load(flag[0])
while ready == 0:
    ready = load(flag[0])
with p:
    {f}
    expect(full[0])
    tma_load(s, w[32 * cta:, :], signal=full[0])
with t:
    wait(full[0])
    store(y[32 * cta:, :], load(s, vec(4, 16)[32, 64]))
"""
POLL_SIG = "flag: InOut[i32, 1], w: InOut[f32, M, 64], y: Out[f32, M, 64]"
add("kernel-level poll", "data/proxy-fence-global", POLL_TEXT.format(f="n = 0"), sig=POLL_SIG)
add("kernel-level poll fenced", None, POLL_TEXT.format(f="fence_async(space=gmem)"), sig=POLL_SIG)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_only_this_error(case: tuple[str, str | None, str, str, str]) -> None:
    _, rule, body, sig, target = case
    inner = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    report = verify_text(f'@kernel(target="{target}")\ndef k({sig}):\n{inner}')
    errors = [d.rule for d in report.diagnostics if d.severity == "error"]
    assert errors == ([rule] if rule else []), [d.render() for d in report.diagnostics]
