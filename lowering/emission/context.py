"""What every op's emission may ask: names, helpers, thread coordinates, addresses, barriers, promises and records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cake_ir.bound import (
    SX,
    BarUse,
    BoundKernel,
    Buffer,
    Let,
    Op,
    Role,
    ScalarVar,
    SConst,
    SOp,
    SVar,
    VFrag,
    View,
    crosses_ctas,
    walk,
)
from cake_ir.diagnostics import NOWHERE, CakeError, Span, error
from cake_ir.layouts import TileType
from lowering.emission.marks import Marks
from lowering.emission.scalars import Facts, Printer, add, const, div, mod, mul, sop, split_sum, var
from lowering.emission.tiles import Tiles
from lowering.emission.writer import Names, Writer
from lowering.helpers import Helpers, matrix
from lowering.plan import Promise
from lowering.sass import mnemonic

THREAD_NAMES = ("lane", "warp", "wwarp", "wtid", "smem_base", "instance")


@dataclass(frozen=True, eq=False)
class Record:
    """One derived hardware value in the emitted text, for a decoder that is written from the PTX tables.

    kind: smem_descriptor | instruction_descriptor | tensor_map | tmem_address | wait. `value` is an `SX` over the kernel's
    scalars and the thread variables (`Emitted.thread_slots`), or None; `fields` holds constants (see each emission).
    """

    kind: str
    op: str
    site: int
    span: Span
    operand: str
    value: SX | None
    fields: dict[str, Any]


@dataclass
class Context:
    """Mutable state of one kernel's emission."""

    kernel: BoundKernel
    derived: Any
    out: Writer
    names: Names = field(default_factory=Names)
    helpers: Helpers = field(default_factory=Helpers)
    promises: dict[tuple[str, str, Span], int] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    tensors: dict[Any, str] = field(default_factory=dict)
    maps: dict[Any, str] = field(default_factory=dict)
    scalars_used: dict[ScalarVar, str] = field(default_factory=dict)
    accumulators: set[Any] = field(default_factory=set)
    filled_accumulators: set[Any] = field(default_factory=set)
    open_fragments: list[Any] = field(default_factory=list)
    wgmma_open: set[str] = field(default_factory=set)
    wgmma_groups: list[frozenset[str]] = field(default_factory=list)
    pending_tmem: list[str] = field(default_factory=list)
    led: bool = False  # the warps of a thread role run its control flow together, `leader` its ops
    builtins: dict[ScalarVar, str] = field(default_factory=dict)
    shared: dict[str, SX] = field(default_factory=dict)
    definitions: dict[ScalarVar, SX] = field(default_factory=dict)
    read: set[Any] = field(default_factory=set)
    last_read: dict[Any, int] = field(default_factory=dict)
    loop_marks: list[int] = field(default_factory=list)
    fresh_values: list[Any] = field(default_factory=list)
    number: int = 0
    policies: dict[str, str] = field(default_factory=dict)
    role: Role | None = None
    unit: str = "K"
    span: Span = NOWHERE
    tcgen05_touched: bool = False
    marks: Marks | None = None  # of the timeline, in the instrumented form

    def __post_init__(self) -> None:
        self.facts = Facts(self.kernel)
        self.sx = Printer(self.facts, self.helpers, self._scalar_name)
        self.tiles = Tiles(self)
        first = len(self.kernel.scalars)
        self.threads = {name: var(name, first + i) for i, name in enumerate(THREAD_NAMES)}
        self._instances: dict[ScalarVar, str] = {}
        self._locals: dict[str, SX] = {}
        self.accumulators = {
            s.operands["acc"].frag
            for s in walk(self.kernel.body)
            if isinstance(s, Op) and s.name == "wgmma" and isinstance(s.operands["acc"], VFrag)
        }
        self.filled_accumulators = {
            s.frag
            for s in walk(self.kernel.body)
            if isinstance(s, Let) and s.value is not None and s.frag in self.accumulators
        }
        # mbarriers order accesses of one CTA by default. Only plain accesses to a peer's shared memory, or to global memory
        # that CTAs of a cluster hand to each other, need the costlier cluster scope; copies signal their own completion.
        # Of the waits only those at barriers where a peer arrives: causality is transitive, whatever the scopes of its steps
        # (PTX ISA, Memory consistency model: base causality order), and each of these acquires empties the L1 cache.
        self.cluster_scope = crosses_ctas(self.kernel)
        self.peer_barriers = {
            s.operands["bar"].barrier
            for s in walk(self.kernel.body)
            if isinstance(s, Op) and s.name == "arrive" and s.operands["bar"].rank is not None
        }
        self.cta_group = max(
            (s.attrs.get("cta_group", 1) for s in walk(self.kernel.body) if isinstance(s, Op)), default=1
        )
        self.tcgen05_roles = {
            s.role for s in walk(self.kernel.body) if isinstance(s, Op) and s.name.startswith(("tcgen05", "tmem"))
        }

    # ---- faults ----

    def unsupported(self, what: str) -> CakeError:
        """A form that emission does not know; never silently dropped."""
        return CakeError(
            error(
                "lowering/unsupported-form",
                "hardware",
                f"lowering has no form for {what}",
                self.span,
                contract="Every op form that is emitted is the exact hardware form that the op stands for.",
            )
        )

    @property
    def target(self) -> str:
        """The target's name."""
        return self.kernel.target.name

    def has(self, feature: str) -> bool:
        """Whether the target has a feature."""
        return self.kernel.target.has(feature)

    # ---- names ----

    def _scalar_name(self, v: ScalarVar) -> str:
        if v.kind == "thread":
            self.used.add(v.name)
            return v.name
        if v.kind in ("cta", "cta_count", "cluster_rank", "cluster_id", "cluster_count"):
            if v.kind == "cluster_rank" and self.kernel.launch.cluster == 1:
                return "0"
            name = self.names.of(v, v.name)
            self.builtins[v] = name
            return name
        if v.kind in ("dim", "scalar", "sms"):
            return self.scalars_used.setdefault(v, self.names.of(v, v.name))
        if v in self._instances:
            return self._instances[v]
        return self.names.of(v, v.name)

    def alias(self, v: ScalarVar, name: str) -> None:
        """Make a scalar stand for an existing C variable."""
        self._instances[v] = name

    def tensor(self, t: Any) -> str:
        """The pointer argument of a tensor."""
        return self.tensors.setdefault(t, self.names.of(t, t.name))

    def thread(self, name: str) -> SX:
        """lane, warp (in the CTA), wwarp (in the warpgroup), wtid (thread in the warpgroup)."""
        return self.threads[name]

    @property
    def tid(self) -> SX:
        """The thread inside the current unit."""
        return self.thread("wtid" if self.unit == "G" else "lane")

    def base(self, tile: TileType) -> tuple[SX, SX]:
        """Base (row, column) of this thread in a tile (see cake_ir.layouts)."""
        lane, name = self.thread("lane"), tile.layout.name
        warp = self.thread("wwarp") if tile.threads == 128 else const(0)
        row: SX
        col: SX
        if name == "vec":
            lanes = tile.layout.l or tile.threads
            t = self.thread("wtid") if tile.threads == 128 else lane
            row = div(t, lanes) if lanes < tile.threads else const(0)
            col = mul(mod(t, lanes) if lanes < tile.threads else t, tile.layout.v)
        elif name == "tmem_d":
            row, col = self.thread("wtid"), const(0)
        else:
            row = add(div(lane, 4), mul(warp, 16)) if not isinstance(warp, SConst) else div(lane, 4)
            scale = 2 if name in ("mma_d", "wgmma_d") else {8: 4, 16: 2}.get(tile.dtype.bits, 1)
            col = mul(mod(lane, 4), scale)
        return (const(0) if tile.axis == "cols" else row), (const(0) if tile.axis == "rows" else col)

    def instance(self) -> SX:
        """The number of this instance inside its role."""
        role = self.role
        assert role is not None
        return const(0) if role.count == 1 or role.unit == "thread" else self.local_scalar("instance")

    def local_scalar(self, name: str) -> SX:
        """An existing C variable as a scalar; its values are nonnegative."""
        if name not in self._locals:
            self._locals[name] = var(name, -1)
        return self._locals[name]

    def share(self, wish: str, x: SX) -> SX:
        """x under a name of its own inside the current op, if it is more than a variable."""
        if not isinstance(x, SOp):
            return x
        text = self.sx.top(x)
        if text not in self.shared:
            name = self.hoist(wish, "int", text)
            self.shared[text] = self.local_scalar(name)
            self.definitions[self.shared[text].var] = x  # type: ignore[union-attr]
        return self.shared[text]

    def expand(self, x: SX) -> SX:
        """x with shared names replaced by what they stand for."""
        if isinstance(x, SVar):
            return self.expand(self.definitions[x.var]) if x.var in self.definitions else x
        return SOp(x.op, tuple(self.expand(a) for a in x.args), x.dtype) if isinstance(x, SOp) else x

    def hoist(self, wish: str, ctype: str, text: str) -> str:
        """Compute once into a constant of the current block; its name."""
        name = self.names.fresh(wish)
        self.out.line(f"const {ctype} {name} = {text};" if not ctype.endswith("*") else f"{ctype} {name} = {text};")
        return name

    # ---- the author's schedule ----

    def settle(self) -> None:
        """Ahead of an instruction that blocks: values assigned since the last one, and needed behind, are computed here.

        Nothing else ties pure arithmetic to its place, and the compiler likes to sink it below the wait that it was meant
        to overlap with.
        """
        outside = set(self.open_fragments[: self.loop_marks[-1]]) if self.loop_marks else set()
        for frag in dict.fromkeys(self.fresh_values):
            needed = frag in self.open_fragments and (self.last_read.get(frag, -1) > self.number or frag in outside)
            if needed and frag.type.dtype.name in ("f32", "i32", "u32", "bf16", "f16", "e4m3", "e5m2"):
                self.hold(self.tiles.name(frag))
        self.fresh_values.clear()

    def settle_accumulators(self, but: str) -> None:
        """Ahead of a product: accumulators of other products that were assigned since the last wait.

        The compiler would set them where a loop starts, behind this product; ptxas then serialises the products (C7515).
        """
        fresh = [f for f in self.fresh_values if f in self.filled_accumulators and f in self.open_fragments]
        for frag in dict.fromkeys(fresh):
            if self.tiles.name(frag) != but:
                self.hold(self.tiles.name(frag))
        self.fresh_values = [f for f in self.fresh_values if f not in self.accumulators]

    def hold(self, name: str) -> None:
        """Tie an array to this place of the text: it is written before, and read behind."""
        self.out.line(f"{self.helpers.add(*matrix.HOLD)}<sizeof({name}) / 4>({name});")

    # ---- tcgen05 ordering ----

    def tcgen05_before(self) -> None:
        """Ahead of an arrive or sync by a unit with tcgen05 work since its last one."""
        if self.tcgen05_touched:
            self.out.line(f"{self.helpers.add(*matrix.TCGEN05_FENCE_BEFORE)}();")
            self.tcgen05_touched = False

    def tcgen05_after(self) -> None:
        """Behind a wait or sync of a role that has tcgen05 ops."""
        if self.role is not None and self.role.name in self.tcgen05_roles:
            self.out.line(f"{self.helpers.add(*matrix.TCGEN05_FENCE_AFTER)}();")

    # ---- shared memory ----

    def slot(self, use: SX | None, stages: int) -> SX:
        """The slot of a running use number."""
        return const(0) if use is None or stages == 1 else mod(use, stages)

    def stage(self, buffer: Buffer, use: SX | None) -> SX:
        """Address (bytes in the CTA's shared window) of the slot of a use."""
        start = add(self.thread("smem_base"), self.derived.smem[buffer])
        if not buffer.staged:
            return start
        return add(start, mul(self.slot(use, buffer.stages), self.derived.stage_stride[buffer]))

    def element(self, view: View, row: SX, col: SX) -> SX:
        """Byte offset, inside the stage, of the element at (row, column) of the stored (untransposed) view; swizzle applied."""
        buffer = view.buffer
        bits = buffer.dtype.bits
        r = add(view.row0, row)
        byte = mul(add(view.col0, col), bits // 8)
        if not buffer.swizzle:
            return add(mul(r, buffer.pitch), byte)
        return self.swizzled(buffer, r, byte)

    def swizzled(self, buffer: Buffer, row: SX, byte: SX) -> SX:
        """panel * rows * span + row * span + (inner ^ row bits). Constants in `byte` stay outside the thread's part where the
        bits are disjoint, so that one XOR serves all of a tile's columns."""
        span = buffer.swizzle
        base, offset = split_sum(byte)
        shift = {128: 0, 64: 1, 32: 2}[span]
        row_base, row_offset = split_sum(row)
        if row_base is None:
            turn: SX = const((row_offset >> shift & span // 16 - 1) << 4)
            linear: SX = const(row_offset * span)
        else:
            row_base = self.share("row", row_base)
            source = row_base if row_offset % 8 == 0 else add(row_base, row_offset)
            turn = mul(mod(div(source, 1 << shift), span // 16), 16)
            linear = mul(add(row_base, row_offset), span)
        bits = 0 if base is None else possible_bits(base)
        panel_bytes = buffer.rows * span
        if base is None:
            panel, inner = divmod(offset, span)
            return add(linear, panel * panel_bytes, _xor(self.share("turn", turn), const(inner)))
        if bits is not None and bits & offset == 0:
            if bits < span:
                panel, inner = divmod(offset, span)
                return add(linear, panel * panel_bytes, _xor(self.share("turned", _xor(base, turn)), const(inner)))
            panel_sx = add(mul(div(base, span), panel_bytes), offset // span * panel_bytes)
            return add(linear, panel_sx, _xor(self.share("turned", _xor(mod(base, span), turn)), const(offset % span)))
        if buffer.panels == 1:
            return add(linear, _xor(byte, turn))
        return add(linear, mul(div(byte, span), panel_bytes), _xor(mod(byte, span), turn))

    # ---- barriers ----

    def barrier(self, use: BarUse, number: SX | None = None) -> SX:
        """Shared address of the mbarrier that a use number names."""
        n = use.use if number is None else number
        start = add(self.thread("smem_base"), self.derived.barrier_offset[use.barrier])
        return add(start, mul(self.slot(n, use.barrier.stages), 8))

    def parity(self, number: SX, stages: int) -> SX:
        """Parity of the phase that completion `number` ends."""
        return mod(div(number, stages), 2)

    # ---- reports ----

    def promise(self, op: str, form: str, count: int = 1, pattern: str | None = None) -> None:
        """The machine code must hold this instruction for the op at the current span."""
        key = (op, pattern or mnemonic(form, self.target), self.span)
        self.promises[key] = self.promises.get(key, 0) + count

    def record(self, kind: str, op: Any, operand: str, value: SX | None, /, **fields: Any) -> None:
        """Keep a derived value for the decoder."""
        self.records.append(Record(kind, op.name, op.site, op.span, operand, value, fields))

    def promised(self) -> tuple[Promise, ...]:
        """All promises; a duplicated pattern counts once per place in the text."""
        return tuple(Promise(op, pattern, count, span) for (op, pattern, span), count in self.promises.items())


def _xor(a: SX, b: SX) -> SX:
    if isinstance(a, SConst) and a.value == 0:
        return b
    if isinstance(b, SConst) and b.value == 0:
        return a
    return sop("^", a, b)


def possible_bits(x: SX) -> int | None:
    """A mask that covers every value x can take, or None. Only for sums of disjoint fields."""
    if isinstance(x, SConst):
        return int(x.value) if x.value >= 0 else None
    if not isinstance(x, SOp):
        return {"lane": 31, "wwarp": 3, "wtid": 127}.get(x.var.name) if x.var.kind == "thread" else None
    if x.op == "%" and isinstance(x.args[1], SConst):
        k = int(x.args[1].value)
        if k & (k - 1):
            return (1 << (k - 1).bit_length()) - 1
        inner = possible_bits(x.args[0])
        return k - 1 if inner is None else inner & (k - 1)
    parts = [possible_bits(a) for a in x.args]
    if any(p is None for p in parts) or len(parts) != 2:
        return None
    a, b = parts
    assert a is not None and b is not None
    if x.op == "+":
        return a | b if a & b == 0 else (1 << (a + b).bit_length()) - 1
    if x.op == "*" and isinstance(x.args[1], SConst):
        k = int(x.args[1].value)
        return a << (k.bit_length() - 1) if k and k & (k - 1) == 0 else (1 << (a * k).bit_length()) - 1
    if x.op == "//" and isinstance(x.args[1], SConst):
        k = int(x.args[1].value)
        return a >> (k.bit_length() - 1) if k & (k - 1) == 0 else a
    if x.op in ("^", "|"):
        return a | b
    return None
