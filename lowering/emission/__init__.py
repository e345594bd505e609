"""Emission: a bound kernel and its derived facts to CUDA C++ and a launch manifest."""

from __future__ import annotations

from cake_ir.bound import BoundKernel
from cake_ir.derive import derive
from cake_ir.diagnostics import CakeError
from lowering.emission.kernel import emit_kernel
from lowering.emission.manifest import Emitted, finish, plan

__all__ = ["Emitted", "emit", "plan"]


def emit(bound: BoundKernel) -> Emitted:
    """CUDA C++ of a kernel. Raises CakeError: the first derivation error, or `lowering/unsupported-form`."""
    derived = derive(bound)
    for d in derived.diagnostics:
        if d.severity == "error":
            raise CakeError(d)
    return finish(*emit_kernel(bound, derived))
