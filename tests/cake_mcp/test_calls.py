"""Calls with arrays of several libraries: what is launched, on which stream and device, with whose memory, and what is refused."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog

import cake_mcp
from cake_mcp import CakeError, gemm, kmeans_assign
from lowering.cache import CubinCache
from lowering.runtime import libcuda as L
from tests.cake_mcp.fake_cuda import PRIMARY, FakeCuda
from tests.cake_mcp.played import Faced


def arrays(torch: Any, n: int = 500, k: int = 100, d: int = 64, b: int = 2) -> tuple[Any, Any, Any]:
    return torch.Tensor((b, n, d)), torch.Tensor((b, k, d)), torch.Tensor((b, k), torch.float32)


def test_labels_are_allocated_by_torch_and_written_on_its_current_stream(cu: FakeCuda, torch: Any) -> None:
    x, c, sq = arrays(torch)
    labels = kmeans_assign(x, c, c_sq=sq)
    assert type(labels) is torch.Tensor and labels.shape == (2, 500) and labels.dtype is torch.int32
    assert [m for m, _ in torch.made] == [labels]
    (got,) = cu.launches
    # parameters of kmeans_packed: c_sq, label, x_map, c_map, B, C, N
    assert (got.u64(0), got.u64(1)) == (sq.data_ptr(), labels.data_ptr())
    assert cu.maps[got.u64(2)]["pointer"] == x.data_ptr() and cu.maps[got.u64(2)]["dims"] == [64, 500, 2]
    assert cu.maps[got.u64(3)]["pointer"] == c.data_ptr() and [got.i32(i) for i in (4, 5, 6)] == [2, 100, 500]
    assert got.stream == 7 and got.grid == min(2 * -(-500 // 192), 132)


def test_a_known_combination_is_neither_checked_nor_loaded_again(
    cu: FakeCuda, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, c, sq = arrays(torch)
    kmeans_assign(x, c, c_sq=sq)
    monkeypatch.setattr("cake_mcp.binding.bind", None)
    torch.stream = 8
    other = torch.Tensor((2, 500, 64))
    labels = kmeans_assign(other, c, c_sq=sq)
    got = cu.launches[-1]
    assert cu.maps[got.u64(2)]["pointer"] == other.data_ptr() and got.u64(1) == labels.data_ptr() and got.stream == 8
    assert len(cu.loaded) == 1 and len(cu.maps) == 3  # x, c, and the other x


def test_norms_are_made_on_the_way_when_they_are_left_out(cu: FakeCuda, torch: Any) -> None:
    x, c, _ = arrays(torch)
    labels = kmeans_assign(x, c)
    norms, assign = cu.launches
    scratch, _ = torch.made[-1]
    # parameters of row_norms: x, y, D, M
    assert norms.kernel == "row_norms" and norms.u64(0) == c.data_ptr() and norms.u64(1) == scratch.data_ptr()
    assert [norms.i32(i) for i in (2, 3)] == [64, 200] and norms.stream == assign.stream == 7
    assert assign.u64(0) == scratch.data_ptr() and assign.u64(1) == labels.data_ptr()
    assert scratch.dtype is torch.uint8 and scratch.shape[0] >= 2 * 100 * 4


def test_one_problem_needs_no_batch_extent(cu: FakeCuda, torch: Any) -> None:
    labels = kmeans_assign(torch.Tensor((500, 64)), torch.Tensor((100, 64)), c_sq=torch.Tensor((100,), torch.float32))
    assert labels.shape == (500,) and cu.launches[0].i32(4) == 1


def test_an_explicit_stream_is_used_and_holds_the_memory(cu: FakeCuda, torch: Any) -> None:
    x, c, _ = arrays(torch)
    for stream in (
        40,
        SimpleNamespace(cuda_stream=40),
        SimpleNamespace(ptr=40),
        SimpleNamespace(__cuda_stream__=lambda: (0, 40)),
    ):
        torch.held.clear()
        labels = kmeans_assign(x, c, stream=stream)
        assert {x.stream for x in cu.launches[-2:]} == {40}
        assert labels in [t for t, s in torch.held if s == 40] and len(torch.held) == 2  # and the scratch
    with pytest.raises(CakeError, match="stream is str"):
        kmeans_assign(x, c, stream="40")


def test_each_device_has_its_own_kernels_and_context(cu: FakeCuda, torch: Any) -> None:
    for device in (0, 1):
        x, c, sq = (torch.Tensor(t.shape, t.dtype, device) for t in arrays(torch))
        kmeans_assign(x, c, c_sq=sq)
        assert cu.launches[-1].context == PRIMARY + device and cu.launches[-1].stream == 7 + device
    assert cu.stack == [PRIMARY] and len(cu.loaded) == 2


def test_out_is_written_and_returned(cu: FakeCuda, torch: Any) -> None:
    x, c, sq = arrays(torch)
    out = torch.Tensor((2, 500), torch.int32)
    assert kmeans_assign(x, c, c_sq=sq, out=out) is out and cu.launches[-1].u64(1) == out.data_ptr() and not torch.made


def test_cupy_arrays(cu: FakeCuda, cupy: Any) -> None:
    x, c = cupy.array(np.zeros((2, 500, 64), "<u2")), cupy.array(np.zeros((2, 100, 64), "<u2"))
    bf16 = _bf16()
    x, c = x.view(bf16), c.view(bf16)
    labels = kmeans_assign(x, c)
    assert type(labels) is cupy.ndarray and labels.dtype == np.int32 and labels.shape == (2, 500)
    assert cu.launches[-1].stream == 9 and cu.launches[-1].u64(1) == labels.ctypes.data
    kmeans_assign(x, c, stream=50)
    assert cu.launches[-1].stream == 50 and 50 in cupy.current  # memory in the order of that stream


def test_arrays_that_only_have_an_interface_need_out(cu: FakeCuda, torch: Any) -> None:
    x, c, sq = Faced((500, 64), "<f2", 0x1000), Faced((100, 64), "<f2", 0x100000), Faced((100,), "<f4", 0x200000)
    cu.pointer_devices = dict.fromkeys((0x1000, 0x100000, 0x200000, 0x300000), 0)
    with pytest.raises(CakeError, match=r"pass out= \(label: shape \(500,\), i32\)"):
        kmeans_assign(x, c, c_sq=sq)
    out = Faced((500,), "<i4", 0x300000)
    with pytest.raises(CakeError, match="no variant for f16"):  # the table has none, and no library can step in
        kmeans_assign(x, c, c_sq=sq, out=out)
    y = torch.Tensor((300, 128))
    d = Faced((300, 300), "<f4", 0x300000)
    with pytest.raises(CakeError, match=r"d is f32 \(300, 300\); the result is bf16"):
        gemm(y, y.T, out=d)


class Packed:
    """An array that speaks DLPack."""

    def __init__(self, array: np.ndarray, device: int = 0, kind: int = 2, code: int = 4) -> None:
        self.array, self.streams = array, []
        self.shape, self.dtype = array.shape, array.dtype
        self._device, self._kind, self._code = device, kind, code

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._kind, self._device

    def __dlpack__(self, stream: int | None = None) -> Any:
        from cake_mcp.dlpack import _Tensor

        self.streams.append(stream)
        n = self.array.ndim
        self._shape = (ctypes.c_int64 * n)(*self.array.shape)
        self._t = _Tensor(
            self.array.ctypes.data - 32, self._kind, self._device, n, self._code, 8 * self.array.itemsize, 1,
            ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64)), None, 32,
        )  # fmt: skip
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._t), b"dltensor", None)


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    raw = np.zeros(int(np.prod(shape)) * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + int(np.prod(shape)) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)


def test_dlpack_arrays_tell_dtype_device_and_stream(cu: FakeCuda) -> None:
    x, c = Packed(aligned((500, 64), "<u2"), 1), Packed(aligned((100, 64), "<u2"), 1)
    out = Packed(aligned((500,), "<i4"), 1, code=0)
    assert kmeans_assign(x, c, out=out, stream=30) is out
    assert cu.launches[-1].context == PRIMARY + 1 and cu.launches[-1].u64(1) == out.array.ctypes.data
    assert set(x.streams) == {30} and cu.allocated == [512]  # nobody to ask for scratch memory
    kmeans_assign(x, c, out=out)
    assert x.streams[-1] == 1 and cu.launches[-1].stream == 0  # the protocol's name of the default stream


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        (lambda t, x, c, q: (t.Tensor((2, 500, 64), t.float32), c, q), "dtype-mismatch", "c is bf16.*needs it in f32 like x"),
        (lambda t, x, c, q: (x, c, t.Tensor((2, 100))), "dtype-mismatch", "c_sq is bf16.*needs it in f32"),
        (lambda t, x, c, q: (t.Tensor((2, 5, 500, 64)), c, q), "rank-mismatch", r"x has 4 dimensions.*\(N, D\)"),
        (lambda t, x, c, q: (x, t.Tensor((100, 64)), q), "rank-mismatch", "c has 2 dimensions"),
        (lambda t, x, c, q: (x, t.Tensor((2, 100, 128)), q), "extent-mismatch", r"D is 64 in x and 128 in c; c is taken as \(B, C, D\)"),
        (lambda t, x, c, q: (x, t.Tensor((2, 100, 64), device=1), q), "device-mismatch", "x is on device 0, c on device 1"),
        (lambda t, x, c, q: (t.Tensor((2, 500, 64), device=-1), c, q), "not-on-gpu", "x is in host memory"),
        (lambda t, x, c, q: ([1, 2], c, q), "not-an-array", "builtins.list is not an array"),
        (lambda t, x, c, q: (np.zeros((2, 500, 64), np.float16), c, q), "not-on-gpu", "x is in host memory"),
    ],
)  # fmt: skip
def test_what_the_caller_must_change_is_said(cu: FakeCuda, torch: Any, change: Any, rule: str, words: str) -> None:
    x, c, sq = change(torch, *arrays(torch))
    with pytest.raises(CakeError, match=words) as caught:
        kmeans_assign(x, c, c_sq=sq)
    assert caught.value.diagnostic.rule == f"dispatch/{rule}" and not cu.launches


def test_an_output_that_will_not_do(cu: FakeCuda, torch: Any) -> None:
    x, c, sq = arrays(torch)
    i32 = torch.int32
    overlapping = torch.Tensor((2, 500), i32)
    overlapping._address = x.data_ptr() + 2 * 500 * 64 * 2 - 16  # the last bytes of x
    for out, words in [
        (torch.Tensor((2, 501), i32), r"label is i32 \(2, 501\); the result is i32 \(2, 500\)"),
        (torch.Tensor((2, 500), torch.int64), "label is i64"),
        (torch.Tensor((2, 500), i32, strides=(1, 2)), "label is not contiguous"),
        (overlapping, "label shares memory with x"),
        (torch.Tensor((2, 500), i32, offset=4), "label does not start on a multiple of 16 bytes"),
    ]:
        with pytest.raises(CakeError, match=words):
            kmeans_assign(x, c, c_sq=sq, out=out)
    assert not cu.launches
    beside = torch.Tensor((2, 500), i32)
    beside._address = x.data_ptr() + 2 * 500 * 64 * 2
    kmeans_assign(x, c, c_sq=sq, out=beside)


def test_nothing_to_label_launches_nothing(cu: FakeCuda, torch: Any) -> None:
    assert kmeans_assign(torch.Tensor((2, 0, 64)), torch.Tensor((2, 9, 64))).shape == (2, 0) and not cu.launches


def test_products_take_both_layouts_of_b(cu: FakeCuda, torch: Any) -> None:
    a, w = torch.Tensor((300, 128)), torch.Tensor((512, 128))
    d = gemm(a, w.T)
    assert d.shape == (300, 512) and cu.maps[cu.launches[-1].u64(1)]["pointer"] == w.data_ptr()
    assert cu.maps[cu.launches[-1].u64(1)]["dims"] == [128, 512]
    with structlog.testing.capture_logs() as logs:
        e = gemm(a, torch.Tensor((128, 512)))  # there is no table for it here: torch multiplies
    assert e.shape == (300, 512) and len(cu.launches) == 1
    assert (
        logs[0]["event"] == "cake.fallback"
        and logs[0]["how"] == "library"
        and "gemm_nn has no route table" in logs[0]["why"]
    )
    with pytest.raises(CakeError, match=r"K is 128 in a and 512 in b; b is taken as \(K, N\)"):
        gemm(a, w)


def test_a_gradient_that_would_be_lost_is_refused(cu: FakeCuda, torch: Any) -> None:
    a, w = torch.Tensor((300, 128)), torch.Tensor((512, 128))
    w.requires_grad = True
    b = w.T
    b.requires_grad = True
    with pytest.raises(CakeError, match=r"torch.no_grad\(\)"):
        gemm(a, b)
    torch.grad = False
    gemm(a, b)
    x, c, sq = arrays(torch)
    x.requires_grad, torch.grad = True, True
    kmeans_assign(x, c, c_sq=sq)  # labels have none


def test_fallbacks_are_named_once_and_refused_when_strict(cu: FakeCuda, torch: Any) -> None:
    _, c, sq = arrays(torch)
    crooked = torch.Tensor((2, 500, 64), strides=(64 * 500, 1, 500))
    shifted = torch.Tensor((2, 500, 64), offset=2)
    for odd, words in [(crooked, "x is not contiguous"), (shifted, "x does not start on a multiple of 16 bytes")]:
        with pytest.raises(CakeError, match=f"{words}, and strict=True refuses a fallback; pass a contiguous"):
            kmeans_assign(odd, c, c_sq=sq, strict=True)
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                kmeans_assign(odd, c, c_sq=sq)
        assert [(e["how"], e["log_level"]) for e in logs] == [("copy", "warning")] and words in logs[0]["why"]
        assert cu.maps[cu.launches[-1].u64(2)]["pointer"] not in (odd.data_ptr(), 0)
    assert len(cu.launches) == 6


def test_a_fallback_is_told_on_stderr_unless_the_caller_says_otherwise(
    cu: FakeCuda, torch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    _, c, sq = arrays(torch)
    configured = structlog.get_config()
    structlog.reset_defaults()
    try:
        kmeans_assign(torch.Tensor((2, 500, 64), offset=2), c, c_sq=sq)
    finally:  # tests that come later log as they did
        structlog.configure(**configured)
    told = capsys.readouterr()
    assert "cake.fallback" in told.err and told.out == ""


def test_features_are_padded_with_zeros_to_what_a_kernel_takes(cu: FakeCuda, torch: Any) -> None:
    x, c, sq = torch.Tensor((2, 500, 60)), torch.Tensor((2, 100, 60)), torch.Tensor((2, 100), torch.float32)
    with structlog.testing.capture_logs() as logs:
        labels = kmeans_assign(x, c, c_sq=sq)
    assert logs[0]["how"] == "pad" and "(D % 8) == 0" in logs[0]["why"] and labels.shape == (2, 500)
    assert cu.maps[cu.launches[-1].u64(2)]["dims"] == [64, 500, 2] and cu.launches[-1].u64(0) == sq.data_ptr()
    with pytest.raises(CakeError, match="strict=True"):
        kmeans_assign(x, c, c_sq=sq, strict=True)


def test_what_no_kernel_serves_is_computed_by_the_library(cu: FakeCuda, cupy: Any) -> None:
    rng = np.random.default_rng(5)
    x, c = rng.standard_normal((2, 300, 200)).astype("f4"), rng.standard_normal((2, 40, 200)).astype("f4")
    expected = ((x[:, :, None, :] - c[:, None, :, :]).astype("f8") ** 2).sum(-1).argmin(-1)
    with structlog.testing.capture_logs() as logs:
        labels = kmeans_assign(cupy.array(x), cupy.array(c))
    assert (np.asarray(labels) == expected).all() and labels.dtype == np.int32 and not cu.launches
    assert logs[0]["how"] == "library" and "no variant for f32" in logs[0]["why"]
    out = cupy.array(np.zeros((300,), "i4"))
    assert kmeans_assign(cupy.array(x[0]), cupy.array(c[0]), out=out) is out
    assert (np.asarray(out) == expected[0]).all()


def test_the_library_goes_through_many_scores_in_pieces(
    cu: FakeCuda, cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cake_mcp.assign._SCORES_AT_ONCE", 1000)
    rng = np.random.default_rng(6)
    x, c = rng.standard_normal((300, 20)).astype("f4"), rng.standard_normal((40, 20)).astype("f4")
    labels = kmeans_assign(cupy.array(x), cupy.array(c))
    assert (np.asarray(labels) == ((x[:, None] - c[None]) ** 2).sum(-1).argmin(-1)).all()


def test_a_gpu_without_a_table_is_refused_with_the_remedy(cu: FakeCuda, torch: Any) -> None:
    cu.capability[L.CAPABILITY_MAJOR] = 8
    with pytest.raises(CakeError, match=r"no route table for sm_80 .*cake tune kmeans_assign") as caught:
        kmeans_assign(*arrays(torch)[:2])
    assert caught.value.diagnostic.rule == "dispatch/no-table"


def test_a_missing_cubin_is_compiled_or_the_remedy_is_given(
    cu: FakeCuda, torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path / "cubins").iterdir():
        path.unlink()
    x, c, sq = arrays(torch)
    monkeypatch.setattr("lowering.compile.compile_cuda", lambda *a, **k: _raise())
    with (
        structlog.testing.capture_logs() as logs,
        pytest.raises(CakeError, match=r"cake_mcp.prepare\('kmeans_assign', 'sm_90a'\)") as e,
    ):
        kmeans_assign(x, c, c_sq=sq)
    assert e.value.diagnostic.rule == "dispatch/cubin-missing" and logs[0]["event"] == "cake.compile"
    seen = []

    def compile_cuda(source: str, arch: str) -> Any:
        seen.append(arch)
        return SimpleNamespace(cubin=b"made", nvrtc_version="13.5")

    monkeypatch.setattr("lowering.compile.compile_cuda", compile_cuda)
    kmeans_assign(x, c, c_sq=sq)
    assert cu.loaded == [b"made"] and seen == ["sm_90a"]
    assert len(list((tmp_path / "cubins").iterdir())) == 1


def test_prepare_compiles_every_variant_once(cu: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "cubins").iterdir():
        path.unlink()
    seen = []

    def compile_cuda(source: str, arch: str) -> Any:
        seen.append(source)
        return SimpleNamespace(cubin=b"made", nvrtc_version="13.5")

    monkeypatch.setattr("lowering.compile.compile_cuda", compile_cuda)
    assert cake_mcp.prepare("row_norms", "sm_90a") == {"row_norms.sm_90a": 2}
    assert cake_mcp.prepare("row_norms") == {"row_norms.sm_90a": 2} and len(seen) == 2
    with pytest.raises(CakeError, match="there is no table of nothing for any target"):
        cake_mcp.prepare("nothing")


def test_explain_says_which_route_and_why(cu: FakeCuda, torch: Any) -> None:
    choice = cake_mcp.explain("kmeans_assign", {"B": 1, "N": 500, "C": 9, "D": 64})
    assert choice.variant.kernel == "kmeans_packed" and "fallback" in choice.reason
    with pytest.raises(CakeError, match="D <= 128"):
        cake_mcp.explain("kmeans_assign", {"B": 1, "N": 500, "C": 9, "D": 136})
    cu.fail["cuDeviceGetCount"] = 100  # no GPU: the only table there is
    from cake_mcp import operation

    operation._gpus.clear()
    assert cake_mcp.explain("row_norms", {"M": 5, "D": 8}).variant.kernel == "row_norms"


def test_a_cubin_that_was_damaged_is_compiled_again(cu: FakeCuda, torch: Any, tmp_path: Path, monkeypatch: Any) -> None:
    for path in (tmp_path / "cubins").iterdir():
        path.write_bytes(b"cake-cubin 1\nrubbish")
    monkeypatch.setattr("lowering.compile.compile_cuda", lambda *a: SimpleNamespace(cubin=b"new", nvrtc_version=""))
    kmeans_assign(*arrays(torch)[:2])
    assert cu.loaded == [b"new", b"new"] and CubinCache(tmp_path / "cubins").notes == []


def _raise() -> Any:
    from cake_ir.fault import fault

    raise fault("lowering/compiler-missing", "NVRTC is not installed")


def _bf16() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16


def test_neither_the_import_nor_a_first_call_loads_a_compiler(cu: FakeCuda, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "CAKE_TABLES_DIR": str(tmp_path / "tables"), "CAKE_CACHE_DIR": str(tmp_path / "cubins")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.cake_mcp.light"], cwd=root, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"imported": [], "called": [], "launches": 1}
