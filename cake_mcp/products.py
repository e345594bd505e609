"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cake_mcp.arrays import Adapter
from cake_mcp.operation import Layout, Operation, Spec


def _library(lead: Adapter, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
    return (lead.module.matmul(arrays["a"], arrays["b"]),)  # type: ignore[attr-defined]


GEMM = Operation(
    "gemm",
    (Spec("a", "M K"), Spec("b", "N K", transposed=True)),
    (Spec("d", "M N"),),
    also=(Layout("gemm_nn", (Spec("a", "M K"), Spec("b", "K N")), (Spec("d", "M N"),)),),
    pads={"K": 8},
    library=_library,
    smooth=True,
)


def gemm(a: Any, b: Any, *, out: Any = None, stream: Any = None, strict: bool = False) -> Any:
    """d = a @ b with f32 accumulation.

    Args:
        a: (M, K), row-major.
        b: (K, N), of the dtype of a: the transposed view `w.T` of a row-major (N, K) weight, or row-major itself. Neither is copied.
        out: where d goes, (M, N) row-major; by default new memory of a's library.
        stream: a CUDA stream (integer or object); by default the current one of a's library.
        strict: raise instead of taking a fallback.

    Returns:
        d, of the dtype of a.

    Raises:
        CakeError: `dispatch/...`, `lowering/...`; the message says what to do.
    """
    done = GEMM.quick((a, b, out), stream)  # one Python call less where it applies
    return done[0] if done is not None else GEMM.serve((a, b), (out,), stream, strict)[0]
