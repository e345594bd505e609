"""Bad input gives located, coded answers; several per file; fast; and never an exception."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cake_ir import parse, print_file
from cake_ir.text import limits

HEAD = '@kernel(target="sm_80")\ndef k(x: In[f32, N], *, T: (1, 2) = 1):\n'
QUIET = settings(
    max_examples=200, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)


def body(*lines: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in lines)


def rules(text: str | bytes) -> list[tuple[str, int, int]]:
    result = parse(text)
    assert result.file is None
    return [(d.rule.removeprefix("language/"), d.span.line, d.span.col) for d in result.diagnostics]


@pytest.mark.parametrize(
    ("line", "rule", "col", "hint"),
    [
        ("break", "unsupported", 5, "while"),
        ("continue", "unsupported", 5, "if"),
        ("return", "unsupported", 5, "store"),
        ("pass", "unsupported", 5, "empty block"),
        ("import os", "unsupported", 5, "built in"),
        ("from os import path", "unsupported", 5, "built in"),
        ("assert a", "unsupported", 5, "assume"),
        ("del a", "unsupported", 5, "block"),
        ("global a", "unsupported", 5, "kernel-level"),
        ("raise a", "unsupported", 5, "exceptions"),
        ("a = b = c", "unsupported", 5, "one assignment"),
        ("a: f32 = 1.0", "unsupported", 5, "NAME = expr"),
        ("a -= 1", "unsupported", 5, "x = x - e"),
        ("a[0] += 1", "assignment", 5, "store"),
        ("a[0] = 1", "assignment", 5, "store"),
        ("a.b = 1", "assignment", 5, "store"),
        ("a = f(x) if b else 0", "unsupported", 9, "select"),
        ("a = lambda: 0", "unsupported", 9, "functions"),
        ("a = [i for i in b]", "unsupported", 9, "for"),
        ("a = {i for i in b}", "unsupported", 9, "for"),
        ("a = [1, 2]", "unsupported", 9, "tuple"),
        ("a = {1: 2}", "unsupported", 9, "keyword"),
        ('a = "text"', "unsupported", 9, "strings"),
        ('f(a, b="text")', "unsupported", 12, "strings"),
        ("a = None", "unsupported", 9, "inside an index"),
        ("a = ...", "unsupported", 9, "int or a float"),
        ("a = b ** 2", "unsupported", 9, "multiply"),
        ("a = b @ c", "unsupported", 9, "matrix op"),
        ("a = +b", "unsupported", 9, "leave it out"),
        ("a = b in c", "unsupported", 9, "=="),
        ("a = b is c", "unsupported", 9, "=="),
        ("a = (b := 1)", "unsupported", 10, "line of its own"),
        ("a = f(*b)", "unsupported", 11, "star"),
        ("f(**b)", "unsupported", 7, "star"),
        ("f(a=1, a=2)", "duplicate-name", 12, "twice"),
        ("a = f(1)(2)", "unsupported", 9, "called"),
        ("a = x[::2]", "unsupported", 13, "step"),
        ("a = x[(1, 2), 3]", "unsupported", 11, "side by side"),
        ("a = x[()]", "unsupported", 9, "at least one"),
        ("a = ()", "unsupported", 9, "empty tuple"),
        ("a + b", "unsupported", 5, "without effect"),
        ("a", "unsupported", 5, "without effect"),
        ("with a, b: f()", "unsupported", 5, "nest"),
        ("with a as b.c: f()", "assignment", 15, "one name"),
        ("for i in (1, 2): f()", "loop", 14, "range"),
        ("for x[0] in range(4): f()", "assignment", 9, "only names"),
        ("def g(): f()", "unsupported", 5, "function"),
        ("class C: x = 1", "unsupported", 5, "classes"),
        ("async def g(): f()", "unsupported", 5, "async"),
        ("a = 1e999", "number", 9, "inf"),
        ("a = 1j", "number", 9, "not a number"),
        ("a = 0777", "number", 9, "not a number"),
        ("a = 1if b else c", "number", 9, "not a number"),
        ("a = 18446744073709551616", "number", 9, "at most"),
        ("a = 0xffffffffffffffffff", "number", 9, "at most"),
        ("a = " + "9" * 81, "number", 9, "81 characters"),
        ("a" * 65 + " = 1", "name", 5, "65 characters"),
        ("é = 1", "character", 5, "ASCII"),
        ("a = b; c = d", "syntax", 10, "new line"),
        ("a = b + \\", "syntax", 13, "brackets"),
        ("a = f(b", "syntax", 10, "never closed"),
        ("a = f(b]", "syntax", 12, "opened at 3:10"),
        ("a = b)", "syntax", 10, "closes nothing"),
        ("a = 'b", "syntax", 9, "never closed"),
        ('a = """b', "syntax", 9, "never closed"),
        ("a = b c", "syntax", 11, "'c'"),
        ("if a", "syntax", 9, "':'"),
        ("a = f'{b}'", "string", 9, "prefix"),
        ("a = '\\n'", "string", 10, "escapes"),
        ("a = $b", "syntax", 9, "no meaning"),
        ("a = b?", "syntax", 10, "no meaning"),
    ],
)
def test_statement_faults(line: str, rule: str, col: int, hint: str) -> None:
    result = parse(body(line))
    assert result.file is None
    first = result.diagnostics[0]
    assert (first.rule, first.span.line, first.span.col) == (f"language/{rule}", 3, col), first.render()
    assert hint in first.message, first.message
    assert first.family == "language" and first.severity == "error"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [("empty", 1, 1)]),
        ("# only\n", [("empty", 1, 1)]),
        ("import os\n", [("unsupported", 1, 1)]),
        ("x = 1\n", [("unsupported", 1, 1)]),
        ("def k(x: In[f32, N]):\n    f()\n", [("decorator", 1, 1)]),
        ("@kernel\ndef k(x: In[f32, N]):\n    f()\n", [("decorator", 1, 2)]),
        ("@kernel()\ndef k(x: In[f32, N]):\n    f()\n", [("decorator", 1, 2)]),
        ("@kernel(target=sm_80)\ndef k(x: In[f32, N]):\n    f()\n", [("decorator", 1, 16)]),
        ('@kernel(target="SM 80")\ndef k(x: In[f32, N]):\n    f()\n', [("decorator", 1, 16)]),
        ('@kernel(target=("a", "a"))\ndef k(x: In[f32, N]):\n    f()\n', [("duplicate-name", 1, 22)]),
        ("@kernel(target=())\ndef k(x: In[f32, N]):\n    f()\n", [("decorator", 1, 16)]),
        ("@program()\ndef k(x: In[f32, N]):\n    f()\n", [("decorator", 1, 2)]),
        ("@jit\ndef k(x: In[f32, N]):\n    f()\n", [("decorator", 1, 2)]),
        ('@kernel(target="a")\n@program\ndef k(x: In[f32, N]):\n    f()\n', [("decorator", 2, 2)]),
        (HEAD + '    """Doc."""\n', [("empty", 2, 1)]),
        (HEAD + "    f()\n\n\n" + HEAD + "    f()\n", [("duplicate-name", 7, 1)]),
        ("@program\ndef p(x: In[f32, N]):\n    if a:\n        f()\n", [("program", 3, 5)]),
        ("@program\ndef p():\n    f()\n@program\ndef q():\n    f()\n", [("program", 5, 1)]),
        (HEAD + '    """Doc."""\n    """More."""\n    f()\n', [("unsupported", 4, 5)]),
        ("@program\ndef p():\n    n += 1\n", [("program", 3, 5)]),
    ],
)
def test_file_faults(text: str, expected: list[tuple[str, int, int]]) -> None:
    assert rules(text)[: len(expected)] == expected


@pytest.mark.parametrize(
    ("parameters", "rule", "col"),
    [
        ("x", "parameter", 7),
        ("x: In", "parameter", 10),
        ("x: In[f32]", "parameter", 10),
        ("x: Tensor[f32, N]", "parameter", 10),
        ("x: f64", "parameter", 10),
        ("x: In[f32, N:]", "parameter", 18),
        ("x: In[f32, N:2:3]", "parameter", 18),
        ("x: In[1, N]", "parameter", 13),
        ("e: f32, x: In[f32, N]", "parameter", 15),
        ("x: In[f32, N] = 1", "parameter", 23),
        ("x: In[f32, N], /", "parameter", 7),
        ("*x", "parameter", 8),
        ("**x", "parameter", 9),
        ("*, T", "parameter", 10),
        ("*, T: (1, 2)", "parameter", 10),
        ("*, T: 3 = 3", "parameter", 13),
        ("*, T: (1, f(2)) = 1", "parameter", 13),
        ("*, T: range() = 1", "parameter", 13),
        ("*, T: range(1, 9) = 1 + 1", "parameter", 27),
        ("x: In[f32, N], x: In[f32, N]", "duplicate-name", 22),
        ("x: f32, *, x: (1, 2) = 1", "duplicate-name", 18),
    ],
)
def test_signature_faults(parameters: str, rule: str, col: int) -> None:
    assert rules(f'@kernel(target="a")\ndef k({parameters}):\n    f()\n')[0] == (rule, 2, col)


def test_return_annotation() -> None:
    assert rules('@kernel(target="a")\ndef k(x: In[f32, N]) -> f32:\n    f()\n') == [("parameter", 2, 25)]


def test_faults_are_collected_in_text_order() -> None:
    text = body("break", "a = [1] + [2]", "f(lambda: 0)", "with a:", "    x = y ** 2", "b = c if d else e")
    assert rules(text) == [
        ("unsupported", 3, 5),
        ("unsupported", 4, 9),
        ("unsupported", 4, 15),
        ("unsupported", 5, 7),
        ("unsupported", 7, 13),
        ("unsupported", 8, 9),
    ]


def test_fault_lists_are_bounded() -> None:
    assert len(rules(body(*["break"] * 500))) == 50
    assert len(rules("\t\n" * 500)) == 20


# ---- limits --------------------------------------------------------------------------------------------------------

DEEP = {
    "brackets": "a = " + "(" * 300 + "b" + ")" * 300,
    "open brackets": "a = " + "[" * 900,
    "calls": "a = " + "f(" * 200 + ")" * 200,
    "indices": "a = b" + "[0]" * 200,
    "attributes": "a = b" + ".c" * 200,
    "sum": "a = b" + " + b" * 200,
    "power": "a = b" + "**b" * 200,
    "minus": "a = " + "-" * 400 + "b",
    "not": "a = " + "not " * 200 + "b",
    "and": "a = b" + " and b" * 150,
    "compare": "a = b" + " < b" * 200,
    "conditional": "a = " + "b if c else " * 80 + "d",
    "lambda": "a = " + "lambda x, y=" * 80 + "1",
    "sum in brackets": "a = " + "(" * 30 + "b" + (" + b" * 5 + ")") * 30,
    "chained assignment": "a = " * 200 + "b",
}


@pytest.mark.parametrize("kind", DEEP)
def test_depth_is_refused(kind: str) -> None:
    found = rules(body(DEEP[kind]))
    assert [rule for rule, *_ in found] == ["depth"] and found[0][1] == 3


def test_depth_of_blocks() -> None:
    def nest(depth: int) -> str:
        return HEAD + "".join("    " + " " * i + "if a:\n" for i in range(depth)) + "    " + " " * depth + "f()\n"

    assert [r for r, *_ in rules(nest(70))] == ["depth"]
    assert [r for r, *_ in rules(nest(300))] == ["depth"]
    assert parse(nest(58)).file is not None
    chain = body("if a:", "    f()", *["elif b:", "    f()"] * 70)
    assert [r for r, *_ in rules(chain)] == ["depth"]
    assert parse(body("if a:", "    f()", *["elif b:", "    f()"] * 50)).file is not None


def test_allowed_depth_is_usable() -> None:
    """What the gate lets through must be parsed and printed without running out of stack."""
    for line in (
        "a = " + "f(" * 29 + "b" + ")" * 29,
        "a = " + "(" * 58 + "b" + ")" * 58,
        "a = b" + " + b" * 58,
        "a = " + "-" * 58 + "b",
        "a = (" + ", ".join(["b + c"] * 80) + ")",
    ):
        result = parse(body(line))
        assert result.diagnostics == ()
        assert parse(print_file(result.file)).file == result.file


def test_size_encoding_and_characters() -> None:
    assert rules("a = b\n" * 50_000) == [("size", 1, 1)]
    assert rules("# é\n" * 60_000) == [("size", 1, 1)]
    assert rules("a\n" * 40_000) == [("tokens", 32_769, 1)]
    assert rules(b"# ok\nx = \xff\n") == [("encoding", 2, 5)]
    assert rules("# \u00e9\n".encode() + b"\xe9") == [("encoding", 2, 1)]
    assert rules("x = 1\0") == [("character", 1, 6)]
    assert rules("x = 1\n\ty = 2\n") == [("character", 2, 1)]
    assert rules("# a\u202eb\n") == [("character", 1, 4)]
    assert rules("\ufeffx = 1\n") == [("character", 1, 1)]
    assert rules("x = 1\ry = 2\n") == [("character", 1, 6)]
    assert rules("x = 1\n# \ud800") == [("character", 2, 3)]
    assert rules("x = 1\n# " + "a" * 1_000 + "\n") == [("line-length", 2, 1_001)]


HUGE: dict[str, str | bytes] = {
    "10 MB of sums": "a = " + "b+" * 5_000_000,
    "10 MB of brackets": "(" * 10_000_000,
    "10 MB of bytes": b"\xff" * 10_000_000,
    "10 MB of lines": "a = b\n" * 1_700_000,
    "256 KiB of brackets": "(" * limits.MAX_BYTES,
    "256 KiB of short names": "a\n" * (limits.MAX_BYTES // 2),
    "256 KiB of quotes": '"' * limits.MAX_BYTES,
    "256 KiB in a string": '"""' + "\\" * 900 + ("a" * 900 + "\n") * 280,
    "256 KiB of sums": "a = b" + ("+" + "b" * 40) * 6_000,
    "256 KiB of commas": "a = (" + "b,\n" * 87_000,
    "256 KiB of digits": "a = " + "1" * 200_000,
    "256 KiB of tabs": "\t" * limits.MAX_BYTES,
}


@pytest.mark.parametrize("kind", HUGE)
def test_huge_input_is_turned_away_at_once(kind: str) -> None:
    text = HUGE[kind]
    start = time.process_time()
    result = parse(text)
    spent = time.process_time() - start
    assert result.file is None and 1 <= len(result.diagnostics) <= 20
    assert spent < 10, "milliseconds when idle; the parser behind the gate would take minutes"


def test_open_bracket_is_reported_where_it_was_opened() -> None:
    text = body("a = f(b", *["x.y = g(c) + d"] * 60)
    assert rules(text) == [("syntax", 3, 10)]


# ---- anything at all -------------------------------------------------------------------------------------------------

WORDS = (
    'if else elif for in while with as def not and or lambda class return @kernel(target="sm_80") @program kernel a b '
    'f32 In x: In[f32,N] ( ) [ ] { } , : = += ** -> . .. ... 1 0 1.5 1e9 0x 1_ " \' """ # \\ \n \n \n \n    \n        '
    "; @ ~ ! $ é"
).split(" ")


def check_answer(text: str | bytes) -> None:
    result = parse(text)
    assert (result.file is None) == bool(result.diagnostics)
    if result.file is not None:
        printed = print_file(result.file)
        again = parse(printed)
        assert again.file == result.file and print_file(again.file) == printed
    lines = result.text.split("\n")
    for diagnostic in result.diagnostics:
        assert diagnostic.rule.startswith("language/") and diagnostic.message
        assert 1 <= diagnostic.span.line <= len(lines) + 1 and diagnostic.span.col >= 1


@QUIET
@given(st.text(max_size=80) | st.binary(max_size=80))
def test_any_text(text: str | bytes) -> None:
    check_answer(text)


@QUIET
@given(st.lists(st.sampled_from(WORDS), max_size=30))
def test_any_words(words: list[str]) -> None:
    check_answer(HEAD + "    " + " ".join(words))


@pytest.mark.parametrize("seed", range(3))
def test_edited_sketches(seed: int) -> None:
    """A real program with a few characters deleted, doubled or moved still gives an answer of the right form."""
    from tests.cake_ir.test_text_roundtrip import SKETCHES

    chance = random.Random(seed)
    for path in SKETCHES[:5]:
        text = path.read_text()
        for _ in range(4):
            for _ in range(chance.randint(1, 3)):
                at = chance.randrange(len(text))
                other = chance.randrange(len(text))
                text = chance.choice(
                    (
                        text[:at] + text[at + 1 :],
                        text[:at] + text[other : other + 9] + text[at:],
                        text[:at] + "\n" + text[at:],
                    )
                )
            check_answer(text)
