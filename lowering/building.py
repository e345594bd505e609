"""Emitted CUDA to a finished build: cubin, resources, occupancy, machine code and whether it keeps its promises."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Protocol

from cake_ir import targets
from cake_ir.diagnostics import Diagnostic
from lowering.compile import DEFAULT_OPTIONS, DEFAULT_TIMEOUT_S, Compiled, compile_cuda, compile_cuda_async
from lowering.plan import Manifest, Promise
from lowering.resources import Limits, Occupancy, Resources, findings, occupancy, read_resources
from lowering.sass import Sass, check_promises, disassemble, histogram, parse_sass


class EmittedLike(Protocol):
    """What a build needs of an emitted kernel."""

    @property
    def cuda(self) -> str: ...
    @property
    def symbol(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def manifest(self) -> Manifest: ...
    @property
    def promised(self) -> tuple[Promise, ...]: ...


@dataclass(frozen=True)
class Build:
    """A compiled kernel and its report. `diagnostics` holds broken promises (errors), spills and ptxas warnings."""

    symbol: str
    arch: str
    compiled: Compiled
    resources: Resources
    occupancy: Occupancy
    sass: Sass
    diagnostics: tuple[Diagnostic, ...]

    @property
    def cubin(self) -> bytes:
        """The ELF image to load."""
        return self.compiled.cubin

    @property
    def ptx(self) -> str:
        """The PTX text it came from."""
        return self.compiled.ptx

    @property
    def log(self) -> str:
        """What the compiler said."""
        return self.compiled.log

    @property
    def sha256(self) -> str:
        """Hex digest of the cubin."""
        return self.compiled.sha256

    @property
    def ok(self) -> bool:
        """Whether no diagnostic is an error."""
        return all(d.severity != "error" for d in self.diagnostics)

    def report(self) -> dict[str, Any]:
        """Numbers for people and tools, as plain JSON (no binary, no long text)."""
        return {
            "symbol": self.symbol,
            "arch": self.arch,
            "cubin_sha256": self.sha256,
            "cubin_bytes": len(self.cubin),
            "nvrtc": self.compiled.nvrtc_version,
            "compile_s": round(self.compiled.seconds, 3),
            "cached": self.compiled.cached,
            "resources": self.resources.to_json(),
            "blocks_per_sm": self.occupancy.blocks_per_sm,
            "limited_by": self.occupancy.limited_by,
            "instructions": dict(list(histogram(self.sass).items())[:24]),
            "notes": list(self.compiled.notes),
        }


def build(
    emitted: EmittedLike,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    options: tuple[str, ...] = DEFAULT_OPTIONS,
) -> Build:
    """Compile and inspect; raises CakeError when the kernel cannot be compiled or read back."""
    compiled = compile_cuda(emitted.cuda, emitted.arch, timeout_s=timeout_s, cache_dir=cache_dir, options=options)
    return inspect(emitted, compiled, cache_dir)


async def build_async(
    emitted: EmittedLike,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    options: tuple[str, ...] = DEFAULT_OPTIONS,
) -> Build:
    """`build` for an anyio event loop; cancelling kills the compiler."""
    import anyio

    compiled = await compile_cuda_async(
        emitted.cuda, emitted.arch, timeout_s=timeout_s, cache_dir=cache_dir, options=options
    )
    return await anyio.to_thread.run_sync(inspect, emitted, compiled, cache_dir)


def inspect(emitted: EmittedLike, compiled: Compiled, cache_dir: str | os.PathLike[str] | None = None) -> Build:
    """Report on a compiled kernel: resources, occupancy, machine code, promises."""
    manifest = emitted.manifest
    sass = parse_sass(disassemble(compiled.cubin, cache_dir=cache_dir))
    used = read_resources(compiled.log, compiled.cubin, emitted.symbol, manifest.smem_bytes)
    occupied = occupancy(used, manifest.threads, Limits.of(targets.get(emitted.arch)))
    found = [
        *check_promises(sass, emitted.promised),
        *findings(used, occupied, manifest.threads),
        *compiled.warnings,
    ]
    return Build(emitted.symbol, emitted.arch, compiled, used, occupied, sass, tuple(found))
