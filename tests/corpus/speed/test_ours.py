"""Our contender: what it refuses, it says; the package is played."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cake_ir.diagnostics import CakeError, error
from corpus.speed import ours
from lowering.cache import CubinCache

SHAPE = {"B": 1, "N": 8, "C": 4, "D": 8}
TENSORS = {"x": "x", "c": "c", "c_sq": "sq", "label": "label"}


def fault(rule: str, message: str) -> CakeError:
    return CakeError(error(rule, "data", message, contract="x"))


def product(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: Any) -> ours.Product:
    monkeypatch.setenv("CAKE_CACHE_DIR", "elsewhere")
    monkeypatch.setattr(ours, "package", lambda: package)
    return ours.Product(tmp_path)


def test_a_function_that_the_package_lacks_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert (
        product(monkeypatch, tmp_path, SimpleNamespace()).kmeans(SHAPE, TENSORS, 3) == "cake_mcp has no such function"
    )


def test_a_shape_that_the_dispatcher_refuses_is_told_in_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def explain(*_: Any) -> None:
        raise fault("dispatch/not-admitted", "D is too wide")

    package = SimpleNamespace(kmeans_assign=lambda *_, **__: None, explain=explain)
    assert product(monkeypatch, tmp_path, package).assign(SHAPE, TENSORS) == "D is too wide"


def test_the_call_is_the_public_one_and_takes_no_fallback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []
    package = SimpleNamespace(kmeans_assign=lambda *a, **k: calls.append((a, k)))
    made = product(monkeypatch, tmp_path, package)
    monkeypatch.setattr(made, "programs", lambda family, shape: ())
    contender = made.assign(SHAPE, TENSORS)
    assert not isinstance(contender, str)
    contender.run(0)
    assert calls == [(("x", "c"), {"c_sq": "sq", "out": "label", "strict": True})] * 2


def test_a_row_names_the_kernels_that_ran_and_their_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import cake_mcp.operation

    monkeypatch.setattr(cake_mcp.operation, "gpu", lambda number: SimpleNamespace(target="sm_90a"))
    variant = SimpleNamespace(
        id="v",
        kernel="rmsnorm",
        content_id="ir_1",
        variant_id="v_1",
        bindings={"WARPS": 8},
        cubin_keys=("a" * 64, "b" * 64),
    )
    package = SimpleNamespace(explain=lambda *_: SimpleNamespace(variant=variant, reason="route 3: B == 1"))
    made = product(monkeypatch, tmp_path, package)
    with pytest.raises(CakeError, match="not in") as caught:
        made.programs("rmsnorm", SHAPE)
    assert caught.value.diagnostic.rule == "speed/not-prepared"
    cache = CubinCache(tmp_path / ours.CUBINS)
    for key, cubin in zip(variant.cubin_keys, (b"one", b"two"), strict=True):
        cache.put(key, {"cubin": base64.b64encode(cubin).decode(), "nvrtc": "13.5"})
    (program,) = made.programs("rmsnorm", SHAPE)
    assert program.cubin_sha256 == ",".join(hashlib.sha256(c).hexdigest() for c in (b"one", b"two"))
    assert (program.compiler, program.route, program.contract) == ("NVRTC 13.5", "route 3: B == 1", "rmsnorm")


def test_prepare_tells_tables_that_are_missing_and_compiles_into_its_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def prepare(family: str, target: str) -> dict[str, int]:
        if family == "gemm":
            raise fault("dispatch/no-table", "there is no table of gemm")
        assert os.environ["CAKE_CACHE_DIR"] == str(tmp_path / ours.CUBINS)
        return {f"{family}.{target}": 2}

    monkeypatch.setenv("CAKE_CACHE_DIR", "elsewhere")
    monkeypatch.setattr(ours, "package", lambda: SimpleNamespace(prepare=prepare))
    said = ours.prepare(tmp_path)
    assert said[0] == "there is no table of gemm" and said[2] == "kmeans_assign.sm_90a: 2 kernels"


def test_another_fault_of_prepare_is_not_swallowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def prepare(*_: Any) -> None:
        raise fault("lowering/compiler-missing", "no NVRTC")

    monkeypatch.setenv("CAKE_CACHE_DIR", "elsewhere")
    monkeypatch.setattr(ours, "package", lambda: SimpleNamespace(prepare=prepare))
    with pytest.raises(CakeError, match="no NVRTC"):
        ours.prepare(tmp_path)
