"""Ops against types, targets and limits. Every row that verify takes must have an emission; the locked assembler is asked about
one row of each family (it is silent about the rest: ../shared/hardware-facts.md, section 13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import cake_ir
from analyses import verify_text
from lowering import emit
from tests.compiled import compiled

TYPES = ("f32", "f16", "bf16", "i32", "u32", "i64", "u64", "i8", "u8", "e4m3", "e5m2")
ALL = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
NEW = ALL[2:]


def text(signature: str, body: str, *declared: str, unit: str = "warp", where: str = "") -> str:
    """A kernel of one CTA for each M with the single role `team`."""
    lines = [where, "launch(ctas=M)", f"team = role({unit})", *declared, "with team:"]
    inner = "\n".join("        " + line for line in body.splitlines())
    targets = ", ".join(f'"{t}"' for t in ALL)
    head = f"@kernel(target=({targets}))\ndef k({signature}, *, T: ({', '.join(TYPES)}) = f32):\n"
    return head + "".join(f"    {line}\n" for line in lines if line) + inner + "\n"


ROWS = "x: In[T, M, 64], y: InOut[T, M, 64]"
FETCH = "expect(full[0])\n{copy}(s, x[cta:, :], signal=full[0])\nwait(full[0])\n"
TILE = ("s = smem(T, 1, 64)", "full = mbarrier()")
PROGRAMS = {
    "load": text(ROWS, "store(y[cta, :], load(x[cta, :], vec(1).cols[64]))"),
    "pairs": text(ROWS, "store(y[cta, :], load(x[cta, :], vec(2).cols[64]))"),
    "shared": text(
        ROWS, "store(s, load(x[cta, :], vec(1).cols[64]))\nsync(warp)\nstore(y[cta, :], load(s, vec(2).cols[64]))",
        "s = smem(T, 64)",
    ),
    "cp_async": text(
        ROWS, "cp_async(s, x[cta:, :])\ncp_async_commit()\ncp_async_wait(0)\nsync(warp)\nstore(y[cta:, :], load(s, vec(2)[1, 64]))",
        "s = smem(T, 1, 64)",
    ),
    "ldmatrix": text(
        ROWS,
        "store(s, load(x[16 * cta:, :], vec(1)[16, 64]))\nsync(warp)\nstore(y[16 * cta:, :], ldmatrix(s, mma_a[16, 64]))",
        "s = smem(T, 16, 64)",
    ).replace("launch(ctas=M)", "launch(ctas=ceil_div(M, 16))"),
    "from_f32": text("x: In[f32, M, 64], y: Out[T, M, 64]", "store(y[cta, :], cast(load(x[cta, :], vec(2).cols[64]), T))"),
    "to_f32": text("x: In[T, M, 64], y: Out[f32, M, 64]", "store(y[cta, :], cast(load(x[cta, :], vec(2).cols[64]), f32))"),
    **{f"atomic_{op}": text(ROWS, f"atomic_{op}(y[cta, :], load(x[cta, :], vec(1).cols[64]))") for op in ("add", "min", "max")},
    "atomic_fetch": text(
        f"{ROWS}, z: InOut[T, M, 64]", "store(y[cta, :], atomic_fetch_add(z[cta, :], load(x[cta, :], vec(1).cols[64])))"
    ),
    **{
        f"{kind}_{op}": text(
            ROWS,
            FETCH.format(copy=f"{kind}_load") + f"{kind}_reduce(y[cta:, :], s, op={op})\nbulk_commit()\nbulk_wait(0)",
            *TILE, unit="thread",
        )
        for kind in ("tma", "bulk")
        for op in ("add", "min", "max")
    },
}  # fmt: skip

FLOATS16, FP8, WIDE = ("f16", "bf16"), ("e4m3", "e5m2"), ("i64", "u64")


def wanted(name: str, dtype: str, target: str) -> str | None:
    """The rule that refuses the row, or None: the PTX ISA's tables, by hand."""
    old = ALL.index(target)
    if name in ("load", "pairs", "shared", "cp_async"):
        return None
    if name == "ldmatrix":
        return _ldmatrix(dtype)
    if name == "from_f32":
        if dtype in ("i8", "u8", *WIDE):
            return "language/type"
        return "hardware/feature-missing" if dtype in FP8 and old < 1 else None
    if name == "to_f32":
        if dtype == "e4m3" and old < 1:
            return "hardware/feature-missing"
        return "language/type" if dtype in WIDE else None
    if name == "atomic_add":
        if dtype == "bf16" and old < 2:
            return "hardware/feature-missing"
        return None if dtype in ("f32", "i32", *FLOATS16) else "hardware/atomic-form"
    if name.startswith("atomic"):
        return None if dtype == "i32" else "hardware/atomic-form"
    if old < 2:
        return "hardware/feature-missing"
    kept = ("i32", "u32", *FLOATS16, *(("f32",) if name.endswith("add") else ()))
    return None if dtype in kept else "hardware/reduce-form"


def _ldmatrix(dtype: str) -> str | None:
    return None if dtype in ("i8", "u8", *FP8, *FLOATS16) else "hardware/ldmatrix-form"


def found(program: str, bindings: dict[str, Any], target: str | None = None) -> list[str]:
    report = verify_text(program, bindings, target)
    return sorted({d.rule for d in report.diagnostics if d.severity == "error"})


@pytest.mark.parametrize("target", ALL)
@pytest.mark.parametrize("name", PROGRAMS)
def test_types_of_an_op(name: str, target: str) -> None:
    for dtype in TYPES:
        want = wanted(name, dtype, target)
        got = found(PROGRAMS[name], {"T": dtype}, target)
        assert got == ([want] if want else []), (dtype, got)
        if want is None:
            parsed = cake_ir.parse(PROGRAMS[name])
            assert parsed.file is not None
            bound = cake_ir.bind(parsed.file, {"T": dtype}, target).bound
            assert bound is not None and emit(bound).cuda


@pytest.mark.parametrize("name,dtype,target", [
    ("pairs", "u8", "sm_80"), ("atomic_add", "bf16", "sm_90a"), ("atomic_add", "f32", "sm_90a"), ("atomic_add", "f32", "sm_80"),
    ("atomic_fetch", "i32", "sm_80"), ("bulk_min", "f16", "sm_90a"), ("ldmatrix", "e4m3", "sm_89"),
])  # fmt: skip
def test_the_assembler_takes_what_verify_takes(name: str, dtype: str, target: str) -> None:
    parsed = cake_ir.parse(PROGRAMS[name])
    assert parsed.file is not None
    bound = cake_ir.bind(parsed.file, {"T": dtype}, target).bound
    assert bound is not None
    assert compiled(emit(bound)).ok


# ---- limits at the edge ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edge:
    """A program with one number, the last value that is legal, the first that is not and the rule that says so."""

    name: str
    program: str
    last: int
    first: int
    rule: str
    target: str = "sm_90a"

    def __str__(self) -> str:
        return f"{self.name}-{self.target}"


def kernel(target: str, signature: str, body: str) -> str:
    return f'@kernel(target="{target}")\ndef k({signature}):\n' + "".join(
        f"    {line}\n" for line in body.strip().splitlines()
    )


def _shared(target: str) -> str:
    return kernel(
        target,
        "x: In[f32, M, 32], y: Out[f32, M, 32]",
        """
launch(ctas=M)
team = role(warp)
s = smem(i8, N)
w = smem(f32, 32, over=s)
with team:
    store(w, load(x[cta, :], vec(1).cols[32]))
    sync(warp)
    store(y[cta, :], load(w, vec(1).cols[32]))
""",
    )


def _ones(target: str, *lines: str, tail: str = "") -> str:
    body = "\n".join([*lines, "with team:", "    store(y[cta, :], fragment(f32, vec(1).cols[32], 1.0))"])
    return kernel(target, "y: Out[f32, M, 32]", body + ("\n" + tail if tail else ""))


def _arrivals(turns: str) -> str:
    return kernel(
        "sm_90a",
        "y: Out[f32, M, 32]",
        f"""
launch(ctas=M)
many = role(warpgroup)
team = role(warp)
ready = mbarrier()
with many:
    for i in range(8191):
        cp_async_arrive(ready[0])
    with elected():
        for i in range({turns}):
            arrive(ready[0])
with team:
    wait(ready[0])
    store(y[cta, :], fragment(f32, vec(1).cols[32], 1.0))
""",
    )


def _copy(
    tile: str, source: str, target: str = "sm_90a", start: str = "cta:", load: str = "tma_load", view: str = "s"
) -> str:
    return kernel(
        target,
        f"x: In[{source}], y: Out[f32, M, 32]",
        f"""
launch(ctas=M)
issuer = role(thread)
team = role(warp)
s = {tile}
full = mbarrier()
with issuer:
    expect(full[0])
    {load}({view}, x[{start}, 0:], signal=full[0])
with team:
    wait(full[0])
    store(y[cta, :], fragment(f32, vec(1).cols[32], 1.0))
""",
    )


TMEM = """
launch(ctas=M, ctas_per_sm={per})
team = role(warpgroup)
t = tmem(f32, 128, 64, owner=team)
more = tmem(f32, 128, N, owner=team)
with team:
    tmem_store(t, fragment(f32, tmem_d[128, 64], 1.0))
    tmem_store_wait()
    v = tmem_load(t, tmem_d[128, 64])
    tmem_load_wait()
    store(y[cta, :, :], v)
"""
SMEM = {"sm_80": 166912, "sm_89": 101376, "sm_90a": 232448, "sm_100a": 232448, "sm_103a": 232448, "sm_120a": 101376}
SLACK = 112  # the base is rounded up to 128 bytes by the kernel itself
SPARE = "rest = role(warp, count=N)"
REST = "with rest:\n    sync(warp)"
EDGES = [
    *(Edge("shared memory", _shared(t), n - SLACK, n - SLACK + 1, "hardware/smem-capacity", t) for t, n in SMEM.items()),
    Edge("threads", _ones("sm_90a", "launch(ctas=M)", "team = role(warp)", SPARE, tail=REST), 31, 32,
         "hardware/threads-per-block"),
    Edge("threads of an SM", _ones("sm_120a", "launch(ctas=M, ctas_per_sm=2)", "team = role(warp)", SPARE, tail=REST),
         23, 24, "hardware/threads-per-block", "sm_120a"),
    Edge("blocks of an SM", _ones("sm_89", "launch(ctas=M, ctas_per_sm=N)", "team = role(warp)"), 24, 25, "hardware/ctas-per-sm", "sm_89"),
    Edge("blocks of an SM", _ones("sm_80", "launch(ctas=M, ctas_per_sm=N)", "team = role(warp)"), 32, 33, "hardware/ctas-per-sm", "sm_80"),
    Edge("grid", _ones("sm_90a", "launch(ctas=N)", "team = role(warp)").replace("with team:", "with team:\n        if cta < M:")
         .replace("    store(y", "        store(y"), 2**31 - 1, 2**31, "hardware/grid-size"),
    Edge("arrivals", _arrivals("N"), 127, 128, "hardware/arrival-limit"),
    Edge("box elements", _copy("smem(u8, 16, N)", "u8, M, 512"), 256, 272, "hardware/tma-box"),
    Edge("box bytes", _copy("smem(u8, 16, N)", "u8, M, 512"), 16, 8, "hardware/tma-box"),
    Edge("stride", _copy("smem(bf16, 16, 8)", "bf16, M:N, 8"), 16, 20, "hardware/tma-stride"),
    Edge("long stride", _copy("smem(bf16, 16, 8)", "bf16, M:N, 8"), 2**39 - 8, 2**39, "hardware/tma-stride"),
    Edge("extent", _copy("smem(bf16, 16, 8)", "bf16, N, 8"), 2**31 - 1, 2**31, "language/extent-range"),
    Edge("bulk bytes", _copy("smem(u8, 1, N)", "u8, M, 512", load="bulk_load"), 48, 40, "hardware/bulk-size"),
    Edge("bulk row", _copy("smem(u8, 8, 16, pad=8)", "u8, M, 512", load="bulk_load", view="s.rows(N, 1)"), 2, 1,
         "hardware/operand-alignment"),
    Edge("tile start", _copy("smem(bf16, 32, 16)", "bf16, M, 16", view="s.rows(N, 16)"), 4, 2, "hardware/operand-alignment"),
    Edge("tensor memory", kernel("sm_100a", "y: Out[f32, M, 128, 64]", TMEM.format(per=1)), 448, 449, "hardware/tmem-capacity", "sm_100a"),
    Edge("tensor memory", kernel("sm_103a", "y: Out[f32, M, 128, 64]", TMEM.format(per=2)), 192, 193, "hardware/tmem-capacity", "sm_103a"),
    Edge("tensor memory overlay", kernel("sm_100a", "y: Out[f32, M, 128, 64]", TMEM.format(per=1).replace("N, owner", "N, over=t, owner")),
         64, 65, "data/over-too-large", "sm_100a"),
]  # fmt: skip


@pytest.mark.parametrize("edge", EDGES, ids=str)
def test_the_last_legal_value_and_the_first_illegal_one(edge: Edge) -> None:
    def run(value: int) -> list[str]:
        return found(edge.program.replace("N", str(value)), {}, None)

    assert run(edge.last) == []
    assert run(edge.first) == [edge.rule]


REFUSED = {
    "a mask of another layout": (
        text(ROWS, "v = load(x[cta:, :], vec(2)[8, 64])\nw = load(x[cta:, :], vec(1)[8, 64])\nstore(y[cta:, :], v, when=w > 0.0)"),
        "language/layout-mismatch",
    ),
    "indices of another layout": (
        text(f"i: In[i32, 8], {ROWS}", "r = load(i[:], vec(2, 32).rows[8])\nstore(y[r, :], load(x[cta:, :], vec(1, 8)[8, 64]))"),
        "language/layout-mismatch",
    ),
    "indices of columns": (
        text(f"i: In[i32, 8], {ROWS}", "r = load(i[:], vec(1).cols[8])\nstore(y[cta:, 0:], load(x[cta:, r], vec(1)[8, 8]))"),
        "language/index",
    ),
    "cp_async of chosen rows": (
        text(f"i: In[i32, 8], {ROWS}", "r = load(i[:], vec(1).rows[8])\ncp_async(s, x[r, :])", "s = smem(T, 8, 64)"),
        "hardware/cp-async-rows",
    ),
    "shared memory under tensor memory": (
        kernel("sm_100a", "y: Out[f32, M, 128, 64]", TMEM.format(per=1).replace("N, owner", "64, over=s, owner").replace(
            "more =", "s = smem(f32, 8)\nmore =")),
        "language/type",
    ),
    "sums of 16 bits in tensor memory": (
        kernel("sm_100a", "y: Out[f16, M, 128, 64]", TMEM.format(per=1).replace("f32", "f16").replace("1.0", "1").replace("N", "64")),
        "hardware/tmem-form",
    ),
    **{
        f"{op} of another block": (
            kernel("sm_100a", "x: In[bf16, M, 64], y: Out[bf16, M, 64]", f"""
launch(ctas=2 * M, cluster=2)
team = role({unit})
s = smem(bf16, 16, 64)
with team:
    {call}
"""),
            f"hardware/remote-{part}",
        )
        for op, unit, part, call in (
            ("ldmatrix", "warp", "operand", "v = ldmatrix(s.on(0), mma_d[16, 64])"),
            ("stmatrix", "warp", "destination", "stmatrix(s.on(0), load(x[0:, :], mma_d[16, 64]))"),
            ("cp_async", "warp", "destination", "cp_async(s.on(0), x[0:, :])"),
            ("tma_store", "thread", "operand", "tma_store(y[0:, :], s.on(0))"),
            ("bulk_store", "thread", "operand", "bulk_store(y[0:, :], s.on(0))"),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_instruction_does_is_refused(name: str) -> None:
    program, rule = REFUSED[name]
    assert found(program, {}, "sm_100a")[:1] == [rule]
