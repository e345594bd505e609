"""The same combination of torch tensors again, on a machine with one GPU: the shortest way to its launch.

torch's own guard object, with which Dynamo decides whether compiled code still applies, compares type, dtype, device, sizes, strides and
gradient state of all tensors in one call; memory comes from the function that Inductor's code allocates with. Both are torch's
private parts: `probe` tries them on tensors whose answers are known, and without them every call takes the general way
(`cake_mcp.operation`), which is the same in all but time.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from cake_mcp.arrays import Torch, row_major, stream_number

if TYPE_CHECKING:
    from cake_mcp.binding import Ready

Quick = Callable[[tuple[Any, ...], Any], "tuple[Any, ...] | None"]
"""(inputs and outputs, the caller's `stream`) -> outputs, or None where it does not apply and nothing was enqueued."""


class Parts:
    """guard(*tensors) gives a function that tells whether others are like them. empty(shape, strides, dtype) allocates on the
    current device."""

    def __init__(self, torch: Any) -> None:
        guards = torch._C._dynamo.guards
        self._guards, self.empty = guards.TensorGuards, guards._empty_strided_cuda

    def guard(self, *tensors: Any) -> Callable[..., bool]:
        """Whether tensors have the type, dtype, device, sizes, strides and gradient state of these."""
        return self._guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check


def probe(torch: Any) -> Parts | None:
    """torch's parts, if this version has them and they tell apart what must be told apart."""
    try:
        parts = Parts(torch)
        like = [torch.empty((2, 3), dtype=torch.float32), torch.empty((4,), dtype=torch.int32)]
        same = [torch.empty((2, 3), dtype=torch.float32), torch.empty((4,), dtype=torch.int32)]
        others = [
            torch.empty((3, 3), dtype=torch.float32), torch.empty((2, 3), dtype=torch.int32), torch.empty((3, 2), dtype=torch.float32).T,
            torch.empty((2, 3, 1), dtype=torch.float32), None, torch.nn.Parameter(torch.empty((2, 3), dtype=torch.float32)),
        ]  # fmt: skip
        check = parts.guard(*like)
        right = check(*same) is True and not any(check(other, same[1]) for other in others) and not check(*same[::-1])
    except Exception:  # private parts may change in any way; the general way needs none of them
        return None
    return parts if right else None


def shortcut(ready: Ready, arrays: tuple[Any, ...], device: int) -> Quick | None:
    """The quick way of a combination, or None if it has none. arrays: inputs, then outputs, as they were passed."""
    lead, prepared = ready.lead, ready.prepared
    if not isinstance(lead, Torch) or prepared is None or not ready.gpu.alone or ready.no_gradient:
        return None
    parts = lead.parts
    there = [i for i, a in enumerate(arrays) if a is not None]
    tensors = tuple(arrays[i] for i in there)
    count = len(ready.outputs)
    passed = sum(i >= len(arrays) - count for i in there)
    if parts is None or passed not in (0, count) or any(type(t) is not type(arrays[0]) for t in tensors):
        return None
    check = parts.guard(*tensors)
    if not check(*tensors):
        return None
    absent = tuple(i for i, a in enumerate(arrays) if a is None)
    take: Callable[[Any], tuple[Any, ...]] = itemgetter(*there) if len(there) > 1 else lambda a: (a[there[0]],)
    wanted = [(shape, row_major(shape), dtype) for shape, dtype in ready.outputs] if not passed else []
    only = wanted[0] if len(wanted) == 1 else None
    space_bytes, byte = ready.workspace_bytes, ready.byte
    raw, empty, launch, overlap = lead.current_stream, parts.empty, prepared.launch, ready.refuse_overlap
    apart: tuple[int, ...] = ()

    def run(arrays: tuple[Any, ...], stream: Any) -> tuple[Any, ...] | None:
        nonlocal apart
        tensors = take(arrays)
        if not check(*tensors):
            return None
        for i in absent:
            if arrays[i] is not None:
                return None
        where = raw(device)
        if stream is not None and stream_number(stream) != where:
            return None
        if only is not None:
            results = (empty(*only),)
            pointers = (*[t.data_ptr() for t in tensors], results[0].data_ptr())
        elif wanted:
            results = tuple([empty(*one) for one in wanted])
            pointers = tuple([t.data_ptr() for t in tensors + results])
        else:
            results = arrays[-count:]
            pointers = tuple([t.data_ptr() for t in tensors])
            if pointers != apart:
                overlap(pointers)
                apart = pointers
        if space_bytes:
            scratch = empty((space_bytes,), (1,), byte)
            return None if launch(pointers, scratch.data_ptr(), where) else results
        return None if launch(pointers, 0, where) else results

    return run
