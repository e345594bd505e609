"""d = a @ b in bf16 with f32 accumulation: gemm_bf16 with a right operand whose rows are the reduction."""

from __future__ import annotations

from dataclasses import replace

from corpus.arrays import Array, Math
from corpus.contract import Expected, TensorSpec
from corpus.contracts import gemm_bf16 as tn


def oracle(m: Math, t: dict[str, Array], s: dict[str, float]) -> dict[str, Expected]:
    """Exact products of the bf16 inputs; magnitude is sum |a||b|."""
    return tn.oracle(m, {"a": t["a"], "b": m.t(t["b"])}, s)


CONTRACT = replace(
    tn.CONTRACT,
    name="gemm_bf16_nn",
    summary="d = a @ b: a[M, K] and b[K, N] bf16, d[M, N] bf16, accumulated in f32.",
    dims={**tn.CONTRACT.dims, "N": "columns of b and d"},
    tensors=(
        tn.CONTRACT.tensors[0],
        TensorSpec("b", "in", "bf16", ("K", "N"), "right operand, N contiguous"),
        tn.CONTRACT.tensors[2],
    ),
    oracle=oracle,
    baselines=("torch_matmul_nn",),
)
