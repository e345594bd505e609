"""Binding: good programs get the types they should, each bad edit gives one finding with the right rule at the right line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cake_ir import bind, parse
from cake_ir import bound as B
from cake_ir.arithmetic import compile_sx
from cake_ir.layouts import base_of, placement, registers
from cake_ir.ops import registry
from cake_ir.ops.typing import CHECKS

SKETCHES = sorted((Path(__file__).parents[1] / "data" / "sketches").glob("*.cake"))
KERNELS = sorted((Path(__file__).parents[2] / "corpus" / "kernels").glob("*.cake"))

BASE = """@kernel(target="sm_90a")
def probe(a: In[bf16, M, K], b: In[bf16, N, K], d: Out[f32, M, N], s: f32, *, BN: (64, 128) = 128, STAGES: range(2, 5) = 2):
    where(K % 8 == 0)
    launch(ctas=ceil_div(M, 128), cluster=2)
    producer = role(thread, warps=4)
    math = role(warpgroup, count=2)
    a_s = smem(bf16, 128, 64, stages=STAGES, swizzle=128)
    b_s = smem(bf16, BN, 64, stages=STAGES, swizzle=128)
    full = mbarrier(stages=STAGES)
    free = mbarrier(stages=STAGES)
    turn = named_barrier(2)
    n = 0
    for k in range(ceil_div(K, 64)):
        with producer:
            wait(free[n - STAGES])
            expect(full[n])
            tma_load(a_s[n], a[cta * 128:, k * 64:], signal=full[n])
            tma_load(b_s[n], b[0:, k * 64:], signal=full[n])
        with math as wg:
            acc = fragment(f32, wgmma_d[64, BN], 0)
            wait(full[n])
            wgmma(acc, a_s[n].rows(64 * wg, 64), b_s[n])
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
            half = acc.cols(8, 8) * s
        n += 1
    sync(cluster)
"""


def bound(text: str, **bindings: object) -> B.BoundKernel:
    parsed = parse(text)
    assert parsed.file is not None, [d.render() for d in parsed.diagnostics]
    result = bind(parsed.file, bindings)  # type: ignore[arg-type]
    assert result.bound is not None, [d.render() for d in result.diagnostics]
    return result.bound


def findings(text: str, **bindings: object) -> list[tuple[str, int]]:
    parsed = parse(text)
    assert parsed.file is not None, [d.render() for d in parsed.diagnostics]
    return [(d.rule, d.span.line) for d in bind(parsed.file, bindings).diagnostics]  # type: ignore[arg-type]


def line_of(fragment: str) -> int:
    return next(i for i, line in enumerate(BASE.splitlines(), 1) if fragment in line)


EDITS = [
    ("wait(free[n - STAGES])", "wait(fre[n - STAGES])", "language/unknown-name"),
    ("wait(full[n])", "wait(full)", "language/type"),
    ("wait(full[n])", "wiat(full[n])", "language/unknown-op"),
    ("wait(full[n])", "wait(full[n].on(1))", "hardware/remote-barrier"),
    ("wait(full[n])", "wait(turn[0])", "language/type"),
    ("expect(full[n])", "expect(full[n], bytes=4)", "language/unknown-argument"),
    ("wgmma_commit()", "tma_load(a_s[n], a[0:, 0:], signal=full[n])", "hardware/illegal-unit"),
    ("arrive(free[n])", "arrive(free[n].on(2))", "hardware/cluster-rank"),
    ("wgmma_wait(0)", "wgmma_wait(k)", "language/not-static"),
    ("wgmma_wait(0)", "wgmma_wait(9)", "hardware/wait-depth"),
    ("wgmma_wait(0)", "sync(cta)", "sync/cta-sync-divergent"),
    ("wgmma_wait(0)", "n = 3", "language/kernel-name-in-role"),
    ("wgmma_wait(0)", "acc = 1.0", "language/type-change"),
    ("wgmma_wait(0)", "mma = 1", "language/reserved-name"),
    ("a_s[n].rows(64 * wg, 64), b_s[n])", "a_s[n].rows(60 * wg, 64), b_s[n])", "hardware/operand-alignment"),
    ("a_s[n].rows(64 * wg, 64), b_s[n])", "a_s[n].rows(128 * wg, 64), b_s[n])", "data/view-out-of-bounds"),
    ("a_s[n].rows(64 * wg, 64), b_s[n])", "a_s[n].rows(64 * wg, 64), b_s)", "language/stage-missing"),
    ("a_s[n].rows(64 * wg, 64), b_s[n])", "a_s[n], b_s[n])", "hardware/mma-shape"),
    ("a_s[n].rows(64 * wg, 64), b_s[n])", "a_s[n].rows(64 * wg, 64), b_s[n].T)", "hardware/mma-shape"),
    ("acc.cols(8, 8)", "acc.cols(4, 8)", "language/fragment-slice"),
    ("acc.cols(8, 8) * s", "acc.cols(8, 8) + n", "language/type"),
    ("acc.cols(8, 8) * s", "cast(acc.cols(8, 8), bf16) * s", "language/type"),
    ("acc.cols(8, 8) * s", "acc.cols(8, 8) + acc.cols(0, 16)", "language/layout-mismatch"),
    ("acc.cols(8, 8) * s", "row_sum(acc, 3)", "language/arguments"),
    ("acc.cols(8, 8) * s", "col_sum(acc)", "hardware/reduction-crosses-warps"),
    ("acc.cols(8, 8) * s", "load(d[0:, 0:], wgmma_d[64, 8])", "data/read-of-output"),
    ("acc.cols(8, 8) * s", "load(a[0:], wgmma_d[64, 8])", "language/rank"),
    ("acc.cols(8, 8) * s", "load(a[0:, 0:], mma_d[16, 8])", "language/layout-unit"),
    ("acc.cols(8, 8) * s", "load(a[0:, 0:], wgmma_d[60, 8])", "language/layout-shape"),
    ("wgmma_d[64, BN], 0)", "wgmma_d[64, 12], 0)", "language/layout-shape"),
    ("wgmma_d[64, BN], 0)", "wgmma_d[256, BN], 0)", "hardware/register-pressure"),
    ("tma_load(b_s[n], b[0:, k * 64:]", "tma_load(b_s[n], b[0:64, k * 64:]", "hardware/tma-runtime-bound"),
    ("tma_load(b_s[n], b[0:, k * 64:]", "tma_load(b_s[n], d[0:, k * 64:]", "language/type"),
    ("tma_load(b_s[n], b[0:, k * 64:]", "tma_load(b_s[n], b[0:, 3]", "language/rank"),
    ("cluster=2", "cluster=32", "hardware/cluster-shape"),
    ("swizzle=128)\n    b_s", "swizzle=96)\n    b_s", "hardware/swizzle"),
    ("smem(bf16, 128, 64, stages", "smem(bf16, 128, 40, stages", "hardware/swizzle-span"),
    ("full = mbarrier(stages=STAGES)", "a_s = mbarrier(stages=STAGES)", "language/duplicate-name"),
    ("where(K % 8 == 0)", "where(K % 8 == 0, BN > 128)", "language/where-unsatisfied"),
    ("        n += 1", "        n += half", "language/name-of-another-role"),
]


@pytest.mark.parametrize(("old", "new", "rule"), EDITS, ids=[f"{e[2]}-{i}" for i, e in enumerate(EDITS)])
def test_single_edit_gives_one_finding_at_the_edit(old: str, new: str, rule: str) -> None:
    assert BASE.count(old) == 1
    found = findings(BASE.replace(old, new))
    where = BASE[: BASE.index(old)].count("\n") + 1
    assert found[0] == (rule, where), found
    assert len({f[0] for f in found}) == 1 or rule in (
        "language/duplicate-name",
        "hardware/swizzle",
        "hardware/swizzle-span",
    ), found


def test_a_warpgroup_starts_at_a_multiple_of_four_warps() -> None:
    text = BASE.replace("producer = role(thread, warps=4)", "producer = role(thread, warps=3)")
    assert findings(text) == [("hardware/warpgroup-alignment", line_of("math = role"))]


@pytest.mark.parametrize(("start", "count"), [(0, 48), (16, 48), (48, 16), (0, 16)])
def test_a_matrix_operand_may_be_part_of_a_panel(start: int, count: int) -> None:
    """K steps of 16 columns are addressed one by one, so any of them inside a panel will do; a copy moves even parts."""
    part = f".cols({start}, {count})"
    bound(BASE.replace("64 * wg, 64), b_s[n])", f"64 * wg, 64){part}, b_s[n]{part})"))
    copy = BASE.replace("tma_load(b_s[n], b[0:, k * 64:]", "tma_load(b_s[n].cols(0, 48), b[0:, k * 64:]")
    assert findings(copy) == [("hardware/panel-crossing", line_of("tma_load(b_s"))]


def test_base_binds() -> None:
    kernel = bound(BASE)
    assert [r.first_warp for r in kernel.roles] == [0, 4]
    assert kernel.threads == 384
    ops = [s.name for s in B.walk(kernel.body) if isinstance(s, B.Op)]
    assert ops.count("tma_load") == 2 and "wgmma" in ops
    acc = next(s.frag for s in B.walk(kernel.body) if isinstance(s, B.Let) and s.frag.name == "acc")
    assert (acc.type.rows, acc.type.cols, registers(acc.type)) == (64, 128, 64)


@pytest.mark.parametrize(
    ("bindings", "rule"),
    [
        ({"BN": 96}, "language/tunable-domain"),
        ({"STAGES": 5}, "language/tunable-domain"),
        ({"BM": 1}, "language/unknown-tunable"),
        ({"BN": 128.0}, "language/tunable-domain"),
    ],
)
def test_bindings_stay_in_their_domain(bindings: dict[str, object], rule: str) -> None:
    assert [f[0] for f in findings(BASE, **bindings)] == [rule]


def test_targets_are_exact() -> None:
    parsed = parse(BASE)
    assert parsed.file is not None
    assert bind(parsed.file, {}, "sm_100a").diagnostics[0].rule == "hardware/target-mismatch"
    other = parse(BASE.replace("sm_90a", "sm_100a"))
    assert other.file is not None
    rules = {d.rule for d in bind(other.file).diagnostics}
    assert rules == {"hardware/feature-missing"}, "wgmma has no forward path to Blackwell"


def test_contraction_is_syntactic() -> None:
    text = BASE.replace("half = acc.cols(8, 8) * s", "half = acc.cols(0, 8) - acc.cols(8, 8) * s")
    let = next(s for s in B.walk(bound(text).body) if isinstance(s, B.Let) and s.frag.name == "half")
    assert isinstance(let.value, B.VOp) and let.value.op == "fnma"
    apart = BASE.replace(
        "half = acc.cols(8, 8) * s", "half = acc.cols(8, 8) * s\n            more = acc.cols(0, 8) - half"
    )
    let = next(s for s in B.walk(bound(apart).body) if isinstance(s, B.Let) and s.frag.name == "more")
    assert isinstance(let.value, B.VOp) and let.value.op == "-"


@pytest.mark.parametrize("path", SKETCHES + KERNELS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_sketches_and_corpus_bind(path: Path) -> None:
    parsed = parse(path.read_text())
    assert parsed.file is not None
    for kernel in parsed.file.kernels:
        for target in kernel.targets:
            result = bind(parsed.file, {}, target, kernel.name)
            assert result.bound is not None, [d.render() for d in result.diagnostics]


@pytest.mark.parametrize("view", ["acc_t[t][0]", "acc_t[t].T", "acc_t[t].rows(0, 64)", "acc_t[t].rows(64, 64)"])
def test_tcgen05_accumulators_are_whole_tiles(view: str) -> None:
    text = next(p for p in KERNELS if p.stem == "gemm_sm100").read_text()
    edited = text.replace("tcgen05_mma(acc_t[t],", f"tcgen05_mma({view},")
    assert edited != text
    file = parse(edited).file
    assert file is not None
    result = bind(file, {}, "sm_100a")
    assert [d.rule for d in result.diagnostics] == ["hardware/tcgen05-shape"]


def test_every_op_has_a_typing_check() -> None:
    assert set(CHECKS) == set(registry())


def test_layouts_cover_every_element_exactly_once() -> None:
    for kernel in (bound(BASE),):
        for stmt in B.walk(kernel.body):
            if not isinstance(stmt, B.Let):
                continue
            t = stmt.frag.type
            seen: dict[tuple[int, int], int] = {}
            for thread in range(t.threads):
                r, c = base_of(t.layout, t.dtype, t.axis, t.threads, thread)
                for dr, dc in placement(t).offsets:
                    seen[r + dr, c + dc] = seen.get((r + dr, c + dc), 0) + 1
            assert len(seen) == t.rows * t.cols and set(seen.values()) == {1}


def test_ranks_as_a_range() -> None:
    """The same copies as the ranks written out, of a start that is known at run time only."""
    whole = "tma_load(b_s[n], b[0:, k * 64:], signal=full[n])"
    four = BASE.replace("cluster=2", "cluster=4").replace(
        "    n = 0\n", "    column = cluster_rank // 2\n    n = 0\n", 1
    )

    def ranks(text: str) -> list[int]:
        kernel = bound(four.replace(whole, whole[:-1] + f", multicast={text})"))
        (value,) = (
            s.operands["multicast"] for s in B.walk(kernel.body) if isinstance(s, B.Op) and "multicast" in s.operands
        )
        column = next(v for x in value for v in B.sx_vars(x)) if any(B.sx_vars(x) for x in value) else None
        env = [0] * len(kernel.scalars)
        if column is not None:
            env[column.slot] = 1
        return [compile_sx(x)(env) for x in value]

    assert ranks("range(2 * column, 2 * column + 2)") == ranks("(2 * column, 2 * column + 1)") == [2, 3]
    assert ranks("range(column, column + 4, 2)") == [1, 3]
    assert ranks("range(4)") == ranks("range(0, 4)") == [0, 1, 2, 3]
    assert ranks("range(1, 4, 2)") == [1, 3]


@pytest.mark.parametrize(
    ("ranks", "rule"),
    [
        ("range(cta, 4)", "language/not-static"),
        ("range(0, 4, cta)", "language/not-static"),
        ("range(0, 4, 0)", "language/not-static"),
        ("range(cta, cta + 5)", "hardware/cluster-rank"),
        ("range(cta, cta + 4000000000000, 1)", "hardware/cluster-rank"),
        ("range(2, 6)", "hardware/cluster-rank"),
        ("range(2, 2)", "hardware/cluster-rank"),
        ("range()", "language/arguments"),
    ],
)
def test_bad_ranks(ranks: str, rule: str) -> None:
    load = "tma_load(b_s[n], b[0:, k * 64:], signal=full[n]"
    text = BASE.replace("cluster=2", "cluster=4").replace(load, f"{load}, multicast={ranks}")
    assert findings(text) == [(rule, 18)]


def test_the_grid_is_spelled_in_what_the_host_has() -> None:
    """Names assigned above launch() are read by the host too, which has extents and the number of SMs only."""
    b = bound(
        '@kernel(target="sm_90a")\n'
        "def k(x: In[f32, B, N], y: Out[f32, B, N]):\n"
        "    units = ceil_div(N, 64)\n"
        "    total = B * units\n"
        "    launch(ctas=min(total, device.sms))\n"
        "    w = role(warp)\n"
        "    for i in range(cta, total, cta_count):\n"
        "        with w:\n"
        "            store(y[i // units, 64 * (i % units):], load(x[i // units, 64 * (i % units):], vec(1).cols[64]))\n"
    )
    known = {b.dims["B"], b.dims["N"], b.builtins["sms"]}
    assert B.sx_vars(b.launch.ctas) <= known
    env: list[object] = [None] * len(b.scalars)
    for var, value in zip((b.dims["B"], b.dims["N"], b.builtins["sms"]), (3, 130, 132), strict=True):
        env[var.slot] = value
    assert compile_sx(b.launch.ctas)(env) == 9
