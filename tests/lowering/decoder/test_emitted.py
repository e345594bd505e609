"""Every descriptor, map, parity and tensor-memory address that emission writes must reach exactly the bytes of the IR.

Emission hands over its numbers as records (expressions over the kernel's scalars). Here each is evaluated for several
values of those scalars, decoded by NVIDIA's tables, and compared with where the bound program says the bytes are:
buffer offset + slot * stage stride + the view rule.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cake_ir
from cake_ir.arithmetic import compile_sx
from cake_ir.bound import Op, ScalarVar, SConst, View, sx_vars, walk
from corpus.kernels import kernels
from lowering.emission import Emitted, emit
from tests.lowering.decoder import barrier, instruction_descriptor, matrix_descriptor, tensor_map, tensor_memory

SMEM_BASE = 0x800  # 1024-byte aligned, as the derived memory map asks
SAMPLES = 5
ATTEMPTS = 400

SKETCHES = Path(__file__).parents[2] / "data" / "sketches"
# Beyond the corpus: MN-major operands, register A operands, strided regions, panels.
SKETCHED = ("06_attention_sm90", "07_kda", "08_knn_sm90", "10_tinygemm_sm90")


def _cases() -> dict[str, tuple[str, dict[str, Any], str | None, str | None]]:
    """Label -> (text, bindings, target, kernel)."""
    found = {f"{k.name}-{t}": (k.text(), dict(k.bindings), t, k.kernel) for k in kernels() for t in k.targets}
    for name in SKETCHED:
        text = (SKETCHES / f"{name}.cake").read_text()
        file = cake_ir.parse(text).file
        assert file is not None
        found |= {f"{name}-{k.name}": (text, {}, None, k.name) for k in file.kernels}
    return found


CASES = _cases()


@cache
def emitted(case: str) -> Emitted:
    """Emission is slow enough to do once per kernel."""
    text, bindings, target, kernel = CASES[case]
    file = cake_ir.parse(text).file
    assert file is not None
    bound = cake_ir.bind(file, bindings, target, kernel).bound
    assert bound is not None
    return emit(bound)


def each(kind: str) -> Callable[[Callable[[Emitted, Any], None]], Callable[[str], None]]:
    """The test of one record, as a test per kernel of all its records of that kind: nothing is emitted while tests are collected."""

    def over(check: Callable[[Emitted, Any], None]) -> Callable[[str], None]:
        @pytest.mark.parametrize("case", CASES)
        def test(case: str) -> None:
            for r in emitted(case).records:
                if r.kind == kind:
                    try:
                        check(emitted(case), r)
                    except Exception as fault:
                        fault.add_note(f"{r.op} on line {r.span.line} of {case}, {r.operand}")
                        raise

        test.__doc__ = check.__doc__
        return test

    return over


@dataclass
class Sampler:
    """Environments for expressions: values for exactly the scalars that occur, smem_base fixed."""

    e: Emitted
    seed: int = 0

    def environments(self, *expressions: Any) -> Iterator[list[Any]]:
        """Endless; loop counters and locals are arbitrary, thread variables within their range."""
        names = {slot: name for name, slot in self.e.thread_slots.items()}
        variables: set[ScalarVar] = set().union(*(sx_vars(x) for x in expressions if x is not None))
        size = 1 + max([v.slot for v in variables] + list(self.e.thread_slots.values()))
        source = random.Random(self.seed)
        while True:
            env: list[Any] = [0] * size
            for v in sorted(variables, key=lambda v: v.slot):
                env[v.slot] = self._value(names.get(v.slot, v.name), v, source)
            env[self.e.thread_slots["smem_base"]] = SMEM_BASE
            yield env

    def _value(self, name: str, v: ScalarVar, source: random.Random) -> int:
        if name == "wwarp":
            return source.randrange(4)
        if name == "tmem_base":
            return 0
        if v.kind == "instance" or name == "instance":
            return source.randrange(3)
        if v.kind == "cluster_rank":
            return source.randrange(2)
        return source.choice([0, 0, 1, 2, 3, 4, 5, 7, 8, 16, 32, 64, 128])


def value(x: Any, env: list[Any]) -> int:
    return int(compile_sx(x)(env))


def view_addresses(e: Emitted, view: View, env: list[Any]) -> np.ndarray | None:
    """Byte address of stored element (row, col) of the view, [rows, cols]; None when the view is out of its buffer."""
    b = view.buffer
    row0, col0 = value(view.row0, env), value(view.col0, env)
    use = value(view.use, env) if view.use is not None else 0
    if use < 0 or not (0 <= row0 <= b.rows - view.rows) or not (0 <= col0 <= b.cols - view.cols):
        return None
    if b.swizzle and row0 % 8 and view.rows > 1:
        return None  # in swizzled tiles operands of descriptors and copies start at a group of 8 rows
    base = SMEM_BASE + e.derived.smem[b] + use % b.stages * e.derived.stage_stride[b]
    return np.array([[base + b.offset(row0 + r, col0 + c) for c in range(view.cols)] for r in range(view.rows)])


def accepted(e: Emitted, view: View, *more: Any) -> list[tuple[list[Any], np.ndarray]]:
    """Distinct environments in which the view lies inside its buffer, with the addresses the IR says."""
    found: dict[tuple[Any, ...], tuple[list[Any], np.ndarray]] = {}
    for env, _ in zip(Sampler(e).environments(view.row0, view.col0, view.use, *more), range(ATTEMPTS), strict=False):
        key = tuple(env)
        if key in found:
            continue
        where = view_addresses(e, view, env)
        if where is not None:
            found[key] = (env, where)
        if len(found) == SAMPLES:
            break
    assert found, "no sampled environment puts the view inside its buffer"
    return list(found.values())


def op_of(e: Emitted, site: int) -> Op:
    return next(s for s in walk(e.bound.body) if isinstance(s, Op) and s.site == site)


# ---- matrix descriptors --------------------------------------------------------------------------------------------


def descriptor_reach(r: Any, bits: int, env: list[Any]) -> np.ndarray:
    """Addresses [MN, K] that the instructions of one op read through this descriptor."""
    view, size = r.fields["view"], r.fields["view"].buffer.dtype.bytes
    decode = matrix_descriptor.decode_sm90 if r.fields["form"] == "wgmma" else matrix_descriptor.decode_sm100
    blocks = r.fields["blocks"]
    per_block = view.shape[0] // len(blocks)
    assert r.operand == "b" or r.fields["form"] != "wgmma" or per_block == 64, "wgmma reads 64 rows of A"
    first = bits | value(r.value, env) >> 4
    out = []
    for block in blocks:
        row = [
            decode(first + step + block).addresses(per_block, 32 // size, size, "MN" if view.transposed else "K")
            for step in r.fields["steps"]
        ]
        out.append(np.concatenate(row, axis=1))
    return np.concatenate(out)


@each("smem_descriptor")
def test_matrix_descriptors_reach_the_view(e: Emitted, r: Any) -> None:
    view, bits = r.fields["view"], r.fields["bits"]
    assert f"{bits:#x}ull" in e.cuda
    for env, where in accepted(e, view, r.value):
        expected = where.T if view.transposed else where
        got = descriptor_reach(r, bits, env)
        assert got.shape == view.shape and np.array_equal(got, expected)


def test_the_comparison_sees_each_wrong_field() -> None:
    """Negative control on a real record: stride, swizzle, step and start, each off by one unit."""
    e, r = next(
        (e, r) for c in CASES for e in [emitted(c)] for r in e.records
        if r.kind == "smem_descriptor" and r.fields["form"] == "wgmma" and not r.fields["view"].transposed
    )  # fmt: skip
    env, where = accepted(e, r.fields["view"], r.value)[0]
    bits = r.fields["bits"]
    assert np.array_equal(descriptor_reach(r, bits, env), where)
    steps = r.fields["steps"]
    for wrong, steps_used in (
        (bits + (1 << 32), steps),
        (bits ^ (3 << 62), steps),
        (bits + 1, steps),
        (bits, (*steps[:-1], steps[-1] + 2)),
    ):
        changed = replace(r, fields={**r.fields, "steps": steps_used})
        try:
            assert not np.array_equal(descriptor_reach(changed, wrong, env), where)
        except matrix_descriptor.DescriptorError:
            continue


# ---- tensor maps ---------------------------------------------------------------------------------------------------


@each("tensor_map")
def test_tensor_copies_fill_the_view(e: Emitted, r: Any) -> None:
    """All copies of one op together write each element of the view once, from the region's element, and no more."""
    op, spec = op_of(e, r.site), e.manifest.tensor_maps[r.fields["map"]]
    region, view = op.operands["region"], r.fields["view"]
    assert (spec.tensor, spec.box, spec.swizzle) == (region.tensor.name, r.fields["box"], r.fields["swizzle"])
    kept = [len(region.dims) - 1 - i for i, d in enumerate(region.dims) if d.kind != "index"]  # innermost is 0
    sizes = [d.size for d in region.dims if d.kind != "index"]
    size = tensor_map.ELEMENT_BYTES[spec.dtype]
    for env, where in accepted(e, view, r.value, *r.fields["coordinates"]):
        origin = [value(x, env) for x in r.fields["coordinates"]]
        seen = np.zeros(where.shape, dtype=np.int64)
        announced = 0
        for offset, coords in r.fields["copies"]:
            start = [o + c for o, c in zip(origin, coords, strict=True)]
            dims = [s + b for s, b in zip(start, spec.box, strict=True)]
            strides = [1 << 20] * (len(dims) - 1)
            base = value(r.value, env) + offset
            done = tensor_map.copy(spec.dtype, dims, strides, list(spec.box), spec.swizzle, start, base)
            assert done.inside.all()
            announced += done.transaction_bytes
            relative = done.indices - np.array(origin)
            others = [d for d in range(len(dims)) if d not in kept]
            assert not relative[:, others].any(), "a copy runs along a dimension that the region fixes"
            row = np.zeros(len(relative), dtype=np.int64)
            for d, extent in zip(kept[:-1], sizes[:-1], strict=True):
                row = row * extent + relative[:, d]
            col = relative[:, kept[-1]]
            assert np.array_equal(done.shared, where[row, col])
            np.add.at(seen, (row, col), 1)
        assert (seen == 1).all()
        assert announced == where.size * size


# ---- waits ---------------------------------------------------------------------------------------------------------


@each("wait")
def test_waits_ask_for_the_right_phase(e: Emitted, r: Any) -> None:
    bar = op_of(e, r.site).operands["bar"].barrier
    stages, number = r.fields["stages"], r.fields["number"]
    assert stages == bar.stages
    checked = 0
    for env, _ in zip(Sampler(e).environments(r.value, number, r.fields["address"]), range(ATTEMPTS), strict=False):
        n = value(number, env)
        if n < 0 and (r.fields["guarded"] or n < -stages):
            continue
        # Below 0 the wait must pass on a fresh barrier, which only parity 1 does.
        slot, parity = barrier.ring(n, stages) if n >= 0 else (n % stages, 1)
        assert value(r.fields["address"], env) == SMEM_BASE + e.derived.barrier_offset[bar] + 8 * slot
        assert value(r.value, env) == parity
        done = barrier.Mbarrier(1)
        for _ in range(max(0, n // stages)):
            done.arrive()
        if n >= 0:
            assert not done.test_parity(parity)
            done.arrive()
        assert done.test_parity(parity)
        checked += 1
    assert checked >= (1 if isinstance(number, SConst) else SAMPLES)


# ---- tcgen05 -------------------------------------------------------------------------------------------------------


@each("instruction_descriptor")
def test_instruction_descriptors_name_the_instruction(e: Emitted, r: Any) -> None:
    f = r.fields
    op = op_of(e, r.site)
    a, b = op.operands["a"], op.operands["b"]
    kind = {32: "tf32", 16: "f16", 8: "f8f6f4"}[a.buffer.dtype.bits]
    found = instruction_descriptor.decode(f["value"], kind, f["group"])  # type: ignore[arg-type]
    assert (found.m, found.n) == (a.shape[0] * f["group"], b.shape[0] * f["group"])
    assert (found.a, found.b, found.d) == (
        a.buffer.dtype.name,
        b.buffer.dtype.name,
        op.operands["acc"].buffer.dtype.name,
    )
    assert (found.a_major, found.b_major) == ("MN" if a.transposed else "K", "MN" if b.transposed else "K")
    assert not (found.negate_a or found.negate_b or found.saturate)
    assert f"{f['value']:#x}u" in e.cuda


@each("tmem_address")
def test_tensor_memory_addresses(e: Emitted, r: Any) -> None:
    view = r.fields["view"]
    buffer = view.buffer
    wwarp = e.thread_slots["wwarp"]
    columns = -(-buffer.cols * buffer.dtype.bits // 32)
    checked = 0
    expressions = (r.value, view.use, view.col0, view.row0)
    for env, _ in zip(Sampler(e).environments(*expressions), range(ATTEMPTS), strict=False):
        use = value(view.use, env) if view.use is not None else 0
        col0 = value(view.col0, env)
        if use < 0 or col0 + view.cols > buffer.cols:
            continue
        first = e.derived.tmem[buffer] + use % buffer.stages * columns + col0 * buffer.dtype.bits // 32
        address = value(r.value, env)
        assert tensor_memory.decode(address) == (32 * env[wwarp] if r.fields["lanes"] else 0, first)
        if r.fields["lanes"]:
            width = 1 << (r.fields["columns"].bit_length() - 1)
            cells = tensor_memory.load_32x32b(address, min(width, 128), env[wwarp])
            assert cells[7, 1].tolist() == [32 * env[wwarp] + 7, first + 1]
        checked += 1
    assert checked >= SAMPLES
    assert e.derived.tmem[buffer] + buffer.stages * columns <= e.derived.tmem_columns
    tensor_memory.check_alloc(e.derived.tmem_columns)


def test_every_kind_of_record_is_covered() -> None:
    every = [r for case in CASES for r in emitted(case).records]
    assert {r.kind for r in every} == {
        "smem_descriptor",
        "instruction_descriptor",
        "tensor_map",
        "tmem_address",
        "wait",
    }
    operands = {(r.fields["form"], r.fields["view"].transposed) for r in every if r.kind == "smem_descriptor"}
    assert operands >= {("wgmma", False), ("wgmma", True), ("tcgen05", False)}
