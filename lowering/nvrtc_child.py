"""The NVRTC child: one compile per process, inside limits, speaking JSON on stdin and stdout.

Request: `{"source", "arch", "options": [...], "limits": {"memory_bytes", "cpu_s"}}`; `{"version": true}` asks for
versions. Reply: `{"ok", "kind", "message", "log", "ptx", "cubin" (base64), "nvrtc", "bindings", "seconds"}`, with
`kind` one of `ok compile missing refused memory internal`.

NVRTC cannot be interrupted, its compile time is super-linear, and it opens any file that an `#include` names. So it
lives in a process of its own that the parent can kill, and the source is refused unless the preprocessor has nothing to
do but `#line` and `#pragma unroll`. This file imports nothing of ours, so that it starts fast and may run by path.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import json
import os
import re
import resource
import signal
import sys
import time
from typing import Any

MAX_SOURCE_BYTES = 8 << 20
DEFAULT_MEMORY = 6 << 30
FILE_BYTES = 64 << 20
OPEN_FILES = 64

ARCH = re.compile(r"sm_[0-9]{2,3}[af]?\Z")
_DIRECTIVE = re.compile(
    r'#(line [0-9]{1,9}( "[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}\.cake")?|pragma unroll( [0-9]{1,6})?)\Z'
)
# Only options that neither read nor write a file and do not change the language's meaning of '#'.
OPTION = re.compile(
    r"(--std=c\+\+(14|17)|-lineinfo|--ptxas-options=(-v|--warn-on-spills|-O[0-3]|--register-usage-level=[0-9]{1,2})"
    r"|--fmad=(true|false)|--ftz=(true|false)|--prec-div=(true|false)|--prec-sqrt=(true|false)|--use_fast_math"
    r"|--maxrregcount=[0-9]{1,3}|--device-as-default-execution-space|-default-device|--extra-device-vectorization"
    r"|--diag-suppress=[0-9,]{1,64}|-w|--device-int128|--split-compile=1)\Z"
)


def refuse_reason(source: str) -> str | None:
    """Why NVRTC must not see `source`, or None. The rule is deliberately coarse: '#' has no other use in our output.

    Other spellings of '#' (digraph, trigraph, string escapes that inline PTX would see) and `_Pragma` are refused too.
    """
    if len(source) > MAX_SOURCE_BYTES:
        return f"the source is {len(source)} bytes, over the limit of {MAX_SOURCE_BYTES}"
    if "\0" in source:
        return "the source contains a NUL byte"
    for spelling in ("%:", "??=", "_Pragma", "__has_include", "__has_embed"):
        if spelling in source:
            return f"the source contains {spelling!r}"
    escape = re.search(r'\\[^nt"\\]', source)
    if escape:
        return f"line {source.count(chr(10), 0, escape.start()) + 1}: the escape {escape.group()!r} is not allowed"
    if source.endswith("\\"):
        return "the source ends in a backslash"
    # Any line break that the preprocessor may know splits lines here too, so a '#' cannot hide behind one.
    for number, line in enumerate(re.split(r"[\n\r\v\f]", source), 1):
        if "#" in line and not _DIRECTIVE.match(line.strip(" ")):
            return f"line {number}: only '#line N \"name.cake\"' and '#pragma unroll' directives are allowed"
    return None


def limit(memory_bytes: int, cpu_s: int) -> None:
    """Bound this process and tie its life to its parent's."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    for what, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def versions() -> dict[str, str]:
    """Versions of NVRTC and of the bindings; raises ImportError or RuntimeError when either is absent."""
    bindings: Any = importlib.import_module("cuda.bindings")
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")

    status, major, minor = nvrtc.nvrtcVersion()
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"nvrtcVersion answered {status!r}")
    return {"nvrtc": f"{major}.{minor}", "bindings": bindings.__version__}


def compile_source(source: str, arch: str, options: list[str]) -> dict[str, Any]:
    """Compile; the reply without versions. Never raises for a fault of the source."""
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")

    ok = nvrtc.nvrtcResult.NVRTC_SUCCESS
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), b"generated.cu", 0, [], [])
    if status != ok:
        return {"ok": False, "kind": "internal", "message": f"nvrtcCreateProgram: {status.name}", "log": ""}
    flags = [f"--gpu-architecture={arch}".encode(), *(o.encode() for o in options)]
    started = time.monotonic()
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    seconds = time.monotonic() - started
    log = _text(nvrtc, program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    # PTX exists even when ptxas refused it, and its .loc lines then lead back to the program text.
    ptx = _text(nvrtc, program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    reply: dict[str, Any] = {"log": log, "ptx": ptx, "seconds": seconds}
    if status != ok:
        memory = status == nvrtc.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY or "catastrophic error: out of memory" in log
        return {**reply, "ok": False, "kind": "memory" if memory else "compile", "message": status.name}
    size_status, size = nvrtc.nvrtcGetCUBINSize(program)
    if size_status != ok or size == 0:
        return {**reply, "ok": False, "kind": "compile", "message": "no cubin was produced"}
    cubin = bytearray(size)
    (status,) = nvrtc.nvrtcGetCUBIN(program, cubin)
    if status != ok:
        return {**reply, "ok": False, "kind": "internal", "message": f"nvrtcGetCUBIN: {status.name}"}
    return {**reply, "ok": True, "kind": "ok", "message": "", "cubin": base64.b64encode(bytes(cubin)).decode()}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The whole reply to one request."""
    try:
        found = versions()
    except (ImportError, RuntimeError, OSError) as exc:
        return {"ok": False, "kind": "missing", "message": f"{type(exc).__name__}: {exc}", "log": ""}
    if request.get("version"):
        return {"ok": True, "kind": "ok", "message": "", **found}
    source, arch, options = request["source"], request["arch"], list(request.get("options", []))
    reason = refuse_reason(source)
    if not ARCH.match(arch):
        reason = f"arch {arch!r} is not an architecture name"
    for option in options:
        if not OPTION.match(option):
            reason = f"option {option!r} is not allowed"
    if reason:
        return {"ok": False, "kind": "refused", "message": reason, "log": "", **found}
    return {**compile_source(source, arch, options), **found}


def _text(nvrtc: Any, program: Any, size_of: Any, get: Any) -> str:
    status, size = size_of(program)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS or size <= 1:
        return ""
    data = bytearray(size)
    (status,) = get(program, data)
    return bytes(data).rstrip(b"\0").decode(errors="replace") if status == nvrtc.nvrtcResult.NVRTC_SUCCESS else ""


def main() -> int:
    """Read one request, write one reply. Whatever NVRTC prints goes to stderr, never into the reply."""
    reply_fd = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    limits = request.get("limits", {})
    limit(int(limits.get("memory_bytes", DEFAULT_MEMORY)), int(limits.get("cpu_s", 600)))
    try:
        reply = answer(request)
    except MemoryError:
        reply = {"ok": False, "kind": "memory", "message": "the compiler ran out of memory", "log": ""}
    with os.fdopen(reply_fd, "w") as out:
        json.dump(reply, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
