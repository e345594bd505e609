"""Device buffers for evaluation: guard bands, poison, and snapshots as numpy or torch.

`Env` is all that evaluation needs of a machine: a `lowering.runtime.device.Device` (tests pass one over host memory),
torch where it is installed, and how to bind a launch plan. Every failure of the driver is a CakeError.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cake_ir.diagnostics import CakeError
from corpus.arrays import ELEMENTS, POISON_BYTES, Math, TorchMath, element, numpy_dtype, torch_dtype

GUARD = 64 * 1024
"""Guard bytes before and behind each buffer: a tile that runs over lands in them even when a whole row is off."""

LOAD_BYTES = 64 << 20
LOAD_COPIES = 32
LOAD_S = 0.5
"""The load of the second stream: copies of a buffer that no cache holds, enqueued in bunches of about a millisecond,
at most this long."""

Run = Callable[[int], None]
"""Enqueue on a stream."""


@dataclass
class Env:
    """device: allocation, fills, copies, synchronisation. torch: the module or None. prepare: (cubin, plan as JSON,
    pointers) -> launch function. stream: where kernels are launched. under_load: launches while another stream keeps
    the memory busy; None where there is no second stream."""

    device: Any
    torch: Any
    prepare: Callable[[bytes, Mapping[str, Any], Mapping[str, int]], Run]
    stream: int = 0
    under_load: Callable[[Run, int], None] | None = None

    def sync(self) -> None:
        """Wait for everything on the device; raises CakeError for any fault since the last call."""
        self.device.synchronize()


def open_env(index: int, use_torch: bool = True) -> Env:
    """The GPU number `index`; raises CakeError `lowering/no-gpu`. torch is used when it is installed with CUDA.

    use_torch False: start in a second instead of several; comparison then runs on the host, and no baseline runs.
    """
    from lowering.plan import LaunchPlan
    from lowering.runtime import host
    from lowering.runtime.device import Device

    device = Device(index)
    usable = None
    if use_torch:
        try:
            import torch

            usable = torch if torch.cuda.is_available() else None
        except ImportError:
            pass
    stream = device.new_stream()
    if usable is not None:
        usable.cuda.set_device(index)
        # torch and Triton launch on torch's current stream: make it the one that is timed
        usable.cuda.set_stream(usable.cuda.ExternalStream(stream, device=usable.device("cuda", index)))

    def prepare(cubin: bytes, plan: Mapping[str, Any], pointers: Mapping[str, int]) -> Run:
        return host.prepare(device, cubin, LaunchPlan.from_json(dict(plan)), pointers)

    return Env(device, usable, prepare, stream, Load(device).run)


class Load:
    """Copies on a second stream while a kernel runs: its CTAs are placed and its memory is served in another order."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._stream: int | None = None
        self._buffers: list[Any] = []

    def run(self, launch: Run, stream: int) -> None:
        """Launch on `stream` between copies; more of them as long as it runs. Without memory for them: `launch` alone."""
        if not self._open():
            launch(stream)
            return
        bunch, mark = self._bunch(), None
        try:
            launch(stream)
            mark = self.device.event()
            mark.record(stream)
            until = time.monotonic() + LOAD_S
            while not mark.done() and time.monotonic() < until:
                if bunch.done():
                    bunch.close()
                    bunch = self._bunch()
        finally:
            bunch.close()
            if mark is not None:
                mark.close()

    def _open(self) -> bool:
        if self._stream is None:
            try:
                self._buffers = [self.device.alloc(LOAD_BYTES, guard=0) for _ in range(2)]
            except CakeError as exc:
                if exc.diagnostic.rule != "lowering/out-of-memory":
                    raise
                return False
            self._stream = self.device.new_stream()
        return True

    def _bunch(self) -> Any:
        assert self._stream is not None
        to, source = (b.pointer for b in self._buffers)
        for _ in range(LOAD_COPIES):
            self.device.copy_device(to, source, LOAD_BYTES, self._stream)
        done = self.device.event()
        done.record(self._stream)
        return done


class _Interface:
    """Memory offered to torch without a copy."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (pointer, False), "version": 3, "strides": None,
        }  # fmt: skip


@dataclass
class Tensor:
    """One tensor on the device; `memory` is a guarded `lowering.runtime.device.Buffer`."""

    name: str
    dtype: str
    extents: tuple[int, ...]
    memory: Any


class Buffers:
    """The tensors of one shape. With torch, comparison runs on the device; without, on the host."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.math: Math = TorchMath(env.torch) if env.torch is not None else Math()
        self.all: dict[str, Tensor] = {}

    def add(self, name: str, dtype: str, extents: tuple[int, ...], offset: int = 0) -> None:
        """Allocate a tensor between guards, `offset` bytes beyond a 256-byte boundary; raises CakeError
        `lowering/out-of-memory`."""
        nbytes = math.prod(extents) * element(dtype).bytes
        try:
            memory = self.env.device.alloc(nbytes, guard=GUARD, offset=offset)
        except CakeError as exc:
            if self.env.torch is None or exc.diagnostic.rule != "lowering/out-of-memory":
                raise
            self.env.torch.cuda.empty_cache()  # what torch keeps for itself may be all that is missing
            memory = self.env.device.alloc(nbytes, guard=GUARD, offset=offset)
        self.all[name] = Tensor(name, dtype, extents, memory)

    def close(self) -> None:
        """Free everything; never raises, so that a device fault stays the error that is seen."""
        for t in self.all.values():
            t.memory.free(ignore_errors=True)
        self.all.clear()

    @property
    def pointers(self) -> dict[str, int]:
        """Pointer of every tensor."""
        return {n: t.memory.pointer for n, t in self.all.items()}

    def load(self, name: str, values: np.ndarray) -> None:
        """Copy host values in."""
        t = self.all[name]
        if values.shape != t.extents or values.dtype != numpy_dtype(t.dtype):
            raise ValueError(f"{name} is {values.dtype}{list(values.shape)}, the buffer {t.dtype}{list(t.extents)}")
        if values.size:
            t.memory.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8))

    def poison(self, name: str, run: int) -> None:
        """Fill with poison pattern `run`."""
        self.all[name].memory.poison(POISON_BYTES[run % 2])

    def view(self, name: str) -> Any:
        """A torch view of the memory itself (only with torch)."""
        t = self.all[name]
        kind = torch_dtype(self.env.torch, t.dtype)
        if not t.memory.nbytes:
            return self.env.torch.empty(t.extents, dtype=kind, device="cuda")
        raw = self.env.torch.as_tensor(_Interface(t.memory.pointer, t.memory.nbytes), device="cuda")
        return raw.view(kind).reshape(t.extents)

    def snapshot(self, name: str) -> Any:
        """A copy for comparison: a torch tensor on the device, or a numpy array."""
        if self.env.torch is not None:
            copy = self.view(name).clone()
            self.env.sync()
            return copy
        t = self.all[name]
        raw = np.zeros(t.memory.nbytes, np.uint8)
        if raw.size:
            t.memory.read_into(raw)
        return raw.view(numpy_dtype(t.dtype)).reshape(t.extents)

    def on_host(self, value: Any) -> np.ndarray:
        """A snapshot as a numpy array of the same element type."""
        torch = self.env.torch
        if torch is None:
            return value
        kinds = {torch_dtype(torch, n): n for n in ELEMENTS}
        raw = value.contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
        return raw.view(numpy_dtype(kinds[value.dtype])).reshape(tuple(value.shape))

    def same(self, a: Any, b: Any) -> bool:
        """Bitwise equality of two snapshots."""
        torch = self.env.torch
        if torch is None:
            return a.tobytes() == b.tobytes()
        return bool(torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))))

    def damage(self) -> str | None:
        """A sentence naming the first tensor whose guard band was written, or None."""
        for t in self.all.values():
            offsets = t.memory.damage()
            if offsets:
                behind = [o - t.memory.nbytes for o in offsets if o >= 0]
                before = [o for o in offsets if o < 0]
                places = [f"from {min(behind)} bytes behind its end" if behind else "",
                          f"up to {-max(before)} bytes before its start" if before else ""]  # fmt: skip
                return f"{len(offsets)} bytes outside {t.name} were written, {' and '.join(p for p in places if p)}"
        return None
