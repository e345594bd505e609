"""Variants from corpus kernels, and tables that are brought up to date: routes stay, recipes are those of this compiler."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cake_ir.fault import CakeError
from corpus import recipes, routes
from corpus.recipes import UNTUNED, compile_variant, make_variant, refreshed, table_text, untuned
from corpus.routes import Comparison, Route, Table, choose
from lowering.cache import CubinCache


@pytest.fixture(scope="module")
def table() -> Table:
    made = untuned("norms", "sm_90a", ("M", "D"), [("row_norms", {}, "bf16"), ("row_norms", {"WARPS": 4}, "bf16")])
    second = list(made.variants)[1]
    return replace(made, routes=(Route(second, (Comparison("M", "<", 64),), ("ev_1",), 1.2, 3),))


def test_a_variant_holds_what_a_launch_needs(table: Table) -> None:
    assert choose(table, {"M": 10, "D": 8}, "bf16").variant.bindings == {"WARPS": 4}
    chosen = choose(table, {"M": 100, "D": 8}, "bf16").variant
    assert chosen.bindings == {} and len(chosen.cubin_keys) == 1 and chosen.content_id.startswith("ir_")
    assert Table.from_json(json.loads(table_text(table))) == table


def test_what_the_compiler_no_longer_makes_is_stale_until_it_is_refreshed(table: Table, tmp_path: Path) -> None:
    name = next(iter(table.variants))
    old = replace(table.variants[name], recipe={**table.variants[name].recipe, "launches": [{"cubin_key": "0" * 64}]})
    stale = replace(table, variants={**table.variants, name: old})
    with pytest.raises(
        CakeError, match=r"made with another version of Cake or of row_norms.*recipes refresh"
    ) as caught:
        compile_variant(old, "sm_90a", tmp_path)
    assert caught.value.diagnostic.rule == "dispatch/stale-table"
    assert refreshed(stale) == table
    path = tmp_path / "norms.sm_90a.json"
    path.write_bytes(table_text(stale))
    assert recipes.main(["check", str(path)]) == 1
    assert recipes.main(["refresh", str(path)]) == 0 and recipes.main(["check", str(path)]) == 0
    assert Table.from_json(json.loads(path.read_bytes())) == table


def test_only_what_the_cache_lacks_is_compiled(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def compile_cuda(source: str, arch: str) -> Any:
        seen.append(arch)
        return SimpleNamespace(cubin=b"cubin", nvrtc_version="13.5")

    monkeypatch.setattr("lowering.compile.compile_cuda", compile_cuda)
    variant = next(iter(table.variants.values()))
    (key,) = variant.cubin_keys
    assert compile_variant(variant, "sm_90a", tmp_path) == {key: b"cubin"} and seen == ["sm_90a"]
    assert compile_variant(variant, "sm_90a", tmp_path) == {key: b"cubin"} and len(seen) == 1
    body = CubinCache(tmp_path).get(key)
    assert body is not None and base64.b64decode(body["cubin"]) == b"cubin"


@pytest.mark.parametrize("path", sorted(routes.DIRECTORY.glob("*.json")), ids=lambda p: p.name)
def test_committed_tables_are_those_of_this_compiler(path: Path) -> None:
    family, target, _ = path.name.split(".")
    committed = routes.load(family, target)
    assert refreshed(committed) == committed, f"run python -m corpus.recipes refresh {path.name}, or tune anew"
    assert path.read_bytes() == table_text(committed)


def test_tables_that_are_not_tuned_are_committed() -> None:
    for family, (dims, members) in UNTUNED.items():
        table = routes.load(family, "sm_90a")
        assert table.dims == dims and not table.routes and len(table.fallback) == len(members)


def test_a_text_that_changed_since_it_was_measured_is_listed(table: Table) -> None:
    measured = replace(table, validation={})
    name, variant = next(iter(measured.variants.items()))
    other = replace(measured, variants={**measured.variants, name: replace(variant, content_id="ir_" + "0" * 32)})
    again = refreshed(other)
    assert again.validation == {"text_changed": [name]} and again.routes == table.routes
    assert refreshed(again) == again  # and stays listed until it is tuned anew


def test_an_unknown_kernel_is_named() -> None:
    with pytest.raises(CakeError, match="no corpus kernel 'nobody'"):
        make_variant("x", "nobody", {}, "bf16", "sm_90a")
