"""Ask NVRTC, and the assembler inside it, what they accept for a target. Nothing is run and no GPU is needed."""

from __future__ import annotations

import pytest


def compiles(source: str, target: str, *options: str) -> tuple[bool, str]:
    """Whether CUDA source compiles to a cubin for `target`, and the log. Skips the test without NVRTC."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as exc:  # the bindings load the library on the first call
        pytest.skip(f"NVRTC cannot be loaded: {type(exc).__name__}")
    flags = [f"--gpu-architecture={target}".encode(), *(o.encode() for o in options)]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"probe.cu", 0, [], [])
    result = nvrtc.nvrtcCompileProgram(program, len(flags), flags)[0]
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    # A mutable buffer: NVRTC writes into what it is given, and one-character bytes objects are shared.
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    return int(result) == 0, log.rstrip(b"\0").decode(errors="replace")[:2000]


def assemble(bodies: list[str], target: str) -> tuple[bool, str]:
    """Whether a kernel made of these PTX blocks assembles for `target`, and the log."""
    blocks = "\n".join(f'  asm volatile("{{{body}}}" ::: "memory");' for body in bodies)
    return compiles(f'extern "C" __global__ void probe() {{\n{blocks}\n}}\n', target)
