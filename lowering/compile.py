"""CUDA C++ text to a cubin, in a child process with limits, through the cubin cache.

Works without a GPU or a driver. Every fault is a `CakeError` whose diagnostic points at the `.cake` line that the
generated text's `#line` directives name; PTX-level messages are led back through the `.loc` lines of the PTX.

Rules raised: `lowering/compile-failed`, `compile-timeout`, `compiler-missing`, `compiler-killed`, `source-refused`.
Found as warnings on success: `lowering/wgmma-serialized`, `lowering/setmaxnreg-ignored`.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cake_ir.diagnostics import NOWHERE, CakeError, Diagnostic, Related, Span, error
from lowering import nvrtc_child
from lowering.cache import CubinCache, cache_key

DEFAULT_OPTIONS = ("--std=c++17", "-default-device", "-lineinfo", "--ptxas-options=-v")
DEFAULT_TIMEOUT_S = 120.0
INSTALL_HINT = "pip install 'cake-mcp[cuda]'"
LOG_LIMIT = 64 << 10

_CHILD = Path(nvrtc_child.__file__)
# The child's debug information records its working directory; a fixed one keeps cubins equal from run to run and from
# machine to machine. The source cannot name files, so it need not be empty.
_CHILD_CWD = "/"

_NVRTC_MESSAGE = re.compile(
    r"^(?P<file>[\w.\-]+)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.*)$"
)
_PTXAS_MESSAGE = re.compile(
    r"^ptxas .*?, line (?P<line>\d+); (?P<severity>error|warning)\s*: (?P<text>.*)$", re.MULTILINE
)
_PTXAS_FATAL = re.compile(r"^ptxas (?:fatal|error)\s*: (?P<text>.*)$", re.MULTILINE)
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+\d+(?:.*inlined_at\s+(\d+)\s+(\d+))?")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_CONTROL = re.compile(r"[^\t\n -~]")


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel. `seconds` is NVRTC's own time (of the first compile when `cached`)."""

    cubin: bytes
    ptx: str
    log: str
    nvrtc_version: str
    seconds: float
    cached: bool
    arch: str
    options: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """Hex digest of the cubin."""
        return hashlib.sha256(self.cubin).hexdigest()

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What ptxas accepted but did not do as written."""
        return _log_warnings(self.log, self.ptx)


def compile_cuda(
    source: str,
    arch: str,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    cache_dir: str | os.PathLike[str] | None = None,
    options: tuple[str, ...] = DEFAULT_OPTIONS,
) -> Compiled:
    """Compile `source` for exactly `arch` (for example sm_90a); raises CakeError. `cache_dir=None` compiles afresh."""
    job = _Job(source, arch, options, timeout_s, cache_dir)
    hit = job.lookup()
    if hit is not None:
        return hit
    process = subprocess.Popen(
        child_command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=_CHILD_CWD,
        env=child_environment(),
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(job.request, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise _timeout(timeout_s) from None
    finally:
        if process.poll() is None:
            kill_group(process.pid)
            process.communicate()
    return job.finish(process.returncode, stdout, stderr)


async def compile_cuda_async(
    source: str,
    arch: str,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    cache_dir: str | os.PathLike[str] | None = None,
    options: tuple[str, ...] = DEFAULT_OPTIONS,
) -> Compiled:
    """`compile_cuda` for an anyio event loop; cancelling the caller kills the child."""
    import anyio
    import anyio.abc

    job = _Job(source, arch, options, timeout_s, cache_dir)
    hit = await anyio.to_thread.run_sync(job.lookup)
    if hit is not None:
        return hit
    process = await anyio.open_process(child_command(), cwd=_CHILD_CWD, env=child_environment(), start_new_session=True)
    streams: dict[str, bytes] = {}

    async def drain(name: str, stream: anyio.abc.ByteReceiveStream) -> None:
        chunks = [chunk async for chunk in stream]
        streams[name] = b"".join(chunks)

    assert process.stdin and process.stdout and process.stderr
    try:
        with anyio.fail_after(timeout_s):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(drain, "out", process.stdout)
                tasks.start_soon(drain, "err", process.stderr)
                with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                    await process.stdin.send(job.request)
                await process.stdin.aclose()
            await process.wait()
    except TimeoutError:
        raise _timeout(timeout_s) from None
    finally:
        if process.returncode is None:
            kill_group(process.pid)
        with anyio.CancelScope(shield=True):
            await process.aclose()
    assert process.returncode is not None
    return await anyio.to_thread.run_sync(job.finish, process.returncode, streams["out"], streams["err"])


def child_command() -> list[str]:
    """-P keeps lowering/ itself off sys.path, where its module names could shadow the standard library."""
    return [sys.executable, "-P", "-s", str(_CHILD)]


def child_environment() -> dict[str, str]:
    """The least the child needs to find Python packages and shared libraries; no caller secrets."""
    keep = ("PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "TMPDIR")
    env = {name: os.environ[name] for name in keep if name in os.environ}
    env["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry and os.path.isdir(entry))
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    return env


def kill_group(pid: int) -> None:
    """SIGKILL the process group led by `pid`."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


@functools.cache
def compiler_id() -> str:
    """Names the compiler for cache keys without loading it: the wheel's version, else what a child reports."""
    for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return f"nvrtc {compiler_versions()['nvrtc']}"


def compiler_versions() -> dict[str, str]:
    """`{"nvrtc", "bindings"}` as loaded by a child; raises CakeError `lowering/compiler-missing`."""
    done = subprocess.run(
        child_command(),
        input=b'{"version": true}',
        capture_output=True,
        cwd=_CHILD_CWD,
        env=child_environment(),
        start_new_session=True,
        timeout=60,
        check=False,
    )
    reply = _parse_reply(done.returncode, done.stdout, done.stderr)
    if not reply["ok"]:
        raise _missing(reply["message"])
    return {"nvrtc": reply["nvrtc"], "bindings": reply["bindings"]}


class _Job:
    """One compile: its request, its cache entry, and what to make of the child's end."""

    def __init__(
        self,
        source: str,
        arch: str,
        options: tuple[str, ...],
        timeout_s: float,
        cache_dir: str | os.PathLike[str] | None,
    ) -> None:
        reason = nvrtc_child.refuse_reason(source)
        if not nvrtc_child.ARCH.match(arch):
            reason = f"{arch!r} is not an architecture name"
        if reason:
            raise _refused(reason)
        self._arch, self._options, self._source = arch, options, source
        self._cache = CubinCache(cache_dir)
        self._key: str | None = None
        limits = {"memory_bytes": nvrtc_child.DEFAULT_MEMORY, "cpu_s": int(timeout_s) + 5}
        request = {"source": source, "arch": arch, "options": list(options), "limits": limits}
        self.request = json.dumps(request).encode()

    def lookup(self) -> Compiled | None:
        self._key = cache_key(self._source, self._arch, self._options, compiler_id())
        body = self._cache.get(self._key)
        if body is None or any(k not in body for k in ("cubin", "ptx", "log", "nvrtc", "seconds")):
            return None
        return self._compiled(body, cached=True)

    def finish(self, returncode: int, stdout: bytes, stderr: bytes) -> Compiled:
        reply = _parse_reply(returncode, stdout, stderr)
        if not reply["ok"]:
            _raise_for(reply)
        body = {k: reply[k] for k in ("cubin", "ptx", "nvrtc", "seconds")} | {"log": clean_log(reply["log"])}
        assert self._key is not None
        self._cache.put(self._key, body)
        return self._compiled(body, cached=False)

    def _compiled(self, body: dict[str, Any], *, cached: bool) -> Compiled:
        return Compiled(
            cubin=base64.b64decode(body["cubin"]),
            ptx=body["ptx"],
            log=body["log"],
            nvrtc_version=body["nvrtc"],
            seconds=float(body["seconds"]),
            cached=cached,
            arch=self._arch,
            options=self._options,
            notes=tuple(self._cache.notes),
        )


def clean_log(log: str) -> str:
    """Printable ASCII only, of bounded length: logs are shown to people and to language models."""
    text = _CONTROL.sub("?", log.replace("\r", ""))
    return text if len(text) <= LOG_LIMIT else text[:LOG_LIMIT] + "\n[log cut]\n"


def map_ptx_line(ptx: str, line: int) -> Span:
    """The `.cake` position of a 1-based PTX line, through the last `.loc` at or above it; NOWHERE if there is none."""
    files = dict(_FILE.findall(ptx))
    for text in reversed(ptx.splitlines()[:line]):
        found = _LOC.match(text)
        if not found:
            if text.startswith("{"):  # the body starts here; a .loc above belongs to another function
                return NOWHERE
            continue
        file, at, outer_file, outer_at = found.groups()
        if files.get(file, "").endswith(".cake"):
            return _line_span(int(at))
        # A helper's own text has no .cake line, but the place it was inlined at does.
        if outer_file and files.get(outer_file, "").endswith(".cake"):
            return _line_span(int(outer_at))
    return NOWHERE


def failure(log: str, ptx: str) -> Diagnostic:
    """The diagnostic of a refused program: first message primary, up to seven more as related places."""
    log = clean_log(log)
    found: list[tuple[Span, str]] = []
    for line in log.splitlines():
        message = _NVRTC_MESSAGE.match(line)
        if message:
            inside = message["file"].endswith(".cake")
            where = "" if inside else f" (line {message['line']} of the generated CUDA)"
            found.append((_line_span(int(message["line"])) if inside else NOWHERE, message["text"] + where))
    for message in _PTXAS_MESSAGE.finditer(log):
        if message["severity"] == "error":
            found.append((map_ptx_line(ptx, int(message["line"])), "ptxas: " + message["text"]))
    if not found:
        found = [(NOWHERE, "ptxas: " + m["text"]) for m in _PTXAS_FATAL.finditer(log)]
    if not found:
        found = [(NOWHERE, log.strip().splitlines()[0] if log.strip() else "the compiler gave no message")]
    (span, text), rest = found[0], found[1:8]
    return error(
        "lowering/compile-failed",
        "hardware",
        f"the generated CUDA was refused: {text}",
        span,
        contract="A program that passes verification lowers to CUDA that NVRTC and ptxas accept for its target.",
        related=tuple(Related(span=s, message=t) for s, t in rest),
    )


def _log_warnings(log: str, ptx: str) -> tuple[Diagnostic, ...]:
    known = (
        ("C7506", "lowering/setmaxnreg-ignored", "ptxas ignored setmaxnreg because of a call"),
        ("C7508", "lowering/setmaxnreg-ignored", "ptxas ignored setmaxnreg: roles keep the launch register count"),
        ("C7517", "lowering/wgmma-serialized", "ptxas inserted a wait between wgmmas, which serialises them"),
        ("C7518", "lowering/wgmma-serialized", "ptxas inserted a wait between wgmmas, which serialises them"),
        ("C7519", "lowering/wgmma-serialized", "ptxas inserted an arrive between wgmmas, which serialises them"),
        ("C7510", "lowering/wgmma-serialized", "ptxas serialised the wgmmas of this function"),
        ("C7511", "lowering/wgmma-serialized", "ptxas serialised the wgmmas of this function for want of registers"),
        (
            "C7515",
            "lowering/wgmma-serialized",
            "ptxas serialised the wgmmas: accumulators change between the first product and its wait, or only on one path",
        ),
    )
    out: list[Diagnostic] = []
    for line in log.splitlines():
        for code, rule, text in known:
            if f"({code})" in line:
                at = re.search(r"line (\d+)", line)
                span = map_ptx_line(ptx, int(at.group(1))) if at else NOWHERE
                out.append(
                    Diagnostic(
                        rule=rule, family="performance", severity="warning", message=f"{text} ({code})", span=span
                    )
                )
    return tuple(dict.fromkeys(out))


def _parse_reply(returncode: int, stdout: bytes, stderr: bytes) -> dict[str, Any]:
    if returncode == 0:
        with contextlib.suppress(ValueError):
            reply = json.loads(stdout)
            if isinstance(reply, dict) and "ok" in reply:
                # ptxas reports its own lack of memory on stderr and leaves the log empty.
                if not reply["ok"] and b"Memory allocation failure" in stderr:
                    reply["kind"] = "memory"
                return reply
    if returncode == -signal.SIGXCPU:
        raise _timeout(None)
    tail = clean_log(stderr.decode(errors="replace")).strip().splitlines()[-1:]
    if returncode < 0:
        name = signal.Signals(-returncode).name if -returncode in set(signal.Signals) else str(-returncode)
        how = f"was killed by {name}" + (" (out of memory?)" if returncode == -signal.SIGKILL else "")
    else:
        how = f"ended with status {returncode}" + (f": {tail[0]}" if tail else "")
    raise _killed(f"the compiler process {how}")


def _raise_for(reply: dict[str, Any]) -> NoReturn:
    kind, message = reply.get("kind"), str(reply.get("message", ""))
    if kind == "compile":
        raise CakeError(failure(reply.get("log", ""), reply.get("ptx", "")))
    if kind == "missing":
        raise _missing(message)
    if kind == "refused":
        raise _refused(message)
    if kind == "memory":
        raise _killed("the compiler ran out of its memory limit")
    raise _killed(f"the compiler failed internally: {clean_log(message)}")


def _line_span(line: int) -> Span:
    return Span(line=line, col=1, end_line=line, end_col=1)


def _timeout(timeout_s: float | None) -> CakeError:
    limit = "its processor time limit" if timeout_s is None else f"{timeout_s:g} s"
    return CakeError(
        error(
            "lowering/compile-timeout",
            "hardware",
            f"compiling took longer than {limit} and was stopped",
            contract="Compile time grows faster than program size; less unrolling makes the program smaller.",
        )
    )


def _missing(detail: str) -> CakeError:
    return CakeError(
        error(
            "lowering/compiler-missing",
            "hardware",
            f"NVRTC is not installed ({clean_log(detail)[:200]}); run: {INSTALL_HINT}",
            contract="Compiling needs the NVRTC and CUDA bindings wheels; it needs no GPU.",
        )
    )


def _killed(message: str) -> CakeError:
    return CakeError(
        error(
            "lowering/compiler-killed",
            "hardware",
            message,
            contract="A compile runs in a child process with memory, processor and file limits.",
        )
    )


def _refused(reason: str) -> CakeError:
    return CakeError(
        error(
            "lowering/source-refused",
            "hardware",
            f"the CUDA text was not compiled: {clean_log(reason)}",
            contract="Generated CUDA holds no preprocessor directive that could read a file.",
        )
    )
