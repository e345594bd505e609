"""Evidence rows: export, reading, staleness; the kernel index."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cake_ir.diagnostics import CakeError
from corpus import evidence
from corpus.kernels import CorpusKernel


def bench(**change: Any) -> dict[str, Any]:
    base = {"median_us": 20.0, "mad_us": 0.1, "samples_us": [19.9, 20.0, 20.1], "batch": 8, "cv": 0.004, "versions": {"torch": "2"},
            "computes": True, "verdict": "passed", "ratio": 2.0, "ratio_low": 1.9, "ratio_high": 2.1,
            "comparison": "faster"}  # fmt: skip
    shape = {
        "shape": {"M": 8}, "mode": "warm", "verdict": "measured",
        "candidate": {**base, "name": "candidate", "median_us": 10.0},
        "baselines": [{**base, "name": "one"}, {**base, "name": "two", "median_us": 30.0, "ratio": 3.0}],
        "checks": [{"message": "before timing: all match", "verdict": "passed"}], "conditions": {},
    }  # fmt: skip
    return {"contract": "c", "contract_digest": "ct_1", "kernel": "k", "device": {"name": "H200", "driver": "13.0"},
            "rule": "r", "shapes": [{**shape, **change}]}  # fmt: skip


def rows(b: dict[str, Any]) -> list[evidence.ResultRow]:
    return evidence.rows_from_bench(
        b, content_id="ir_1", variant_id="v_1", bindings={"BN": 64}, target="sm_90a", compiler="nvrtc 13.5",
        cubin_sha256="0" * 64, command="cake bench k.cake", date="2026-01-01T00:00:00Z", commit="abc",
    )  # fmt: skip


def test_one_row_per_baseline() -> None:
    one, two = rows(bench())
    assert (one.baseline, one.time_us, one.baseline_us, one.ratio) == ("one", 10.0, 20.0, 2.0)
    assert (two.baseline, two.ratio, two.ratio_interval) == ("two", 3.0, (1.9, 2.1))
    assert one.verdict == "faster" and one.checks == "before timing: passed" and one.device == "H200"
    (alone,) = rows(bench(baselines=[]))
    assert alone.baseline is None and alone.verdict == "measured"
    for valid in ("faster", "slower", "inconclusive"):
        assert [r.verdict for r in rows(bench(verdict=valid))] == ["faster", "faster"], (
            "a row's verdict is about its own baseline"
        )
    for useless in ("incorrect", "invalid", "error"):
        assert rows(bench(verdict=useless)) == []
    assert (one.cv, one.baseline_cv, one.rule) == (0.004, 0.004, "r")


def test_write_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "k.cake"
    text.write_text("x")
    entry = CorpusKernel(name="k", file="../k.cake", targets=("sm_90a",), contract="c")
    monkeypatch.setattr(evidence, "kernels", lambda: [entry])
    ids = {"now": "ir_1", "contract": "ct_1"}
    monkeypatch.setattr(evidence, "current_id", lambda k: ids["now"])
    monkeypatch.setattr(evidence, "current_digest", lambda name: ids["contract"])
    out = tmp_path / "results"
    path = evidence.write("k-h200", rows(bench()), out)
    assert "stale" not in json.loads(path.read_text())["rows"][0]
    found = evidence.results(out)
    assert len(found) == 2 and found[0].stale is None
    ids["contract"] = "ct_2"
    assert "the contract c has changed: it is ct_2 now" in (evidence.results(out)[0].stale or "")
    ids["now"] = "ir_2"
    assert "it is ir_2 now" in (evidence.results(out)[0].stale or "")
    monkeypatch.setattr(evidence, "kernels", list)
    assert "no kernel of this name" in (evidence.results(out)[0].stale or "")
    with pytest.raises(ValueError, match="plain file name"):
        evidence.write("../x", [], out)
    (out / "bad.json").write_text("{")
    with pytest.raises(CakeError, match=r"corpus/bad-results.*bad.json"):
        evidence.results(out)


def test_the_package_functions_win_over_submodules() -> None:
    import corpus

    assert callable(corpus.kernels) and callable(corpus.contracts)
    assert "softmax" in corpus.contracts() and isinstance(corpus.kernels(), list) and isinstance(corpus.results(), list)
    assert callable(corpus.kernels) and callable(corpus.contracts)


def test_the_index_names_files_contracts_and_targets() -> None:
    import corpus
    from cake_ir import targets

    for k in corpus.kernels():
        assert k.path.is_file() and k.contract in corpus.contracts()
        assert set(k.targets) <= set(targets.names())


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with evidence.editing(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
        with pytest.raises(CakeError) as caught, evidence.editing(tmp_path / "new", wait_s=0.1):
            pass
        assert caught.value.diagnostic.rule == "corpus/busy" and "another process" in caught.value.diagnostic.message
    with evidence.editing(tmp_path / "new", wait_s=0.0):
        pass


def test_what_two_writers_add_at_once_is_all_there(tmp_path: Path) -> None:
    (row,) = rows({**bench(), "shapes": [{**bench()["shapes"][0], "baselines": bench()["shapes"][0]["baselines"][:1]}]})

    def add(number: int) -> None:
        with evidence.editing(tmp_path):
            old = evidence.read_rows(tmp_path / "k.json")
            time.sleep(0.02)  # the other would read here, were there no lock
            evidence.write("k", evidence.merged(old, [row.model_copy(update={"shape": {"M": number}})]), tmp_path)

    writers = [threading.Thread(target=add, args=(n,)) for n in range(6)]
    for w in writers:
        w.start()
    for w in writers:
        w.join()
    assert sorted(r.shape["M"] for r in evidence.read_rows(tmp_path / "k.json")) == list(range(6))
