"""The text of sizes gives the numbers that the bound expressions give, and nothing else is taken for a size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cake_ir.arithmetic import compile_sx
from cake_ir.bound import SX, ScalarVar, SConst, SOp, SVar
from cake_ir.diagnostics import CakeError
from lowering.emission.scalars import sx_text
from lowering.sizes import MAX_TEXT, expression, names_in

NAMES = ("M", "N", "sms")
VARS = [SVar(ScalarVar(name, "dim", "i32", slot)) for slot, name in enumerate(NAMES)]
leaves = st.one_of(st.sampled_from(VARS), st.integers(-5, 300).map(lambda v: SConst(v, "i32")))
numbers: st.SearchStrategy[SX] = st.recursive(
    leaves,
    lambda x: st.one_of(
        st.builds(lambda op, a, b: SOp(op, (a, b), "i32"), st.sampled_from(["+", "-", "*", "min", "max", "|", "&"]), x, x),
        st.builds(lambda op, a, k: SOp(op, (a, SConst(k, "i32")), "i32"), st.sampled_from(["//", "%", "ceil_div"]), x,
                  st.integers(1, 64)),
        st.builds(lambda a: SOp("neg", (a,), "i32"), x),
        st.builds(lambda a, b, c: SOp("select", (SOp("<", (a, b), "bool"), b, c), "i32"), x, x, x),
    ),
    max_leaves=8,
)  # fmt: skip
conditions = st.builds(
    lambda op, a, b, join: SOp(join, (SOp(op, (a, b), "bool"), SOp("not", (SOp("==", (b, a), "bool"),), "bool")), "bool"),
    st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), numbers, numbers, st.sampled_from(["and", "or"]),
)  # fmt: skip


@given(st.one_of(numbers, conditions), st.lists(st.integers(1, 5000), min_size=3, max_size=3))
def test_the_text_means_what_the_expression_means(x: SX, values: list[int]) -> None:
    got = expression(sx_text(x), NAMES)(dict(zip(NAMES, values, strict=True)))
    assert got == compile_sx(x)(list(values))


def test_names_are_known_or_refused() -> None:
    assert names_in("min((B * ceil_div(N, 192)), sms)") == {"B", "N", "sms"}
    with pytest.raises(CakeError, match=r"reads K; known here: M, N, sms"):
        expression("M * K", NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "M.bit_length()", "M ** N", "[M]", "M if N else 1", "lambda: 1", "min(M)",
        "min(M, N, sms)", "ceil_div(M, b=3)", "'M'", "None", "1 < M < 3", "(M := 3)", "(M + " * 60 + "M" + ")" * 60, "-" * 60 + "M",
        "M +", "", "M" * (MAX_TEXT + 1), "9" * 400, "f'{M}'", "\x00",
    ],
)  # fmt: skip
def test_what_is_not_the_notation_is_refused(text: str) -> None:
    with pytest.raises(CakeError) as caught:
        expression(text, NAMES)
    assert caught.value.diagnostic.rule == "lowering/bad-expression"


@pytest.mark.parametrize("text", ["M // (N - N)", "M % 0", "1 << (M * 10000)", "1 << (0 - M)", "*".join(["sms"] * 40)])
def test_values_without_end_are_refused_when_they_arise(text: str) -> None:
    run = expression(text, NAMES)
    with pytest.raises(CakeError, match="cannot be used"):
        run({"M": 3, "N": 5, "sms": 132})


@pytest.mark.parametrize("text", [[], {}, None, 1.5, b"1"])
def test_what_is_no_text_is_refused(text: object) -> None:
    with pytest.raises(CakeError, match="an expression is text"):
        expression(text, ())  # type: ignore[arg-type]
    with pytest.raises(CakeError, match="an expression is text"):
        names_in(text)  # type: ignore[arg-type]
