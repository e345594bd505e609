"""Typing of data movement ops."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir.dtypes import BF16, BOOL, F16, F32, I32, DType
from cake_ir.layouts import TileType, same_place, same_slots
from cake_ir.ops.typing import Call, check, fit, panel_aligned, same_dtype, smem_view
from cake_ir.ops.typing_sync import mbarrier


def contiguous(call: Call, region: B.Region, rule: str) -> None:
    """Asynchronous copies move rows of neighbouring elements: the last dimension has stride 1."""
    stride = region.tensor.strides[-1]
    if stride is not None and getattr(stride, "value", None) != 1:
        call.fail(
            rule, f"the elements of a row of '{region.tensor.name}' are not neighbours: it declares a stride", "region"
        )


def _no_gather(call: Call, region: B.Region, rule: str) -> None:
    """The thread that copies a row need not be the one that holds its index."""
    if any(d.kind == "gather" for d in region.dims):
        call.fail(rule, f"{call.decl.name} does not take rows by an index vector; load, store and bulk_reduce do", "region")


def _indexed(call: Call, memory: Any, tile: TileType, at: str) -> None:
    """An index vector is read by the thread that holds the row, so it is distributed like the rows of the tile."""
    kept = [d for d in memory.dims if d.kind != "index"] if isinstance(memory, B.Region) else []
    for i, d in enumerate(kept):
        if d.rows is None:
            continue
        if i:
            call.fail("language/index", "an index vector takes rows: it stands in the first kept dimension", at)
        axis = tile.axis or "rows"
        if not same_place(d.rows.type, tile, axis):
            n = tile.rows if axis == "rows" else tile.cols
            call.fail(
                "language/layout-mismatch",
                f"the index vector is {d.rows.type}; each thread needs the indices of its own elements of {tile}:"
                f" {tile.layout}.{axis}[{n}]",
                at,
            )


def writable(call: Call, region: B.Region, at: str, update: bool = False) -> None:
    """Out and InOut are written; atomics and reductions need InOut (or Out filled before)."""
    tensor = region.tensor
    if tensor.direction in ("In", "Const"):
        call.fail(
            "data/write-to-input",
            f"'{tensor.name}' is {tensor.direction} and is written",
            at,
            "In and Const tensors are not written.",
        )
    if update and tensor.direction == "Out":
        call.fail(
            "data/update-of-output",
            f"'{tensor.name}' is Out; a reduction reads it, so it must be InOut",
            at,
            "Out: every element is written exactly once and none is read.",
        )


def readable(call: Call, region: B.Region, at: str) -> None:
    if region.tensor.direction == "Out":
        call.fail(
            "data/read-of-output",
            f"'{region.tensor.name}' is Out and is read",
            at,
            "Out: every element is written exactly once and none is read.",
        )


def tma_operands(call: Call) -> tuple[B.View, B.Region]:
    """Rules of a tensor copy that the text decides: swizzle, box, alignment, clipping at extents only."""
    view = smem_view(call, "view")
    region = fit(call, call.args["region"], view.shape, "region")
    same_dtype(call, view.buffer.dtype, region.tensor.dtype, "region")
    b, size = view.buffer, view.buffer.dtype.bytes
    if view.transposed or region.transposed:
        call.fail("hardware/tma-transpose", "a tensor copy does not transpose", "region")
    if b.dtype.bits < 8:
        call.fail("hardware/tma-dtype", f"{b.dtype} has no tensor-map encoding", "view")
    if len(region.dims) > 5:
        call.fail(
            "hardware/tma-rank",
            f"a tensor map has at most 5 dimensions, '{region.tensor.name}' has {len(region.dims)}",
            "region",
        )
    if any(d.kind == "gather" for d in region.dims):
        call.fail(
            "hardware/feature-missing",
            "gather by index vector needs tile::gather4 (sm_100a); use bulk copies or plain loads",
            "region",
        )
    for d in region.dims:
        if d.stop is not None:
            call.fail(
                "hardware/tma-runtime-bound",
                "TMA clips at the tensor's extents only; a stop cannot clip here",
                "region",
                "Driver API, tensor map: out-of-bound elements are those outside globalDim.",
            )
    contiguous(call, region, "hardware/tma-inner-dimension")
    if [d.kind for d in region.dims][-1] == "index":
        call.fail(
            "hardware/tma-inner-dimension",
            "the innermost dimension must be kept by the box",
            "region",
            "The inner box extent is a multiple of 16 bytes.",
        )
    inner = min(view.cols * size, b.swizzle or view.cols * size)
    if inner % 16:
        call.fail(
            "hardware/tma-box",
            f"the inner box is {inner} B; it must be a multiple of 16 B",
            "view",
            "Driver API: inner box bytes % 16 == 0.",
        )
    if inner // size > 256:
        call.fail(
            "hardware/tma-box",
            f"the inner box has {inner // size} elements; at most 256 (swizzle=128 splits a wide row into panels)",
            "view",
            "Driver API: boxDim[i] <= 256.",
        )
    if b.pad and view.rows > 1:
        call.fail("hardware/tma-padding", f"'{b.name}' has padded rows; a tensor copy writes dense rows", "view")
    if not b.swizzle and view.cols != b.cols and view.rows > 1:
        call.fail("hardware/tma-box", "an unswizzled tile is copied with whole rows", "view")
    panel_aligned(call, view, "view")
    if not b.swizzle:
        offset = (view.row0, b.row_bytes + b.pad * size), (view.col0, size)
        if any(call.divisor(x) * scale % 128 for x, scale in offset if not (isinstance(x, B.SConst) and x.value == 0)):
            call.fail(
                "hardware/operand-alignment",
                f"the start of '{b.name}' is not provably 128-byte aligned",
                "view",
                "PTX ISA, cp.async.bulk.tensor: the shared address is 128-byte aligned.",
            )
    return view, region


@check("tma_load")
def _tma_load(call: Call) -> list[Any]:
    view, region = tma_operands(call)
    readable(call, region, "region")
    bar = mbarrier(call, "signal", remote=True)
    if bar.rank is not None and not call.c.target.has("tma_cta_group2"):
        call.fail(
            "hardware/feature-missing",
            f"a load that signals another CTA's barrier (.cta_group::2) does not exist on {call.c.target.name}",
            "signal",
        )
    if view.rank is not None:
        call.fail(
            "hardware/remote-destination",
            "a tensor copy lands in the own CTA (or, with multicast=, at the same place in several)",
            "view",
        )
    call.operands.update(view=view, region=region, signal=bar)
    call.keep("multicast")
    if "multicast" in call.operands and not call.c.target.has("tma_multicast"):
        call.fail("hardware/feature-missing", f"multicast does not exist on {call.c.target.name}", "multicast")
    call.attrs["cache"] = call.args.get("cache")
    return []


_REDUCED = {"add": ("f32", "f16", "bf16", "i32", "u32"), "min": ("f16", "bf16", "i32", "u32")}
"""What the copy engines combine with memory (PTX ISA, cp.reduce.async.bulk and cp.reduce.async.bulk.tensor: types of each
operation). For the tensor form nothing tells: its type stands in the map, which the assembler does not see."""


def _reduced(call: Call, dtype: DType) -> None:
    op = call.args["op"]
    legal = _REDUCED["add" if op == "add" else "min"]
    if dtype.name not in legal:
        call.fail("hardware/reduce-form", f"op={op} of {dtype} is not offered; it takes {', '.join(legal)}", "view")
    call.attrs["op"] = op


@check("tma_store", "tma_reduce")
def _tma_store(call: Call) -> list[Any]:
    view, region = tma_operands(call)
    reduce = call.decl.name == "tma_reduce"
    writable(call, region, "region", update=reduce)
    call.operands.update(region=region, view=view)
    if reduce:
        _reduced(call, view.buffer.dtype)
    return []


def _bulk(call: Call) -> tuple[B.View, B.Region]:
    view = smem_view(call, "view")
    region = fit(call, call.args["region"], view.shape, "region")
    same_dtype(call, view.buffer.dtype, region.tensor.dtype, "region")
    size = view.buffer.dtype.bytes
    if view.buffer.swizzle or view.transposed or region.transposed:
        call.fail("hardware/bulk-rows", "a bulk copy moves linear rows: no swizzle, no transpose", "view")
    if view.cols * size % 16:
        call.fail(
            "hardware/bulk-size",
            f"a row is {view.cols * size} B; bulk copies move multiples of 16 B",
            "view",
            "PTX ISA, cp.async.bulk: size % 16 == 0.",
        )
    if view.rank is not None:
        call.fail("hardware/remote-destination", "a bulk copy moves between global memory and the own CTA", "view")
    first = isinstance(view.row0, B.SConst) and view.row0.value == 0
    apart = view.buffer.pitch % 16 and not (first and view.rows == 1)
    if apart and not (view.rows == 1 and call.divisor(view.row0) * view.buffer.pitch % 16 == 0):
        call.fail(
            "hardware/operand-alignment",
            f"rows of '{view.buffer.name}' are {view.buffer.pitch} B apart; bulk rows start at 16-byte addresses",
            "view",
            "PTX ISA, cp.async.bulk: both addresses are 16-byte aligned.",
        )
    if not call.multiple(view.col0, max(1, 16 // size)):
        call.fail(
            "hardware/operand-alignment",
            f"the column start of '{view.buffer.name}' is not provably a multiple of {16 // size} elements (16 B)",
            "view",
            "PTX ISA, cp.async.bulk: both addresses are 16-byte aligned.",
        )
    if call.decl.name != "bulk_reduce":
        _no_gather(call, region, "hardware/bulk-rows")
    contiguous(call, region, "hardware/bulk-rows")
    if region.dims[-1].kind == "index":
        call.fail("hardware/bulk-rows", "the innermost dimension must be kept: rows are contiguous", "region")
    if not call.multiple(region.dims[-1].start, max(1, 16 // size)):
        call.fail(
            "hardware/operand-alignment",
            f"the rows of '{region.tensor.name}' start at addresses that are not provably multiples of 16 B",
            "region",
            "PTX ISA, cp.async.bulk: both addresses are 16-byte aligned.",
        )
    return view, region


@check("bulk_load")
def _bulk_load(call: Call) -> list[Any]:
    view, region = _bulk(call)
    readable(call, region, "region")
    call.operands.update(view=view, region=region, signal=mbarrier(call, "signal", remote=True))
    return []


@check("bulk_store", "bulk_reduce")
def _bulk_store(call: Call) -> list[Any]:
    view, region = _bulk(call)
    reduce = call.decl.name == "bulk_reduce"
    writable(call, region, "region", update=reduce)
    call.operands.update(region=region, view=view)
    if reduce:
        _reduced(call, view.buffer.dtype)
        rows = next((d.rows for d in region.dims if d.rows is not None), None)
        if rows is not None:
            _mask(call, rows.type)
        elif call.args.get("when") is not None:
            call.fail("language/arguments", "when= masks the rows of an index vector; without one use an `if`", "when")
    return []


def _mask(call: Call, tile: TileType) -> None:
    """`when=`: a thread reads the mask where it holds the element."""
    when = call.args.get("when")
    if when is None:
        return
    if when.type.dtype is not BOOL:
        call.fail("language/type", f"when= is a mask, got {when.type}", "when")
    if when.type.shape != tile.shape:
        call.fail("language/rank", f"when= has shape {list(when.type.shape)}, expected {list(tile.shape)}", "when")
    if not same_slots(when.type, tile):
        call.fail("language/layout-mismatch", f"when= is {when.type}, it masks {tile}", "when")
    call.operands["when"] = when


@check("cp_async")
def _cp_async(call: Call) -> list[Any]:
    view = smem_view(call, "view")
    region = fit(call, call.args["region"], view.shape, "region")
    readable(call, region, "region")
    same_dtype(call, view.buffer.dtype, region.tensor.dtype, "region")
    if view.transposed or region.transposed or len(view.shape) != 2:
        call.fail("hardware/cp-async-rows", "cp_async copies rows of a two-dimensional view as they are", "view")
    width = view.cols * view.buffer.dtype.bytes
    if width % 4:
        call.fail(
            "hardware/cp-async-size",
            f"rows of {width} B are not made of 4, 8 or 16 byte pieces",
            "view",
            "PTX ISA, cp.async: 4, 8 or 16 bytes.",
        )
    _no_gather(call, region, "hardware/cp-async-rows")
    contiguous(call, region, "hardware/cp-async-rows")
    if region.dims[-1].kind == "index":
        call.fail("hardware/cp-async-rows", "the innermost dimension must be kept", "region")
    if view.buffer.swizzle:
        panel_aligned(call, view, "view", row_step=1)
    call.operands.update(view=view, region=region)
    return []


@check("cp_async_arrive")
def _cp_async_arrive(call: Call) -> list[Any]:
    call.operands["bar"] = mbarrier(call, "bar", remote=False)
    return []


def _memory(call: Call, name: str, shape: tuple[int, ...], read: bool) -> Any:
    """A region fitted to a shape, or a view of exactly that shape."""
    memory = call.args[name]
    if isinstance(memory, B.Region):
        region = fit(call, memory, shape, name)
        (readable if read else writable)(call, region, name)
        return region
    if memory.buffer.space != "smem":
        call.fail("language/type", f"'{memory.buffer.name}' is tensor memory; use tmem_load and tmem_store", name)
    if memory.shape != shape:
        call.fail(
            "language/rank", f"shapes differ: the view is {list(memory.shape)}, the register side {list(shape)}", name
        )
    return memory


def _memory_dtype(memory: Any) -> Any:
    return memory.tensor.dtype if isinstance(memory, B.Region) else memory.buffer.dtype


@check("load")
def _load(call: Call) -> list[Any]:
    from cake_ir.binding.expr import tile_type

    src = call.args["src"]
    type_ = tile_type(call.c, _memory_dtype(src), call.args["layout"], call.nodes["layout"].span)
    call.operands["src"] = _memory(call, "src", type_.shape, read=True)
    _indexed(call, call.operands["src"], type_, "src")
    fill = call.args.get("fill")
    if fill is not None:
        if type_.dtype.bits < 32 and not isinstance(fill, B.SConst):
            call.fail("language/not-static", f"the fill of a {type_.dtype} tile is a literal", "fill")
        if isinstance(fill, B.SConst) and type_.dtype.kind == "f":
            fill = B.SConst(float(fill.value), "f32")
        call.operands["fill"] = fill
    call.attrs["cache"] = call.args.get("cache")
    return [call.result(type_)]


@check("load_scalar")
def _load_scalar(call: Call) -> list[Any]:
    src = call.args["src"]
    shape = src.shape if isinstance(src, B.View) else tuple(d for d in src.dims if d.kind != "index")
    if shape:
        call.fail(
            "language/rank",
            f"a load of rank {len(shape)} needs a layout, as in load(src, vec(V).cols[n]); only one element loads without",
            "src",
        )
    memory = _memory(call, "src", (), read=True)
    dtype = _memory_dtype(src)
    if dtype.name not in ("f32", "i32", "bf16", "f16"):
        call.fail("language/type", f"a scalar load of {dtype} is not offered", "src")
    c = call.c
    if isinstance(memory, B.Region):
        uniformity = "grid"
        for d in memory.dims:
            uniformity = c.weaker(uniformity, c.uniform(d.start))
        if memory.tensor.direction == "InOut":
            uniformity = c.weaker(uniformity, "instance")
    else:
        uniformity = "cta" if c.unit == "K" else "instance"
    call.operands["src"] = memory
    return [call.scalar(dtype.name, c.weaker(uniformity, c.control) if uniformity != "grid" else uniformity)]


@check("store")
def _store(call: Call) -> list[Any]:
    x = call.args["x"]
    call.operands["dst"] = _memory(call, "dst", x.type.shape, read=False)
    _indexed(call, call.operands["dst"], x.type, "dst")
    same_dtype(call, _memory_dtype(call.args["dst"]), x.type.dtype, "x")
    if x.type.threads != call.c.threads:
        call.fail("language/layout-unit", "a warpgroup's fragment is reached inside warps() by warp_part only", "x")
    call.operands["x"] = x
    _mask(call, x.type)
    call.attrs["cache"] = call.args.get("cache")
    return []


@check("store_scalar")
def _store_scalar(call: Call) -> list[Any]:
    call.operands["dst"] = _memory(call, "dst", (), read=False)
    dtype, x = _memory_dtype(call.args["dst"]), call.args["x"]
    if isinstance(x, B.SConst) and dtype.kind == "f":
        x = B.SConst(float(x.value), dtype.name)
    if x.dtype != dtype.name:
        call.fail("language/type", f"a scalar {x.dtype} is stored to {dtype}; use cast", "x")
    call.operands["x"] = x
    return []


def _same_rank(a: B.SX | None, b: B.SX | None) -> bool:
    """Whether two ranks are written alike."""
    if isinstance(a, B.SConst) and isinstance(b, B.SConst):
        return a.value == b.value
    if isinstance(a, B.SVar) and isinstance(b, B.SVar):
        return a.var is b.var
    if isinstance(a, B.SOp) and isinstance(b, B.SOp):
        return (a.op, len(a.args)) == (b.op, len(b.args)) and all(map(_same_rank, a.args, b.args))
    return a is b


@check("store_async")
def _store_async(call: Call) -> list[Any]:
    view, x, bar = smem_view(call, "view"), call.args["x"], mbarrier(call, "signal", remote=True)
    same_dtype(call, view.buffer.dtype, x.type.dtype, "x")
    if x.type.dtype.bits != 32:
        call.fail("hardware/store-async", f"store_async stores 32-bit elements, not {x.type.dtype}", "x")
    if x.type.threads != call.c.threads:
        call.fail("language/layout-unit", "a warpgroup's fragment is reached inside warps() by warp_part only", "x")
    if not _same_rank(view.rank, bar.rank):
        whose = "is the sender's own" if bar.rank is None else "is another CTA's"
        text = f"'{bar.barrier.name}' {whose}, but '{view.buffer.name}' is not of that CTA: both say `.on(r)` with one r"
        call.fail("hardware/store-async", text, "signal", "PTX ISA, st.async: both addresses are in one CTA's shared memory.")
    call.operands.update(view=_memory(call, "view", x.type.shape, read=False), x=x, signal=bar)
    return []


@check("ldmatrix")
def _ldmatrix(call: Call) -> list[Any]:
    from cake_ir.binding.expr import tile_type

    view = smem_view(call, "view")
    type_ = tile_type(call.c, view.buffer.dtype, call.args["layout"], call.nodes["layout"].span)
    if type_.layout.name not in ("mma_a", "mma_b", "mma_d", "wgmma_a", "wgmma_d") or type_.axis is not None:
        call.fail(
            "hardware/ldmatrix-form",
            f"ldmatrix gives mma_a, mma_b, mma_d, wgmma_a or wgmma_d, not {type_.layout}",
            "layout",
        )
    _matrix(call, view, type_)
    return [call.result(type_)]


def _matrix(call: Call, view: B.View, type_: Any) -> None:
    # a pair of 8-bit elements travels as one of 16 bits: right where the layout keeps four of a row together
    operand = type_.layout.name in ("mma_a", "mma_b", "wgmma_a")
    if view.buffer.dtype.bits != 16 and not (view.buffer.dtype.bits == 8 and operand and not view.transposed):
        rule = "hardware/ldmatrix-form" if call.decl.name == "ldmatrix" else "hardware/stmatrix-form"
        call.fail(
            rule, f"{call.decl.name} moves 8x8 matrices of 16-bit elements, got {view.buffer.dtype} {type_.layout}", "view"
        )
    if view.shape != type_.shape:
        call.fail(
            "language/rank", f"shapes differ: the view is {list(view.shape)}, the registers {list(type_.shape)}", "view"
        )
    if view.buffer.pitch % 16:
        call.fail(
            "hardware/operand-alignment",
            f"rows of '{view.buffer.name}' are {view.buffer.pitch} B apart; ldmatrix rows are 16-byte aligned",
            "view",
            "PTX ISA, ldmatrix: each row address is 16-byte aligned.",
        )
    panel_aligned(call, view, "view", box=False)
    call.operands["view"] = view


@check("stmatrix")
def _stmatrix(call: Call) -> list[Any]:
    view, x = smem_view(call, "view"), call.args["x"]
    if x.type.layout.name not in ("mma_d", "wgmma_d") or x.type.axis is not None:
        call.fail("hardware/stmatrix-form", f"stmatrix stores mma_d or wgmma_d tiles, not {x.type}", "x")
    same_dtype(call, view.buffer.dtype, x.type.dtype, "x")
    _matrix(call, view, x.type)
    call.operands["x"] = x
    return []


@check("tmem_load")
def _tmem_load(call: Call) -> list[Any]:
    from cake_ir.binding.expr import tile_type

    view = call.args["view"]
    type_ = tile_type(call.c, view.buffer.dtype, call.args["layout"], call.nodes["layout"].span)
    _tmem(call, view, type_)
    return [call.result(type_)]


def _tmem(call: Call, view: B.View, type_: Any) -> None:
    if view.buffer.space != "tmem":
        call.fail("language/type", f"'{view.buffer.name}' is shared memory", "view")
    if type_.layout.name != "tmem_d" or type_.axis is not None:
        call.fail("hardware/tmem-form", f"{call.decl.name} moves tmem_d tiles, not {type_}", "view")
    if view.shape != type_.shape:
        call.fail(
            "language/rank", f"shapes differ: the view is {list(view.shape)}, the registers {list(type_.shape)}", "view"
        )
    if type_.dtype.bits != 32:
        call.fail(
            "hardware/tmem-form",
            f"{call.decl.name} moves 32-bit columns, not {type_.dtype}; tiles of narrower elements are not offered",
            "view",
        )
    if type_.cols & (type_.cols - 1):
        call.fail("hardware/tmem-form", f"32x32b.xN moves a power of two of columns, got {type_.cols}", "view")
    call.operands["view"] = view


@check("tmem_store")
def _tmem_store(call: Call) -> list[Any]:
    _tmem(call, call.args["view"], call.args["x"].type)
    same_dtype(call, call.args["view"].buffer.dtype, call.args["x"].type.dtype, "x")
    call.keep("x")
    return []


@check("atomic_fetch_add")
def _atomic_fetch(call: Call) -> list[Any]:
    tile = call.args["x"].type
    lanes = tile.layout.l or tile.threads if tile.layout.name == "vec" else 0
    if tile.axis is not None and lanes != (1 if tile.axis == "rows" else tile.threads):
        call.fail(
            "language/layout-unit",
            f"several threads hold each element of {tile}, and one of them would learn the old value; use vec(V, 1).rows or "
            "vec(V).cols",
            "x",
        )
    _atomic(call)
    return [call.result(tile)]


@check("atomic_add", "atomic_min", "atomic_max")
def _atomic(call: Call) -> list[Any]:
    x = call.args["x"]
    region = fit(call, call.args["region"], x.type.shape, "region")
    _indexed(call, region, x.type, "region")
    writable(call, region, "region", update=True)
    same_dtype(call, region.tensor.dtype, x.type.dtype, "x")
    legal = (F32, I32, F16, BF16) if call.decl.name == "atomic_add" else (I32,)
    if x.type.dtype not in legal:
        offered = " and ".join(", ".join(d.name for d in legal).rsplit(", ", 1))
        call.fail(
            "hardware/atomic-form", f"{call.decl.name} of {x.type.dtype} is not offered; it takes {offered}", "x"
        )
    if x.type.dtype is BF16 and not call.c.target.has("red_bf16"):
        call.fail("hardware/feature-missing", f"{call.decl.form}.noftz.bf16 does not exist on {call.c.target.name}", "x")
    call.operands.update(region=region, x=x)
    _mask(call, x.type)
    return []
