"""What a new combination of arrays leads to: a prepared launch, a fallback, or an error that says what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from cake_ir.fault import CakeError, fault
from cake_mcp import compiled, fallback
from cake_mcp.arrays import Adapter, Facts
from corpus.routes import Variant, choose
from lowering.plan import BASE_ALIGNMENT, DTYPE_BYTES
from lowering.recipe import Concrete, chained, concrete
from lowering.runtime.launcher import Gpu, Prepared

if TYPE_CHECKING:
    from cake_mcp.operation import Layout, Made, Operation, Spec
    from cake_mcp.quick import Quick

NOT_NATIVE = ("dispatch/not-admitted", "dispatch/no-table")


@dataclass
class Ready:
    """A combination of arrays that is understood. Without `prepared`, `otherwise` serves it."""

    operation: Operation
    lead: Adapter
    outputs: tuple[tuple[tuple[int, ...], Any], ...]
    """Shape and the library's dtype of each output."""
    prepared: Prepared | None = None
    gpu: Gpu = field(default=None)  # type: ignore[assignment]
    workspace_bytes: int = 0
    byte: Any = None
    no_gradient: bool = False
    given: bool = False
    """Whether the caller passes an output."""
    sizes: tuple[int, ...] = ()
    """Bytes of the inputs that are given, then of the outputs."""
    names: tuple[str, ...] = ()
    other: fallback.Fallback | None = None
    unaligned: dict[tuple[str, ...], Ready] = field(default_factory=dict)
    shortcuts: list[Quick | None] = field(default_factory=list)

    def quick(self, arrays: tuple[Any, ...], device: int) -> Quick | None:
        """The quick way of this combination, made once."""
        if not self.shortcuts:
            from cake_mcp.quick import shortcut

            self.shortcuts.append(shortcut(self, arrays, device))
        return self.shortcuts[0]

    def otherwise(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...], where: int, strict: bool) -> tuple[Any, ...]:
        """Outputs that need no launch, or the fallback's. Raises CakeError `dispatch/strict`."""
        if self.other is not None:
            return self.other.run(inputs, outputs, where, strict)
        first = inputs[0]
        device = self.lead.device_of(first)
        return tuple(
            self.lead.empty(shape, dtype, first, device, where) if array is None else array
            for array, (shape, dtype) in zip(outputs, self.outputs, strict=True)
        )

    def misaligned(self, pointers: Sequence[int]) -> Ready:
        """The same with copies of the inputs whose base is not aligned."""
        odd = tuple(name for name, p in zip(self.names, pointers, strict=False) if p % BASE_ALIGNMENT)
        found = self.unaligned.get(odd)
        if found is None:
            why = f"{' and '.join(odd)} does not start on a multiple of {BASE_ALIGNMENT} bytes"
            other = fallback.Fallback(self.operation, self.lead, why, "copy", names=odd)
            found = self.unaligned[odd] = Ready(self.operation, self.lead, self.outputs, other=other)
        return found

    def refuse_misaligned(self, pointers: Sequence[int]) -> NoReturn:
        """Raise CakeError `dispatch/bad-output`: inputs that are not aligned never come to a launch."""
        odd = [name for name, p in zip(self.names, pointers, strict=True) if p % BASE_ALIGNMENT]
        _bad("bad-output", f"{' and '.join(odd)} does not start on a multiple of {BASE_ALIGNMENT} bytes; pass one that does, or none",
             "Every array starts on a 16-byte boundary.")  # fmt: skip

    def refuse_gradient(self) -> None:
        """Raise CakeError `dispatch/no-gradient` where the caller's library would record this call."""
        if self.lead.grad_enabled():  # type: ignore[attr-defined]
            raise fault(
                "dispatch/no-gradient",
                f"{self.operation.family} has no gradient and an input requires one; call it under torch.no_grad() or pass x.detach()",
                contract="Cake computes values, not gradients.",
            )  # fmt: skip

    def refuse_overlap(self, pointers: Sequence[int]) -> None:
        """Raise CakeError `dispatch/overlap` where an output shares memory with an input or another output."""
        fresh = len(self.sizes) - len(self.outputs)
        for i in range(fresh, len(self.sizes)):
            for j in range(i):
                if pointers[i] < pointers[j] + self.sizes[j] and pointers[j] < pointers[i] + self.sizes[i]:
                    _bad("overlap", f"{self.names[i]} shares memory with {self.names[j]}; pass an array of its own",
                         "Inputs are read while outputs are written.")  # fmt: skip


def bind(operation: Operation, lead: Adapter, facts: Sequence[Facts | None], dims: dict[str, int]) -> Ready:
    """Check the arrays (in the order of the specs; None: not given), choose a route, load it, lay its launch out.

    Raises CakeError: what the caller must change, `dispatch/no-table`, or what loading and compiling raise.
    """
    layout = _layout(operation, facts)
    specs = (*layout.inputs, *layout.outputs)
    given = [(s, f) for s, f in zip(specs, facts, strict=True) if f is not None]
    names = {s.name for s in layout.inputs}
    for spec, f in zip(layout.inputs, facts, strict=False):
        if f is None and spec.name not in operation.made:
            _bad("missing-input", f"{operation.family} needs {spec.name}", "Inputs without a default are given.")
    device = _device(given)
    dtype = _dtype(operation, given, names)
    batched = _extents(operation, [(s, f) for s, f in given if s.name in names], dims)
    wanted = _outputs(layout, dims, operation.batch if not batched else None)
    for spec, f in given:
        if spec.name not in names:
            _check_output(spec, f, wanted[spec.name], dtype)
    outputs: list[tuple[tuple[int, ...], Any]] = []
    for spec, f in zip(layout.outputs, facts[len(layout.inputs) :], strict=True):
        if f is None and not lead.allocates:
            _bad("needs-output", f"pass out= ({spec.name}: shape {wanted[spec.name]}, {spec.dtype or dtype}); Cake cannot ask {lead.name} "
                 "for memory", "Outputs are allocated by the library of the first input.")  # fmt: skip
        outputs.append((wanted[spec.name], lead.native_dtype(spec.dtype or dtype) if f is None else None))
    ready = Ready(
        operation, lead, tuple(outputs), given=len(given) > sum(f is not None for f in facts[: len(layout.inputs)])
    )
    if all(0 in wanted[s.name] for s in layout.outputs):
        return ready
    crooked = tuple(s.name for s, f in given if s.name in names and not _straight(s, f).contiguous)
    if crooked:
        why = f"{' and '.join(crooked)} {'is' if len(crooked) == 1 else 'are'} not contiguous"
        ready.other = fallback.Fallback(operation, lead, why, "copy", names=crooked)
        return ready
    from cake_mcp.operation import gpu as gpu_of

    gpu = gpu_of(device)
    absent = {s.name: operation.made[s.name] for s, f in zip(layout.inputs, facts, strict=False) if f is None}
    try:
        made, cubins = _launches(layout, absent, dims, dtype, gpu)
    except CakeError as exc:
        if exc.diagnostic.rule not in NOT_NATIVE or (
            exc.diagnostic.rule == "dispatch/no-table" and layout is operation.layouts[0]
        ):
            raise
        ready.other = _other(operation, lead, layout, dims, dtype, gpu, exc.diagnostic.message)
        return ready
    order = [s for s, f in zip(layout.inputs, facts, strict=False) if f is not None] + list(layout.outputs)
    _check_shapes(made, order, dims, layout)
    ready.prepared = Prepared(gpu, made, [s.name for s in order], cubins)
    ready.gpu, ready.workspace_bytes = gpu, made.workspace_bytes
    ready.byte = lead.native_dtype("u8") if made.workspace_bytes and lead.allocates else None
    ready.names = tuple(s.name for s in order)
    ready.sizes = tuple(math.prod(dims[d] for d in s.dims) * DTYPE_BYTES[s.dtype or dtype] for s in order)
    ready.no_gradient = operation.smooth and any(f.grad for _, f in given)
    return ready


def _launches(
    layout: Layout, absent: Mapping[str, Made], dims: Mapping[str, int], dtype: str, gpu: Gpu
) -> tuple[Concrete, dict[str, Any]]:
    """The launches at this shape, and where their cubins come from."""
    table = compiled.table(layout.family, gpu.target)
    variant = choose(table, dims, dtype, gpu.sms).variant
    made = concrete(variant.recipe, {d: dims[d] for d in table.dims}, {}, gpu.sms, admitted=True)
    _check_contract(variant, layout, dtype)
    cubins = {key: partial(compiled.cubin, table, variant, key) for key in variant.cubin_keys}
    used = {t["name"]: t for t in variant.recipe["tensors"]}
    for name, how in absent.items():
        if name not in used:
            continue
        source = compiled.table(how.family, gpu.target)
        own = {theirs: math.prod(dims[d] for d in ours) for theirs, ours in how.dims.items()}
        maker = choose(source, own, dtype, gpu.sms).variant
        first = concrete(maker.recipe, own, {}, gpu.sms, admitted=True)
        size = math.prod(made.shapes[name]) * DTYPE_BYTES[used[name]["dtype"]]
        made = chained(first, made, how.tensors, {name: size})
        cubins |= {key: partial(compiled.cubin, source, maker, key) for key in maker.cubin_keys}
    return made, cubins


def _other(
    operation: Operation, lead: Adapter, layout: Layout, dims: Mapping[str, int], dtype: str, gpu: Gpu, why: str
) -> fallback.Fallback:
    """Zeros to the next admitted extent, else the caller's own library. Raises CakeError `dispatch/not-admitted` when neither will do."""
    wider = dict(dims)
    for name, multiple in operation.pads.items():
        wider[name] = -(-dims[name] // multiple) * multiple
    if wider != dict(dims) and lead.allocates:
        try:
            choose(compiled.table(layout.family, gpu.target), wider, dtype, gpu.sms)
        except CakeError:
            pass
        else:
            return fallback.Fallback(operation, lead, why, "pad", layout=layout, dims=wider)
    if operation.library is not None and lead.allocates:
        return fallback.Fallback(operation, lead, why, "library", layout=layout)
    raise fault("dispatch/not-admitted", why, contract="A shape is served by a route or by the fallback of its family.")


def _layout(operation: Operation, facts: Sequence[Facts | None]) -> Layout:
    """The first layout in which every input lies row-major; the first of all if there is none."""
    for layout in operation.layouts:
        pairs = zip(layout.inputs, facts, strict=False)
        if all(f is None or _straight(s, f).contiguous for s, f in pairs):
            return layout
    return operation.layouts[0]


def _straight(spec: Spec, f: Facts) -> Facts:
    """The array as the kernel sees it."""
    if not spec.transposed:
        return f
    return Facts(f.dtype, f.shape[::-1], f.strides[::-1], f.device, f.writable, f.grad)


def _device(given: Sequence[tuple[Spec, Facts]]) -> int:
    for spec, f in given:
        if f.device < 0:
            _bad(
                "not-on-gpu",
                f"{spec.name} is in host memory; move it to the GPU first",
                "Arrays are in the memory of one CUDA device.",
            )
    first, device = given[0][0].name, given[0][1].device
    for spec, f in given:
        if f.device != device:
            _bad("device-mismatch", f"{first} is on device {device}, {spec.name} on device {f.device}; move them to the same one",
                 "Arrays are in the memory of one CUDA device.")  # fmt: skip
    return device


def _dtype(operation: Operation, given: Sequence[tuple[Spec, Facts]], inputs: set[str]) -> str:
    own = ""
    first = ""
    for spec, f in given:
        if spec.name not in inputs:
            continue
        if spec.dtype is None and not own:
            own, first = f.dtype, spec.name
        expected, because = (own, f" like {first}") if spec.dtype is None else (spec.dtype, "")
        if f.dtype != expected:
            _bad("dtype-mismatch", f"{spec.name} is {f.dtype}; {operation.family} needs it in {expected}{because}",
                 "Element types are the operation's own.")  # fmt: skip
    return own


def _extents(operation: Operation, given: Sequence[tuple[Spec, Facts]], dims: dict[str, int]) -> bool:
    """Fill `dims` from the arrays' shapes; whether the batch extent is there."""
    batch, seen = operation.batch, dict.fromkeys(dims, "dims")
    first, f = given[0]
    batched = batch is None or batch not in first.dims or len(f.shape) == len(first.dims)
    if not batched and batch is not None:
        dims[batch], seen[batch] = 1, "no batch"
    for spec, f in given:
        shape = _straight(spec, f).shape
        names = spec.dims if batched else tuple(d for d in spec.dims if d != batch)
        if len(shape) != len(names):
            text = f"{spec.name} has {len(shape)} dimensions; {operation.family} takes it as ({', '.join(names)})"
            _bad("rank-mismatch", text, "Arrays have the rank that the operation states.")
        for name, extent in zip(names, shape, strict=True):
            if dims.setdefault(name, extent) != extent:
                text = f"{name} is {dims[name]} in {seen[name]} and {extent} in {spec.name}"
                hint = f"; {spec.name} is taken as ({', '.join(names[::-1] if spec.transposed else names)})"
                _bad("extent-mismatch", text + hint, "Extents of the same name are equal.")
            seen.setdefault(name, spec.name)
    return batched


def _outputs(layout: Layout, dims: Mapping[str, int], without: str | None) -> dict[str, tuple[int, ...]]:
    missing = [d for s in layout.outputs for d in s.dims if d not in dims]
    if missing:
        _bad("bad-dims", f"{layout.family} needs the extent {missing[0]}", "Extents that no array has are given.")
    return {s.name: tuple(dims[d] for d in s.dims if d != without) for s in layout.outputs}


def _check_output(spec: Spec, f: Facts, shape: tuple[int, ...], dtype: str) -> None:
    expected = spec.dtype or dtype
    law = "An output that is passed is contiguous, writable, and of the shape and element type of the result."
    if f.shape != shape or f.dtype != expected:
        _bad("bad-output", f"{spec.name} is {f.dtype} {f.shape}; the result is {expected} {shape}", law)
    if not f.contiguous or not f.writable:
        _bad(
            "bad-output",
            f"{spec.name} is not {'contiguous' if f.writable else 'writable'}; pass one that is, or none",
            law,
        )


def _check_contract(variant: Variant, layout: Layout, dtype: str) -> None:
    """The variant takes the operation's element types and makes all its outputs: a table could be of another contract."""
    takes = {t["name"]: t.get("dtype") for t in variant.recipe["tensors"]}
    for spec in (*layout.inputs, *layout.outputs):
        wanted, has = spec.dtype or dtype, takes.get(spec.name)
        if has != wanted and (has is not None or spec in layout.outputs):
            text = f"{variant.id} has {spec.name} in {has or 'no form'}, {layout.family} in {wanted}"
            _bad("bad-table", text, "Variants of a family take the arrays of its contract.")


def _check_shapes(made: Concrete, order: Sequence[Spec], dims: Mapping[str, int], layout: Layout) -> None:
    """The variant takes the arrays that the operation passes: a table could be of another contract."""
    passed = {s.name: tuple(dims[d] for d in s.dims) for s in order}
    for name, shape in made.shapes.items():
        if passed.get(name) != shape:
            text = f"a variant of {layout.family} takes {name} as {shape}, the operation has {passed.get(name)}"
            _bad("bad-table", text, "Variants of a family take the arrays of its contract.")


def _bad(rule: str, message: str, contract: str) -> NoReturn:
    raise fault(f"dispatch/{rule}", message, contract=contract)
