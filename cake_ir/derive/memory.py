"""Shared and tensor memory maps: declaration order, aligned to the swizzle period, aliases at the base of the other."""

from __future__ import annotations

from dataclasses import dataclass

from cake_ir.bound import Barrier, BoundKernel, Buffer, Op, Role, walk
from cake_ir.derive.findings import contract
from cake_ir.diagnostics import Diagnostic, error

PLAIN_ALIGN = 128
"""Unswizzled tiles: the alignment a TMA destination needs (PTX ISA: cp.async.bulk.tensor)."""


def swizzle_period(buffer: Buffer) -> int:
    """Bytes after which the swizzle pattern of absolute address bits repeats: 128, 256, 512 or 1024."""
    return {0: PLAIN_ALIGN, 32: 256, 64: 512, 128: 1024}[buffer.swizzle]


def align_up(n: int, a: int) -> int:
    """The least multiple of a that is >= n."""
    return -(-n // a) * a


@dataclass(frozen=True, eq=False)
class MemoryMap:
    """Offsets in bytes / columns; see `Derived`."""

    smem: dict[Buffer, int]
    stage_stride: dict[Buffer, int]
    barrier_offset: dict[Barrier, int]
    tmem_slot: int | None
    used: int
    total: int
    align: int
    tmem: dict[Buffer, int]
    tmem_columns: int
    tmem_owner: Role | None
    diagnostics: tuple[Diagnostic, ...]


def stage_stride(buffer: Buffer) -> int:
    """Bytes between stages: a stage rounded up so that every stage starts at a swizzle period (one stage: its size)."""
    return align_up(buffer.stage_bytes, swizzle_period(buffer)) if buffer.stages > 1 else buffer.stage_bytes


def buffer_bytes(buffer: Buffer) -> int:
    """Bytes of all stages."""
    return stage_stride(buffer) * (buffer.stages - 1) + buffer.stage_bytes


def tmem_cols(buffer: Buffer) -> int:
    """32-bit columns of one stage."""
    return -(-buffer.cols * buffer.dtype.bits // 32)


def memory_map(bound: BoundKernel) -> MemoryMap:
    """The map of one CTA. Capacity against the target is a rule, not part of the map."""
    diagnostics: list[Diagnostic] = []
    smem: dict[Buffer, int] = {}
    strides: dict[Buffer, int] = {}
    offset, align = 0, 16
    for b in bound.buffers:
        if b.space != "smem":
            continue
        strides[b] = stage_stride(b)
        align = max(align, swizzle_period(b))
        if b.over is not None:
            smem[b] = smem[b.over]
            have, need = buffer_bytes(b.over), buffer_bytes(b)
            if need > have:  # the bare bytes fit, the stages rounded to the swizzle period do not
                message = f"{b.name} needs {need} B, {b.over.name} under it has {have} B"
                rule = "derive/overlay-too-large"
                diagnostics.append(error(rule, "derive", message, b.span, contract=contract(rule)))
            if smem[b] % swizzle_period(b):
                diagnostics.append(
                    error(
                        "derive/overlay-alignment",
                        "derive",
                        f"{b.name} needs {swizzle_period(b)} B alignment, {b.over.name} starts at offset {smem[b]}",
                        b.span,
                        contract=contract("derive/overlay-alignment"),
                    )
                )
            continue
        offset = align_up(offset, swizzle_period(b))
        smem[b] = offset
        offset += buffer_bytes(b)
    offset = align_up(offset, 8)
    bars: dict[Barrier, int] = {}
    for bar in bound.barriers:
        if bar.kind == "mbarrier":
            bars[bar] = offset
            offset += 8 * bar.stages
    tmem, columns, owner, slot = _tensor_memory(bound)
    if tmem:
        slot = offset
        offset += 8
    # dynamic shared memory starts 16-byte aligned at least: the kernel rounds its base up itself
    total = align_up(offset + align - 16, 16) if offset else 0
    return MemoryMap(smem, strides, bars, slot, offset, total, align, tmem, columns, owner, tuple(diagnostics))


def _tensor_memory(bound: BoundKernel) -> tuple[dict[Buffer, int], int, Role | None, int | None]:
    tmem: dict[Buffer, int] = {}
    column, owner = 0, None
    for b in bound.buffers:
        if b.space != "tmem":
            continue
        owner = owner or b.owner
        if b.over is not None:
            tmem[b] = tmem[b.over]
            continue
        tmem[b] = column
        column += tmem_cols(b) * b.stages
    if not tmem:
        return {}, 0, None, None
    columns = 32
    while columns < column:
        columns *= 2
    return tmem, columns, owner, None


def uses_op(bound: BoundKernel, *names: str) -> bool:
    """Whether the kernel contains one of the ops."""
    return any(isinstance(s, Op) and s.name in names for s in walk(bound.body))
