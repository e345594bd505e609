"""Emitted kernels compiled for the host and run there, thread by thread: numbers without a GPU."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lowering.emission import Emitted, plan
from lowering.plan import DTYPE_BYTES
from tests.lowering.emulation.helpers import host_namespace

RUNTIME = Path(__file__).with_name("runtime.cpp")
COMPILER = shutil.which("g++")
# Tests share compiled kernels; -O1, for compiling takes longer than the small launches.
_OPTIONS = ("-std=c++20", "-O1", "-ffp-contract=off", "-w", "-shared", "-fPIC", "-pthread")
_FOLDER = tempfile.TemporaryDirectory(prefix="cake-emulation-")

_DEFINES = """
#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
"""


class _Map(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("rank", ctypes.c_int), ("bytes", ctypes.c_int), ("swizzle", ctypes.c_int),
        ("dims", ctypes.c_longlong * 5), ("strides", ctypes.c_longlong * 5), ("box", ctypes.c_int * 5),
    ]  # fmt: skip


def host_source(emitted: Emitted) -> str:
    """C++ of the kernel, its host helpers and a `launch` entry."""
    text = emitted.cuda
    kernel = text[text.index("}  // namespace cake") + len("}  // namespace cake") :]
    kernel = "\n".join(line for line in kernel.splitlines() if not line.startswith("#"))
    kernel = kernel.replace(
        "extern __shared__ unsigned char smem[];", "unsigned char* smem = host::cta().memory.data();"
    )
    kernel = re.sub(r"\(reinterpret_cast<cake::u64>", "(reinterpret_cast<std::uintptr_t>", kernel)
    calls, index = [], {"tensor": 0, "tensor_map": 0, "i32": 0, "f32": 0}
    for kind, thing in emitted.parameters:
        if kind == "timeline":  # behind all others: the buffer is the last tensor, capacity and stride the last ints
            calls += [f"reinterpret_cast<host::u64>(tensors[{index['tensor']}])"]
            calls += [f"static_cast<unsigned>(ints[{index['i32'] + i}])" for i in range(2)]
            break
        i = index[kind]
        index[kind] += 1
        if kind == "tensor":
            calls.append(f"static_cast<{_pointer(emitted, thing)}>(tensors[{i}])")
        else:
            calls.append({"tensor_map": f"maps[{i}]", "i32": f"ints[{i}]", "f32": f"floats[{i}]"}[kind])
    m = emitted.manifest
    return f"""#include "runtime.hpp"
{host_namespace(text)}
{_DEFINES}
{kernel}
extern "C" int launch(int grid, void** tensors, const host::Map* maps, const int* ints, const float* floats) {{
  gridDim.x = static_cast<unsigned>(grid);
  for (int first = 0; first < grid; first += {m.cluster}) {{
    host::Cluster one;
    one.threads = {m.cluster * m.threads};
    for (int r = 0; r < {m.cluster}; ++r) {{
      one.ctas.push_back(std::make_unique<host::Cta>());
      one.ctas.back()->memory.assign({m.smem_bytes} + 4096, 0xff);
    }}
    if (!host::run_cluster(one, {m.threads}, first, [&] {{ {m.symbol}({", ".join(calls)}); }})) return 1;
  }}
  return 0;
}}
"""


def _pointer(emitted: Emitted, tensor: Any) -> str:
    from lowering.emission.regions import pointee

    const = "const " if tensor.direction in ("In", "Const") else ""
    return f"{const}{pointee(tensor.dtype).replace('cake::', 'host::')}*"


@cache
def _runtime() -> Path:
    """The folder of the runtime as a precompiled header: the standard headers take longer than any kernel."""
    folder = Path(_FOLDER.name)
    shutil.copy(RUNTIME, folder / "runtime.hpp")
    _compile("-x", "c++-header", folder / "runtime.hpp", "-o", folder / "runtime.hpp.gch")
    return folder


@cache
def _library(source: str) -> Path:
    """The shared library of one kernel's C++."""
    folder = Path(tempfile.mkdtemp(dir=_runtime()))
    (folder / "kernel.cpp").write_text(source)
    _compile("-Winvalid-pch", f"-I{_runtime()}", folder / "kernel.cpp", "-o", folder / "kernel.so")
    return folder / "kernel.so"


def _compile(*arguments: str | Path) -> None:
    assert COMPILER is not None
    done = subprocess.run([COMPILER, *_OPTIONS, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def run(
    emitted: Emitted,
    tensors: dict[str, np.ndarray],
    dims: dict[str, int],
    scalars: dict[str, float] | None,
    sms: int,
    timeline: np.ndarray | None = None,
    shape: Any = None,
    hangs: bool = False,
) -> None:
    """Launch on the host; outputs are written into `tensors` (C-contiguous arrays, bits for 16-bit floats). An instrumented kernel
    needs its `timeline` buffer and the `shape` of it. hangs: the launch is to come to a halt."""
    library = _library(host_source(emitted))
    launch_plan = plan(emitted, dims, scalars or {}, sms)
    pointers, maps, ints, floats = [], [], [], []
    for arg in launch_plan.args:
        if arg.kind == "tensor":
            pointers.append(tensors[arg.name].ctypes.data)
        elif arg.kind == "tensor_map":
            m = launch_plan.tensor_maps[arg.name]
            size, rank = DTYPE_BYTES[m.dtype], len(m.dims)
            pad = [0] * (5 - rank)
            wide = ctypes.c_longlong * 5
            strides = wide(size, *m.strides, *pad)
            box = (ctypes.c_int * 5)(*m.box, *pad)
            maps.append(_Map(tensors[m.tensor].ctypes.data, rank, size, m.swizzle, wide(*m.dims, *pad), strides, box))
        elif arg.kind == "timeline":
            assert timeline is not None
            assert timeline.ctypes.data % shape.align == 0
            pointers.append(timeline.ctypes.data)
            ints += [shape.align // 2, shape.stride - 1]
            break
        else:
            (floats if arg.kind == "f32" else ints).append(arg.value)
    entry = ctypes.CDLL(str(library)).launch
    stuck = entry(
        launch_plan.grid, (ctypes.c_void_p * max(1, len(pointers)))(*pointers), (_Map * max(1, len(maps)))(*maps),
        (ctypes.c_int * max(1, len(ints)))(*ints), (ctypes.c_float * max(1, len(floats)))(*floats),
    )  # fmt: skip
    assert bool(stuck) == hangs, "every thread waits for another" if stuck else "the launch ends"
