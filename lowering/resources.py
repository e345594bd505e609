"""What a compiled kernel uses: registers, spills, stack, shared memory, barriers; and the occupancy that follows.

Numbers come from the ptxas report in the compile log; registers and static shared memory are read from the ELF too and
must agree, because the log is text for people and its wording may change. Works without a GPU.
"""

from __future__ import annotations

import re
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cake_ir.diagnostics import NOWHERE, CakeError, Diagnostic, Span, error

if TYPE_CHECKING:
    from cake_ir.targets.table import Target

WARP = 32
WARP_ALLOCATION_GRANULARITY = 4
"""Registers are split evenly over four schedulers, so warp slots come in fours (occupancy calculator)."""

SMEM_UNIT = 128
"""Allocation unit of shared memory in bytes (compute capability 8.0 and later)."""

_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<arch>[^']+)'")
_PROPERTIES = re.compile(r"Function properties for (?P<name>\S+)")
_STACK = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
)
_USED = re.compile(r"Used (?P<registers>\d+) registers(?:, used (?P<barriers>\d+) barriers)?(?P<rest>[^\n]*)")
_SMEM = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Limits:
    """What one SM offers a kernel. Units: threads, blocks, 32-bit registers, bytes."""

    threads_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int
    register_unit: int  # registers per warp are rounded up to a multiple of this
    smem_per_sm: int
    smem_reserved: int  # bytes the system takes per resident block
    smem_per_block: int
    max_registers_per_thread: int = 255

    @staticmethod
    def of(target: Target) -> Limits:
        """The limits of a target's table."""
        return Limits(
            threads_per_sm=target.value("threads_per_sm"),
            blocks_per_sm=target.value("blocks_per_sm"),
            registers_per_sm=target.value("registers_per_sm"),
            register_unit=target.value("register_unit"),
            smem_per_sm=target.value("smem_per_sm"),
            smem_reserved=target.value("smem_reserved"),
            smem_per_block=target.value("smem_per_block"),
            max_registers_per_thread=target.value("max_registers_per_thread"),
        )


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks per SM and what bounds them: registers, smem, threads or blocks. 0 blocks: it cannot launch."""

    blocks_per_sm: int
    warps_per_sm: int
    limited_by: str
    by_registers: int
    by_smem: int
    by_threads: int


@dataclass(frozen=True)
class Resources:
    """Per-thread registers and local bytes, per-block shared memory bytes and hardware barriers of one kernel.

    `static_smem` excludes the bytes the system reserves; `dynamic_smem` is what the launch asks for.
    """

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_smem: int
    dynamic_smem: int
    barriers: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def read_resources(log: str, cubin: bytes, symbol: str, dynamic_smem: int = 0) -> Resources:
    """Resources of the entry `symbol`; raises CakeError `lowering/no-resources` if log and ELF do not tell."""
    stack = used = None
    entry = current = ""
    # ptxas prints, per entry, its name, then its properties, then what it used; helpers may come in between.
    for line in log.splitlines():
        if found := _ENTRY.search(line):
            entry = found["name"]
        elif found := _PROPERTIES.search(line):
            current = found["name"]
        elif found := _STACK.search(line):
            stack = found if current == symbol else stack
        elif found := _USED.search(line):
            used = found if entry == symbol else used
    if stack is None or used is None:
        raise _unknown(f"the compile log has no report for {symbol}")
    elf = elf_facts(cubin, symbol)
    registers = int(used["registers"])
    if elf.registers is not None and elf.registers != registers:
        raise _unknown(f"the log says {registers} registers for {symbol}, the cubin {elf.registers}")
    smem = _SMEM.search(used["rest"])
    return Resources(
        registers=registers,
        spill_store_bytes=int(stack["stores"]),
        spill_load_bytes=int(stack["loads"]),
        stack_bytes=int(stack["stack"]),
        static_smem=int(smem.group(1)) if smem else 0,
        dynamic_smem=dynamic_smem,
        barriers=int(used["barriers"] or 0),
    )


def occupancy(resources: Resources, threads: int, limits: Limits) -> Occupancy:
    """Blocks of `threads` threads that fit on one SM at once (registers, shared memory, threads, block slots)."""
    warps = -(-threads // WARP)
    per_warp = _round_up(max(resources.registers, 1) * WARP, limits.register_unit)
    warp_slots = limits.registers_per_sm // per_warp
    warp_slots -= warp_slots % WARP_ALLOCATION_GRANULARITY
    by_registers = warp_slots // warps
    asked = resources.static_smem + resources.dynamic_smem
    block_smem = _round_up(asked + limits.smem_reserved, SMEM_UNIT)
    by_smem = limits.smem_per_sm // block_smem if asked <= limits.smem_per_block else 0
    if block_smem == 0:
        by_smem = limits.blocks_per_sm
    by_threads = limits.threads_per_sm // (warps * WARP)
    bounds = {
        "registers": by_registers,
        "smem": by_smem,
        "threads": by_threads,
        "blocks": limits.blocks_per_sm,
    }
    blocks = min(bounds.values())
    limited_by = min(bounds, key=lambda name: bounds[name])
    return Occupancy(blocks, blocks * warps, limited_by, by_registers, by_smem, by_threads)


def findings(resources: Resources, occupied: Occupancy, threads: int, span: Span = NOWHERE) -> list[Diagnostic]:
    """Diagnostics about the numbers: spills (warning), a kernel that cannot be resident (error)."""
    out: list[Diagnostic] = []
    if resources.spill_store_bytes or resources.spill_load_bytes:
        out.append(
            Diagnostic(
                rule="lowering/register-spill",
                family="performance",
                severity="warning",
                message=f"ptxas spilled registers to local memory: {resources.spill_store_bytes} bytes stored, "
                f"{resources.spill_load_bytes} bytes loaded per thread, at {resources.registers} registers",
                contract="A thread's live values fit the registers its launch gives it.",
                span=span,
            )
        )
    if occupied.blocks_per_sm == 0:
        total = resources.static_smem + resources.dynamic_smem
        out.append(
            error(
                "lowering/cannot-launch",
                "hardware",
                f"no block of {threads} threads with {resources.registers} registers each and {total} bytes of shared "
                f"memory fits an SM (bounded by {occupied.limited_by})",
                span,
                contract="One block's registers, threads and shared memory fit one SM.",
            )
        )
    return out


@dataclass(frozen=True)
class ElfFacts:
    """Read from the cubin: registers per thread (None if absent) and bytes of `.nv.shared.SYMBOL`.

    On sm_90 and later the section includes 1,024 bytes that the system reserves.
    """

    registers: int | None
    shared_section: int


def elf_facts(cubin: bytes, symbol: str) -> ElfFacts:
    """Register count from `.nv.info` (attribute 0x2f) and the size of the static shared section."""
    sections, names = _sections(cubin)
    shared = next((s["size"] for s in sections if names(s) == f".nv.shared.{symbol}"), 0)
    symtab = next((s for s in sections if s["type"] == 2), None)
    info = next((s for s in sections if names(s) == ".nv.info"), None)
    if symtab is None or info is None:
        return ElfFacts(None, shared)
    index = _symbol_index(cubin, symtab, sections[symtab["link"]], symbol)
    end, at, registers = info["offset"] + info["size"], info["offset"], None
    while at + 4 <= end:
        form, attribute, value = struct.unpack_from("<BBH", cubin, at)
        at += 4
        if form != 4:  # only form 4 carries a payload, `value` bytes long
            continue
        if attribute == 0x2F and value >= 8:
            who, count = struct.unpack_from("<II", cubin, at)
            registers = count if who == index else registers
        at += value
    return ElfFacts(registers, shared)


def _sections(cubin: bytes) -> tuple[list[dict[str, int]], Any]:
    if cubin[:4] != b"\x7fELF" or cubin[4:5] != b"\x02" or len(cubin) < 64:
        raise _unknown("the cubin is not a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, strings = struct.unpack_from("<HHH", cubin, 58)
    sections: list[dict[str, int]] = []
    try:
        for i in range(count):
            fields = struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * size)
            keys = ("name", "type", "flags", "address", "offset", "size", "link", "info", "align", "entry")
            sections.append(dict(zip(keys, fields, strict=True)))
    except struct.error:
        raise _unknown("the cubin's section table is cut short") from None

    def names(section: dict[str, int]) -> str:
        start = sections[strings]["offset"] + section["name"]
        return cubin[start : cubin.index(b"\0", start)].decode(errors="replace")

    return sections, names


def _symbol_index(cubin: bytes, symtab: dict[str, int], strtab: dict[str, int], symbol: str) -> int | None:
    for i in range(symtab["size"] // 24):
        (name,) = struct.unpack_from("<I", cubin, symtab["offset"] + 24 * i)
        start = strtab["offset"] + name
        if cubin[start : cubin.index(b"\0", start)] == symbol.encode():
            return i
    return None


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _unknown(message: str) -> CakeError:
    return CakeError(
        error(
            "lowering/no-resources",
            "hardware",
            message,
            contract="A compiled kernel's registers and shared memory are known before it is launched.",
        )
    )
