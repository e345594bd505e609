"""Data tags on kernels of several kinds: single edits that compute another well-defined function are named; programs that only look
like them are left alone."""

from __future__ import annotations

from typing import Any

import pytest

from analyses import verify_text
from analyses.tags import check_tags
from analyses.tags.values import union
from cake_ir import bind, parse
from cake_ir.derive import derive
from corpus.kernels import kernel as corpus_kernel
from tests.analyses.tags.programs import PROGRAMS
from tests.mutation.subjects import SKETCHES


def rules(
    text: str, bindings: dict[str, Any] | None = None, target: str | None = None, kernel: str | None = None
) -> list[str]:
    """Rules of the tags' findings, with the text of the line."""
    file = parse(text).file
    assert file is not None
    result = bind(file, bindings or {}, target, kernel)
    assert result.bound is not None, [d.render() for d in result.diagnostics]
    found, properties = check_tags(result.bound, derive(result.bound))
    assert len(properties) == 1 and properties[0].name == "data tags"
    assert (properties[0].verdict == "refuted") == bool(found)
    lines = text.splitlines()
    return [f"{d.rule.removeprefix('data/')} {lines[d.span.line - 1].strip()}" for d in found]


def corpus(name: str) -> str:
    return corpus_kernel(name).text()


def sketch(name: str) -> str:
    return (SKETCHES / f"{name}.cake").read_text(encoding="utf-8")


GEMM90: dict[str, Any] = {"BN": 128, "STAGES": 2, "GROUP": 1}
MEANS: dict[str, Any] = {"DP": 64, "WG": 2, "BC": 64, "STAGES": 2}
WGMMA = "wgmma(acc, a_s[n].rows(64 * wg, 64), b_s[n], init=k == 0)"

EDITS: list[tuple[str, dict[str, Any], str | None, str, str, str]] = [
    ("gemm_sm90", GEMM90, None, "b[col + half:, k * BK:]", "b[col + half:, 0:]", f"mma-slices-differ {WGMMA}"),
    ("gemm_sm90", GEMM90, None, "a[row:, k * BK:]", "a[row:, (k + 1) * BK:]", f"mma-slices-differ {WGMMA}"),
    ("gemm_sm90", GEMM90, None, "a[row:, k * BK:]", "b[row:, k * BK:]", f"operand-swapped {WGMMA}"),
    ("gemm_sm90", GEMM90, None, "KT = ceil_div(K, BK)", "KT = min(1, ceil_div(K, BK))", f"k-step-skipped {WGMMA}"),
    ("gemm_sm90", GEMM90, None, "init=k == 0", "init=True", "k-step-skipped wgmma(acc, a_s[n].rows(64 * wg, 64), b_s[n], init=True)"),
    ("gemm_sm90", GEMM90, None, "a_s[n].rows(64 * wg, 64), b", "a_s[n].rows(0, 64), b",
     "stale-tile tma_store(d[row + 64 * wg:, col + 64 * j:], d_s[e].rows(64 * wg, 64))"),
    ("gemm_sm80", {"STAGES": 3, "GROUP": 1}, "sm_80", "16 * j, 16), mma_b", "16 * (j // 2), 16), mma_b",
     "mma-slices-differ mma(acc, fa, fb)"),
    ("gemm_sm80", {"STAGES": 3, "GROUP": 1}, "sm_80", "in unroll(BK // 16)", "in unroll(BK // 16 - 1)", "k-step-skipped mma(acc, fa, fb)"),
    ("gemm_sm80", {"STAGES": 3, "GROUP": 1}, "sm_80", "mma(acc, fa, fb)", "mma(acc, fa, fb)\n                mma(acc, fa, fb)",
     "k-step-repeated mma(acc, fa, fb)"),
    ("gemm_sm100", {"CG": 2, "BN": 128, "STAGES": 2}, None, "init=k == 0", "init=(k == 0) & (t == 0)",
     "accumulator-not-cleared tcgen05_mma(acc_t[t], a_s[n], b_s[n], init=(k == 0) & (t == 0), cta_group=CG)"),
    ("gemm_sm100", {"CG": 1, "BN": 128, "STAGES": 2}, None, "a_s[n], b_s[n], init", "b_s[n], a_s[n], init",
     "operand-swapped tcgen05_mma(acc_t[t], b_s[n], a_s[n], init=k == 0, cta_group=CG)"),
    ("kmeans_assign", MEANS, None, "x[b, row:, :]", "x[b, row:, 16:]", "mma-slices-differ wgmma(acc, points, c_s[n], init=True)"),
    ("kmeans_assign", MEANS, None, "c_sq[b, k * BC:]", "c_sq[b, 0:]",
     "combined-slices-differ score = sq.cols(8 * j, 8)[None, :] - 2.0 * acc.cols(8 * j, 8)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bindings", "target", "old", "new", "expected"), EDITS)
def test_a_wrong_slice_is_named_at_the_op_that_uses_it(
    name: str, bindings: dict[str, Any], target: str | None, old: str, new: str, expected: str
) -> None:
    text = corpus(name)
    assert text.count(old) == 1
    assert rules(text, bindings, target) == []
    assert rules(text.replace(old, new), bindings, target) == [expected]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("v[b, j * BK:, group, :]", "v[b, (j + 1) * BK:, group, :]", "mma-slices-differ wgmma(out, weights, v_s[j].T)"),
        ("q[b, row:, h, :]", "q[b, row + 64:, h, :]",
         "stale-tile tma_store(o[b, row + 64 * wg:, h, :], o_s.rows(64 * wg, 64))"),
    ],
)  # fmt: skip
def test_attention_multiplies_weights_with_the_values_of_their_keys(old: str, new: str, expected: str) -> None:
    text, small = sketch("06_attention_sm90"), {"D": 64, "BK": 64}
    assert text.count(old) == 1
    assert rules(text, small) == []
    assert rules(text.replace(old, new), small) == [expected]


def test_split_sums_are_whole_only_together() -> None:
    text = sketch("10_tinygemm_sm90")
    small = {"STAGES": 4, "SPLIT": 2, "BK": 64}
    assert rules(text, small) == []
    late = text.replace("for j in unroll(SPLIT * WARPS):", "for j in unroll(SPLIT * WARPS - 1):")
    assert late != text
    assert [r.split()[0] for r in rules(late, small)] == ["k-step-skipped"]


# ---- programs that only look wrong

HEAD = """@kernel(target="sm_90a")
def product({tensors}):
    where(K > 0, K % 128 == 0, N % 4 == 0)
    launch(ctas={ctas})
    producer = role(thread, warps=4)
    math = role(warpgroup)
    a_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    b_s = smem(bf16, 64, 64, stages=2, swizzle=128)
    full = mbarrier(stages=2)
    free = mbarrier(stages=2)
    with math:
        acc = fragment(f32, wgmma_d[64, 64], 0)
{body}
    with math:
        store({out}, acc)
"""
STEP = """        with producer:
            wait(free[{n} - 2])
            expect(full[{n}])
            tma_load(a_s[{n}], {a}, signal=full[{n}])
            tma_load(b_s[{n}], {b}, signal=full[{n}])
        with math:
            wait(full[{n}])
            wgmma(acc, a_s[{n}]{at}, b_s[{n}]{bt})
            wgmma_commit()
            wgmma_wait(0)
            arrive(free[{n}])
"""


def program(
    tensors: str, loops: str, a: str, b: str, out: str, n: str = "n", ctas: str = "ceil_div(M, 64)", t: str = ""
) -> str:
    """One sum per CTA; `loops` are the headers around the step, two steps deep at most."""
    step = STEP.format(n=n, a=a, b=b, at=t, bt=t)
    depth = loops.count("\n")
    body = loops + "\n" + "".join("    " * depth + line + "\n" for line in step.splitlines())
    return HEAD.format(tensors=tensors, body=body.rstrip("\n"), out=out, ctas=ctas)


A, B, D = "a: In[bf16, M, K]", "b: In[bf16, N, K]", "d: Out[f32, M, N]"
MEANT = {
    "plain": program(f"{A}, {B}, {D}", "    for n in range(ceil_div(K, 64)):", "a[64 * cta:, 64 * n:]", "b[:, 64 * n:]", "d[64 * cta:, :]"),
    "taps": program(
        f"{A}, b: In[bf16, 3, N, K], {D}",
        "    for r in unroll(3):\n        for k in range(ceil_div(K, 64)):",
        "a[64 * cta + r:, 64 * k:]", "b[r, :, 64 * k:]", "d[64 * cta:, :]", "(r * ceil_div(K, 64) + k)",
    ),
    "sum over experts": program(
        f"{A}, b: In[bf16, E, N, K], {D}",
        "    for r in range(E):\n        for k in range(ceil_div(K, 64)):",
        "a[64 * cta:, 64 * k:]", "b[r, :, 64 * k:]", "d[64 * cta:, :]", "(r * ceil_div(K, 64) + k)",
    ),
    "partial sums": program(
        f"{A}, {B}, d: Out[f32, P, M, N]", "    for n in range(ceil_div(K, 64 * P)):",
        "a[64 * (cta // P):, (cta % P + n * P) * 64:]", "b[:, (cta % P + n * P) * 64:]", "d[cta % P, 64 * (cta // P):, :]",
        ctas="P * ceil_div(M, 64)",
    ),
    "triangular": program(
        f"a: In[bf16, K, K], {B}, d: Out[f32, K, N]", "    for n in range(cta + 1):",
        "a[64 * cta:, 64 * n:]", "b[:, 64 * n:]", "d[64 * cta:, :]", ctas="ceil_div(K, 64)",
    ),
    "planes": program(
        f"{A}, {B}, {D}", "    for n in range(K // 128):", "a[64 * cta:, 64 * n:]", "b[:, 64 * n + K // 2:]", "d[64 * cta:, :]"
    ),
    "lags": program(
        "a: In[bf16, K, M], b: In[bf16, K, N], d: Out[f32, L, M, N]", "    for n in range(ceil_div(K, 64)):",
        "a[64 * n:, 64 * (cta // L):]", "b[64 * n + cta % L:, :]", "d[cta % L, 64 * (cta // L):, :]",
        ctas="L * ceil_div(M, 64)", t=".T",
    ),
    "concatenation": program(
        f"{A}, b: In[bf16, N, K + 64], {D}", "    for n in range(ceil_div(K, 64)):",
        "a[64 * cta:, 64 * n:]", "b[:, 64 * n + 64:]", "d[64 * cta:, :]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*MEANT, *PROGRAMS])
def test_what_a_program_may_mean_is_left_alone(name: str) -> None:
    text = MEANT.get(name) or PROGRAMS[name].lstrip()
    assert rules(text) == []


def test_programs_that_are_left_alone_are_accepted() -> None:
    for name in ("wgrad taps unrolled", "complex", "dual gemm gated"):
        report = verify_text(PROGRAMS[name].lstrip())
        assert report.accepted, [d.render() for d in report.diagnostics]
        assert [p.verdict for p in report.properties if p.name == "data tags"] == ["checked"]


def test_a_skipped_step_is_not_a_part_of_a_tile() -> None:
    """Taking 16 of each tile's 64 columns is what the text says; every other tile is not."""
    text, product = corpus("gemm_sm90"), "a_s[n].rows(64 * wg, 64), b_s[n], init"
    assert (
        rules(text.replace(product, "a_s[n].rows(64 * wg, 64).cols(16, 16), b_s[n].cols(16, 16), init"), GEMM90) == []
    )
    late = text.replace("a[row:, k * BK:]", "a[row:, 2 * k * BK:]").replace(
        "+ half:, k * BK:]", "+ half:, 2 * k * BK:]"
    )
    assert rules(late.replace("KT = ceil_div(K, BK)", "KT = ceil_div(K, 2 * BK)"), GEMM90) == [
        f"k-step-skipped {WGMMA}"
    ]


def test_an_extent_that_one_slice_covers_on_all_witnesses_is_made_longer() -> None:
    """One product per CTA is right while its extent is fixed by `where`, and skips the rest otherwise."""
    text = PROGRAMS["one product"].lstrip()
    assert rules(text) == []
    assert rules(text.replace("K > 0, K <= 64, ", "K > 0, ")) == ["k-step-skipped wgmma(acc, a_s, b_s, init=True)"]


def test_intervals_join() -> None:
    assert union(((0, 4), (8, 12)), ((4, 8), (20, 24))) == ((0, 12), (20, 24))
