"""Loops that end, loops that do not, and loops of which it is not known: what the text decides and what runs decide."""

from __future__ import annotations

import numpy as np
import pytest

from analyses import verify_text
from analyses.value.faults import ValueFault
from analyses.value.interpret import interpret
from cake_ir import bind, parse

RULE = "sync/endless-loop"
TEXT = """
@kernel(target="sm_90a")
def loops(x: In[f32, M, 128], y: Out[f32, M, 128]):
    launch(ctas=ceil_div(M, 4))
    t = role(warp, count=4)
    with t as w:
        r = 4 * cta + w
        if r < M:
            v = load(x[r, :], vec(4).cols[128])
            {before}
            while {cond}:
                {body}
            store(y[r, :], v)
"""
BLOCK, ROUND = "\n            ", "\n                "
LOW = "low, at = row_argmin(v, col_index(v))"
ROWS = "rows = row_bits(row_any(load(x[r:, :], mma_d[16, 128]) < 0.0))"
COUNT = "v = v + 1.0"


def program(before: str | tuple[str, ...], cond: str, *body: str) -> str:
    first = (before,) if isinstance(before, str) else before
    return TEXT.format(before=BLOCK.join(first), cond=cond, body=ROUND.join(body))


ENDLESS = {
    "nothing changes": program(LOW, "low < 0.0", COUNT),
    "the same minimum again": program(LOW, "low < 0.0", "v = select(col_index(v) == at, low, v)", LOW),
    "negated": program(LOW, "low >= 0.0", "v = select(col_index(v) == at, 0.0, v)", LOW),
    "another counter": program(("i = 0", "j = 0"), "i < 5", "j = j + 1", COUNT),
    "down": program("i = 0", "i < 5", "i = i - 1", COUNT),
    "up": program("i = M", "0 <= i", "i = i + 1", COUNT),
    "stands at zero": program("i = M", "i >= 0", "i = i // 2", COUNT),
    "no bit left": program(ROWS, "rows != 1", "rows = rows & (rows - 1)"),
}
ENDING = {
    "data": program(LOW, "low < 0.0", "v = select(col_index(v) == at, 0.0, v)", LOW),
    "up": program("i = 0", "i < 5", "i = i + 1", COUNT),
    "down": program("i = M", "i > 0", "i = i - 1", COUNT),
    "halves": program("i = M", "i > 0", "i = i // 2", COUNT),
    "bits": program(ROWS, "rows != 0", "rows = rows & (rows - 1)"),
    "once": program((LOW, "first = low < 0.0"), "first", "first = False", COUNT),
}


def progress(text: str) -> tuple[list[tuple[str, int]], str]:
    report = verify_text(text)
    errors = [(d.rule, d.span.line) for d in report.diagnostics if d.severity == "error"]
    return errors, next(p.verdict for p in report.properties if p.name == "progress")


@pytest.mark.parametrize("name", ENDLESS)
def test_endless(name: str) -> None:
    text = ENDLESS[name]
    line = next(i for i, t in enumerate(text.splitlines(), 1) if "while" in t)
    errors, verdict = progress(text)
    assert errors == [(RULE, line)]
    assert verdict in ("refuted", "undecided")


@pytest.mark.parametrize("name", ENDING)
def test_ending_is_checked_not_proved(name: str) -> None:
    assert progress(ENDING[name]) == ([], "checked")


def test_a_long_loop_is_undecided() -> None:
    assert progress(program(LOW, "low < 10.0", "v = v + 0.001", LOW)) == ([], "undecided")


STEPS = """
@kernel(target="sm_90a")
def steps(x: In[f32, M, 128], y: Out[f32, M, 128]):
    where(M > {least})
    launch(ctas=min(ceil_div(M, 4), device.sms))
    t = role(warp)
    with t:
        for i in range(cta, M, {step}):
            store(y[i, :], load(x[i, :], vec(4).cols[128]))
"""


@pytest.mark.parametrize(
    ("step", "least", "fault"),
    [
        ("cta_count", 0, False),
        ("cta_count - 1", 0, True),
        ("cta_count - 7", 64, True),
        ("M - 700", 0, True),
        ("cta - 1", 0, True),
    ],
)
def test_steps_are_positive(step: str, least: int, fault: bool) -> None:
    errors = [e for e in progress(STEPS.format(step=step, least=least))[0] if e[0] != "data/out-unwritten"]
    assert errors == ([(RULE, 8)] if fault else [])


def test_the_value_reading_stops_where_rounds_repeat() -> None:
    bound = bind(parse(ENDLESS["negated"]).file, {}, None).bound  # type: ignore[arg-type]
    assert bound is not None
    x = np.ones((4, 128), np.float32)
    with pytest.raises(ValueFault) as fault:
        interpret(bound, {"x": x}, {"M": 4})
    assert fault.value.kind == "endless"
    with pytest.raises(ValueFault) as fault:
        interpret(
            bind(parse(STEPS.format(step="cta_count - 1", least=0)).file, {}, None).bound, {"x": x}, {"M": 4}, sms=1
        )  # type: ignore[arg-type]
    assert fault.value.kind == "endless"
