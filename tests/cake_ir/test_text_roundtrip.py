"""Text and JSON say the same program, one tree has one text, and ids follow the tree alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from cake_ir import content_id, from_json, json_schema, parse, print_file, to_json, variant_id
from cake_ir import syntax as cst
from cake_ir.text.printer import print_expr, wrap
from tests.cake_ir.text_trees import expressions, files

SKETCHES = sorted((Path(__file__).parents[1] / "data" / "sketches").glob("*.cake"))
ROOT = Path(__file__).parents[2]
QUIET = settings(
    max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
TOO_BIG = {"language/depth", "language/line-length", "language/size", "language/tokens"}


def in_kernel(line: str) -> str:
    return f'@kernel(target="sm_80")\ndef k(x: In[f32, N]):\n    {line}\n'


def prose_of(file: cst.File) -> list[object]:
    """All comments and docstrings in text order: equality of trees ignores comments."""
    out: list[object] = [file.comments, file.doc, file.tail]

    def visit(node: object) -> None:
        if isinstance(node, cst.Stmt | cst.Kernel | cst.Program):
            out.append((node.comments, node.tail))
        if isinstance(node, cst.Node):
            for field in type(node).model_fields:
                visit(getattr(node, field))
        elif isinstance(node, tuple):
            for item in node:
                visit(item)

    visit(file)
    return out


@QUIET
@given(files())
def test_json_and_text_round_trip(file: cst.File) -> None:
    data = json.loads(json.dumps(to_json(file)))
    result = from_json(data)
    assume(not {d.rule for d in result.diagnostics} & TOO_BIG)
    assert result.file == file
    assert to_json(result.file) == data
    assert content_id(result.file) == content_id(file)
    text = print_file(file)
    result = parse(text)
    assume(not {d.rule for d in result.diagnostics} & TOO_BIG)
    assert result.diagnostics == ()
    assert result.file == file
    assert print_file(result.file) == text
    assert prose_of(result.file) == prose_of(file)


@QUIET
@given(expressions())
def test_expression_round_trip(node: cst.Node) -> None:
    result = parse(in_kernel(f"v = {print_expr(node)}"))
    assume(not {d.rule for d in result.diagnostics} & TOO_BIG)
    assert result.file.kernels[0].body[0].value == node


@QUIET
@given(expressions())
def test_no_pair_of_brackets_is_redundant(node: cst.Node) -> None:
    """Dropping any pair that only groups changes the tree (tuples, bit operators and `(1).T` aside)."""
    text = print_expr(node)
    assume("(" in text and not re.search(r"[&|^]|<<|>>", text))
    opened: list[int] = []
    for at, char in enumerate(text):
        if char == "(":
            opened.append(at)
        elif char == ")":
            start = opened.pop()
            groups = start == 0 or text[start - 1] in " ([:=-~"
            if not groups or "," in text[start:at] or re.fullmatch("[0-9][0-9.e+-]*", text[start + 1 : at]):
                continue
            less = text[:start] + " " + text[start + 1 : at] + " " + text[at + 1 :]
            other = parse(in_kernel(f"v = {less}")).file
            assert other is None or other.kernels[0].body[0].value != node, text


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("a = (b + c) + d", "a = b + c + d"),
        ("a = b + (c + d)", "a = b + (c + d)"),
        ("a = (b * c) + (d % e)", "a = b * c + d % e"),
        ("a = -(b) * (-c)", "a = -b * -c"),
        ("a = -(b * c)", "a = -(b * c)"),
        ("a = not (b == c)", "a = not b == c"),
        ("a = (not b) == c", "a = (not b) == c"),
        ("a = (b and c) and d", "a = b and c and d"),
        ("a = (b and c) or d", "a = b and c or d"),
        ("a = b and (c or d)", "a = b and (c or d)"),
        ("a = (b < c) < d", "a = (b < c) < d"),
        ("a = b & c - 1", "a = b & (c - 1)"),
        ("a = b & c & d", "a = b & c & d"),
        ("a = b << (c << d)", "a = b << (c << d)"),
        ("a = x[0:, 0:n, (i), :]", "a = x[:, :n, i, :]"),
        ("a = x[0 :n]", "a = x[:n]"),
        ("a = f(g, h = (k==0),)", "a = f(g, h=k == 0)"),
        ("a = 0x10 + 1_000 + 1e3 + .5 + 1e-9 + 0.000001", "a = 16 + 1000 + 1000.0 + 0.5 + 1e-09 + 1e-06"),
        ("(a, b) = f( x )", "a, b = f(x)"),
        ("for (i, j) in s.persistent(): f(i)", "for i, j in s.persistent():\n        f(i)"),
        ("a = (1).T", "a = (1).T"),
        ("a = (b,)", "a = (b,)"),
        ("x   +=   1", "x += 1"),
    ],
)
def test_canonical_form(written: str, canonical: str) -> None:
    result = parse(in_kernel(written))
    assert result.diagnostics == ()
    assert print_file(result.file) == in_kernel(canonical)


def test_elif_is_an_if_alone_in_orelse() -> None:
    inner = "        # why\n        if b:  # so\n            g()\n        else:\n            h()"
    text = in_kernel(f"if a:\n        f()\n    else:\n{inner}")
    printed = print_file(parse(text).file)
    assert printed == in_kernel("if a:\n        f()\n    # why\n    elif b:  # so\n        g()\n    else:\n        h()")
    assert print_file(parse(printed).file) == printed


def test_groups_of_declarations_are_set_apart() -> None:
    body = "n = 1\n    a = role(thread)\n    s = smem(f32, 4)\n    t = mbarrier()\n    f(n)\n    with a:\n        g()"
    assert print_file(parse(in_kernel(body)).file).split("\n")[2:] == [
        "    n = 1",
        "",
        "    a = role(thread)",
        "",
        "    s = smem(f32, 4)",
        "    t = mbarrier()",
        "",
        "    f(n)",
        "    with a:",
        "        g()",
        "",
    ]


def test_comments_keep_their_statement() -> None:
    text = """\
# head
\"\"\"Doc.\"\"\"
# above kernel


@kernel(target="sm_80")  # on the decorator
# between
def k(x: In[f32, N],  # inside
      eps: f32):  # behind
    \"\"\"Why.\"\"\"  # behind the docstring
    # above a
    a = f(1,  # in the call
          2)  # tail of a
    if a:  # tail of if
        g()
        # last in block
    else:  # tail of else
        h()
# end of kernel
"""
    file = parse(text).file
    kernel = file.kernels[0]
    assert file.comments == ("head",) and file.doc == "Doc." and file.tail == "end of kernel"
    assert kernel.comments == ("above kernel", "on the decorator", "between", "inside") and kernel.tail == "behind"
    first, second = kernel.body
    assert first.comments == ("behind the docstring", "above a", "in the call") and first.tail == "tail of a"
    assert second.tail == "tail of if" and second.orelse[0].comments == ("last in block", "tail of else")
    again = parse(print_file(file)).file
    assert prose_of(again) == prose_of(file)


@pytest.mark.parametrize("path", SKETCHES, ids=lambda p: p.stem)
def test_sketches(path: Path) -> None:
    text = path.read_text()
    result = parse(text, path.name)
    assert result.diagnostics == () and result.name == path.name
    printed = print_file(result.file)
    again = parse(printed)
    assert again.file == result.file and print_file(again.file) == printed
    code_lines = [line for line in printed.split("\n") if not line.startswith(('"""', "L = ", "Each", "Prefill"))]
    assert max(map(len, code_lines)) <= 140
    data = json.loads(json.dumps(to_json(result.file)))
    assert from_json(data).file == result.file
    assert content_id(again.file) == content_id(result.file)


@pytest.mark.parametrize("index", [1, 4])
def test_schema_accepts_what_is_written(index: int) -> None:
    data = to_json(parse(SKETCHES[index].read_text()).file)
    assert not list(Draft202012Validator(json_schema()).iter_errors(data))
    data["kernels"][0]["body"][0]["call"]["args"][0]["node"] = "Lambda"
    assert list(Draft202012Validator(json_schema()).iter_errors(data))


def test_ten_sketches_are_there() -> None:
    assert len(SKETCHES) >= 10


def test_spans_cut_out_the_source() -> None:
    text = SKETCHES[0].read_text()
    lines = text.split("\n")
    kernel = parse(text).file.kernels[0]

    def cut(span: object) -> str:
        assert span.line == span.end_line
        return lines[span.line - 1][span.col - 1 : span.end_col - 1]

    assert cut(kernel.tensors[1].span) == "b: In[bf16, N, K]"
    assert cut(kernel.tensors[1].extents[1].span) == "K"
    assert cut(kernel.tunables[0].span) == "BN: (128, 256) = 256"
    assert cut(kernel.body[0].call.args[1].span) == "K % 8 == 0"
    launch = next(s for s in kernel.body if isinstance(s, cst.CallStmt) and s.call.func.id == "launch")
    assert cut(launch.span) == lines[11].strip()
    assert cut(launch.call.keywords[0].span) == "ctas=2 * min(tiles.count, device.sms // 2)"
    assert (kernel.span.line, kernel.span.col) == (5, 1) and kernel.span.end_line == len(lines) - 1


def test_columns_count_characters_not_bytes() -> None:
    result = parse('"é∑𝄞" + x\n')
    assert [(d.span.col, d.span.end_col) for d in result.diagnostics] == [(1, 10)]


def test_windows_line_ends_read_the_same() -> None:
    text = SKETCHES[4].read_text()
    other = parse(text.replace("\n", "\r\n"))
    assert other.file == parse(text).file
    assert print_file(other.file) == print_file(parse(text).file)


# ---- ids -----------------------------------------------------------------------------------------------------------


def test_id_ignores_prose_and_layout_only() -> None:
    base = parse(in_kernel("a = f(b)")).file
    talk = parse("# c\n" + in_kernel('"""Doc."""\n    # note\n    a = (f( b ))  # tail')).file
    assert content_id(talk) == content_id(base)
    assert content_id(parse(in_kernel("a = f(c)")).file) != content_id(base)
    assert content_id(parse(in_kernel("a = f(1)")).file) != content_id(parse(in_kernel("a = f(1.0)")).file)


def test_ids_are_equal_in_another_process() -> None:
    script = (
        "import sys; from pathlib import Path; from cake_ir import parse, content_id, variant_id\n"
        "for p in sys.argv[1:]:\n"
        "    f = parse(Path(p).read_text()).file\n"
        "    print(content_id(f), variant_id(f, {'STAGES': 2, 'BN': 64}, 'sm_90a', None))\n"
    )
    expected = ""
    for path in SKETCHES:
        file = parse(path.read_text()).file
        expected += f"{content_id(file)} {variant_id(file, {'BN': 64, 'STAGES': 2}, 'sm_90a', None)}\n"
    for seed in ("1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", script, *map(str, SKETCHES)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout == expected


def test_content_id_is_pinned() -> None:
    """Stored evidence is keyed by these: a change here is a change of format and must be deliberate."""
    assert content_id(parse(in_kernel("a = f(b)")).file) == "ir_b4991caf6752ff5a3bb7f9de0af4babe"


def test_variant_id_resolves_defaults() -> None:
    file = parse(SKETCHES[0].read_text()).file
    base = variant_id(file, {}, None, None)
    assert base == variant_id(file, {"BN": 256}, "sm_90a", "gemm_sm90") and base.startswith("v_") and len(base) == 34
    assert base != variant_id(file, {"BN": 128}, None, None)
    assert variant_id(file, {"FLAG": True}, None, None) != variant_id(file, {"FLAG": 1}, None, None)
    program = parse(SKETCHES[7].read_text()).file
    assert variant_id(program, {}, "sm_90a", None) == variant_id(program, {"knn_merge.WARPS": 8}, "sm_90a", None)
    with pytest.raises(TypeError):
        variant_id(file, {"BN": [1]}, None, None)


# ---- line breaking and speed ---------------------------------------------------------------------------------------


@QUIET
@given(st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_wrapping_only_adds_line_breaks(widths: list[int]) -> None:
    line = (
        "    f(" + ", ".join("a" * w if i % 3 else f"g({'b' * w}, c + {'d' * w})" for i, w in enumerate(widths)) + ")"
    )
    pieces = wrap(line)
    assert "".join(p.strip() for p in pieces).replace(" ", "") == line.replace(" ", "")
    assert all(len(p) <= 120 for p in pieces)


def test_parse_is_fast() -> None:
    """Under 5 ms for 100 lines on an idle core; the bound here allows for a busy machine."""
    text = SKETCHES[5].read_text()
    best = 1.0
    for _ in range(20):
        start = time.perf_counter()
        parse(text)
        best = min(best, time.perf_counter() - start)
    assert best < 0.25, "a scan that is no longer linear takes far longer"
