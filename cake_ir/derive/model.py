"""What `derive` gives: the facts nobody writes by hand, computed once and read by analyses and lowering alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cake_ir.bound import SX, Barrier, Buffer, Role, Tensor
from cake_ir.diagnostics import NOWHERE, Diagnostic, Span
from cake_ir.dtypes import DType

if TYPE_CHECKING:
    from cake_ir.witness import Witness

NamedKey = tuple[object, ...]
"""("named", Barrier, index) | ("role", role name) | ("warpgroup", role name, instance)."""


@dataclass(frozen=True, eq=False)
class TensorMap:
    """One tensor map parameter. `box` is in elements, innermost dimension first, one entry per tensor dimension (index
    dimensions are 1). swizzle in bytes (0, 32, 64, 128). Reads outside the extents give zeros."""

    name: str
    tensor: Tensor
    dtype: DType
    box: tuple[int, ...]
    swizzle: int
    fill: str = "zero"


@dataclass(frozen=True)
class BoxCopy:
    """One copy instruction of a TMA op. `offset`: bytes from the view's first byte, for a view that starts at column
    0 of a panel; `coords`: element offsets from the region's start, innermost tensor dimension first."""

    offset: int
    coords: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition on the arguments that the chosen instructions need; lowering checks it before a launch.

    kind base: the address of `tensor` is a multiple of `modulus` bytes. kind stride: `value` (an element count of dtype
    `tensor.dtype`, dimension `dim`) times the element size is a multiple of `modulus` bytes. kind extent: the tensor's
    extent `dim` equals `value` (a bound or computed extent).
    """

    kind: str
    tensor: Tensor
    modulus: int
    dim: int = 0
    value: SX | None = None
    reason: str = ""
    span: Span = NOWHERE


@dataclass(frozen=True)
class RegisterChange:
    """A role's setmaxnreg: kind dec | inc, registers per thread."""

    kind: str
    registers: int


@dataclass(frozen=True, eq=False)
class LaunchFacts:
    """threads per CTA; r0: registers per thread at launch, floor8(65536 / (threads * ctas_per_sm)) and at most 255;
    setmaxnreg by role name (roles without a request are absent); pdl: contains griddep_wait; cooperative:
    sync(grid)."""

    threads: int
    cluster: int
    ctas_per_sm: int
    r0: int
    setmaxnreg: dict[str, RegisterChange]
    pdl: bool
    cooperative: bool


@dataclass(frozen=True, eq=False)
class Derived:
    """All derived facts of one bound kernel.

    smem: byte offset of every shared buffer from the (1024-byte aligned) start of the kernel's shared memory.
    stage_stride: bytes between the stages of a shared buffer (stage bytes rounded up to its alignment).
    barrier_offset: offset of stage 0 of every mbarrier; stages are 8 bytes apart. tmem_slot: offset of the 4-byte
    word that hands the tensor memory address over, None without tensor memory. smem_used: bytes of the map;
    smem_bytes: bytes to ask for, including the slack to align the dynamic base (0 when nothing is needed). align:
    alignment of the base. tmem: first column of every tensor memory buffer; tmem_columns: the allocation (0, or a
    power of two >= 32); tmem_owner: the role whose first warp allocates. arrivals: arrival count of every mbarrier
    that gets any. expect_bytes: bytes by site of the `expect` op. named: hardware barrier id and thread count by key
    (see NamedKey); id 0 is the CTA's own. tensor_maps / op_maps: maps, and the index of the map by site of the op.
    copies: copy instructions by site.
    """

    smem: dict[Buffer, int]
    stage_stride: dict[Buffer, int]
    barrier_offset: dict[Barrier, int]
    tmem_slot: int | None
    smem_used: int
    smem_bytes: int
    align: int
    tmem: dict[Buffer, int]
    tmem_columns: int
    tmem_owner: Role | None
    arrivals: dict[Barrier, int]
    expect_bytes: dict[int, int]
    named: dict[NamedKey, tuple[int, int]]
    tensor_maps: tuple[TensorMap, ...]
    op_maps: dict[int, int]
    copies: dict[int, tuple[BoxCopy, ...]]
    launch: LaunchFacts
    guards: tuple[Guard, ...]
    diagnostics: tuple[Diagnostic, ...]
    witnesses: tuple[Witness, ...] = ()
    unmet_goals: tuple[str, ...] = ()
    notes: dict[str, object] = field(default_factory=dict)

    def named_id(self, key: NamedKey) -> tuple[int, int]:
        """(id, threads) of a named barrier. Raises KeyError for a key that the kernel never uses."""
        return self.named[key]

    @property
    def no_shape(self) -> str:
        """Why a goal was not met, without the goal; runs that are too long first."""
        long = [text for text in self.unmet_goals if "longer than" in text]
        return (long or list(self.unmet_goals) or [""])[0].split(": ", 1)[-1]

    @property
    def ok(self) -> bool:
        """No error-severity finding."""
        return not any(d.severity == "error" for d in self.diagnostics)
