"""Ask the assembler inside NVRTC whether it accepts PTX for a target. Nothing is run and no GPU is needed."""

from __future__ import annotations

import pytest


def assemble(bodies: list[str], target: str) -> tuple[bool, str]:
    """Whether a kernel made of these PTX blocks assembles for `target`, and the log. Skips the test without NVRTC."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except Exception as exc:  # the bindings raise their own loader error types
        pytest.skip(f"NVRTC cannot be loaded: {type(exc).__name__}")
    blocks = "\n".join(f'  asm volatile("{{{body}}}" ::: "memory");' for body in bodies)
    source = f'extern "C" __global__ void probe() {{\n{blocks}\n}}\n'
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"probe.cu", 0, [], [])
    result = nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={target}".encode()])[0]
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    return int(result) == 0, log.decode(errors="replace")[:2000]
