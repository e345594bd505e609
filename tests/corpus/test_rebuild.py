"""Committed evidence against today's kernels, contracts and compiler: what is stale is marked, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corpus import evidence, rebuild
from corpus.kernels import CorpusKernel, kernel
from tests import compiled


@pytest.fixture
def cubins() -> Path:
    return compiled.cubins()


def test_the_committed_marks_are_what_a_rebuild_finds(cubins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every committed variant is built; a row is marked stale exactly when its machine code differs, and never in silence."""
    built_once: dict[tuple[str, str, str], rebuild.Built | str] = {}
    build = rebuild.rebuilt

    def rebuilt(k: CorpusKernel, bindings: Any, target: str, folder: Path) -> rebuild.Built | str:
        key = (k.name, json.dumps(bindings, sort_keys=True), target)
        if key not in built_once:
            built_once[key] = build(k, bindings, target, folder)
        return built_once[key]

    # the marks, the check of them and the results need the same builds
    monkeypatch.setattr(rebuild, "rebuilt", rebuilt)
    found = {rebuild.Record("", m).variant: str(m["why"]) for m in rebuild.find_marks(evidence.DIRECTORY, cubins)}
    assert found == rebuild.marks(evidence.DIRECTORY), (
        "run `cake results --rebuild --mark` and commit corpus/results/stale.json"
    )
    for record in rebuild.records(evidence.DIRECTORY):
        name, target, bindings, sha = record.variant
        if evidence.changed({**record.row, "contract_digest": ""}) not in (None, *_contract_words(name)):
            continue  # the kernel itself has changed: seen without a build
        built = rebuild.rebuilt(kernel(name), json.loads(bindings), target, cubins)
        assert isinstance(built, rebuild.Built), built
        assert (built.sha256 != sha) == (record.variant in found), record.file
    fresh = {
        json.dumps(r.model_dump(mode="json", exclude={"stale"})): r.stale
        for r in evidence.results(rebuild=True, cache_dir=cubins)
    }
    shown = {json.dumps(r.model_dump(mode="json", exclude={"stale"})): r.stale for r in evidence.results()}
    assert fresh == shown


def _contract_words(name: str) -> tuple[str, ...]:
    contract = kernel(name).contract
    return (f"the contract {contract} has changed: it is {evidence.current_digest(contract)} now",)


def test_every_measured_variant_is_a_record() -> None:
    rows = {(r.kernel, r.cubin_sha256) for r in evidence.results()}
    checks = {(c.kernel, c.cubin_sha256) for c in evidence.read_checks()}
    seen = {(r.variant[0], r.variant[3]) for r in rebuild.records(evidence.DIRECTORY)}
    assert rows | checks <= seen


def row(**change: Any) -> dict[str, Any]:
    k = kernel("rmsnorm")
    from cake_ir import content_id, parse

    file = parse(k.text()).file
    assert file is not None
    return {
        "kernel": "rmsnorm", "content_id": content_id(file), "contract_digest": evidence.current_digest("rmsnorm"),
        "target": "sm_90a", "bindings": {"DMAX": 256, "WARPS": 1}, "cubin_sha256": "0" * 64, **change,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, cubins: Path) -> Path:
    """A results directory with one true and one wrong cubin hash, deep in files of other kinds."""
    built = rebuild.rebuilt(kernel("rmsnorm"), {"DMAX": 256, "WARPS": 1}, "sm_90a", cubins)
    assert isinstance(built, rebuild.Built)
    true, wrong = row(cubin_sha256=built.sha256), row()
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/a.json").write_text(json.dumps({"kind": "profile", "summary": {"subject": true}}))
    (tmp_path / "b.json").write_text(json.dumps({"kind": "aa", "runs": [{"x": [wrong]}, wrong, {"kernel": "rmsnorm"}]}))
    return tmp_path


def test_a_wrong_hash_is_marked_in_any_kind_of_file(folder: Path, cubins: Path) -> None:
    (mark,) = rebuild.find_marks(folder, cubins)
    assert mark["cubin_sha256"] == "0" * 64 and "now builds to cubin" in mark["why"] and "NVRTC" in mark["why"]
    assert rebuild.marks(folder) == {}
    rebuild.write_marks([mark], folder)
    assert list(rebuild.marks(folder).values()) == [mark["why"]]
    assert rebuild.stale_files(folder, rebuild.marks(folder)) == {"b.json": 2} and rebuild.stale_files(folder, {}) == {}
    assert (
        evidence.outdated(row(), folder) == mark["why"]
        and evidence.outdated({**row(), "cubin_sha256": "1"}, folder) is None
    )
    both = row(cubin_sha256=f"{'0' * 64},{rebuild.records(folder)[-1].variant[3]}")
    (folder / "c.json").write_text(json.dumps({"kind": "aa", "kernels": [both]}))
    assert len(rebuild.find_marks(folder, cubins)) == 1  # one of several cubins is the kernel's
    (folder / "c.json").unlink()
    assert [r.file for r in rebuild.records(folder)] == ["b.json", "b.json", "profiles/a.json"]  # marks are no records


def changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str) -> None:
    """The corpus, with rmsnorm's text edited."""
    plain = kernel("rmsnorm")
    path = tmp_path / "kernels" / "rmsnorm.cake"
    path.parent.mkdir()
    text = plain.text().replace(old, new)
    assert text != plain.text()
    path.write_text(text)

    class Edited(CorpusKernel):
        @property
        def path(self) -> Path:
            return path

    edited = Edited(**plain.model_dump())
    monkeypatch.setattr(evidence, "kernels", lambda: [edited])
    monkeypatch.setattr(rebuild, "kernels", lambda: [edited])


def test_a_changed_kernel_makes_its_rows_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = next(r for r in evidence.results() if r.kernel == "rmsnorm")
    now = one.model_copy(update={"contract_digest": evidence.current_digest("rmsnorm")})
    evidence.write("rmsnorm", [now], tmp_path)
    assert evidence.results(tmp_path)[0].stale is None
    changed(monkeypatch, tmp_path, "scale = rsqrt(", "scale = 1.0 * rsqrt(")
    assert (evidence.results(tmp_path)[0].stale or "").startswith("the kernel has changed: it is ir_")


def test_changed_emission_makes_rows_stale_without_a_changed_text(
    tmp_path: Path, cubins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = rebuild.rebuilt(kernel("rmsnorm"), {"DMAX": 256, "WARPS": 1}, "sm_90a", cubins)
    assert isinstance(built, rebuild.Built)
    one = next(r for r in evidence.results() if r.kernel == "rmsnorm")
    now = one.model_copy(update=row(cubin_sha256=built.sha256))
    evidence.write("rmsnorm", [now], tmp_path)
    assert evidence.results(tmp_path, rebuild=True, cache_dir=cubins)[0].stale is None
    import lowering.emission as emission

    plain = emission.emit

    def other(bound: Any, **more: Any) -> Any:
        made = plain(bound, **more)
        body = made.cuda.replace("__launch_bounds__(", "__launch_bounds__(32 + ", 1)
        assert body != made.cuda
        return type("Other", (), {"cuda": body, "arch": made.arch})

    monkeypatch.setattr(emission, "emit", other)
    assert "now builds to cubin" in (evidence.results(tmp_path, rebuild=True, cache_dir=cubins)[0].stale or "")
    assert evidence.results(tmp_path)[0].stale is None  # not recorded, so not seen without a build


def test_a_variant_that_does_not_bind_any_more_is_marked(tmp_path: Path, cubins: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"kind": "x", "rows": [row(bindings={"WARPS": 3})]}))
    (mark,) = rebuild.find_marks(tmp_path, cubins)
    assert "does not bind" in mark["why"]
