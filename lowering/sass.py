"""Machine code: disassemble a cubin, count its instructions, check that what the IR promised is there.

Uses `nvdisasm` from the CUDA wheels (argument list, no shell; no GPU needed). The mnemonic table says how an
instruction form must show in SASS. The rows were checked by compiling probes with NVRTC 13.5 (see
tests/lowering/test_toolchain_sass.py, which compiles them again).

Not checked: operands, and that a promised instruction is reached at run time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from cake_ir.diagnostics import CakeError, Diagnostic, error
from lowering.cache import CubinCache, cache_key
from lowering.plan import Promise

TIMEOUT_S = 60.0
# Code only, with the lines that instructions and their inlined callers come from. The analysis that is left out labels branches through
# the GPU's branch stack, which emission does not write, and takes a quarter of the time.
_OPTIONS = ("-c", "-gi", "-ndf")

_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<offset>[0-9a-f]{4,})\*/\s+[{(]?\s*(?:@(?P<predicate>!?U?P[T0-9]+)\s+)?"
    r"(?P<mnemonic>[A-Z][A-Za-z0-9_.:]*)\s*(?P<operands>[^;]*);"
)
_FUNCTION = re.compile(r"^\.text\.(?P<name>[A-Za-z_$][\w$]*):")
_SOURCE = re.compile(r'^\s*//## File "(?P<file>[^"]*)", line (?P<line>\d+)(?P<inlined> inlined at)?')
_INLINED = re.compile(r'inlined at "(?P<file>[^"]*)", line (?P<line>\d+)')
_HOST_PATH = re.compile(r'"(?:/[^"/\n]+)*/([^"/\n]+)"')


@dataclass(frozen=True)
class Instruction:
    """One SASS instruction; `line` is the `.cake` line it came from (0 when unknown), `offset` is in bytes."""

    function: str
    offset: int
    predicate: str
    mnemonic: str
    operands: str
    line: int = 0

    @property
    def opcode(self) -> str:
        """The mnemonic up to its first dot."""
        return self.mnemonic.split(".", 1)[0]


@dataclass(frozen=True)
class Sass:
    """A disassembly and its instructions in program order (padding NOPs after the last EXIT or BRA included)."""

    text: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def counts(self) -> Counter[str]:
        """Instructions per full mnemonic."""
        return Counter(i.mnemonic for i in self.instructions)

    def count(self, pattern: str) -> int:
        """How many instructions' mnemonics match the regular expression as a whole."""
        compiled = re.compile(pattern)
        return sum(n for mnemonic, n in self.counts.items() if compiled.fullmatch(mnemonic))

    def lines(self, pattern: str) -> tuple[int, ...]:
        """The `.cake` lines of the matching instructions, in program order."""
        compiled = re.compile(pattern)
        return tuple(i.line for i in self.instructions if i.line and compiled.fullmatch(i.mnemonic))


@cache
def find_nvdisasm() -> Path:
    """The disassembler of the wheels; raises CakeError `lowering/disassembler-missing`."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        found = find_nvidia_binary_utility("nvdisasm")
    except (ImportError, RuntimeError, OSError):
        found = None
    if found is None:
        raise CakeError(
            error(
                "lowering/disassembler-missing",
                "hardware",
                "nvdisasm is not installed; run: pip install 'cake-mcp[cuda]'",
                contract="Reading machine code back needs the nvdisasm wheel; it needs no GPU.",
            )
        )
    return Path(found)


def disassemble(cubin: bytes, *, cache_dir: str | os.PathLike[str] | None = None) -> str:
    """SASS text of `cubin` with source-line comments; raises CakeError when the tool is missing or refuses.

    With `cache_dir` the text is kept beside the cubins: disassembling takes longer than a cached compile.
    """
    tool = find_nvdisasm()
    store = CubinCache(cache_dir)
    key = cache_key(hashlib.sha256(cubin).hexdigest(), "sass", _OPTIONS, _version(tool))
    kept = store.get(key)
    if kept is not None and isinstance(kept.get("sass"), str):
        return kept["sass"]
    text = _disassemble(tool, cubin)
    store.put(key, {"sass": text})
    return text


def _version(tool: Path) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("nvidia-cuda-nvdisasm")
    info = tool.stat()
    return f"{info.st_size} {info.st_mtime_ns}"


def _disassemble(tool: Path, cubin: bytes) -> str:
    with tempfile.TemporaryDirectory(prefix="cake-sass-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        try:
            done = subprocess.run(
                [str(tool), *_OPTIONS, str(path)],
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=TIMEOUT_S,
                cwd=folder,
                env={k: os.environ[k] for k in ("PATH", "LD_LIBRARY_PATH") if k in os.environ},
                check=False,
            )
        except (subprocess.TimeoutExpired, OSError) as exc:
            raise _failed(type(exc).__name__) from None
    if done.returncode != 0:
        # The message names our temporary file, which tells the reader nothing.
        raise _failed(done.stderr.replace(str(path), "the cubin").strip()[:300])
    return _HOST_PATH.sub(r'"\1"', done.stdout)


def parse_sass(text: str) -> Sass:
    """Split nvdisasm text into instructions."""
    found: list[Instruction] = []
    function, line, fresh = "", 0, False
    for raw in text.splitlines():
        instruction = _INSTRUCTION.match(raw)
        if instruction:
            found.append(
                Instruction(
                    function=function,
                    offset=int(instruction["offset"], 16),
                    predicate=instruction["predicate"] or "",
                    mnemonic=instruction["mnemonic"],
                    operands=instruction["operands"].strip(),
                    line=line,
                )
            )
            fresh = False
            continue
        header = _FUNCTION.match(raw)
        if header:
            function, line = header["name"], 0
            continue
        source = _SOURCE.match(raw)
        if source:
            # A run of comments lists the inline stack from the inside out; the first .cake position is the op.
            at = _cake_line(raw)
            if not fresh:
                line, fresh = at, True
            elif line == 0:
                line = at
    return Sass(text, tuple(found))


def _cake_line(comment: str) -> int:
    for pattern in (_SOURCE, _INLINED):
        found = pattern.search(comment)
        if found and found["file"].endswith(".cake"):
            return int(found["line"])
    return 0


def histogram(sass: Sass) -> dict[str, int]:
    """Instructions per opcode (mnemonic up to its first dot), most frequent first, NOP padding left out."""
    counts = Counter(i.opcode for i in sass.instructions if i.opcode != "NOP")
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def check_promises(sass: Sass | str, promised: Iterable[Promise]) -> list[Diagnostic]:
    """One `lowering/promise-missing` error per promise whose instruction is absent or too rare."""
    parsed = parse_sass(sass) if isinstance(sass, str) else sass
    out: list[Diagnostic] = []
    for promise in promised:
        count = parsed.count(promise.mnemonic)
        if count >= promise.min_count:
            continue
        family = promise.mnemonic.split("\\", 1)[0].split(".", 1)[0]
        near = sorted(m for m in parsed.counts if family and m.startswith(family))
        hint = f"; found instead: {', '.join(near[:4])}" if near else ""
        out.append(
            error(
                "lowering/promise-missing",
                "hardware",
                f"{promise.op} promises at least {promise.min_count} instruction(s) matching {promise.mnemonic}, "
                f"the machine code has {count}{hint}",
                promise.span,
                contract="Each hardware op of the program is in the machine code as the instruction it stands for.",
            )
        )
    return out


# ---- how instruction forms show in SASS --------------------------------------------------------------------------

_WGMMA_K = {"bf16": 16, "f16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "i8": 32, "u8": 32}
_TAG = {
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "tf32": "TF32",
    "e4m3": "E4M3",
    "e5m2": "E5M2",
    "i8": "S8",
    "u8": "U8",
}

AMPERE = ("sm_80", "sm_86", "sm_87", "sm_89")
HOPPER = ("sm_90a",)
BLACKWELL = ("sm_100a", "sm_103a")
CONSUMER = ("sm_120a",)
TMA_ARCHS = HOPPER + BLACKWELL + CONSUMER
ALL_ARCHS = AMPERE + TMA_ARCHS

MNEMONICS: dict[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    # form: ((architectures, regex of the whole mnemonic), ...)
    "cp.async": ((ALL_ARCHS, r"LDGSTS\..*"),),
    "cp.async.cg": ((ALL_ARCHS, r"LDGSTS\.E\.BYPASS\..*"),),
    "cp.async.commit_group": ((ALL_ARCHS, r"LDGDEPBAR"),),
    "cp.async.wait_group": ((ALL_ARCHS, r"DEPBAR\.LE"),),
    "cp.async.mbarrier.arrive": ((ALL_ARCHS, r"ARRIVES\.LDGSTSBAR\..*"),),
    "ldmatrix": ((ALL_ARCHS, r"LDSM\.16\.M88(\.[24])?"),),
    "ldmatrix.trans": ((ALL_ARCHS, r"LDSM\.16\.MT88(\.[24])?"),),
    "stmatrix": ((TMA_ARCHS, r"STSM\.16\.M88(\.[24])?"),),
    "stmatrix.trans": ((TMA_ARCHS, r"STSM\.16\.MT88(\.[24])?"),),
    "bar.sync": ((ALL_ARCHS, r"BAR\.SYNC(\..*)?"),),
    "bar.arrive": ((ALL_ARCHS, r"BAR\.ARV(\..*)?"),),
    "mbarrier.arrive": ((AMPERE, r"ATOMS\.ARRIVE\.64"), (TMA_ARCHS, r"SYNCS\.ARRIVE\..*")),
    "mbarrier.try_wait": ((TMA_ARCHS, r"SYNCS\.PHASECHK\.TRANS64\.TRYWAIT"),),
    "elect.sync": ((TMA_ARCHS, r"ELECT"),),
    "fence.proxy.async": ((TMA_ARCHS, r"FENCE\.VIEW\.ASYNC\..*"),),
    "setmaxnreg.inc": ((TMA_ARCHS, r"USETMAXREG\.TRY_ALLOC\..*"),),
    "setmaxnreg.dec": ((TMA_ARCHS, r"USETMAXREG\.DEALLOC\..*"),),
    "cluster.arrive": ((TMA_ARCHS, r"UCGABAR_ARV"),),
    "cluster.wait": ((TMA_ARCHS, r"UCGABAR_WAIT"),),
    "griddepcontrol.wait": ((TMA_ARCHS, r"ACQBULK"),),
    "griddepcontrol.launch_dependents": ((TMA_ARCHS, r"PREEXIT"),),
    "tma.load": ((TMA_ARCHS, r"UTMALDG\.[1-5]D(\..*)?"),),
    # sm_120a accepts multicast and emulates it with a call.
    "tma.load.multicast": ((HOPPER + BLACKWELL, r"UTMALDG\.[1-5]D\.MULTICAST(\..*)?"),),
    "tma.store": ((TMA_ARCHS, r"UTMASTG\.[1-5]D"),),
    "tma.reduce": ((TMA_ARCHS, r"UTMAREDG\.[1-5]D\..*"),),
    "tma.prefetch": ((TMA_ARCHS, r"UTMAPF\.L2\.[1-5]D"),),
    "tensormap.prefetch": ((TMA_ARCHS, r"UTMACCTL\.PF"),),
    "bulk.commit_group": ((TMA_ARCHS, r"UTMACMDFLUSH"),),
    "bulk.load": ((TMA_ARCHS, r"UBLKCP\.S\.G(\..*)?"),),
    "bulk.store": ((TMA_ARCHS, r"UBLKCP\.G\.S(\..*)?"),),
    "bulk.peer": ((TMA_ARCHS, r"UBLKCP\.S\.S(\..*)?"),),
    "bulk.reduce": ((TMA_ARCHS, r"UBLKRED\.G\.S\..*"),),
    "st.async": ((TMA_ARCHS, r"STAS(\..*)?"),),
    "wgmma.fence": ((HOPPER, r"WARPGROUP\.ARRIVE"),),
    "wgmma.wait_group": ((HOPPER, r"WARPGROUP\.DEPBAR\.LE"),),
    "tcgen05.mma.f16": ((BLACKWELL, r"UTCHMMA(\..*)?"),),
    "tcgen05.mma.tf32": ((BLACKWELL, r"UTCHMMA(\..*)?"),),
    "tcgen05.mma.f8f6f4": ((BLACKWELL, r"UTCQMMA(\..*)?"),),
    "tcgen05.mma.mxf8f6f4": ((BLACKWELL, r"UTCQMMA(\..*)?"),),
    "tcgen05.mma.mxf4nvf4": ((BLACKWELL, r"UTCOMMA(\..*)?"),),
    "tcgen05.mma.i8": ((("sm_100a",), r"UTCIMMA(\..*)?"),),
    "tcgen05.cp": ((BLACKWELL, r"UTCCP\..*"),),
    "tcgen05.ld": ((BLACKWELL, r"LDTM(\..*)?"),),
    "tcgen05.st": ((BLACKWELL, r"STTM(\..*)?"),),
    "tcgen05.commit": ((BLACKWELL, r"UTCBAR(\..*)?"),),
    "tcgen05.commit.multicast": ((BLACKWELL, r"UTCBAR(\.2CTA)?\.MULTICAST(\..*)?"),),
    "tcgen05.alloc": ((BLACKWELL, r"UTCATOMSWS(\.2CTA)?\.FIND_AND_SET\..*"),),
    "tcgen05.dealloc": ((BLACKWELL, r"UTCATOMSWS(\.2CTA)?\.AND"),),
}  # fmt: skip


def mnemonic(form: str, arch: str) -> str:
    """The regex that `form` must match on `arch`; KeyError when the form does not exist there."""
    for archs, pattern in MNEMONICS[form]:
        if arch in archs:
            return pattern
    raise KeyError(f"{form} does not exist on {arch}")


def wgmma_mnemonic(n: int, a: str, b: str, d: str) -> str:
    """Regex of m64 n `n` wgmma; `a`, `b`, `d` are dtypes of the operands and the accumulator. sm_90a only."""
    k = _WGMMA_K[a]
    shape = rf"64x{n}x{k}"
    if a in ("i8", "u8"):
        return rf"IGMMA\.{shape}\.{_TAG[a]}\.{_TAG[b]}(\..*)?"
    if a in ("e4m3", "e5m2"):
        return rf"QGMMA\.{shape}\.{_TAG[d]}\.{_TAG[a]}\.{_TAG[b]}(\..*)?"
    # f16 operands are the default and show only the accumulator type.
    suffix = "" if a == "f16" else rf"\.{_TAG[a]}"
    return rf"HGMMA\.{shape}\.{_TAG[d]}{suffix}"


def mma_mnemonic(arch: str, k: int, a: str, b: str, d: str) -> str:
    """Regex of one m16n8k`k` mma.sync. fp8 exists in hardware on sm_89 and sm_120a only.

    On sm_90a, sm_100a and sm_103a ptxas turns each fp8 m16n8k32 into unpacks to f16 and HMMA.16816; the regex is then
    that of the emulation, so that a promise states what really runs.
    """
    if a in ("i8", "u8"):
        return rf"IMMA\.168{k}\.{_TAG[a]}\.{_TAG[b]}(\..*)?"
    if a in ("e4m3", "e5m2"):
        if arch in ("sm_89", *CONSUMER):
            return rf"QMMA\.168{k}\.{_TAG[d]}\.{_TAG[a]}\.{_TAG[b]}"
        return rf"HMMA\.16816\.{_TAG[d]}"
    suffix = "" if a == "f16" else rf"\.{_TAG[a]}"
    return rf"HMMA\.168{k}\.{_TAG[d]}{suffix}"


def _failed(detail: str) -> CakeError:
    return CakeError(
        error(
            "lowering/disassembly-failed",
            "hardware",
            f"nvdisasm could not read the cubin: {detail or 'no message'}",
            contract="A compiled kernel can be disassembled.",
        )
    )
