"""Arrays that lie, tables of another contract, arguments out of range: every refusal is a CakeError, and nothing is launched."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cake_mcp import CakeError, compiled, explain, gemm, kmeans, kmeans_assign, kmeans_update, prepare
from lowering.cache import CubinCache, user_directory
from tests.cake_mcp.fake_cuda import FakeCuda

BF16 = np.dtype(ml_dtypes.bfloat16)


class Face:
    def __init__(self, face: Any) -> None:
        self.__cuda_array_interface__ = face


class Capsule:
    """`given` is returned, or raised, by `__dlpack__`."""

    dtype, shape = "bf16", (4, 64)

    def __init__(self, given: Any, device: Any = (2, 0)) -> None:
        self._given, self._device = given, device

    def __dlpack__(self, stream: Any = None) -> Any:
        if isinstance(self._given, Exception):
            raise self._given
        return self._given

    def __dlpack_device__(self) -> Any:
        return self._device


class Bare:
    def __dlpack__(self, stream: Any = None) -> Any:
        raise BufferError


def face(**more: Any) -> Face:
    return Face({"shape": (500, 64), "typestr": "<f2", "data": (4096, False), "version": 3, **more})


LIARS = {
    "nothing": Face({}), "none": Face(None), "objects": face(typestr="|O", strides=(8, 8)), "void": face(typestr="|V0", strides=(8, 8)),
    "negative extent": face(shape=(-5, 64)), "half an extent": face(shape=(5.5, 64)), "nested": face(shape=([5], 64)),
    "no data": face(data=None), "text for an address": face(data=("x", False)), "negative address": face(data=(-4096, False)),
    "long address": face(data=(1 << 70, False)), "type 7": face(typestr=7), "type <fx": face(typestr="<fx"),
    "one stride": face(strides=(1,)),
    "bytes": Capsule(b"no"), "no capsule": Capsule(None), "busy": Capsule(BufferError("busy")), "broken": Capsule(RuntimeError("x")),
    "device": Capsule(None, "gpu"), "bare": Bare(), "list": [[1.0]], "number": 3, "host": np.zeros((500, 64), np.float16),
}  # fmt: skip


@pytest.mark.parametrize("liar", LIARS)
def test_an_array_that_cannot_be_read_is_refused(cu: FakeCuda, torch: Any, liar: str) -> None:
    good, bad = torch.Tensor((500, 64)), LIARS[liar]
    for call in (
        lambda: kmeans_assign(bad, good),
        lambda: kmeans_assign(good, bad),
        lambda: kmeans_assign(good, good, c_sq=bad),
        lambda: kmeans_assign(good, good, out=bad),
        lambda: gemm(good, bad),
        lambda: kmeans(bad, 3),
    ):
        with pytest.raises(CakeError) as caught:
            call()
        assert caught.value.diagnostic.rule in ("dispatch/not-an-array", "dispatch/not-on-gpu")
    assert not cu.launches


@pytest.mark.parametrize("shape", [(), (8,), (1, 2, 500, 64)])
def test_a_wrong_rank_is_refused(cu: FakeCuda, torch: Any, shape: tuple[int, ...]) -> None:
    for x, c in ((torch.Tensor(shape), torch.Tensor((9, 64))), (torch.Tensor((9, 64)), torch.Tensor(shape))):
        for call in (kmeans_assign, gemm):
            with pytest.raises(CakeError, match="rank-mismatch"):
                call(x, c)


def test_no_centroid_is_refused_and_no_point_is_nothing(cu: FakeCuda, cupy: Any) -> None:
    x, none = cupy.array(np.zeros((500, 64), BF16)), cupy.array(np.zeros((0, 64), BF16))
    with pytest.raises(CakeError, match="no centroid"):
        kmeans_assign(x, none)
    assert kmeans_assign(none, x).shape == (0,) and not cu.launches


@pytest.mark.parametrize("shape", [(1 << 31, 64), (1 << 40, 64)])
def test_extents_past_31_bits_never_reach_a_kernel(cu: FakeCuda, torch: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(CakeError, match=r"is 1 \.\. 2147418111"):
        kmeans_assign(torch.Tensor(shape), torch.Tensor((9, 64)), strict=True)
    assert not cu.launches


def test_a_fallback_does_not_mix_libraries(cu: FakeCuda, torch: Any, cupy: Any) -> None:
    x, c = torch.Tensor((500, 64)), cupy.array(np.zeros((9, 64), BF16))
    kmeans_assign(x, c)  # read where they lie
    for bad in (c[::-1], cupy.array(np.zeros((64, 9), BF16)).T):
        with pytest.raises(CakeError, match="torch and CuPy together"):
            kmeans_assign(x, bad)
    with pytest.raises(CakeError, match="pass arrays of one library"):
        kmeans(c, init=x)
    with pytest.raises(CakeError, match="pass arrays of one library"):
        kmeans_update(c, x, c)


def test_what_the_library_raises_is_told(cu: FakeCuda, torch: Any) -> None:
    def refuses(a: Any, b: Any) -> Any:
        raise RuntimeError("'addmm_cuda' not implemented for 'Long'")

    torch.matmul = refuses
    with pytest.raises(CakeError, match=r"library-failed.*not implemented for 'Long'") as caught:
        gemm(torch.Tensor((8, 16), torch.int64), torch.Tensor((16, 8), torch.int64))
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("stream", [-1, 1 << 64, True, "7", 1.5, object()])
def test_a_stream_is_a_handle(cu: FakeCuda, torch: Any, stream: Any) -> None:
    with pytest.raises(CakeError, match="not-a-stream"):
        kmeans_assign(torch.Tensor((500, 64)), torch.Tensor((9, 64)), stream=stream)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_clusters": 0}, {"n_clusters": 501}, {"n_clusters": 2.5}, {"n_clusters": "9"}, {"n_clusters": None}, {"max_iter": -1},
        {"max_iter": None}, {"tol": float("nan")}, {"tol": 10**400}, {"tol": None}, {"seed": [1]}, {"seed": None}, {"init": "best"},
    ],
)  # fmt: skip
def test_arguments_of_kmeans_are_checked(cu: FakeCuda, cupy: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(CakeError, match="bad-argument"):
        kmeans(cupy.array(np.zeros((500, 64), BF16)), **{"n_clusters": 9, **wrong})
    assert not cu.launches


@pytest.mark.parametrize("name", ["../kmeans_assign", "/etc/passwd", "**/x", "a.b", "", "kmeans_assign\0"])
def test_a_family_is_a_name_and_no_path(cu: FakeCuda, name: str) -> None:
    with pytest.raises(CakeError, match="dispatch/no-table"):
        explain(name, {"B": 1}, target="sm_90a")
    with pytest.raises(CakeError, match="dispatch/no-table"):
        explain("kmeans_assign", {"B": 1}, target=name)
    with pytest.raises(CakeError):
        explain(name, {"B": 1})
    with pytest.raises(CakeError, match="dispatch/no-table"):
        prepare(name)


def _tampered(path: Path, change: Any) -> None:
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    compiled.table.cache_clear()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["variants"][0]["recipe"]["tensors"][0].update(dtype="f32"),  # twice the bytes that are there
        lambda t: t["variants"][0]["recipe"]["tensors"].pop(),  # the labels
        lambda t: t["variants"][0]["recipe"]["tensors"][0].update(extents=["B", "(N * 2)", "D"]),
        lambda t: t["variants"][0]["recipe"]["tensors"][0].update(extents=["B", "1e400", "D"]),
        lambda t: t["variants"][0]["recipe"]["workspaces"].append(
            {"name": "w", "dtype": "f32", "extents": ["(0 - N)"]}
        ),
        lambda t: t["variants"][0]["recipe"]["workspaces"].append(
            {"name": "w", "dtype": "f32", "extents": ["(N << 60)"]}
        ),
        lambda t: t.update(device={"sms": "many"}),
    ],
)
def test_a_table_of_another_contract_launches_nothing(cu: FakeCuda, torch: Any, tmp_path: Path, change: Any) -> None:
    _tampered(tmp_path / "tables" / "kmeans_assign.sm_90a.json", change)
    with pytest.raises(CakeError, match=r"bad-table|bad-recipe|shape-not-admitted"):
        kmeans_assign(torch.Tensor((500, 64)), torch.Tensor((9, 64)))
    assert not cu.launches


@pytest.mark.parametrize("text", [b"[" * 100000, b"{", b"\xff\xfe", b"[]", b'{"format": NaN}', b"1" * 5000])
def test_a_table_file_of_anything_is_refused(cu: FakeCuda, torch: Any, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "tables" / "kmeans_assign.sm_90a.json").write_bytes(text)
    compiled.table.cache_clear()
    with pytest.raises(CakeError, match="dispatch/bad-table"):
        kmeans_assign(torch.Tensor((500, 64)), torch.Tensor((9, 64)))


@pytest.mark.parametrize("cubin", ["", "*", 7, None, "AAA"])
def test_a_cache_entry_without_a_cubin_is_compiled_again(
    cu: FakeCuda, tmp_path: Path, cubin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole by its sum, and of no use: made by another program."""
    table = copy.copy(compiled.table("row_norms", "sm_90a"))
    variant = table.variants[table.fallback[0]]
    (key,) = variant.cubin_keys
    CubinCache(tmp_path / "cubins").put(key, {"cubin": cubin})
    made: list[str] = []

    def compile_cuda(cuda: str, arch: str) -> Any:
        made.append(arch)
        return type("Compiled", (), {"cubin": b"made", "nvrtc_version": "13"})()

    monkeypatch.setattr("lowering.compile.compile_cuda", compile_cuda)
    assert compiled.cubin(table, variant, key) == b"made" and len(made) == 1
    assert compiled.cubin(table, variant, key) == b"made" and len(made) == 1  # kept


def test_a_user_without_a_home_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("CAKE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(CakeError, match="CAKE_CACHE_DIR"):
        user_directory()
