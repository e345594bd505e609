"""The bound program: one kernel with its parameters bound, every op resolved, every value typed, `unroll` expanded.

This is the only input of analyses and lowering: what is verified is what is emitted. Nodes are immutable; identity is
object identity (`eq=False`), so they can key dictionaries. Three expression worlds:

* `SX`  uniform scalars of one agent (index arithmetic in exact integers, f32, bool), evaluated by `cake_ir.arithmetic`.
* `VX`  elementwise expressions on register tiles.
* ops   everything that touches memory, barriers, tensor cores or other lanes: `Op`, described by its `OpDecl`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from cake_ir.diagnostics import NOWHERE, Span
from cake_ir.dtypes import DType
from cake_ir.layouts import TileType

if TYPE_CHECKING:
    from cake_ir.ops.decl import OpDecl
    from cake_ir.targets.table import Target

# ---- scalar expressions --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ScalarVar:
    """A scalar of one agent.

    kind: dim | scalar (kernel argument) | cta | cta_count | cluster_rank | cluster_id | cluster_count | sms | loop |
    instance (the `as` index; also `warps() as`) | local (assigned) | loaded (result of an op).
    `slot` indexes the environment list of compiled expressions.
    """

    name: str
    kind: str
    dtype: str  # "i32" (exact index) | "f32" | "bool" | "bf16" ... for loaded values not yet cast
    slot: int
    uniformity: str = "instance"  # strongest first: grid, cluster, cta, instance
    span: Span = NOWHERE


@dataclass(frozen=True, eq=False)
class SConst:
    value: Union[int, float, bool]
    dtype: str = "i32"


@dataclass(frozen=True, eq=False)
class SVar:
    var: ScalarVar

    @property
    def dtype(self) -> str:
        return self.var.dtype


@dataclass(frozen=True, eq=False)
class SOp:
    """op: + - * // % << >> & | ^ neg not ~ < <= > >= == != and or min max select ceil_div lsb fma cast abs
    and f32 functions exp2 rcp rsqrt log2 sqrt tanh. `//` and `%` floor (Python). fma(a, b, c) = a*b + c rounded once."""

    op: str
    args: tuple["SX", ...]
    dtype: str = "i32"


SX = Union[SConst, SVar, SOp]


def sx_vars(x: SX) -> set[ScalarVar]:
    """All scalar variables an expression reads."""
    if isinstance(x, SVar):
        return {x.var}
    if isinstance(x, SOp):
        return set().union(*(sx_vars(a) for a in x.args)) if x.args else set()
    return set()


def bounded_product(a: int, b: int) -> int:
    """A divisor of a product, from divisors of its factors. What no machine word holds is of no use, and grows on."""
    return a * b if a * b < 1 << 64 else max(a, b)


# ---- resources -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tensor:
    """A kernel tensor argument. extents: one SX per dimension; strides in elements (None: dense row-major)."""

    name: str
    direction: str  # In | Const | Out | InOut
    dtype: DType
    extents: tuple[SX, ...]
    strides: tuple[SX | None, ...]
    span: Span = NOWHERE


@dataclass(frozen=True, eq=False)
class Role:
    """unit: thread | warp | warpgroup. `warps` = hardware warps it occupies; first_warp is its first CTA warp index."""

    name: str
    unit: str
    count: int
    warps: int
    first_warp: int
    registers: int | None
    span: Span = NOWHERE

    @property
    def warps_per_instance(self) -> int:
        return {"thread": self.warps, "warp": 1, "warpgroup": 4}[self.unit]


@dataclass(frozen=True, eq=False)
class Buffer:
    """smem or tmem tile(s). dims: as declared; rows x cols: the tile flattened to a matrix (1-D: rows = 1).

    space: smem | tmem. For tmem rows = 128 lanes, cols = 32-bit columns of dtype elements. over: aliased buffer.
    """

    name: str
    space: str
    dtype: DType
    dims: tuple[int, ...]
    stages: int
    staged: bool
    swizzle: int = 0
    pad: int = 0
    over: Buffer | None = None
    owner: Role | None = None
    span: Span = NOWHERE

    @property
    def rows(self) -> int:
        return math.prod(self.dims[:-1])

    @property
    def cols(self) -> int:
        return self.dims[-1]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row without padding."""
        return self.cols * self.dtype.bits // 8

    @property
    def pitch(self) -> int:
        """Bytes between rows: the swizzle span inside a panel, or the padded row."""
        return min(self.swizzle, self.row_bytes) if self.swizzle else self.row_bytes + self.pad * self.dtype.bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage."""
        return self.rows * self.row_bytes if self.swizzle else self.rows * self.pitch

    @property
    def panels(self) -> int:
        """Swizzled tiles wider than the span are rows of panels."""
        return max(1, self.row_bytes // self.swizzle) if self.swizzle else 1

    def offset(self, row: int, col: int) -> int:
        """Byte offset of element (row, col) inside one stage, swizzle applied (CUDA guide: TMA swizzle; the XOR uses
        absolute address bits, so stages are aligned to the swizzle period)."""
        byte = col * self.dtype.bits // 8
        if not self.swizzle:
            return row * self.pitch + byte
        panel, inner = divmod(byte, self.swizzle)
        linear = panel * self.rows * self.swizzle + row * self.swizzle + inner
        return linear ^ (((linear >> 7) & (self.swizzle // 16 - 1)) << 4)


@dataclass(frozen=True, eq=False)
class Barrier:
    """A ring of mbarriers (`stages`), or `stages` named barriers. arrivals / bytes: the author's assertions."""

    name: str
    kind: str  # mbarrier | named
    stages: int
    arrivals: int | None = None
    bytes: int | None = None
    span: Span = NOWHERE


@dataclass(frozen=True, eq=False)
class Fragment:
    """A register tile or vector of one unit. Assigned in place when its name is rebound."""

    name: str
    type: TileType
    role: str
    span: Span = NOWHERE


# ---- operands ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class View:
    """On-chip view. (row0, rows, col0, cols) in the flattened matrix of the buffer; shape is what the author sees
    (transposed already applied): () scalar, (n,) vector, (r, c) tile. use: running use number of a staged buffer."""

    buffer: Buffer
    use: SX | None
    row0: SX
    rows: int
    col0: SX
    cols: int
    shape: tuple[int, ...]
    transposed: bool = False
    rank: SX | None = None
    span: Span = NOWHERE


@dataclass(frozen=True, eq=False)
class RegionDim:
    """One tensor dimension of a region. kind index: start only, dropped; slice: kept, `size` elements from start, ended
    at `stop` if given; gather: kept, rows chosen by the i32 vector `rows`. size is filled from the other operand."""

    kind: str
    start: SX
    stop: SX | None = None
    size: int = 1
    rows: "VX | None" = None


@dataclass(frozen=True, eq=False)
class Region:
    """A global region; kept dimensions in order (swapped when transposed) match the other operand's shape."""

    tensor: Tensor
    dims: tuple[RegionDim, ...]
    transposed: bool = False
    span: Span = NOWHERE

    @property
    def shape(self) -> tuple[int, ...]:
        kept = tuple(d.size for d in self.dims if d.kind != "index")
        return kept[::-1] if self.transposed else kept


@dataclass(frozen=True, eq=False)
class BarUse:
    """Completion number `use` of a barrier ring (named barriers: barrier number). rank: CTA of the cluster (None = own)."""

    barrier: Barrier
    use: SX
    rank: SX | None = None
    span: Span = NOWHERE


# ---- value expressions (elementwise on register tiles) ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class VFrag:
    """A fragment, or a static slice of it starting at (row0, col0)."""

    frag: Fragment
    type: TileType
    row0: int = 0
    col0: int = 0


@dataclass(frozen=True, eq=False)
class VSplat:
    """A uniform scalar seen as a tile of `type`."""

    x: SX
    type: TileType


@dataclass(frozen=True, eq=False)
class VExpand:
    """A vector of the same layout used as a tile: `f[:, None]` (axis rows) or `f[None, :]` (axis cols)."""

    x: "VX"
    type: TileType


@dataclass(frozen=True, eq=False)
class VCoord:
    """row_index / col_index: coordinates inside the tile (i32)."""

    axis: str
    type: TileType


@dataclass(frozen=True, eq=False)
class VOp:
    """op: + - * neg < <= > >= == != & | ~ ^ << >> min max min3 max3 select abs exp2 rcp rsqrt log2 sqrt tanh
    fma fnma fms (a*b+c, -a*b+c, a*b-c; rounded once), cast, bitcast. Elementwise; `type` is the result."""

    op: str
    args: tuple["VX", ...]
    type: TileType


VX = Union[VFrag, VSplat, VExpand, VCoord, VOp]

# ---- statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Op:
    """One op instance. operands by parameter name of the declaration; attrs are static values (ints, bools, strings,
    tuples). results are written by it. unit: T | W | G | K (who executes it). `when` masks live in operands["when"]."""

    decl: "OpDecl"
    operands: dict[str, Any]
    attrs: dict[str, Any]
    results: tuple[Fragment | ScalarVar, ...]
    unit: str
    role: str | None
    span: Span
    site: int

    @property
    def name(self) -> str:
        return self.decl.name


@dataclass(frozen=True, eq=False)
class SetScalar:
    """var = value (also `+=`)."""

    var: ScalarVar
    value: SX
    span: Span


@dataclass(frozen=True, eq=False)
class Let:
    """frag = value, elementwise and in place. value None: a fresh fragment without fill (poison). The right side may read
    the fragment itself at the same element."""

    frag: Fragment
    value: VX | None
    span: Span
    fresh: bool = False


@dataclass(frozen=True, eq=False)
class For:
    var: ScalarVar
    start: SX
    stop: SX
    step: SX
    body: tuple["Stmt", ...]
    span: Span


@dataclass(frozen=True, eq=False)
class While:
    """`prelude` computes what `cond` reads; it runs before every test."""

    prelude: tuple["Stmt", ...]
    cond: SX
    body: tuple["Stmt", ...]
    span: Span


@dataclass(frozen=True, eq=False)
class If:
    cond: SX
    then: tuple["Stmt", ...]
    orelse: tuple["Stmt", ...]
    span: Span


@dataclass(frozen=True, eq=False)
class RoleBlock:
    """Executed by every instance of `role`; instance is the `as` variable (0 .. count-1)."""

    role: Role
    instance: ScalarVar | None
    body: tuple["Stmt", ...]
    span: Span


@dataclass(frozen=True, eq=False)
class ElectedBlock:
    """The unit's first thread only."""

    body: tuple["Stmt", ...]
    span: Span


@dataclass(frozen=True, eq=False)
class WarpsBlock:
    """Inside a warpgroup: each of its four warps; warp is 0..3."""

    warp: ScalarVar | None
    body: tuple["Stmt", ...]
    span: Span


@dataclass(frozen=True, eq=False)
class Assume:
    """A fact about loaded data: debt of the contract."""

    cond: Any  # SX, or a VX mask that must hold everywhere
    span: Span


Stmt = Union[Op, SetScalar, Let, For, While, If, RoleBlock, ElectedBlock, WarpsBlock, Assume]


@dataclass(frozen=True, eq=False)
class Launch:
    """ctas: SX over extents, scalars and device.sms; cluster and ctas_per_sm static."""

    ctas: SX
    cluster: int
    ctas_per_sm: int
    span: Span


@dataclass(frozen=True, eq=False)
class Where:
    cond: SX
    span: Span


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """One kernel, bound. `scalars` lists every ScalarVar (index = slot); `dims` maps dimension symbols to their variables;
    `args` the kernel scalars. tunables: the bound values."""

    name: str
    target: "Target"
    tunables: dict[str, Any]
    tensors: tuple[Tensor, ...]
    args: tuple[ScalarVar, ...]
    dims: dict[str, ScalarVar]
    builtins: dict[str, ScalarVar]  # cta cta_count cluster_rank cluster_id cluster_count sms
    where: tuple[Where, ...]
    launch: Launch
    roles: tuple[Role, ...]
    buffers: tuple[Buffer, ...]
    barriers: tuple[Barrier, ...]
    body: tuple[Stmt, ...]
    scalars: tuple[ScalarVar, ...]
    sites: int
    span: Span
    source_name: str = "<text>"
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * sum(r.warps for r in self.roles)


_INNER: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((Op, SetScalar, Let, Assume), ()),
    **dict.fromkeys((For, RoleBlock, ElectedBlock, WarpsBlock), ("body",)),
    While: ("prelude", "body"),
    If: ("then", "orelse"),
}
"""The blocks of each kind of statement, in text order."""


def walk(body: tuple[Stmt, ...]) -> list[Any]:
    """Every statement, depth first, in text order."""
    found: list[Any] = []
    add = found.append

    def visit(block: tuple[Stmt, ...]) -> None:
        for stmt in block:
            add(stmt)
            for attr in _INNER[type(stmt)]:
                visit(getattr(stmt, attr))

    visit(body)
    return found


def crosses_ctas(bound: BoundKernel) -> bool:
    """Whether CTAs of a cluster hand each other plain accesses: to a peer's shared memory, or to global memory that the kernel reads and
    writes. Their barriers then need cluster scope (PTX ISA: Memory consistency model), which costs a memory barrier per arrival."""
    return bound.launch.cluster > 1 and any(_crosses(s) for s in walk(bound.body))


def persistent(bound: BoundKernel, loop: For) -> bool:
    """Whether a loop starts at the number of its CTA or cluster: CTAs that stay and take tiles in turns."""
    return not sx_vars(loop.start).isdisjoint((bound.builtins["cta"], bound.builtins["cluster_id"]))


def _crosses(stmt: Any) -> bool:
    if not isinstance(stmt, Op):
        return False
    return any(
        (isinstance(x, View) and x.rank is not None) or (isinstance(x, Region) and x.tensor.direction == "InOut")
        for x in stmt.operands.values()
    )
