"""torch and CuPy played in this process: arrays that lie in host memory and say that they are on a GPU.

The played CuPy is numpy underneath, so that what a fallback computes can be compared; the played torch has what the fast path reads.
"""

from __future__ import annotations

import itertools
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest


def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module `torch` in `sys.modules`, with `made` (allocations), `held` (record_stream) and a settable current stream."""
    module: Any = ModuleType("torch")
    module.bfloat16, module.float16, module.float32, module.int32, module.uint8 = (
        SimpleNamespace(name=n, __str__=lambda: "") for n in ("bf16", "f16", "f32", "i32", "u8")
    )
    dtypes = {}
    for name in ("bfloat16", "float16", "float32", "float64", "int32", "int64", "uint8", "complex64"):
        dtypes[name] = type("dtype", (), {"__repr__": lambda self, name=name: f"torch.{name}"})()
        setattr(module, name, dtypes[name])
    module.made, module.held, module.stream, module.grad = [], [], 7, True
    module.contiguous_format = "contiguous"
    address = itertools.count(0x10000000, 0x100000)

    class Tensor:
        __module__ = "torch"

        def __init__(
            self, shape: tuple[int, ...], dtype: Any = None, device: int = 0, strides: Any = None, offset: int = 0
        ) -> None:
            self.shape, self.dtype, self._device, self.requires_grad = (
                tuple(shape),
                dtype or module.bfloat16,
                device,
                False,
            )
            self._strides = (
                tuple(strides) if strides else tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
            )
            self._address = next(address) + offset
            self.history: list[str] = []

        def stride(self) -> tuple[int, ...]:
            return self._strides

        def is_contiguous(self) -> bool:
            return self._strides == tuple(int(np.prod(self.shape[i + 1 :])) for i in range(len(self.shape)))

        def get_device(self) -> int:
            return self._device

        def data_ptr(self) -> int:
            return self._address

        def new_empty(self, shape: Any, dtype: Any) -> Tensor:
            made = Tensor(shape, dtype, self._device)
            module.made.append((made, module.stream))
            return made

        def new_zeros(self, shape: Any) -> Tensor:
            out = Tensor(shape, self.dtype, self._device)
            out.history.append("zeros")
            return out

        def clone(self, memory_format: Any) -> Tensor:
            assert memory_format == "contiguous"
            out = Tensor(self.shape, self.dtype, self._device)
            out.history.append("clone")
            return out

        def __setitem__(self, where: Any, value: Tensor) -> None:
            self.history.append(f"corner {[s.stop for s in where]}")

        def copy_(self, other: Any) -> None:
            self.history.append("copy_")

        def record_stream(self, stream: Any) -> None:
            module.held.append((self, stream.handle))

        @property
        def T(self) -> Tensor:
            out = Tensor(self.shape[::-1], self.dtype, self._device, self._strides[::-1])
            out._address, out.history = self._address, self.history
            return out

        @property
        def ndim(self) -> int:
            return len(self.shape)

    @contextmanager
    def use(stream: Any) -> Any:
        before, module.stream = module.stream, stream.handle
        yield
        module.stream = before

    module.Tensor = Tensor
    module._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda device: module.stream + device)
    module.is_grad_enabled = lambda: module.grad
    module.empty = lambda shape, dtype: Tensor(shape, dtype, -1)

    class Parameter(Tensor):
        def __init__(self, data: Tensor) -> None:
            super().__init__(data.shape, data.dtype, -1)
            self.requires_grad = True

    module.nn = SimpleNamespace(Parameter=Parameter)

    class TensorGuards:
        """What Dynamo's does, by the same facts."""

        def __init__(self, *tensors: Tensor, dynamic_dims_sizes: None, dynamic_dims_strides: None) -> None:
            self._facts = [self._of(t) for t in tensors]

        @staticmethod
        def _of(t: Any) -> Any:
            if not isinstance(t, Tensor):
                return type(t)
            return type(t), t.dtype, t.shape, t.stride(), t.get_device(), t.requires_grad and module.grad

        def check(self, *tensors: Any) -> bool:
            module.checked += 1
            return [self._of(t) for t in tensors] == self._facts

    def empty_strided(shape: Any, strides: Any, dtype: Any) -> Tensor:
        made = Tensor(shape, dtype, 0, strides)
        module.made.append((made, module.stream))
        return made

    module.checked = 0
    module.guards = SimpleNamespace(TensorGuards=TensorGuards, _empty_strided_cuda=empty_strided)
    module.cuda = SimpleNamespace(
        ExternalStream=lambda handle, device: SimpleNamespace(handle=handle, cuda_stream=handle), stream=use
    )
    module.matmul = lambda a, b: Tensor((a.shape[0], b.shape[1]), a.dtype, a._device)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module `cupy` in `sys.modules` whose arrays are numpy's."""
    module: Any = ModuleType("cupy")
    module.pointer, module.device, module.current = 9, 0, []

    class ndarray(np.ndarray):  # noqa: N801
        __module__ = "cupy"

        @property
        def data(self) -> Any:  # type: ignore[override]
            return SimpleNamespace(ptr=self.ctypes.data, device_id=module.device)

    def wrapped(a: np.ndarray) -> Any:
        """On a 16-byte boundary, as a device allocator would place it."""
        raw = np.empty(a.nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        out = raw[start : start + a.nbytes].view(a.dtype).reshape(a.shape).view(ndarray)
        out[...] = a
        return out

    @contextmanager
    def entered(what: Any) -> Any:
        module.current.append(what)
        before = module.pointer
        if isinstance(what, int):
            module.pointer = what
        yield
        module.pointer = before

    module.ndarray, module.array, module.dtype = ndarray, wrapped, np.dtype
    module.empty = lambda shape, dtype: wrapped(np.zeros(shape, dtype))
    module.zeros = lambda shape, dtype: wrapped(np.zeros(shape, dtype))
    module.matmul, module.concatenate = np.matmul, np.concatenate
    module.full = lambda shape, value, dtype: wrapped(np.full(shape, value, dtype))
    module.arange, module.asarray = np.arange, np.asarray
    module.cuda = SimpleNamespace(
        get_current_stream=lambda: SimpleNamespace(ptr=module.pointer),
        runtime=SimpleNamespace(getDevice=lambda: module.device),
        Device=lambda i: entered(("device", i)),
        ExternalStream=lambda handle, device_id: entered(handle),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


class Faced:
    """An array that has nothing but `__cuda_array_interface__`."""

    def __init__(self, shape: tuple[int, ...], typestr: str, pointer: int, **more: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (pointer, False),
            "version": 3,
            **more,
        }
