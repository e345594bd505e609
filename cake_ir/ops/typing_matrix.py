"""Typing of matrix products: shapes, dtypes, majorness, operand sources of each instruction form."""

from __future__ import annotations

from typing import Any

from cake_ir import bound as B
from cake_ir.dtypes import BF16, F16, F32, DType
from cake_ir.ops.typing import Call, check, panel_aligned, smem_view
from cake_ir.ops.typing_sync import mbarrier

_F8 = ("e4m3", "e5m2")


def _input_types(call: Call, a: DType, b: DType) -> int:
    """K elements of one instruction (32 bytes); reports an illegal pair."""
    if (
        a.bits != b.bits
        or (a.bits == 16 and a is not b)
        or (a.bits == 8 and not (a.name in _F8 and b.name in _F8))
        or a.bits == 32
    ):
        integers = a.name in ("i8", "u8") and b.name in ("i8", "u8")
        call.fail(
            "hardware/mma-dtype",
            f"integer products ({a} by {b}, sums in i32) are not offered"
            if integers
            else f"no form multiplies {a} by {b}",
            "a",
            "PTX ISA: bf16 x bf16, f16 x f16, e4m3/e5m2 freely mixed.",
        )
    return 256 // a.bits


def _accumulates(call: Call, d: DType, a: DType) -> None:
    """Sums of register accumulators are f32, or f16 where the factors are not bf16."""
    if d is not F32 and not (d is F16 and a is not BF16):
        wide = "f32" if a is BF16 else "f32 or f16"
        call.fail("hardware/mma-dtype", f"{a} products accumulate in {wide}, not {d}", "acc")


def _operand(call: Call, view: B.View, name: str, rows: int, k: int, step: int) -> None:
    """A shared-memory matrix operand (rows x k after `.T`)."""
    b = view.buffer
    if not b.swizzle:
        call.fail(
            "hardware/mma-swizzle",
            f"'{b.name}' has no swizzle; the unswizzled descriptor forms are not offered",
            name,
            "wgmma and tcgen05 operands need a swizzle of 32, 64 or 128 bytes.",
        )
    if view.shape != (rows, k):
        call.fail("hardware/mma-shape", f"operand {name} is {list(view.shape)}, expected {[rows, k]}", name)
    if view.transposed and b.dtype.bits != 16:
        call.fail(
            "hardware/mma-major",
            f"{b.dtype} operands are K-major only; '{b.name}.T' is MN-major",
            name,
            "PTX ISA, wgmma: the transpose immediates exist for f16 and bf16 only.",
        )
    panel_aligned(call, view, name, col_bytes=32 if not view.transposed else 16, box=False)
    if k % step:
        call.fail("hardware/mma-shape", f"K = {k} is not a multiple of {step}", name)


@check("wgmma")
def _wgmma(call: Call) -> list[Any]:
    acc, a, b = call.args["acc"], call.args["a"], smem_view(call, "b")
    t = acc.type
    if t.layout.name != "wgmma_d" or t.axis is not None:
        call.fail("hardware/mma-accumulator", f"the accumulator is a wgmma_d tile, got {t}", "acc")
    a_dtype = a.buffer.dtype if isinstance(a, B.View) else a.type.dtype
    step = _input_types(call, a_dtype, b.buffer.dtype)
    _accumulates(call, t.dtype, a_dtype)
    if t.cols % 8 or not 8 <= t.cols <= 256:
        call.fail(
            "hardware/wgmma-shape",
            f"N = {t.cols}; wgmma has N = 8 .. 256 in steps of 8",
            "acc",
            "PTX ISA, wgmma.mma_async: shapes.",
        )
    k = b.shape[1] if len(b.shape) == 2 else 0
    if isinstance(a, B.View):
        a = smem_view(call, "a")
        _operand(call, a, "a", t.rows, k, step)
    else:
        if a.type.layout.name != "wgmma_a" or (a.type.rows, a.type.cols) != (t.rows, k):
            call.fail("hardware/mma-shape", f"a register operand is wgmma_a[{t.rows}, {k}], got {a.type}", "a")
    _operand(call, b, "b", t.cols, k, step)
    call.operands.update(acc=acc, a=a, b=b)
    call.operands["init"] = call.args.get("init", B.SConst(False, "bool"))
    return []


@check("mma")
def _mma(call: Call) -> list[Any]:
    from cake_ir.binding.expr import materialize

    acc, a, b = call.args["acc"], call.args["a"], call.args["b"]
    for name, x, layout in (("acc", acc, "mma_d"), ("a", a, "mma_a"), ("b", b, "mma_b")):
        if x.type.layout.name != layout or x.type.axis is not None:
            call.fail("hardware/mma-shape", f"{name} is {layout}, got {x.type}", name)
    step = _input_types(call, a.type.dtype, b.type.dtype)
    if a.type.dtype.bits == 8 and not call.c.target.has("mma_sync_fp8") and a.type.dtype.name in _F8:
        call.fail("hardware/feature-missing", f"fp8 mma.sync does not exist on {call.c.target.name}", "a")
    want = (acc.type.rows, acc.type.cols)
    if (a.type.rows, b.type.rows) != want or a.type.cols != b.type.cols or a.type.cols % step:
        call.fail(
            "hardware/mma-shape",
            f"acc {list(want)} += a {[a.type.rows, a.type.cols]} @ b {[b.type.rows, b.type.cols]}.T does not fit (K in steps of {step})",
        )
    _accumulates(call, acc.type.dtype, a.type.dtype)
    call.operands.update(acc=acc, a=materialize(call.c, a, call.span), b=materialize(call.c, b, call.span))
    return []


@check("tcgen05_mma")
def _tcgen05(call: Call) -> list[Any]:
    acc, a, b = call.args["acc"], smem_view(call, "a"), smem_view(call, "b")
    group = call.args.get("cta_group", 1)
    cluster = call.c.launch.cluster if call.c.launch else 1
    if group not in (1, 2):
        call.fail("hardware/tcgen05-form", f"cta_group is 1 or 2, got {group}", "cta_group")
    if group == 2 and cluster % 2:
        call.fail(
            "hardware/cluster-shape",
            f"cta_group=2 needs an even cluster, got {cluster}",
            "cta_group",
            "PTX ISA, tcgen05: a CTA pair.",
        )
    if acc.buffer.space != "tmem":
        call.fail(
            "hardware/mma-accumulator",
            f"the accumulator lies in tensor memory; '{acc.buffer.name}' is shared memory",
            "acc",
        )
    if acc.buffer.dtype is not F32:
        call.fail(
            "hardware/mma-dtype",
            f"tcgen05 products accumulate in f32, not {acc.buffer.dtype}"
            + ("; f16 sums, one in each 32-bit column, are not offered" if acc.buffer.dtype is F16 else ""),
            "acc",
        )
    step = _input_types(call, a.buffer.dtype, b.buffer.dtype)
    if len(acc.shape) != 2 or acc.shape[0] != 128 or acc.transposed:
        call.fail(
            "hardware/tcgen05-shape",
            f"the accumulator is a tile of 128 lanes and N columns; this view of '{acc.buffer.name}' is "
            f"{list(acc.shape)}{', transposed' if acc.transposed else ''}",
            "acc",
            "PTX ISA, tcgen05: Matrix Shape; M = 128 of each CTA takes all lanes of tensor memory.",
        )
    n = acc.shape[1]
    grain = 16 if group == 2 else 8
    if n % grain or not grain <= n <= 256:
        call.fail(
            "hardware/tcgen05-shape",
            f"N = {n}; cta_group={group} has N = {grain} .. 256 in steps of {grain}",
            "acc",
            "PTX ISA, tcgen05: Matrix Shape.",
        )
    k = a.shape[1] if len(a.shape) == 2 else 0
    _operand(call, a, "a", 128, k, step)
    _operand(call, b, "b", n // group, k, step)
    call.operands.update(acc=acc, a=a, b=b, init=call.args.get("init", B.SConst(False, "bool")))
    call.attrs["cta_group"] = group
    return []


@check("tcgen05_commit")
def _commit(call: Call) -> list[Any]:
    call.operands["bar"] = mbarrier(call, "bar", remote=True)
    call.keep("multicast")
    return []
