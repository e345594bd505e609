"""Launches that are interpreted: the kernels of a route table run on the played CuPy's arrays, which lie in host memory."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from analyses.value.interpret import interpret
from analyses.value.program import interpret_program
from cake_ir import bind, bind_program, parse
from corpus.kernels import kernel
from tests.cake_mcp.fake_cuda import FakeCuda

F32, I32 = np.dtype(np.float32), np.dtype(np.int32)
KINDS = {"label": I32, "size": I32}
"""Element types that are neither f32 nor the points'."""
POINTS = ("x", "c", "mean")


class CopyingCuda(FakeCuda):
    """The played driver with page-locked memory, events, and copies to the host, which are done at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[int] = []
        self.pinned: list[Any] = []
        self.recorded = 0

    def cuMemHostAlloc(self, out: Any, size: int, flags: int) -> int:
        self.pinned.append(ctypes.create_string_buffer(size))
        out._obj.value = ctypes.addressof(self.pinned[-1])
        return 0

    def cuMemFreeHost(self, memory: int) -> int:
        return 0

    def cuMemcpyDtoHAsync_v2(self, to: int, pointer: int, size: int, stream: int) -> int:
        ctypes.memmove(to, pointer, size)
        return 0

    def cuEventCreate(self, out: Any, flags: int) -> int:
        out._obj.value = 0x9000 + len(self.pinned)
        return 0

    def cuEventRecord(self, event: Any, stream: int) -> int:
        self.recorded += 1
        return self.fail.get("cuEventRecord", 0)

    def cuEventSynchronize(self, event: Any) -> int:
        self.waited.append(self.recorded)
        return self.fail.get("cuEventSynchronize", 0)

    def cuEventDestroy_v2(self, event: Any) -> int:
        return 0


@functools.cache
def _bound(name: str, dtype: str) -> Any:
    entry = kernel(name)
    file = parse(entry.text()).file
    assert file is not None
    if file.program is not None:
        return bind_program(file, {"DT": dtype}, "sm_90a").program
    typed = any(t.name == "DT" for t in file.kernels[0].tunables)
    return bind(file, {**entry.bindings, **({"DT": dtype} if typed else {})}, "sm_90a", entry.kernel).bound


class Prepared:
    """Stands for `lowering.runtime.launcher.Prepared`. kernels: corpus name of what serves a call, by its last tensor."""

    points = np.dtype(ml_dtypes.bfloat16)
    kernels: Mapping[str, str] = {}
    calls: list[tuple[str, int]] = []

    def __init__(self, gpu: Any, made: Any, names: Sequence[str], cubins: Any) -> None:
        self.made, self.names = made, list(names)

    def launch(self, pointers: Sequence[int], workspace: int, stream: int) -> None:
        """Interpret, with every tensor where its pointer says."""
        arrays = {
            name: _array(pointer, self.made.shapes[name], KINDS.get(name, self.points if name in POINTS else F32))
            for name, pointer in zip(self.names, pointers, strict=True)
        }
        name = self.kernels[self.names[-1]]
        self.calls.append((name, stream))
        if self.names[-1] == "label" and "c_sq" not in arrays:  # the table's norms, made on the way
            arrays["c_sq"] = (arrays["c"].astype(np.float64) ** 2).sum(-1).astype(np.float32)
        subject = _bound(name, "f16" if self.points.name == "float16" else "bf16")
        run = interpret_program if hasattr(subject, "steps") else interpret
        for out, value in run(subject, dict(arrays)).items():  # type: ignore[operator]
            arrays[out][...] = value


def _array(pointer: int, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer))
    return raw.view(dtype).reshape(tuple(shape))


def module_of(monkeypatch: Any, dtype: Any) -> SimpleNamespace:
    """Let `cake_mcp` interpret its launches for points of that numpy type; the calls that were made are in `.calls`."""
    calls: list[tuple[str, int]] = []
    monkeypatch.setattr(Prepared, "points", np.dtype(dtype))
    monkeypatch.setattr(Prepared, "calls", calls)
    monkeypatch.setattr(
        Prepared,
        "kernels",
        {"label": "kmeans_assign", "shift": "kmeans_update_direct", "inertia": "kmeans_inertia"},
    )
    monkeypatch.setattr("cake_mcp.binding.Prepared", Prepared)
    return SimpleNamespace(calls=calls)
