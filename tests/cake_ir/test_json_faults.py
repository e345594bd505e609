"""Bad JSON programs: coded answers that point at the value, never an exception."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cake_ir import from_json, json_schema, parse, print_file, to_json

TEXT = '@kernel(target="sm_80")\ndef k(x: In[f32, N], *, T: (1, 2) = 1):\n    a = f(x[0:, None]) - 1.0\n'
GOOD = to_json(parse(TEXT).file)
LEAF = {"node": "Name", "id": "a"}


def put(path: str, value: Any) -> dict[str, Any]:
    """A copy of GOOD with `value` at `path`; the value ... deletes."""
    data = copy.deepcopy(GOOD)
    here: Any = data
    parts: list[Any] = [int(p) if p.isdigit() else p for p in path.strip("/").split("/")]
    for part in parts[:-1]:
        here = here[part]
    if value is ...:
        del here[parts[-1]]
    else:
        here[parts[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "pointer", "hint"),
    [
        ("/kernels", [], "/kernels", "at least 1"),
        ("/kernels", 3, "/kernels", "array"),
        ("/kernels", ..., "/kernels", "required"),
        ("/extra", 1, "/extra", "not permitted"),
        ("/kernels/0/name", "if", "/kernels/0/name", "reserved"),
        ("/kernels/0/name", "a b", "/kernels/0/name", "letters"),
        ("/kernels/0/name", "x" * 65, "/kernels/0/name", "64"),
        ("/kernels/0/name", 'k"\n#include "/etc/passwd', "/kernels/0/name", "letters"),
        ("/kernels/0/name", 7, "/kernels/0/name", "string"),
        ("/kernels/0/targets", [], "/kernels/0/targets", "at least 1"),
        ("/kernels/0/targets/0", 'a"', "/kernels/0/targets/0", "pattern"),
        ("/kernels/0/doc", "a\u0000", "/kernels/0/doc", "control"),
        ("/kernels/0/comments", ["a\nb()"], "/kernels/0/comments/0", "one line"),
        ("/kernels/0/body", [], "/kernels/0/body", "at least 1"),
        ("/kernels/0/body/0/node", "Goto", "/kernels/0/body/0", "Goto"),
        ("/kernels/0/body/0/value/op", "**", "/kernels/0/body/0/value/op", "should be"),
        ("/kernels/0/body/0/value/left", ..., "/kernels/0/body/0/value/left", "required"),
        ("/kernels/0/body/0/value/right/value", -1, "/kernels/0/body/0/value/right/value", "sign"),
        ("/kernels/0/body/0/value/right/value", True, "/kernels/0/body/0/value/right/value", "valid"),
        ("/kernels/0/body/0/value/right/value", 2**64, "/kernels/0/body/0/value/right/value", "at most"),
        ("/kernels/0/body/0/value/right/value", float("inf"), "/kernels/0/body/0/value/right/value", "inf"),
        ("/kernels/0/body/0/value/right/value", float("nan"), "/kernels/0/body/0/value/right/value", "finite"),
        ("/kernels/0/body/0/value/right/value", "1", "/kernels/0/body/0/value/right/value", "valid"),
        ("/kernels/0/body/0/value/right/node", ..., "/kernels/0/body/0/value/right", "no 'node'"),
        ("/kernels/0/body/0/span", {"line": 1}, "/kernels/0/body/0/span", "spans"),
        ("/kernels/0/body/0/value/left/args/0/items", [], "/kernels/0/body/0/value/left/args/0/items", "at least 1"),
        ("/kernels/0/a~b/c", 0, None, None),
    ],
)
def test_faults_name_the_value(path: str, value: Any, pointer: str | None, hint: str | None) -> None:
    if pointer is None:
        result = from_json({**GOOD, "a~b/c": 0})
        pointer, hint = "/a~0b~1c", "not permitted"
    else:
        result = from_json(put(path, value))
    assert result.file is None
    first = result.diagnostics[0]
    assert first.rule == "language/json" and first.family == "language"
    assert f"'{pointer}'" in first.message, first.message
    assert hint in first.message, first.message


@pytest.mark.parametrize("value", [None, [], "text", 3, True, {}, {"node": "Kernel"}, {"node": []}])
def test_not_a_file(value: object) -> None:
    assert [d.rule for d in from_json(value).diagnostics] == ["language/json"]


def test_faults_of_the_program_are_found_by_the_parser() -> None:
    """What validates as data but is no program is located in the canonical text."""
    result = from_json(put("/kernels/0/tunables/0/domain", LEAF))
    assert result.file is None and result.text
    assert [(d.rule, d.span.line) for d in result.diagnostics] == [("language/parameter", 2)]


def test_spans_refer_to_the_canonical_text() -> None:
    result = from_json(GOOD)
    assert result.text == print_file(result.file)
    span = result.file.kernels[0].body[0].value.span
    line = result.text.split("\n")[span.line - 1]
    assert line[span.col - 1 : span.end_col - 1] == "f(x[:, None]) - 1.0"


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = LEAF
    for _ in range(depth):
        value = {"node": "Unary", "op": "-", "operand": value}
    return put("/kernels/0/body/0/value", value)


@pytest.mark.parametrize("depth", [80, 300, 100_000])
def test_depth(depth: int) -> None:
    result = from_json(nested(depth))
    assert [d.rule for d in result.diagnostics] == ["language/depth"]
    assert len(result.diagnostics[0].message) < 500


def test_usable_depth() -> None:
    assert from_json(nested(50)).file is not None


def test_size() -> None:
    result = from_json(put("/kernels/0/body", [GOOD["kernels"][0]["body"][0]] * 60_000))
    assert [d.rule for d in result.diagnostics] == ["language/size"]


def test_schema_is_plain_json_and_names_every_node() -> None:
    schema = json.loads(json.dumps(json_schema()))
    assert {"Kernel", "Program", "With", "Call", "Slice"} <= set(schema["$defs"])
    assert "Span" not in json.dumps(schema) and '"span"' not in json.dumps(schema)
    assert all("node" in model["required"] for model in schema["$defs"].values())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["node", "id", "body", "x"]), inner),
    max_leaves=6,
)


def places(value: Any, path: str = "") -> list[str]:
    out = [path] if path else []
    if isinstance(value, dict):
        for key, inner in value.items():
            out += places(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            out += places(inner, f"{path}/{index}")
    return out


@settings(
    max_examples=200, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(st.sampled_from(places(GOOD)), json_values)
def test_any_value_anywhere(path: str, value: object) -> None:
    result = from_json(put(path, value))
    assert (result.file is None) == bool(result.diagnostics)
    if result.file is not None:
        assert from_json(to_json(result.file)).file == result.file
