"""The emitted text: deterministic, refused by nobody, split by role, tied to the program's lines."""

from __future__ import annotations

import ast
import re

import pytest

from cake_ir.diagnostics import CakeError
from cake_ir.ops import registry
from lowering import emit, nvrtc_child
from lowering.emission.statements import EMITTERS
from lowering.emission.tiles import NoFit, fit
from lowering.emission.writer import Names, source_file
from tests.compiled import compiled
from tests.lowering.emit_helpers import bind_text, corpus_kernel

CORPUS = [
    ("kmeans_assign", None), ("kmeans_packed", None), ("gemm_sm90", None), ("gemm_sm80", None), ("gemm_sm100", None),
    ("kmeans_split", None), ("rmsnorm", "sm_80"), ("rmsnorm", "sm_90a"), ("softmax", "sm_100a"),
]  # fmt: skip


@pytest.mark.parametrize("name,target", CORPUS)
def test_emission_is_deterministic_and_acceptable_to_the_compiler_child(name, target):
    first, second = (emit(corpus_kernel(name, target)) for _ in range(2))
    assert first.cuda == second.cuda
    assert nvrtc_child.refuse_reason(first.cuda) is None
    assert first.cuda.count('extern "C"') == 1
    assert first.manifest.to_json() == second.manifest.to_json()


def presumed_lines(cuda: str) -> list[tuple[int, str]]:
    """(line of the program that the compiler would name, text) of every line behind the first #line."""
    found, number = [], 0
    for text in cuda.splitlines():
        match = re.match(r"#line (\d+)", text)
        if match:
            number = int(match[1])
            continue
        if number:
            found.append((number, text.strip()))
            number += 1
    return found


def test_line_directives_name_the_statement():
    source = (corpus_kernel.__globals__["KERNELS"] / "kmeans_assign.cake").read_text().splitlines()
    lines = presumed_lines(emit(corpus_kernel("kmeans_assign")).cuda)

    def program(fragment: str) -> set[str]:
        return {source[n - 1].strip() for n, text in lines if fragment in text}

    assert all("wgmma(" in line for line in program("wgmma_m64n128k16_bf16_bf16_ss("))
    assert all("tma_load(" in line for line in program("tma_load_3d("))
    assert {"expect(full[n])"} < program("mbar_expect(") and all(
        x.startswith("expect(") for x in program("mbar_expect(")
    )
    assert program("wgmma_wait<0>") == {"wgmma_wait(0)"}


def test_producer_branch_holds_no_math_and_the_other_way_round():
    cuda = emit(corpus_kernel("gemm_sm90")).cuda
    body = cuda[cuda.index("// producer") :]
    producer, math = body[: body.index("// math")], body[body.index("// math") :]
    assert "tma_load_2d" in producer and "wgmma" not in producer and "stmatrix" not in producer
    assert "tma_load_2d" not in math and "wgmma_m64n256k16" in math
    assert "set_registers_dec<40>" in producer and "set_registers_inc<232>" in math


TWO_ROLES = """
@kernel(target="sm_90a")
def k(x: In[f32, M, 128], y: Out[f32, M, 128]):
    launch(ctas=1)
    one = role(warp)
    two = role(warp)
    n = 0
    for i in range(M):
        with one:
            store(y[i, :], load(x[i, :], vec(4).cols[128]))
        n += 3
    with two:
        if n > 7:
            store(y[0, :], load(x[0, :], vec(4).cols[128]))
"""


def test_a_counting_loop_becomes_one_assignment():
    cuda = emit(bind_text(TWO_ROLES)).cuda
    two = cuda[cuda.index("// two") :]
    assert "for (int i" not in two
    assert re.search(r"n = n \+ \(max\(.*M.*\) \* 3\)", two), two


def test_dead_counters_are_dropped():
    cuda = emit(bind_text(TWO_ROLES)).cuda
    one = cuda[cuda.index("// one") : cuda.index("// two")]
    assert "for (int i" in one and "n = n" not in one


WAIT = """
@kernel(target="sm_90a")
def k(x: In[bf16, M, 64], y: Out[bf16, M, 64], *, S: range(1, 9) = 3):
    where(M > 0)
    launch(ctas=1)
    load_role = role(thread)
    use = role(warp)
    s = smem(bf16, 8, 64, stages=S, swizzle=128)
    full = mbarrier(stages=S)
    free = mbarrier(stages=S)
    for n in range(M // 8):
        with load_role:
            wait(free[n - S])
            expect(full[n])
            tma_load(s[n], x[8 * n:, :], signal=full[n])
        with use:
            wait(full[n])
            store(y[8 * n:, :], load(s[n], vec(8, 8)[8, 64]))
            fence_async()
            arrive(free[n])
"""


@pytest.mark.parametrize("stages,slot,parity", [
    (3, "cake::umod(n, 3)", "cake::udiv(n, 3) & 1"), (4, "n & 3", "(n >> 2) & 1"), (1, "", "n & 1"),
])  # fmt: skip
def test_slot_and_parity_of_a_ring(stages, slot, parity):
    cuda = emit(bind_text(WAIT, S=stages)).cuda
    waits = [line.strip() for line in cuda.splitlines() if "mbar_wait(" in line and "inline" not in line]
    assert len(waits) == 2
    assert all(slot in w for w in waits)
    # The producer waits for the phase before that of n; a fresh barrier passes it.
    assert waits[0].endswith("^ 1);") and waits[1].endswith(f"{parity});")


def test_every_op_has_an_emission():
    assert set(EMITTERS) == set(registry())


def test_unknown_forms_are_refused_by_name(monkeypatch):
    monkeypatch.delitem(EMITTERS, "atomic_add")
    text = """
@kernel(target="sm_90a")
def k(y: InOut[f16, M]):
    launch(ctas=1)
    r = role(warp)
    with r:
        atomic_add(y[:], fragment(f16, vec(1).cols[32], 0))
"""
    with pytest.raises(CakeError) as caught:
        emit(bind_text(text))
    assert caught.value.diagnostic.rule == "lowering/unsupported-form"
    assert caught.value.diagnostic.span.line == 7


@pytest.mark.parametrize(
    "values",
    [
        [0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 0, 1, 2, 3, 2, 3], [0, 4, 8, 12, 16, 20], [1, 0, 3, 2], [5] * 7,
        [0, 1, 8, 9, 16, 17, 24, 25, 32, 33],
        [2 * (r >> 2) + (r & 1) for r in range(64)], list(range(127)),
    ],
)  # fmt: skip
def test_fitted_formulas_give_the_values(values):
    tree = ast.parse(fit(values), mode="eval").body
    assert [number(tree, r) for r in range(len(values))] == values


def number(node: ast.expr, r: int) -> int:
    """The value of a C index formula, which is also a Python expression."""
    if isinstance(node, ast.Constant):
        return int(node.value)
    if isinstance(node, ast.Name):
        return r
    if isinstance(node, ast.UnaryOp):
        return -number(node.operand, r)
    assert isinstance(node, ast.BinOp)
    a, b = number(node.left, r), number(node.right, r)
    return {ast.Add: a + b, ast.Mult: a * b, ast.RShift: a >> b, ast.BitAnd: a & b}[type(node.op)]


def test_irregular_slots_do_not_fit():
    with pytest.raises(NoFit):
        fit([0, 1, 3, 2, 7])


def test_names_cannot_collide_with_the_language_or_the_helpers():
    names = Names()
    given = [names.fresh(w) for w in ("float", "cake", "lane", "x", "x", "x__y", "é")]
    assert len(set(given)) == len(given)
    assert not {"float", "cake", "lane"} & set(given)
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", g) and "__" not in g for g in given)


@pytest.mark.parametrize("name", ["<text>", "../../etc/x.cake", 'a"b\n.cake', "", "plain.cake"])
def test_line_directives_cannot_carry_foreign_text(name):
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}\.cake", source_file(name, "kernel"))


MET = """
@kernel(target="sm_90a")
def k(x: In[f32, 64], y: Out[f32, 64]):
    launch(ctas=1)
    producer = role(thread)
    reader = role(warp)
    line = smem(f32, 64)
    full = mbarrier(stages=2)
    with producer:
        expect(full[0])
        tma_load(line, x[0:], signal=full[0])
    with reader:
        wait(full[0])
        v = load(line, vec(2).cols[64])
        fence_async()
    sync(cta)
    with producer:
        expect(full[1])
        tma_load(line, x[0:], signal=full[1])
    with reader:
        wait(full[1])
        store(y[:], load(line, vec(2).cols[64]))
"""


def test_lanes_of_a_thread_role_meet_a_sync_of_all_threads_together():
    # A lane that waits at the barrier on a path of its own shares uniform registers with the elected one (hang on an H200).
    lines = [x.strip() for x in emit(bind_text(MET)).cuda.splitlines() if x.strip() and not x.startswith("#line")]
    begin, end = (next(i for i, x in enumerate(lines) if x.startswith(f"// {name}")) for name in ("producer", "reader"))
    open_at, led, met = 0, [], []
    for x in lines[begin:end]:
        if x == "if (leader) {":
            open_at = 1
        elif x == "}" and open_at:
            open_at = 0
        (led if open_at else met).append(x)
    assert sum("mbar_expect" in x or "tma_load" in x for x in led) == 4
    assert any("sync" in x for x in met if "__syncwarp" not in x) and not any("sync" in x for x in led)
    assert met.count("__syncwarp();") == 2


def test_roles_of_one_warpgroup_share_one_setmaxnreg():
    """PTX ISA, setmaxnreg: all warps of a warpgroup execute the same instruction."""
    cuda = emit(corpus_kernel("kmeans_bias")).cuda
    assert cuda.count("set_registers_dec<56>()") == 1
    first = cuda.index("set_registers_dec<56>()")
    assert first < cuda.index("// producer:") < cuda.index("// norms:") < cuda.index("set_registers_inc<152>()")


def test_only_barriers_that_a_peer_arrives_at_are_acquired_at_cluster_scope():
    """Such an acquire empties the L1 cache, and causality passes through the CTA's own barriers whatever their scope."""
    cuda = emit(corpus_kernel("kmeans_split", S=2, WG=1)).cuda
    names = {m[1]: m[2] for m in re.finditer(r"smem_base \+ (\d+)(?: \+ 8 \* i)?, \d+\);  // (\w+)", cuda)}
    waited = re.findall(r"^ *cake::(mbar_wait\w*)\(.*?(\d{5,})(?:\)?, )", cuda, re.M)
    assert {names[at] for form, at in waited if form == "mbar_wait_cluster"} == {"merged"}
    assert {names[at] for form, at in waited if form == "mbar_wait"} == {
        "x_full", "x_free", "full", "free", "bias_full", "bias_free", "parts",
    }  # fmt: skip


def test_a_cluster_meets_without_a_memory_barrier_unless_plain_stores_are_published():
    """fence.mbarrier_init has released the barriers; the address of tensor memory is a store of a thread."""
    assert "cake::cluster_meet();" in emit(corpus_kernel("kmeans_split", S=2, WG=1)).cuda
    with_tmem = emit(corpus_kernel("gemm_sm100")).cuda
    assert "cluster_meet" not in with_tmem and "cake::cluster_sync();" in with_tmem


PRODUCT = """
@kernel(target="sm_90a")
def product(a: In[bf16, M, K], b: In[bf16, K, 128], d: Out[f32, M, 128], *, CLUSTER: (1, 2) = 2):
    where(K > 0, K % 8 == 0)
    launch(ctas=CLUSTER * ceil_div(M, 64 * CLUSTER), cluster=CLUSTER)
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, swizzle=128, stages=2)
    b_s = smem(bf16, 64, 128, swizzle=128, stages=2)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with math:
        acc = fragment(f32, wgmma_d[64, 128])
    for n in range(ceil_div(K, 64)):
        with producer:
            wait(free[n - 2])
            expect(full[n])
            tma_load(a_s[n], a[64 * cta:, 64 * n:], signal=full[n])
            tma_load(b_s[n], b[64 * n:, :], signal=full[n])
        with math:
            wait(full[n])
            wgmma(acc, a_s[n], b_s[n].T, init=n == 0)
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[n])
    with math:
        store(d[64 * cta:, :], acc)
"""


@pytest.mark.parametrize("cluster", [1, 2])
def test_a_cta_rank_stays_out_of_the_descriptor(cluster):
    """Of an MN-major operand, whose LBO lies where a cluster puts the rank of a shared address; K-major ones have no LBO."""
    cuda = emit(bind_text(PRODUCT, CLUSTER=cluster)).cuda
    descriptors = dict(re.findall(r"(desc_[ab]) = (.*);", cuda))
    assert ("& 0x3ffff) >> 4" in descriptors["desc_b"]) == (cluster == 2)
    assert "& 0x3ffff" not in descriptors["desc_a"]
    lead = int(descriptors["desc_b"].split("ull")[0], 16) >> 16 & 0x3FFF
    assert lead * 16 == 64 * 128, "one panel of 64 columns"


def test_a_kernel_named_like_a_function_of_cuda_compiles():
    text = TWO_ROLES.replace("def k(", "def fma(")
    emitted = emit(bind_text(text))
    assert emitted.symbol == emitted.manifest.symbol == "fma_kernel" and "fma_kernel(" in emitted.cuda
    assert compiled(emitted).ok
    assert emit(bind_text(TWO_ROLES)).symbol == "k"
