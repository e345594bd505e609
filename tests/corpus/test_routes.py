"""Route tables: the first route that holds wins, a kernel's own conditions are never overruled, and a bad table is named."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cake_ir.fault import CakeError
from corpus import routes
from corpus.routes import FALLBACK, Comparison, Table, choose
from lowering.recipe import concrete

TABLE: dict[str, Any] = {
    "format": 1,
    "family": "assign",
    "target": "sm_90a",
    "device": {"name": "NVIDIA H200", "sms": 132},
    "compiler": "NVRTC 13.5",
    "dims": ["B", "N", "C", "D"],
    "derived": {"tiles": "B * ceil_div(N, 192)", "waves": "ceil_div(tiles, sms)"},
    "variants": [
        {"id": "narrow", "kernel": "k", "dtype": "bf16", "bindings": {"DP": 64},
         "recipe": {"admits": [["(D <= 64)", "D is at most 64"], ["((D % 8) == 0)", "D is a multiple of 8"]]}},
        {"id": "wide", "kernel": "k", "dtype": "bf16", "bindings": {"DP": 256},
         "recipe": {"admits": [["(D <= 256)", "D is at most 256"], ["((D % 8) == 0)", "D is a multiple of 8"]],
                    "launches": [{"cubin_key": "a" * 64}, {"fill": "d"}, {"cubin_key": "b" * 64}, {"cubin_key": "a" * 64}]}},
        {"id": "small", "kernel": "s", "dtype": "bf16", "recipe": {"admits": []}},
        {"id": "half", "kernel": "h", "dtype": "f16", "recipe": {"admits": [["(D <= 32)", "D is at most 32"]]}},
    ],
    "routes": [
        {"variant": "small", "guard": [["waves", "<=", 1], ["C", "<", 512]], "evidence": ["ev_1"], "gain": 1.3, "shapes": 4},
        {"variant": "narrow", "guard": [["D", "<=", 128]]},
        {"variant": "wide", "guard": [["B * N", ">=", 100000]]},
    ],
    "fallback": ["narrow", "wide"],
    "validation": {"unseen": 12},
}  # fmt: skip


def shape(b: int, n: int, c: int, d: int) -> dict[str, int]:
    return {"B": b, "N": n, "C": c, "D": d}


@pytest.fixture(scope="module")
def table() -> Table:
    return Table.from_json(TABLE)


def test_a_table_survives_its_json(table: Table) -> None:
    again = Table.from_json(json.loads(json.dumps(table.to_json())))
    assert again == table and again.to_json() == table.to_json()
    assert table.variants["wide"].cubin_keys == ("a" * 64, "b" * 64)


@pytest.mark.parametrize(
    ("dims", "variant", "index"),
    [
        (shape(1, 192 * 132, 511, 8), "small", 0),  # exactly one wave
        (shape(1, 192 * 132 + 1, 511, 8), "narrow", 1),  # one point more is a second wave
        (shape(1, 192, 512, 64), "narrow", 1),
        (
            shape(1, 192, 512, 72),
            "wide",
            FALLBACK,
        ),  # route 1 holds, its kernel does not admit D 72; route 2 does not hold
        (shape(10, 10000, 512, 72), "wide", 2),
    ],
)
def test_the_first_route_that_holds_and_admits_wins(
    table: Table, dims: dict[str, int], variant: str, index: int
) -> None:
    got = choose(table, dims, "bf16")
    assert (got.variant.id, got.index) == (variant, index)
    if index == 0:
        assert got.evidence == ("ev_1",) and "waves <= 1 and C < 512" in got.reason


def test_guards_count_the_multiprocessors_at_hand(table: Table) -> None:
    dims = shape(1, 192 * 132, 100, 8)
    assert choose(table, dims, "bf16").variant.id == "small"
    assert choose(table, dims, "bf16", sms=114).variant.id == "narrow"


@pytest.mark.parametrize(
    ("dims", "dtype", "rule", "words"),
    [
        (
            shape(1, 9, 600, 264),
            "bf16",
            "not-admitted",
            r"serves B=1, N=9, C=600, D=264: D is at most 64; D is at most 256",
        ),
        (shape(1, 9, 600, 12), "bf16", "not-admitted", "D is a multiple of 8"),
        (shape(1, 9, 9, 8), "f32", "not-admitted", "no variant for f32 on sm_90a; it has bf16, f16"),
        (shape(1, 9, 9, 8), "f16", "not-admitted", "the table has no fallback"),
        ({"B": 1, "N": 1, "C": 1}, "bf16", "bad-dims", "extent D"),
        (shape(1, 9, 9, True), "bf16", "bad-dims", "extent D"),
    ],
)
def test_a_shape_that_nobody_serves_is_told_why(
    table: Table, dims: dict[str, int], dtype: str, rule: str, words: str
) -> None:
    with pytest.raises(CakeError, match=words) as caught:
        choose(table, dims, dtype)
    assert caught.value.diagnostic.rule == f"dispatch/{rule}"


dims_of = st.fixed_dictionaries(
    {"B": st.integers(1, 64), "N": st.integers(1, 1 << 20), "C": st.integers(1, 9000), "D": st.integers(1, 80)}
)


@given(dims_of)
def test_choose_is_the_reading_of_the_table(dims: dict[str, int]) -> None:
    """Against the guards written out in Python."""
    table = Table.from_json(TABLE)
    tiles = dims["B"] * -(-dims["N"] // 192)
    admitted = {"small": True, "narrow": dims["D"] <= 64 and dims["D"] % 8 == 0, "wide": dims["D"] % 8 == 0}
    holds = [tiles <= 132 and dims["C"] < 512, True, dims["B"] * dims["N"] >= 100000]
    order = [r.variant for r, h in zip(table.routes, holds, strict=True) if h] + ["narrow", "wide"]
    expected = next((v for v in order if admitted[v]), None)
    if expected is None:
        with pytest.raises(CakeError):
            choose(table, dims, "bf16")
    else:
        assert choose(table, dims, "bf16").variant.id == expected


@given(st.sampled_from(routes.OPERATORS), st.integers(-3, 3), st.integers(-3, 3))
def test_a_negated_comparison_holds_exactly_where_it_did_not(op: str, left: int, value: int) -> None:
    c = Comparison("N", op, value)
    both = [routes._conjunction((x,), ("N",))({"N": left}) for x in (c, c.negated())]
    assert sorted(both) == [False, True]


def broken(path: str, value: Any) -> dict[str, Any]:
    """A copy with one field replaced (or removed: ...)."""
    obj: Any = copy.deepcopy(TABLE)
    at, *rest = path.split("/")
    here = obj
    for key in rest and [at, *rest[:-1]]:
        here = here[int(key) if key.isdigit() else key]
    last = rest[-1] if rest else at
    if value is ...:
        del here[last]
    else:
        here[int(last) if last.isdigit() else last] = value
    return obj


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("format", 2, "cake tune"),
        ("family", ..., "missing family"),
        ("surprise", 1, "unknown surprise"),
        ("variants/0/recipe", ..., r"variants\[0\]: missing recipe"),
        ("variants/1/id", "narrow", "distinct ids"),
        ("routes/1/variant", "gone", r"routes\[1\].variant: no variant 'gone'"),
        ("fallback/0", "gone", "fallback: no variant 'gone'"),
        ("routes/0/guard/0/1", "is", r"routes\[0\].guard\[0\]"),
        ("routes/0/guard/0/2", True, r"routes\[0\].guard\[0\]"),
        ("routes/0/guard/0/0", "wavez", "reads wavez"),
        ("routes/0/guard/0/0", "__import__('os')", "not part of the notation"),
        ("routes/0/gain", "much", "gain is a number"),
        ("derived/tiles", "waves", "reads waves"),
        ("derived/sms", "1", "derived.sms"),
        ("variants/0/recipe/admits/0/0", "E < 3", "reads E"),
        ("variants/0/recipe/admits/0", "D < 3", r"admits\[0\] is"),
        ("variants/1/recipe/launches/0", 3, "launches"),
        ("variants/1/recipe/launches", [{}] * 300, "launches has 300 entries"),
        ("variants/1/recipe/tensors", 7, "tensors is not a list"),
        ("routes/0/guard", [["sms", ">", 0]] * 300, "300 derived counts or comparisons"),
        ("fallback", ["narrow"] * 2000, "2000 of them to fall back on"),
        ("device", {"sms": "132"}, "multiprocessors"),
        ("routes/0/gain", float("nan"), "gain is a number"),
    ],
)
def test_a_bad_table_is_refused_by_name(path: str, value: Any, words: str) -> None:
    with pytest.raises(CakeError, match=words) as caught:
        Table.from_json(broken(path, value))
    assert caught.value.diagnostic.rule == "dispatch/bad-table"


def test_a_table_file_is_found_by_family_and_target(tmp_path: Path) -> None:
    (tmp_path / "assign.sm_90a.json").write_text(json.dumps(TABLE))
    assert routes.load("assign", "sm_90a", tmp_path).family == "assign"
    with pytest.raises(CakeError, match=r"no route table for sm_80 \(tables: sm_90a\).*cake tune assign"):
        routes.load("assign", "sm_80", tmp_path)
    (tmp_path / "assign.sm_80.json").write_text(json.dumps(TABLE))
    with pytest.raises(CakeError, match="holds the table of assign on sm_90a"):
        routes.load("assign", "sm_80", tmp_path)
    (tmp_path / "assign.sm_80.json").write_text("{")
    with pytest.raises(CakeError, match="is not JSON"):
        routes.load("assign", "sm_80", tmp_path)


def test_reading_tables_loads_nothing_heavy() -> None:
    code = (
        "import sys, corpus.routes; print([m for m in ('numpy', 'pydantic', 'cuda', 'structlog') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


HOSTILE = (
    None, True, -1, 0, 1 << 31, 1 << 63, 1 << 127, 10**400, 1.5, float("inf"), float("nan"), "", "x", "1e400", "0-1", "1<<4000", "N//0",
    "(1<<127)*(1<<127)", "1e308*10", "-" * 1500 + "1", "(" * 300 + "1" + ")" * 300, "__import__('os')", "N**9", "~1.5", "2 >> (0-1)", "sms",
    [], {}, [1], {"a": 1},
)  # fmt: skip


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from _places(inner, (*at, key))


@given(data=st.data())
def test_a_committed_table_with_anything_in_it_is_obeyed_or_refused(data: st.DataObject) -> None:
    """From the file to every number of the launches."""
    table = copy.deepcopy(_small())
    for _ in range(data.draw(st.integers(1, 2))):
        *path, last = data.draw(st.sampled_from(PLACES))
        spot = table
        try:
            for key in path:
                spot = spot[key]
            spot[last] = data.draw(st.sampled_from(HOSTILE))
        except (KeyError, IndexError, TypeError):
            continue
    dims = {"B": 2, "N": data.draw(st.sampled_from((0, 1, 1000, 1 << 40))), "C": 100, "D": 128}
    try:
        read = Table.from_json(table)
        variant = choose(read, dims, "bf16").variant
        concrete(variant.recipe, dims, {}, 132, admitted=data.draw(st.booleans()))
    except CakeError as exc:
        assert exc.diagnostic.rule.split("/")[0] in ("dispatch", "lowering")


@cache
def _small() -> dict[str, Any]:
    """A program's table, cut to its first route and what serves the rest."""
    table = json.loads((routes.DIRECTORY / "kmeans_update.sm_90a.json").read_bytes())
    table["routes"], table["fallback"] = table["routes"][:1], table["fallback"][:1]
    used = {table["fallback"][0], *(r["variant"] for r in table["routes"])}
    return {**table, "variants": [v for v in table["variants"] if v["id"] in used]}


PLACES = list(_places(_small()))
