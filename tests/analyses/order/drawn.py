"""Random small programs of the form that the cutoff argument covers, most of them with something wrong."""

from __future__ import annotations

import random

HEAD = """@kernel(target="sm_90a")
def drawn(a: In[bf16, M, K], d: Out[bf16, M, 64]):
    where({positive}K % 8 == 0)
    launch(ctas=1)
    math = role(warpgroup)
    producer = role(thread)
    a_s = smem(bf16, 64, 64, stages={deep}, swizzle=128)
    x_s = smem(bf16, 64, 64, stages={tiles}, swizzle=128)
    r_s = smem(bf16, 64, 64, swizzle=128)
    full = mbarrier(stages={deep})
    free = mbarrier(stages={deep})
    x_full = mbarrier(stages={tiles})
    x_free = mbarrier(stages={tiles})
    with math:
        total = fragment(f32, vec(4, 8)[64, 64], 0)
    n = 0
    t = 0
"""
READ = "total = total + cast(load({}, vec(4, 8)[64, 64]), f32)"


class _Text:
    """Lines at a moving indent."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.lines = draw, list[str]()
        self.indent = 4

    def add(self, *lines: str, condition: str = "") -> None:
        pad = " " * self.indent
        if condition:
            self.lines.append(f"{pad}if {condition}:")
            pad += "    "
        self.lines += [pad + line for line in lines]

    def inside(self, role: str, *lines: str, condition: str = "") -> None:
        self.add(f"with {role}:")
        self.indent += 4
        self.add(*lines, condition=condition)
        self.indent -= 4

    def pick(self, **choices: float) -> str:
        return self.draw.choices(list(choices), list(choices.values()))[0]

    def condition(self, choices: dict[str, float]) -> str:
        return self.draw.choices(list(choices), list(choices.values()))[0]


def program(draw: random.Random) -> str:
    """One program: a ring of `a_s` over the K loop, in most of them inside a loop over tiles with a ring `x_s` of its own."""
    deep, tiles = draw.choice((1, 2, 3)), draw.choice((1, 2))
    nested = draw.random() < 0.7
    n = "n" if nested or draw.random() < 0.5 else "k"
    t = _Text(draw)
    off = {0: 8, 1: 1, -1: 1}
    ahead, tile_ahead = (draw.choices(list(off), list(off.values()))[0] for _ in range(2))
    late = draw.choices((0, 1, 2), (5, 3, 1))[0]
    with_tile = nested and draw.random() < 0.8
    read = t.pick(before=1, first=2, all=2, after=2)
    released = t.pick(first=2, after=3, all=0.3, next=0.5)
    if nested:
        t.add("for tile in range(ceil_div(M, 64)):")
        t.indent = 8
    if with_tile:
        guard = t.condition({"": 8, "t > 0": 1, f"t >= {tiles}": 2})
        t.inside("producer", f"wait(x_free[t - {tiles + tile_ahead}])", condition=guard)
        t.inside("producer", "expect(x_full[t])", "tma_load(x_s[t], a[tile * 64:, :], signal=x_full[t])")
        t.inside("math", "wait(x_full[t])", *([READ.format("x_s[t]")] if read == "before" else []))
    t.add(f"for k in range(ceil_div(K, 64){draw.choice(('', '', '', ' + 1'))}):")
    t.indent += 4
    guard = t.condition({"": 8, f"{n} >= {deep}": 2, "k > 0": 1, "k < 3": 0.6, "t > 0": 0.6, "k % 2 == 0": 0.5})
    t.inside("producer", f"wait(free[{n} - {deep + ahead}])", condition=guard)
    t.inside("producer", f"expect(full[{n}])", f"tma_load(a_s[{n}], a[:, k * 64:], signal=full[{n}])")
    t.inside("math", f"wait(full[{n}])", READ.format(f"a_s[{n}]"))
    if with_tile and read in ("all", "first"):
        t.inside("math", READ.format("x_s[t]"), condition="k == 0" if read == "first" else "")
    if draw.random() < 0.95:
        t.inside("math", "fence_async()")
    if with_tile and released in ("first", "all"):
        t.inside("math", "arrive(x_free[t])", condition="k == 0" if released == "first" else "")
    guard = f"{draw.choice(('k', n))} >= {late}" if late else t.condition({"": 9, "k != 5": 0.7, "k % 3 != 2": 0.5})
    t.inside("math", f"arrive(free[{n} - {late}])", condition=guard)
    t.add("n += 1")
    t.indent -= 4
    if nested:
        rest = [f"arrive(free[n - {j}])" for j in range(late, 0, -1) if draw.random() < 0.9]
        after = [READ.format("x_s[t]"), "fence_async()"] if with_tile and read == "after" else []
        t.inside(
            "math",
            "fence_async()",
            *after,
            *rest,
            *(["arrive(x_free[t])"] if with_tile and released == "after" else []),
        )
        if with_tile and released == "next":
            t.inside("math", "arrive(x_free[t - 1])", condition="t > 0")
        if draw.random() < 0.2:
            t.inside("producer", f"wait(free[n - {deep}])")
        t.add("t += 1")
        t.indent = 4
    if draw.random() < 0.3:
        t.inside("producer", f"for s in range({deep}):", f"    wait(free[n - {deep} + s])")
    t.inside("math", "store(d[:, :], cast(total, bf16))")
    head = HEAD.format(positive=draw.choice(("K > 0, ", "")), deep=deep, tiles=tiles)
    return head + "\n".join(t.lines) + "\n"
