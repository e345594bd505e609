"""Memories of the value reading: shared and tensor memory of a CTA as bytes, global tensors as arrays.

Shared memory is one byte array with a mask of undefined bytes and a mask of *unfenced* bytes: written through the
generic proxy and not yet covered by the writer's fence_async. An asynchronous read of an unfenced byte may see the
old or the new value, so it gives poison; an asynchronous write over one is a fault. So is an asynchronous write over bytes
whose generic reads no fence of the reader covers: it may overtake them (PTX ISA, Proxies).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from analyses.value.faults import ValueFault
from analyses.value.formats import Mask, np_dtype, poison, some, uint_of
from cake_ir.bound import BoundKernel, Buffer, Tensor, View
from cake_ir.derive.memory import buffer_bytes, memory_map, tmem_cols
from cake_ir.diagnostics import Span

MANY, MANY_OF_WARP = 511, 256
"""Writers of elements that several threads write together (stmatrix, cp.async): of the unit, or of warp MANY_OF_WARP + w."""

TMEM_ROW = 2048  # bytes of one tensor-memory lane: 512 columns of 32 bits


class MemoryMap:
    """Base offsets and element index maps of all on-chip buffers of a kernel, shared by its CTAs.

    Offsets and stage strides are the derived ones (`cake_ir.derive`), so that aliases and strides are those of the
    emitted kernel; tensor memory is addressed in bytes inside a lane. Index maps are in elements of the buffer's
    dtype, and cached.
    """

    def __init__(self, bound: BoundKernel) -> None:
        derived = memory_map(bound)
        self.base: dict[Buffer, int] = {**derived.smem, **{b: 4 * column for b, column in derived.tmem.items()}}
        self.stride = {**derived.stage_stride, **{b: 4 * tmem_cols(b) for b in derived.tmem}}
        self.smem_bytes = -(-derived.used // 16) * 16
        for b in derived.smem:
            self.smem_bytes = max(self.smem_bytes, self.base[b] + buffer_bytes(b))
        self.has_tmem = bool(derived.tmem)
        self._maps: dict[Buffer, np.ndarray] = {}
        self._index: dict[tuple[Any, ...], np.ndarray] = {}

    def overlapping(self, buffers: set[Buffer]) -> set[Buffer]:
        """The shared buffers that have bytes in common with one of these."""

        def span(b: Buffer) -> tuple[int, int]:
            return self.base[b], self.base[b] + buffer_bytes(b)

        wanted = [span(b) for b in buffers if b.space == "smem"]
        return {
            b
            for b in self.base
            if b.space == "smem" and any(span(b)[0] < end and begin < span(b)[1] for begin, end in wanted)
        }

    def _map(self, b: Buffer) -> np.ndarray:
        """Byte offset inside a stage of every element [rows, cols]: the panel and swizzle rule, vectorised."""
        if b not in self._maps:
            row = np.arange(b.rows, dtype=np.int64)[:, None]
            byte = (np.arange(b.cols, dtype=np.int64) * b.dtype.bits // 8)[None, :]
            if b.space == "tmem":
                out = row * TMEM_ROW + byte
            elif not b.swizzle:
                out = row * b.pitch + byte
            else:
                panel, inner = byte // b.swizzle, byte % b.swizzle
                linear = panel * (b.rows * b.swizzle) + row * b.swizzle + inner
                out = linear ^ (((linear >> 7) & (b.swizzle // 16 - 1)) << 4)
            self._maps[b] = out
        return self._maps[b]

    def index(self, v: View, slot: int, row0: int, col0: int) -> np.ndarray:
        """Element indices of a view as the author sees it (2-D, transposed applied)."""
        key = (v.buffer, slot, row0, col0, v.rows, v.cols, v.transposed)
        idx = self._index.get(key)
        if idx is None:
            b = v.buffer
            part = self._map(b)[row0 : row0 + v.rows, col0 : col0 + v.cols]
            idx = (part + (self.base[b] + slot * self.stride[b])) // b.dtype.bytes
            idx = np.ascontiguousarray(idx.T if v.transposed else idx)
            self._index[key] = idx
        return idx


class Bytes:
    """A byte memory with undefined and unfenced masks. Fresh memory is poison."""

    def __init__(self, nbytes: int) -> None:
        self.data = np.full(nbytes, 255, np.uint8)
        self.undef = np.full(nbytes, 255, np.uint8)
        self.unfenced = np.zeros(nbytes, np.uint8)
        self.stamp: np.ndarray | None = None  # of the last generic write of each byte; see mark_writer
        self.open = 0  # pending unfenced write records; 0 lets readers skip the mask
        self.reads = np.zeros(nbytes, np.uint16)  # pending generic reads, counted at the first byte of each element
        self.open_reads = 0
        self._typed: dict[Any, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def typed(self, dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(data, undefined, unfenced) seen in elements of a dtype."""
        got = self._typed.get(dtype)
        if got is None:
            nd = np_dtype(dtype)
            store = np.dtype(np.uint8) if dtype.name == "bool" else nd
            u = uint_of(nd.itemsize)
            got = (self.data.view(store), self.undef.view(u), self.unfenced.view(u))
            self._typed[dtype] = got
        return got

    def read(self, dtype: Any, idx: np.ndarray) -> tuple[np.ndarray, Mask]:
        """Generic or tensor read of elements."""
        data, undef, _ = self.typed(dtype)
        return data[idx], some(undef[idx] != 0)

    def read_async(self, dtype: Any, idx: np.ndarray) -> tuple[np.ndarray, Mask, bool]:
        """Read by the async proxy; the flag tells that unfenced bytes were met (they read as poison)."""
        data, undef, unfenced = self.typed(dtype)
        mask = undef[idx] != 0
        met = False
        if self.open:
            raw = unfenced[idx] != 0
            met = bool(raw.any())
            if met:
                mask = mask | raw
        return data[idx], some(mask), met

    def write(
        self, dtype: Any, idx: np.ndarray, data: np.ndarray, undef: Mask, where: np.ndarray | None = None
    ) -> None:
        """Write elements; `where` selects them."""
        mem, und, _ = self.typed(dtype)
        if where is not None:
            idx, data = idx[where], data[where]
            undef = None if undef is None else undef[where]
        mem[idx] = data
        und[idx] = (
            0
            if undef is None
            else np.where(undef, und.dtype.type(-1 & (2 ** (8 * und.itemsize) - 1)), und.dtype.type(0))
        )

    def mark_writer(
        self, dtype: Any, idx: np.ndarray, epochs: tuple[int, int], threads: np.ndarray | int, warp: int | None
    ) -> None:
        """Remembers who wrote elements and when: epochs of the unit and of the warp (times between two syncs), the thread
        inside the role instance, or MANY; warp: the one that runs alone inside `warps()`."""
        if self.stamp is None:
            self.stamp = np.zeros(len(self.data), np.int64)
        if isinstance(threads, int) and threads == MANY and warp is not None:
            threads = MANY_OF_WARP + warp
        self.stamp[idx * dtype.bytes] = (epochs[0] << 32) + (epochs[1] << 16) + threads

    def clear_writer(self, dtype: Any, idx: np.ndarray) -> None:
        """An asynchronous write takes the bytes over."""
        if self.stamp is not None:
            self.stamp[idx * dtype.bytes] = 0

    def by_others(
        self, dtype: Any, idx: np.ndarray, epochs: tuple[int, int], threads: np.ndarray | int, warp: int | None
    ) -> Mask:
        """Elements that another thread of the unit wrote since the last sync of the two. threads: who reads (-1: several)."""
        if self.stamp is None:
            return None
        stamp = self.stamp[idx * dtype.bytes]
        bad = stamp >> 32 == epochs[0]
        if not bad.any():
            return None
        code = stamp & 0xFFFF
        bad &= code != threads
        writer_warp = np.where(code < MANY_OF_WARP, code >> 5, code - MANY_OF_WARP)
        if warp is not None:
            bad &= (writer_warp != warp) | ((stamp >> 16) & 0xFFFF == epochs[1] & 0xFFFF)
        elif not isinstance(threads, int):
            # a warpgroup that reads what the same warp wrote inside warps(): its warp may have synced there (lenient)
            bad &= ((stamp >> 16) & 0xFFFF == 0) | (writer_warp != threads >> 5)
        return some(bad)

    def mark_unfenced(self, dtype: Any, idx: np.ndarray) -> None:
        """Generic writes that the async proxy may not see yet."""
        _, _, unfenced = self.typed(dtype)
        unfenced[idx] = unfenced.dtype.type(2 ** (8 * unfenced.itemsize) - 1)
        self.open += 1

    def clear_unfenced(self, dtype: Any, idx: np.ndarray) -> None:
        """The writer's fence."""
        _, _, unfenced = self.typed(dtype)
        unfenced[idx] = 0
        self.open -= 1

    def mark_read(self, dtype: Any, idx: np.ndarray) -> None:
        """Generic reads that an asynchronous write may overtake."""
        self.reads[idx * dtype.bytes] += 1
        self.open_reads += 1

    def clear_read(self, dtype: Any, idx: np.ndarray) -> None:
        """The reader's fence."""
        self.reads[idx * dtype.bytes] -= 1
        self.open_reads -= 1

    def any_unfenced_read(self, dtype: Any, idx: np.ndarray) -> bool:
        """Whether a range holds generic reads not yet fenced."""
        if not self.open_reads:
            return False
        first = idx * dtype.bytes
        return any(bool(self.reads[first + i].any()) for i in range(dtype.bytes))

    def any_unfenced(self, dtype: Any, idx: np.ndarray) -> bool:
        """Whether a range holds generic writes not yet fenced."""
        return bool(self.open) and bool(self.typed(dtype)[2][idx].any())


class GlobalTensor:
    """A kernel tensor: logical array, undefined mask, and write counts for Out.

    undefined: the contents are poison at the start (Out always; workspaces of a program on request).
    """

    def __init__(
        self, tensor: Tensor, shape: tuple[int, ...], data: np.ndarray | None, undefined: bool = False
    ) -> None:
        self.tensor, self.shape = tensor, shape
        self.nd = np_dtype(tensor.dtype)
        if tensor.direction in ("In", "Const") and not undefined:
            assert data is not None
            self.data = data.view()
            self.data.flags.writeable = False
            self.undef: Mask = None
        elif data is not None and not undefined and tensor.direction == "InOut":
            self.data = data.copy()
            self.undef = None
        else:
            self.data = poison(tensor.dtype, shape).copy()
            self.undef = np.ones(shape, bool)
        self.count = np.zeros(shape, np.uint8) if tensor.direction == "Out" else None

    def write(self, index: tuple[Any, ...], data: np.ndarray, span: Span, agent: str) -> None:
        """Defined data at an index tuple (slices or arrays); Out elements at most once."""
        if self.tensor.direction in ("In", "Const"):
            raise ValueFault(
                "bounds", f"{self.tensor.name} is {self.tensor.direction} and may not be written", span, agent
            )
        if self.count is not None:
            got = self.count[index]
            if got.any():
                where = np.argwhere(got)[0]
                raise ValueFault(
                    "out-twice",
                    f"element {tuple(int(i) for i in where)} of this part of Out tensor {self.tensor.name}"
                    " was already written",
                    span,
                    agent,
                )
            self.count[index] = 1
        self.data[index] = data
        if self.undef is not None:
            self.undef[index] = False

    def unwritten(self) -> tuple[int, tuple[int, ...]] | None:
        """(number, first index) of Out elements nobody wrote."""
        if self.count is None:
            return None
        left = np.argwhere(self.count == 0)
        return (len(left), tuple(int(i) for i in left[0])) if len(left) else None
