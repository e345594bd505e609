"""Matrix instructions: ldmatrix, stmatrix, mma.sync, wgmma, tcgen05 and tensor memory, with their descriptors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cake_ir.bound import SX, VX, BarUse, Op, SConst, VFrag, View
from cake_ir.layouts import TileType, placement
from lowering.emission.asynchronous import ranks_mask
from lowering.emission.context import Context
from lowering.emission.scalars import add, const, div, mod, mul
from lowering.emission.tiles import per_register
from lowering.helpers import matrix as forms
from lowering.helpers import memory as memory_forms
from lowering.sass import mma_mnemonic, wgmma_mnemonic

WGMMA_LAYOUT = {128: 1, 64: 2, 32: 3}
TCGEN05_LAYOUT = {128: 2, 64: 4, 32: 6}

# ---- ldmatrix, stmatrix ------------------------------------------------------------


def _blocks(tile: TileType) -> list[tuple[int, int]]:
    """(row, column) offset of the 8x8 matrix that each register of a tile belongs to (16 bytes wide: 16 elements of 8 bits)."""
    per = per_register(tile.dtype)
    return [placement(tile).offsets[i] for i in range(0, placement(tile).slots, per)]


def _lane_choice(c: Context, values: list[int]) -> SX:
    """values[lane >> 3] as an expression; the values are sums of bits of the lane group."""
    group = div(c.thread("lane"), 8)
    if len(values) == 1:
        return const(values[0])
    weights = [values[1 << k] - values[0] for k in range((len(values) - 1).bit_length())]
    total: SX = const(values[0])
    for k, weight in enumerate(weights):
        if weight:
            total = add(total, mul(mod(div(group, 1 << k), 2), weight))
    for i, value in enumerate(values):
        if value != values[0] + sum(w for k, w in enumerate(weights) if i >> k & 1):
            raise c.unsupported("a matrix order that is not a sum of lane-group bits")
    return total


def _groups(blocks: list[tuple[int, int]]) -> list[int]:
    """Sizes of consecutive instructions: four matrices each, then two, then one."""
    sizes, left = [], len(blocks)
    while left:
        size = 4 if left >= 4 else 2 if left >= 2 else 1
        sizes.append(size)
        left -= size
    return sizes


def _matrix_addresses(c: Context, view: View, tile: TileType) -> list[tuple[int, int, str]]:
    """(first register, matrices, address text) of each instruction."""
    blocks = _blocks(tile)
    base = c.local_scalar(c.hoist("stage", "int", c.sx.top(c.stage(view.buffer, view.use))))
    warp_row: SX = mul(c.thread("wwarp"), 16) if tile.threads == 128 else const(0)
    found, at = [], 0
    row_in_matrix = mod(c.thread("lane"), 8)
    for size in _groups(blocks):
        part = blocks[at : at + size]
        row0, col0 = part[0]
        rows = _lane_choice(c, [r - row0 for r, _ in part])
        cols = _lane_choice(c, [k - col0 for _, k in part])
        if view.transposed:
            # The stored matrix has the logical columns as rows; `.trans` turns each 8x8 back.
            mem_row, mem_col = add(cols, row_in_matrix, col0), add(rows, warp_row, row0)
        else:
            mem_row, mem_col = add(rows, row_in_matrix, warp_row, row0), add(cols, col0)
        found.append((at, size, c.sx.top(add(base, c.element(view, mem_row, mem_col)))))
        at += size
    return found


def ldmatrix(c: Context, op: Op) -> None:
    """8x8 matrices in register order of the tile."""
    view, frag = op.operands["view"], op.results[0]
    name = c.tiles.name(frag)  # type: ignore[arg-type]
    tile = frag.type  # type: ignore[union-attr]
    c.out.open("")
    for first, size, address in _matrix_addresses(c, view, tile):
        call = c.helpers.add(*memory_forms.ldmatrix(size, view.transposed))
        c.out.line(f"{call}(&{name}[{first}], {address});")
        c.promise("ldmatrix", "ldmatrix.trans" if view.transposed else "ldmatrix")
    c.out.close()


def stmatrix(c: Context, op: Op) -> None:
    """8x8 matrices from register order of the tile."""
    view, x = op.operands["view"], op.operands["x"]
    c.out.open("")
    name, entries = c.tiles.registers_of(x)
    for first, size, address in _matrix_addresses(c, view, x.type):
        call = c.helpers.add(*memory_forms.stmatrix(size, view.transposed))
        values = ", ".join(f"{name}[{entries[first + i]}]" for i in range(size))
        c.out.line(f"{call}({address}, {values});")
        c.promise("stmatrix", "stmatrix.trans" if view.transposed else "stmatrix")
    c.out.close()


# ---- mma.sync ------------------------------------------------------------


def mma(c: Context, op: Op) -> None:
    """acc += a @ b.T, k ascending for every accumulator block."""
    acc, a, b = op.operands["acc"], op.operands["a"], op.operands["b"]
    at, bt, d = a.type.dtype, b.type.dtype, acc.type.dtype
    step = forms.K_ELEMENTS[at.bits]
    block = 4 * d.bits // 32  # accumulator registers of one instruction
    call = c.helpers.add(*forms.mma(at.name, bt.name, d.name, at.bits))
    d_name, d_regs = c.tiles.registers_of(acc)
    a_name, a_regs = c.tiles.registers_of(a)
    b_name, b_regs = c.tiles.registers_of(b)
    if d_name not in (c.tiles.name(acc.frag),):
        raise c.unsupported("an accumulator slice that is not made of whole blocks")
    steps, rows, cols = a.type.cols // step, acc.type.rows // 16, acc.type.cols // 8
    for k in range(steps):
        for i in range(rows):
            for j in range(cols):
                dn, an, bn = d_regs[(i * cols + j) * block], a_regs[(i * steps + k) * 4], b_regs[(j * steps + k) * 2]
                c.out.line(f"{call}(&{d_name}[{dn}], &{a_name}[{an}], &{b_name}[{bn}]);")
    c.promise("mma", "", steps * rows * cols, pattern=mma_mnemonic(c.target, step, at.name, bt.name, d.name))


# ---- shared-memory descriptors -----------------------------------------------------------------------------------------

START_MASK = 0x3FFFF
"""What of a shared address a descriptor holds: 14 bits of units of 16 bytes."""


@dataclass(frozen=True)
class MatrixOperand:
    """A matrix in shared memory as an instruction sees it.

    start: byte address of element (0, 0). lead, stride: bytes (LBO, SBO). step(k): byte advance of the k-th 32-byte step of
    K; rows(i): byte advance of the i-th block of 64 rows (of MN).
    """

    view: View
    start: SX
    lead: int
    stride: int

    @property
    def swizzle(self) -> int:
        return self.view.buffer.swizzle

    @property
    def panel_bytes(self) -> int:
        return self.view.buffer.rows * self.swizzle

    def step(self, k: int) -> int:
        """K-major: 32 bytes along the row, panel by panel. MN-major: 16 stored rows."""
        if self.view.transposed:
            return k * (256 // self.view.buffer.dtype.bits) * self.swizzle
        panel, inner = divmod(k * 32, self.swizzle)
        return panel * self.panel_bytes + inner

    def rows(self, i: int) -> int:
        """64 rows further; MN-major: 64 columns of the stored matrix further, panel by panel."""
        if self.view.transposed:
            panel, inner = divmod(i * 64 * self.view.buffer.dtype.bits // 8, self.swizzle)
            return panel * self.panel_bytes + inner
        return i * 64 * self.swizzle


def matrix_operand(c: Context, view: View) -> MatrixOperand:
    """K-major: SBO steps 8 rows, LBO is unused (1). MN-major (`.T`): SBO steps 8 rows of K, LBO one swizzle atom along MN."""
    from lowering.emission.asynchronous import view_start

    swizzle = view.buffer.swizzle
    lead = view.buffer.rows * swizzle if view.transposed else 16
    return MatrixOperand(view, view_start(c, view), lead, 8 * swizzle)


def descriptor_bits(m: MatrixOperand, layout: dict[int, int], shift: int, extra: int = 0) -> int:
    """The constant part: everything but the start address."""
    return (m.lead >> 4) << 16 | (m.stride >> 4) << 32 | layout[m.swizzle] << shift | extra


def _descriptor(c: Context, op: Op, operand: str, m: MatrixOperand, bits: int, steps: int, blocks: int = 1) -> str:
    """Compute the descriptor of the first step into a constant; its name."""
    start = f"({c.sx.top(m.start)})"
    if m.view.transposed and c.kernel.launch.cluster > 1:
        # In a cluster a shared address carries the CTA's rank from bit 24 on (seen on the H200), which would fall into LBO.
        # Swizzled K-major operands have no LBO, so their descriptors do without the mask.
        start = f"({start} & {START_MASK:#x})"
    name = c.hoist(f"desc_{operand}", "cake::u64", f"{bits:#x}ull | static_cast<cake::u64>({start} >> 4)")
    c.record(
        "smem_descriptor",
        op,
        operand,
        m.start,
        bits=bits,
        steps=tuple(m.step(k) >> 4 for k in range(steps)),
        blocks=tuple(m.rows(i) >> 4 for i in range(blocks)),
        view=m.view,
        form="wgmma" if op.name == "wgmma" else "tcgen05",
    )
    return name


def _plus(name: str, units: int) -> str:
    return f"{name} + {units}" if units else name


# ---- wgmma ------------------------------------------------------------


def wgmma(c: Context, op: Op) -> None:
    """m64nNk32B instructions over the whole K; a fence first, as the registers may have been touched."""
    acc: VFrag = op.operands["acc"]
    a: VX | View = op.operands["a"]
    b: View = op.operands["b"]
    init = op.operands.get("init") or const(False)
    b_dtype, d = b.buffer.dtype, acc.type.dtype
    a_view = a if isinstance(a, View) else None
    a_dtype = a_view.buffer.dtype if a_view is not None else a.type.dtype  # type: ignore[union-attr]
    n, blocks = acc.type.cols, acc.type.rows // 64
    steps = b.shape[1] * b_dtype.bits // 256
    form = forms.wgmma(
        n,
        a_dtype.name,
        b_dtype.name,
        d.name,
        a_dtype.bits,
        a_regs=a_view is None,
        trans_a=a_view is not None and a_view.transposed,
        trans_b=b.transposed,
    )
    call = c.helpers.add(*form)
    d_name, d_regs = c.tiles.registers_of(acc)
    per_block = len(d_regs) // blocks
    if d_name != c.tiles.name(acc.frag) or any(
        d_regs[i * per_block + j] != d_regs[i * per_block] + j for i in range(blocks) for j in range(per_block)
    ):
        raise c.unsupported("an accumulator slice whose registers are not consecutive")
    c.out.open("")
    a_name, a_regs, ma = "", [], None
    if a_view is None:
        a_name, a_regs = c.tiles.registers_of(a)  # type: ignore[arg-type]
        c.hold(a_name)
    else:
        ma = matrix_operand(c, a_view)
        a_name = _descriptor(c, op, "a", ma, descriptor_bits(ma, WGMMA_LAYOUT, 62), steps, blocks)
    mb = matrix_operand(c, b)
    b_name = _descriptor(c, op, "b", mb, descriptor_bits(mb, WGMMA_LAYOUT, 62), steps)
    overwrites = isinstance(init, SConst) and bool(init.value)
    c.settle_accumulators(d_name)
    if not overwrites:
        c.hold(d_name)
    c.out.line(f"{c.helpers.add(*forms.WGMMA_FENCE)}();")
    first = "false" if overwrites else "true" if isinstance(init, SConst) else f"!{c.sx(init)}"
    for k in range(steps):
        for i in range(blocks):
            if ma is None:
                a_text = f"&{a_name}[{a_regs[(i * steps + k) * 4]}]"
            else:
                a_text = _plus(a_name, (ma.step(k) + ma.rows(i)) >> 4)
            b_text = _plus(b_name, mb.step(k) >> 4)
            c.out.line(
                f"{call}(&{d_name}[{d_regs[i * per_block]}], {a_text}, {b_text}, {first if k == 0 else 'true'});"
            )
    c.out.close()
    c.wgmma_open.add(d_name)
    c.promise("wgmma", "", steps * blocks, pattern=wgmma_mnemonic(n, a_dtype.name, b_dtype.name, d.name))


def wgmma_commit(c: Context, op: Op) -> None:
    """Closes the group."""
    c.out.line(f"{c.helpers.add(*forms.WGMMA_COMMIT)}();")
    c.wgmma_groups.append(frozenset(c.wgmma_open))
    c.wgmma_open.clear()


def wgmma_wait(c: Context, op: Op) -> None:
    """At most k groups pending; the accumulators of the others may be read behind it."""
    k = op.attrs["k"]
    c.settle()
    c.out.line(f"{c.helpers.add(*forms.WGMMA_WAIT)}<{k}>();")
    pending = frozenset().union(*c.wgmma_groups[-k:]) if k else frozenset()
    for frag in c.open_fragments:
        name = c.tiles.name(frag)
        if frag in c.accumulators and name not in pending:
            c.hold(name)
    c.promise("wgmma_wait", "wgmma.wait_group")


# ---- tcgen05 ------------------------------------------------------------


def instruction_descriptor(a: Any, b: Any, d: Any, m: int, n: int, a_mn: bool, b_mn: bool) -> int:
    """32 bits (PTX ISA: Instruction descriptor): D format, A and B formats and majors, N >> 3, M >> 4."""
    code = {"f16": 0, "bf16": 1, "tf32": 2} if a.bits >= 16 else {"e4m3": 0, "e5m2": 1}
    d_code = {"f16": 0, "f32": 1, "i32": 2}[d.name]
    return (
        d_code << 4
        | code[a.name] << 7
        | code[b.name] << 10
        | int(a_mn) << 15
        | int(b_mn) << 16
        | (n >> 3) << 17
        | (m >> 4) << 24
    )


def tmem_address(c: Context, view: View, lanes: bool) -> SX:
    """Lane in bits 31..16, column in bits 15..0; with `lanes` the 32 lanes that this warp reaches."""
    b = view.buffer
    columns = -(-b.cols * b.dtype.bits // 32)
    column = add(c.derived.tmem[b], mul(c.slot(view.use, b.stages), columns), div(mul(view.col0, b.dtype.bits), 32))
    address = add(c.local_scalar("tmem_base"), column)
    return add(address, mul(c.thread("wwarp"), 32 << 16)) if lanes else address


def tcgen05_mma(c: Context, op: Op) -> None:
    """Instructions over the whole K by one thread."""
    acc, a, b = op.operands["acc"], op.operands["a"], op.operands["b"]
    init = op.operands.get("init") or const(False)
    group = op.attrs.get("cta_group", 1)
    at, bt, d = a.buffer.dtype, b.buffer.dtype, acc.buffer.dtype
    kind = {16: "f16", 8: "f8f6f4", 32: "tf32"}[at.bits]
    m, n = a.shape[0] * group, acc.shape[1]
    form = instruction_descriptor(at, bt, d, m, n, a.transposed, b.transposed)
    call = c.helpers.add(*forms.tcgen05_mma(kind, group))
    steps = a.shape[1] * at.bits // 256
    version = 1 << 46
    ma, mb = matrix_operand(c, a), matrix_operand(c, b)
    c.out.open("")
    a_name = _descriptor(c, op, "a", ma, descriptor_bits(ma, TCGEN05_LAYOUT, 61, version), steps)
    b_name = _descriptor(c, op, "b", mb, descriptor_bits(mb, TCGEN05_LAYOUT, 61, version), steps)
    address = tmem_address(c, acc, lanes=False)
    c.record(
        "instruction_descriptor",
        op,
        "acc",
        None,
        value=form,
        m=m,
        n=n,
        a=at.name,
        b=bt.name,
        d=d.name,
        a_mn=a.transposed,
        b_mn=b.transposed,
        group=group,
    )
    c.record("tmem_address", op, "acc", address, view=acc, lanes=False)
    place = c.hoist("d", "cake::u32", f"static_cast<cake::u32>({c.sx.top(address)})")
    first = f"!{c.sx(init)}" if not isinstance(init, SConst) else "false" if init.value else "true"
    for k in range(steps):
        c.out.line(
            f"{call}({place}, {_plus(a_name, ma.step(k) >> 4)}, {_plus(b_name, mb.step(k) >> 4)}, {form:#x}u, "
            f"{first if k == 0 else 'true'});"
        )
    c.out.close()
    c.tcgen05_touched = True
    c.promise("tcgen05_mma", f"tcgen05.mma.{kind}", steps)


def tcgen05_commit(c: Context, op: Op) -> None:
    """An arrival when this thread's tcgen05 work is done; implies the fence before."""
    bar: BarUse = op.operands["bar"]
    ranks = op.operands.get("multicast")
    call = c.helpers.add(*forms.tcgen05_commit(c.cta_group, ranks is not None))
    address = c.sx.top(c.barrier(bar))
    if bar.rank is not None and c.kernel.launch.cluster > 1:
        address = f"{c.helpers.use('map_to_rank')}({address}, {c.sx.top(bar.rank)})"
    c.out.line(f"{call}({address}{', ' + ranks_mask(c, ranks) if ranks is not None else ''});")
    c.promise("tcgen05_commit", "tcgen05.commit.multicast" if ranks is not None else "tcgen05.commit")


def tmem_load(c: Context, op: Op) -> None:
    """32x32b: one lane per thread, N columns."""
    view, frag = op.operands["view"], op.results[0]
    tile = frag.type  # type: ignore[union-attr]
    if tile.dtype.bits != 32:
        raise c.unsupported(f"tmem_load of {tile.dtype}")
    name = c.tiles.name(frag)  # type: ignore[arg-type]
    call = c.helpers.add(*forms.tcgen05_ld(tile.cols, tile.dtype.kind == "f"))
    address = tmem_address(c, view, lanes=True)
    c.record("tmem_address", op, "view", address, view=view, lanes=True, columns=tile.cols)
    c.out.line(f"{call}({name}, static_cast<cake::u32>({c.sx.top(address)}));")
    c.pending_tmem.append(name)
    c.tcgen05_touched = True
    c.promise("tmem_load", "tcgen05.ld")


def tmem_load_wait(c: Context, op: Op) -> None:
    """The loaded values may be read behind it."""
    c.out.line(f"{c.helpers.add(*forms.TCGEN05_WAIT_LD)}();")
    visible = {c.tiles.name(f) for f in c.open_fragments}
    for name in c.pending_tmem:
        if name in visible:
            c.hold(name)
    c.pending_tmem.clear()


def tmem_store(c: Context, op: Op) -> None:
    """Registers to 32 lanes per warp."""
    view, x = op.operands["view"], op.operands["x"]
    if x.type.dtype.bits != 32:
        raise c.unsupported(f"tmem_store of {x.type.dtype}")
    c.out.open("")
    name, regs = c.tiles.registers_of(x)
    if regs != list(range(regs[0], regs[0] + len(regs))):
        name, regs = c.tiles.temporary(x), list(range(x.type.cols))
    call = c.helpers.add(*forms.tcgen05_st(x.type.cols, x.type.dtype.kind == "f"))
    c.out.line(f"{call}(static_cast<cake::u32>({c.sx.top(tmem_address(c, view, lanes=True))}), &{name}[{regs[0]}]);")
    c.out.close()
    c.tcgen05_touched = True
    c.promise("tmem_store", "tcgen05.st")


def tmem_store_wait(c: Context, op: Op) -> None:
    """The stores of this warp are done."""
    c.out.line(f"{c.helpers.add(*forms.TCGEN05_WAIT_ST)}();")


EMITTERS = {
    "ldmatrix": ldmatrix, "stmatrix": stmatrix, "mma": mma, "wgmma": wgmma, "wgmma_commit": wgmma_commit, "wgmma_wait": wgmma_wait,
    "tcgen05_mma": tcgen05_mma, "tcgen05_commit": tcgen05_commit, "tmem_load": tmem_load, "tmem_load_wait": tmem_load_wait,
    "tmem_store": tmem_store, "tmem_store_wait": tmem_store_wait,
}  # fmt: skip
