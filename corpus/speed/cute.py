"""FlashLib's CuTe DSL assignment kernels as a contender: compiled beforehand by `cute_build.py`, loaded without the DSL.

Its autotuner times every configuration of a shape and keeps the fastest; so does `best`, on the same configurations.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cake_ir.diagnostics import CakeError, error

NAME = "flashlib_cute"
REPEATS = 10
"""Launches per configuration when the fastest is looked for (flashlib's `_autotune_pick`: 5 untimed, 10 timed)."""


class Library:
    """The shared library of a directory. Raises CakeError `speed/cute` when it does not match its manifest or does not load.

    torch must have been imported: the library uses the CUDA runtime that comes with it.
    """

    def __init__(self, directory: Path) -> None:
        self.manifest: dict[str, Any] = json.loads((directory / "cute.json").read_text(encoding="utf-8"))
        path = directory / "cute.so"
        if hashlib.sha256(path.read_bytes()).hexdigest() != self.manifest["sha256"]:
            raise _bad(f"{path} is not the library that cute.json describes; prepare it again")
        try:
            # its symbols become visible to the library loaded next
            self._runtime = ctypes.CDLL("libcudart.so.13", mode=ctypes.RTLD_GLOBAL)
            self._library = ctypes.CDLL(str(path.resolve()))
        except OSError as exc:
            raise _bad(f"the CuTe DSL kernels do not load: {exc}") from exc
        self.versions: dict[str, str] = dict(self.manifest["versions"])

    def kernels(self, n: int, c: int, d: int) -> list[Kernel]:
        """Every compiled configuration of a shape, loaded onto the current device."""
        return [Kernel(self._library, k) for k in self.manifest["kernels"] if (k["N"], k["C"], k["D"]) == (n, c, d)]


class Kernel:
    """One configuration. The calls follow the C header that the DSL exports beside the object."""

    def __init__(self, library: ctypes.CDLL, entry: dict[str, Any]) -> None:
        self.config = f"BM {entry['BM']}, BN {entry['BN']}{', producer warpgroup' if entry['use_ws'] else ''}"
        self._entry = getattr(library, entry["symbol"])
        self._module = ctypes.c_void_p()
        place = ctypes.pointer(self._module)
        status, device = ctypes.c_int32(0), ctypes.c_int32(0)
        self._call(getattr(library, entry["prefix"] + "_cuda_init"), place, status)
        _check(status.value, "load")
        self._call(getattr(library, entry["prefix"] + "_cuda_load_to_device"), place, device, status)
        _check(status.value, "load onto the device")

    @staticmethod
    def _call(function: Any, *cells: Any) -> None:
        function((ctypes.c_void_p * len(cells))(*(ctypes.addressof(c) for c in cells)))

    def bind(self, *pointers: int) -> Callable[[int], None]:
        """A launch function over the device addresses of x, c, c_sq and label."""
        tensors = [ctypes.c_void_p(p) for p in pointers]
        stream, status = ctypes.c_void_p(0), ctypes.c_int32(0)
        cells = [*tensors, stream, status]
        array = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(c) for c in cells))
        entry = self._entry

        def launch(handle: int) -> None:
            stream.value = handle
            entry(array, len(cells))
            if status.value:
                _check(status.value, "launch")

        return launch


@dataclass(frozen=True)
class Best:
    """The fastest configuration of a shape, and what each took in µs."""

    kernel: Kernel
    tried: dict[str, float]


def best(torch: Any, library: Library, shape: Mapping[str, int], tensors: Mapping[str, Any]) -> Best | None:
    """Time every configuration of a shape (B = 1) and keep the fastest; None when none was compiled. tensors: x, c, c_sq, label."""
    pointers = [tensors[n].data_ptr() for n in ("x", "c", "c_sq", "label")]
    stream = torch.cuda.current_stream().cuda_stream
    timed: list[tuple[float, Kernel]] = []
    for kernel in library.kernels(shape["N"], shape["C"], shape["D"]):
        launch = kernel.bind(*pointers)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(REPEATS // 2):
            launch(stream)
        start.record()
        for _ in range(REPEATS):
            launch(stream)
        end.record()
        end.synchronize()
        timed.append((start.elapsed_time(end) * 1000 / REPEATS, kernel))
    if not timed:
        return None
    return Best(min(timed, key=lambda t: t[0])[1], {k.config: round(us, 2) for us, k in timed})


def _check(status: int, what: str) -> None:
    if status:
        raise _bad(f"CUDA error {status} at {what} of a CuTe DSL kernel")


def _bad(message: str) -> CakeError:
    return CakeError(
        error("speed/cute", "data", message, contract="The CuTe DSL peer is built by corpus/speed/cute_build.py.")
    )
