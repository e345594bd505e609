"""What is done where no kernel serves the arrays as they are: a copy, zeros to a wider extent, or the caller's own library.

Each is named in a log record (structlog, event `cake.fallback`, once per combination of arrays) and refused by `strict=True`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from cake_ir.fault import CakeError, fault
from cake_mcp.arrays import Adapter

if TYPE_CHECKING:
    from cake_mcp.operation import Layout, Operation

How = Literal["copy", "pad", "library"]

_REMEDY = {
    "copy": "pass a contiguous, 16-byte aligned copy",
    "pad": "pad the arrays with zeros to that multiple",
    "library": "choose another dtype or shape, or tune the family for it",
}


class Fallback:
    """One way out. `why` says what is not served. names: arrays to copy. dims: extents to pad to."""

    def __init__(
        self, operation: Operation, lead: Adapter, why: str, how: How, *, names: tuple[str, ...] = (),
        layout: Layout | None = None, dims: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self._operation, self._lead, self._why, self._how = operation, lead, why, how
        self._names, self._layout, self._dims = names, layout or operation.layouts[0], dict(dims or {})
        self._logged = False

    def run(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...], where: int, strict: bool) -> tuple[Any, ...]:
        """The outputs. Raises CakeError `dispatch/strict` if that is refused, or if the library cannot do it."""
        from cake_mcp.operation import adapter_of

        lead, operation = self._lead, self._operation
        if strict or not lead.allocates:
            reason = "strict=True refuses a fallback" if strict else f"there is no fallback for {lead.name}"
            self._refuse(reason)
        specs = self._layout.inputs
        handled = [a for s, a in zip(specs, inputs, strict=True) if self._how != "copy" or s.name in self._names]
        for array in (*handled, *(outputs if self._how == "library" else ())):
            if array is not None and not isinstance(adapter_of(array), type(lead)):
                self._refuse(f"there is no fallback for arrays of {lead.name} and {adapter_of(array).name} together")
        if not self._logged:
            self._logged = True
            log("cake.fallback", family=operation.family, how=self._how, why=self._why, library=lead.name)
        with lead.on(where, lead.device_of(inputs[0])):
            if self._how == "library":
                return self._by_library(inputs, outputs)
            if self._how == "copy":
                changed = [lead.copied(a) if s.name in self._names else a for s, a in zip(specs, inputs, strict=True)]
            else:
                changed = [
                    a if a is None else self._padded(s.dims, a, s.transposed)
                    for s, a in zip(specs, inputs, strict=True)
                ]
            return operation(tuple(changed), outputs, None, False)

    def _by_library(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        lead, library = self._lead, self._operation.library
        assert library is not None
        try:
            results = library(lead, dict(zip((s.name for s in self._layout.inputs), inputs, strict=True)))
            return tuple(self._placed(o, r) for o, r in zip(outputs, results, strict=True))
        except CakeError:
            raise
        except Exception as exc:  # the library's own refusal: a dtype without products, no memory
            raise fault(
                "dispatch/library-failed",
                f"{self._why}, and {lead.name} fails at it: {type(exc).__name__}: {str(exc)[:300]}; {_REMEDY[self._how]}",
                contract="What no kernel serves is computed by the caller's library.",
            ) from exc  # fmt: skip

    def _refuse(self, reason: str) -> NoReturn:
        raise fault("dispatch/strict", f"{self._why}, and {reason}; {_REMEDY[self._how]}",
                    contract="Arrays are served as they are, or by a fallback that the caller allows.")  # fmt: skip

    def _padded(self, dims: tuple[str, ...], array: Any, transposed: bool) -> Any:
        own = array.T if transposed else array
        names = dims[len(dims) - len(own.shape) :]  # a batch extent may be left out
        shape = tuple(self._dims[d] for d in names)
        if shape == tuple(own.shape):
            return array
        wide = self._lead.padded(own, shape)
        return wide.T if transposed else wide

    def _placed(self, out: Any, result: Any) -> Any:
        if out is None:
            return result
        self._lead.assign(out, result)
        return out


def log(event: str, **fields: Any) -> None:
    """A warning of the host path: by the caller's configuration of structlog, else to stderr. structlog is loaded when there is
    something to say."""
    import structlog

    # Unconfigured, structlog prints to stdout, which belongs to the caller's program.
    own = None if structlog.is_configured() else structlog.PrintLogger(sys.stderr)
    (structlog.get_logger() if own is None else structlog.wrap_logger(own)).warning(event, **fields)
