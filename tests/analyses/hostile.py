"""Programs written to exhaust the verifier, by family. Not a test module; `test_exhaustion.py` runs them."""

from __future__ import annotations

from collections.abc import Callable

HEAD = '@kernel(target="sm_90a")\ndef k({args}):\n{where}    launch(ctas={ctas})\n'
RING = """    producer = role(thread, warps=4)
    math = role(warpgroup)
    tile = smem(bf16, 64, 64, stages={stages}, swizzle=128)
    full = mbarrier(stages={stages})
    free = mbarrier(stages={stages})
"""
FILL = """            wait(free[{n} - {stages}])
            expect(full[{n}])
            tma_load(tile[{n}], a[0:, 0:], signal=full[{n}])
"""
DRAIN = """            wait(full[{n}])
            arrive(free[{n}])
"""


def head(where: str = "", ctas: str = "1", args: str = "a: In[bf16, M, K]") -> str:
    lines = f"    where({where})\n" if where else ""
    return HEAD.format(args=args, where=lines, ctas=ctas)


def ring(loop: str, n: str = "n", stages: int = 2, where: str = "K % 8 == 0") -> str:
    """A ring filled and drained once per round of a loop (one line)."""
    return (
        head(where)
        + RING.format(stages=stages)
        + f"    {loop}\n        with producer:\n"
        + FILL.format(n=n, stages=stages)
        + "        with math:\n"
        + DRAIN.format(n=n)
    )


def huge_trip_count() -> str:
    return ring("for n in range(1000000000000):")


def huge_step_count_of_an_extent() -> str:
    return ring("for n in range((K + 8) * (K + 8) * (K + 8) * (K + 8) * (K + 8)):")


def endless_while() -> str:
    return (
        head("K % 8 == 0")
        + "    math = role(warpgroup)\n    with math:\n        i = 0\n        while i >= 0:\n            i += 1\n"
    )


def nest(depth: int, bound: str = "K + 8") -> str:
    """Loops in loops, with a barrier innermost."""
    text = head("K % 8 == 0") + RING.format(stages=2)
    for d in range(depth):
        text += "    " * (d + 1) + f"for i{d} in range({bound}):\n"
    inner = "    " * (depth + 1)
    return text + f"{inner}with math:\n{inner}    arrive(free[i0])\n" + "    with producer:\n        wait(free[0])\n"


def nest_of_fragments(depth: int) -> str:
    """Loops in loops around a fragment that lives across all of them."""
    text = head("K % 8 == 0", args="a: In[bf16, M, K], o: Out[f32, 64, 64]") + "    math = role(warpgroup)\n"
    text += "    with math:\n        acc = fragment(f32, wgmma_d[64, 64], 0.0)\n"
    for d in range(depth):
        text += "    " * (d + 2) + f"for i{d} in range(K):\n"
    return text + "    " * (depth + 2) + "acc = acc + 1.0\n" + "        store(o[0:, 0:], acc)\n"


def barriers(count: int) -> str:
    """Many barriers, each waited for and arrived on."""
    text = head("K % 8 == 0") + "    one = role(warp)\n    two = role(warp)\n"
    text += "".join(f"    b{i} = mbarrier(stages=2)\n" for i in range(count))
    text += "    with one:\n" + "".join(f"        arrive(b{i}[0])\n" for i in range(count))
    return text + "    with two:\n" + "".join(f"        wait(b{i}[0])\n" for i in range(count))


def ops(count: int) -> str:
    """A long straight body."""
    text = head("K % 8 == 0") + RING.format(stages=2)
    for n in range(count):
        text += "    with producer:\n" + FILL.format(n=n, stages=2).replace("            ", "        ")
        text += "    with math:\n" + DRAIN.format(n=n).replace("            ", "        ")
    return text


def unrolled(count: int, inner: int = 1) -> str:
    """A body that unrolling makes large."""
    text = head("K % 8 == 0") + RING.format(stages=2) + f"    for n in unroll({count}):\n"
    if inner > 1:
        text += f"        for m in unroll({inner}):\n"
    pad = "    " if inner > 1 else ""
    n = f"n * {inner} + m" if inner > 1 else "n"
    fill = "".join(f"{pad}{line}\n" for line in FILL.format(n=f"({n})", stages=2).replace("(n)", "n").splitlines())
    drain = "".join(f"{pad}{line}\n" for line in DRAIN.format(n=n).splitlines())
    return text + f"{pad}        with producer:\n{fill}{pad}        with math:\n{drain}"


def doubling(count: int) -> str:
    """Scalars each of which is the sum of two copies of the one before."""
    text = head("K % 8 == 0") + RING.format(stages=2) + "    x0 = K\n"
    text += "".join(f"    x{i + 1} = x{i} + x{i}\n" for i in range(count))
    return text + f"    with math:\n        arrive(free[x{count} % 2])\n    with producer:\n        wait(free[0])\n"


def squaring(count: int) -> str:
    """Scalars each of which is the square of the one before."""
    text = head("K % 8 == 0") + RING.format(stages=2) + "    x0 = K + 2\n"
    text += "".join(f"    x{i + 1} = x{i} * x{i}\n" for i in range(count))
    return text + f"    with math:\n        arrive(free[x{count} % 2])\n    with producer:\n        wait(free[0])\n"


def squaring_in_a_loop() -> str:
    """A number that a loop squares."""
    return (
        head("K % 8 == 0")
        + RING.format(stages=2)
        + "    with math:\n        x = K + 2\n        for i in range(1000):\n            x = x * x\n        arrive(free[x % 2])\n"
        + "    with producer:\n        wait(free[0])\n"
    )


def shifts() -> str:
    """A shift by a number of extents' size."""
    return (
        head("K % 8 == 0")
        + RING.format(stages=2)
        + "    x = 1 << (K * K * K * K)\n    with math:\n        arrive(free[x % 2])\n    with producer:\n        wait(free[0])\n"
    )


def where_without_solution() -> str:
    return ring("for n in range(K):", where="K % 8 == 0, K * K == 3")


def where_far_away() -> str:
    return ring("for n in range(K):", where="K % 1048576 == 524288")


def many_extents(count: int) -> str:
    """Many extents, tied to each other."""
    args = ", ".join(f"t{i}: In[bf16, D{i}, 64]" for i in range(count))
    where = ", ".join(f"(D{i} * D{i + 1}) % 7919 == {i + 1}" for i in range(count - 1))
    return (
        head(where, args=args)
        + "    math = role(warpgroup)\n    b = mbarrier()\n"
        + "    with math:\n        arrive(b[0])\n        wait(b[0])\n"
    )


def roles(count: int) -> str:
    text = head("K % 8 == 0") + "".join(f"    r{i} = role(warp)\n" for i in range(count)) + "    b = mbarrier()\n"
    return text + "".join(f"    with r{i}:\n        arrive(b[0])\n        wait(b[0])\n" for i in range(count))


def instances(count: int) -> str:
    return (
        head("K % 8 == 0")
        + f"    r = role(warp, count={count})\n    b = mbarrier()\n    with r:\n        arrive(b[0])\n        wait(b[0])\n"
    )


def stages(count: int) -> str:
    return ring("for n in range(K):", stages=count)


def grid(ctas: str) -> str:
    """A launch of very many CTAs that all write."""
    return (
        head("K % 8 == 0", ctas, args="a: In[bf16, M, K], o: Out[f32, M]")
        + "    one = role(warp)\n    with one:\n        store_scalar(o[cta], 1.0)\n"
    )


def conditions(count: int) -> str:
    """Branches one after the other, each on another extent's bit."""
    text = head("K % 8 == 0") + RING.format(stages=2)
    for i in range(count):
        text += f"    if (K >> {i}) & 1 == 1:\n        with math:\n            arrive(free[{i}])\n"
    return text + "    with producer:\n        wait(free[0])\n"


FAMILIES: dict[str, Callable[[], str]] = {
    "huge trip count": huge_trip_count,
    "trip count of extents multiplied": huge_step_count_of_an_extent,
    "endless while": endless_while,
    "nest of 20 loops": lambda: nest(20),
    "nest of 50 loops of two": lambda: nest(50, "2"),
    "nest of 40 loops around a fragment": lambda: nest_of_fragments(40),
    "150 barriers": lambda: barriers(150),
    "2000 barriers": lambda: barriers(2000),
    "500 ops in a row": lambda: ops(125),
    "6000 ops in a row": lambda: ops(1500),
    "unrolled 300 times": lambda: unrolled(300),
    "unrolled a million times": lambda: unrolled(1000, 1000),
    "60 doublings": lambda: doubling(60),
    "40 squarings": lambda: squaring(40),
    "squaring in a loop": squaring_in_a_loop,
    "a shift of extents": shifts,
    "no shape": where_without_solution,
    "a far shape": where_far_away,
    "8 extents tied": lambda: many_extents(8),
    "32 roles": lambda: roles(32),
    "200 roles": lambda: roles(200),
    "a million instances": lambda: instances(1_000_000),
    "64 stages": lambda: stages(64),
    "a million stages": lambda: stages(1_000_000),
    "a huge grid": lambda: grid("1 << 30"),
    "a grid of extents": lambda: grid("M * K * K * K"),
    "150 branches": lambda: conditions(150),
}
