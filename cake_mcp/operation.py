"""Families as Python functions: the path of every call.

An `Operation` names the arrays of a family. A call reads what each array is (`arrays.view`), looks the combination up, and
launches; only a combination that is new is checked, routed and prepared (`cake_mcp.binding`). The combination that was served last
has a shorter way (`cake_mcp.quick`). To add a function:

    NORMS = Operation("row_norms", (Spec("x", "M D"),), (Spec("y", "M", "f32"),))
    (y,) = NORMS((x,), (None,), stream=None, strict=False)

Inputs come in the order of the specs, outputs likewise; an output that is None is allocated by the library of the first input.
Nothing here waits for the device, and nothing allocates but the caller's library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from cake_mcp.arrays import Adapter, adapter_for, pointer_device, stream_number
from lowering.runtime.launcher import Gpu
from lowering.runtime.libcuda import libcuda

if TYPE_CHECKING:
    from cake_mcp.binding import Ready
    from cake_mcp.quick import Quick

COMBINATIONS_KEPT = 4096
"""Combinations of shapes, dtypes and strides remembered per operation; the oldest goes first."""
_MISALIGNED = 15

_adapters: dict[type, Adapter] = {}
_gpus: dict[int, Gpu] = {}


def _no_quick(arrays: tuple[Any, ...], stream: Any) -> None:
    """For a combination without a quick way."""


def _mark(inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """What most likely tells known combinations of tensors apart, read in a moment; the quick way itself compares everything."""
    try:
        mark = (inputs[0].shape, inputs[0].dtype, getattr(inputs[1], "shape", None) if len(inputs) > 1 else None, inputs[-1] is None,
                outputs[-1] is None)  # fmt: skip
        hash(mark)
    except (AttributeError, TypeError):
        return None
    return mark


class Spec:
    """An array of an operation. dims: names of its extents. dtype: None for the operation's own, which callers choose by what they
    pass. transposed: the caller's array is the transposed view of this one."""

    __slots__ = ("dims", "dtype", "name", "transposed")

    def __init__(self, name: str, dims: str, dtype: str | None = None, transposed: bool = False) -> None:
        self.name, self.dims, self.dtype, self.transposed = name, tuple(dims.split()), dtype, transposed


class Made:
    """An input that may be left out: another family computes it from the other inputs. tensors: their name -> ours. dims: their
    extent -> the names of ours whose product it is."""

    __slots__ = ("dims", "family", "tensors")

    def __init__(self, family: str, tensors: Mapping[str, str], dims: Mapping[str, str]) -> None:
        self.family, self.tensors = family, dict(tensors)
        self.dims = {name: tuple(of.split()) for name, of in dims.items()}


class Layout:
    """One way in which the arrays may lie, and the family that serves it."""

    __slots__ = ("family", "inputs", "outputs")

    def __init__(self, family: str, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> None:
        self.family, self.inputs, self.outputs = family, tuple(inputs), tuple(outputs)


class Operation:
    """See the module.

    Args:
        family: the route table that serves it.
        inputs, outputs: its arrays.
        also: further layouts, tried in order where the arrays do not lie as the first one wants.
        made: inputs that may be None.
        batch: an extent that is 1 where every array comes without it.
        pads: extents of inputs alone that zeros may extend to a multiple without changing a result: name -> multiple.
        library: computes the outputs with the caller's own library: (adapter, arrays by name) -> outputs.
        smooth: a result has a gradient, which Cake does not compute.
    """

    def __init__(
        self, family: str, inputs: Sequence[Spec], outputs: Sequence[Spec], *, also: Sequence[Layout] = (),
        made: Mapping[str, Made] | None = None, batch: str | None = None, pads: Mapping[str, int] | None = None,
        library: Callable[[Adapter, Mapping[str, Any]], tuple[Any, ...]] | None = None, smooth: bool = False,
    ) -> None:  # fmt: skip
        self.layouts = (Layout(family, inputs, outputs), *also)
        self.family, self.made, self.batch = family, dict(made or {}), batch
        self.pads, self.library, self.smooth = dict(pads or {}), library, smooth
        self._known: dict[Any, Ready] = {}
        self.quick: Quick = _no_quick
        """The way of the combination that was served last: (inputs and outputs, stream) -> outputs, or None where it does not apply."""
        self._others: dict[Any, Quick] = {}
        self._lock = Lock()

    def __call__(
        self, inputs: tuple[Any, ...], outputs: tuple[Any, ...], stream: Any = None, strict: bool = False,
        dims: Mapping[str, int] | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Enqueue on `stream` (default: the current one of the first input's library) and return the outputs.

        Args:
            inputs, outputs: arrays in the order of the specs, or None.
            stream: an integer, or a stream object of any library.
            strict: refuse a fallback instead of taking it.
            dims: extents that no input has.

        Raises:
            CakeError: `dispatch/...`, each saying what to do; `lowering/...` of the driver.
        """
        done = self.quick(inputs + outputs, stream) if dims is None else None
        return done if done is not None else self.serve(inputs, outputs, stream, strict, dims)

    def serve(
        self, inputs: tuple[Any, ...], outputs: tuple[Any, ...], stream: Any = None, strict: bool = False,
        dims: Mapping[str, int] | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """As a call, where the way of the combination that was served last does not apply."""
        if self._others and dims is None:
            other = self._others.get(_mark(inputs, outputs))
            done = None if other is None else other(inputs + outputs, stream)
            if other is not None and done is not None:
                self.quick = other
                return done
        explicit = None if stream is None else stream_number(stream)
        first = inputs[0]
        lead = _adapters.get(type(first)) or adapter_of(first)
        key, pointer = lead.view(first, explicit or 0)
        device = key[3]
        where = lead.current_stream(device) if device >= 0 else 0
        if explicit is None or explicit == where:
            explicit = None
        else:
            where = explicit
        keys: list[Any] = [key]
        pointers, low = [pointer], pointer
        for array in inputs[1:]:
            if array is None:
                keys.append(None)
                continue
            key, pointer = (_adapters.get(type(array)) or adapter_of(array)).view(array, where)
            keys.append(key)
            pointers.append(pointer)
            low |= pointer
        written: list[int] = []
        for array in outputs:
            if array is None:
                keys.append(None)
                continue
            key, pointer = (_adapters.get(type(array)) or adapter_of(array)).view(array, where)
            keys.append(key)
            written.append(pointer)
        known = (*keys, *dims.items()) if dims else tuple(keys)
        ready = self._known.get(known)
        if ready is None:
            ready = self._new(known, lead, inputs, outputs, keys, dims)
        if low & _MISALIGNED and ready.prepared is not None:
            ready = ready.misaligned(pointers)
        prepared = ready.prepared
        if prepared is None:
            return ready.otherwise(inputs, outputs, where, strict)
        if ready.no_gradient:
            ready.refuse_gradient()
        # From here on: memory, pointers, launch.
        results, fresh = outputs, []
        if len(written) == len(outputs):
            pointers += written
        else:
            results = []
            for array, (shape, dtype) in zip(outputs, ready.outputs, strict=True):
                if array is None:
                    array = lead.empty(shape, dtype, first, device, explicit)
                    fresh.append(array)
                    pointers.append(lead.pointer(array))
                else:
                    pointers.append(written.pop(0))
                results.append(array)
        if ready.given:
            ready.refuse_overlap(pointers)
        space = 0
        if ready.workspace_bytes:
            if lead.allocates:
                scratch = lead.empty((ready.workspace_bytes,), ready.byte, first, device, explicit)
                fresh.append(scratch)
                space = lead.pointer(scratch)
            else:
                space = ready.gpu.workspace(where, ready.workspace_bytes)
        if prepared.launch(tuple(pointers), space, where):
            ready.refuse_misaligned(pointers)
        if explicit is not None:
            for array in fresh:
                lead.hold(array, explicit, device)
        elif dims is None:
            self._remember(ready.quick(inputs + outputs, device), inputs, outputs)
        return tuple(results)

    def _remember(self, quick: Quick | None, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        self.quick = quick or _no_quick
        if quick is not None:
            with self._lock:
                if len(self._others) >= COMBINATIONS_KEPT:
                    self._others.clear()
                self._others[_mark(inputs, outputs)] = quick

    def _new(self, known: Any, lead: Adapter, inputs: Any, outputs: Any, keys: list[Any], dims: Any) -> Ready:
        from cake_mcp.binding import bind

        facts = [None if k is None else adapter_of(a).facts(k) for a, k in zip((*inputs, *outputs), keys, strict=True)]
        ready = bind(self, lead, facts, dict(dims or {}))
        with self._lock:
            if len(self._known) >= COMBINATIONS_KEPT:
                del self._known[next(iter(self._known))]
            return self._known.setdefault(known, ready)


def adapter_of(array: Any) -> Adapter:
    """The adapter of an array; raises CakeError `dispatch/not-an-array`."""
    kind = type(array)
    found = _adapters.get(kind)
    if found is None:
        found = _adapters.setdefault(kind, adapter_for(array, lambda pointer: pointer_device(libcuda(), pointer)))
    return found


def gpu(device: int) -> Gpu:
    """The device of that ordinal; raises CakeError `lowering/no-gpu`."""
    found = _gpus.get(device)
    if found is None:
        found = _gpus.setdefault(device, Gpu(device, libcuda()))
    return found
