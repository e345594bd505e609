"""Cross-lane register ops and free conversions. Elementwise arithmetic is expression syntax, not ops (docs/language.md)."""

from __future__ import annotations

from cake_ir.ops.decl import OpDecl, Param

_X = Param("x", "value")


def _reg(name: str, units: str, params: tuple[Param, ...], form: str, doc: str, feature: str | None = None) -> OpDecl:
    return OpDecl(
        name, units, params, form=form, source="PTX ISA: shfl.sync, vote.sync, redux.sync", doc=doc, feature=feature
    )


OPS = [
    *(
        _reg(
            f"{axis}_{op}",
            "WG",
            (_X,),
            "in-thread, then shfl.sync.bfly",
            f"{op} over each {axis} of a tile gives a .{axis}s vector, of a vector that crosses it a scalar. In-thread left to "
            "right, then a butterfly over the lanes that share the result.",
        )
        for axis in ("row", "col")
        for op in ("sum", "max", "min")
    ),
    *(_reg(f"row_{op}", "WG", (_X,), "vote.sync", f"{op} of a mask over each row.") for op in ("any", "all")),
    *(
        _reg(
            f"row_{op}",
            "WG",
            (_X, Param("payload", "value")),
            "in-thread, then shfl.sync.bfly",
            "Two results: the extreme of each row and its payload. Ties go to the least payload (a row of equal values, infinite ones "
            "included, is one tie); NaN loses.",
        )
        for op in ("argmin", "argmax")
    ),
    _reg("col_cumsum", "WG", (_X,), "in-thread; shfl.sync.up", "Inclusive running sum down each column, same type."),
    _reg("row_cumsum", "WG", (_X,), "in-thread; shfl.sync.up", "Inclusive running sum along each row, same type."),
    _reg("pick", "WG", (_X, Param("i", "scalar")), "shfl.sync.idx", "Element i of a .cols vector as a scalar."),
    _reg(
        "shift",
        "WG",
        (_X, Param("fill", "scalar")),
        "shfl.sync.up",
        "Element j-1 at place j of a vec .cols vector; fill at 0.",
    ),
    _reg("row_bits", "W", (_X,), "vote.sync.ballot", "bool mma_d.rows[16] -> i32, bit r = row r."),
    OpDecl(
        "operand_a",
        "WG",
        (_X,),
        form="register renaming",
        source="PTX ISA: Matrix Fragments for mma.m16n8k16",
        doc="mma_d -> mma_a, wgmma_d -> wgmma_a, 16-bit only; free.",
    ),
    OpDecl(
        "operand_b",
        "WG",
        (_X,),
        form="register renaming",
        source="PTX ISA: Matrix Fragments for mma.m16n8k16",
        doc="mma_d[N, K] -> mma_b[N, K], 16-bit only; free.",
    ),
    OpDecl(
        "transpose",
        "W",
        (_X,),
        form="movmatrix.sync.aligned.m8n8.trans.b16",
        source="PTX ISA: movmatrix",
        doc="mma_d -> mma_d transposed, 16-bit.",
        feature="movmatrix",
    ),
    OpDecl(
        "warp_part",
        "W",
        (_X,),
        form="none",
        source="PTX ISA: Register Fragments for wgmma.mma_async",
        doc="Inside warps(): this warp's mma_d[16m, N] of a wgmma_d[64m, N]; vectors too. Free.",
    ),
]
