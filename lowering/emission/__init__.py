"""Emission: a bound kernel and its derived facts to CUDA C++ and a launch manifest.

One branch per role (`project`), statements in text order (`statements`), ops by family (`synchronisation`, `asynchronous`,
`memory`, `matrix`, `reductions`), each with an `EMITTERS` table by op name. A new op needs an entry there and, for a new
instruction form, a helper in `lowering.helpers`; a test fails while one is missing. All index arithmetic is built as `SX` and
printed by `scalars.Printer`; derived hardware values are kept as `Record`s for the decoder.
"""

from __future__ import annotations

from cake_ir.bound import BoundKernel
from cake_ir.derive import derive
from cake_ir.diagnostics import CakeError
from lowering.emission.kernel import emit_kernel
from lowering.emission.manifest import Emitted, finish, plan

__all__ = ["Emitted", "emit", "plan"]


def emit(bound: BoundKernel, timeline: bool = False, resident: int | None = None) -> Emitted:
    """CUDA C++ of a kernel. Raises CakeError: the first derivation error, or `lowering/unsupported-form`.

    timeline: the instrumented form, which records marks (see `lowering.timeline`); `manifest.timeline` lists them. resident:
    CTAs per SM for which the compiler must leave registers, if more than the text says.
    """
    derived = derive(bound)
    for d in derived.diagnostics:
        if d.severity == "error":
            raise CakeError(d)
    return finish(*emit_kernel(bound, derived, timeline, resident))
