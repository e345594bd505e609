"""Probe kernels that show what sm_90a really does with descriptors, tensor maps, fragments and parities.

Each probe runs one instruction on known bytes and hands the raw result back; `test_hardware.py` compares it with the
decoder. `python -m tests.lowering.decoder.hardware_probes` runs all of them and prints one JSON line per probe.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cake_ir.diagnostics import CakeError
from lowering.compile import compile_cuda
from lowering.plan import Arg, LaunchPlan, TensorMapPlan
from lowering.runtime.device import Device
from lowering.runtime.host import prepare
from tests.lowering.decoder import barrier, fragments, matrix_descriptor, tensor_map
from tests.lowering.decoder.matrix_descriptor import Major

ARCH = "sm_90a"
SHARED_BYTES = 64 << 10
N = 64
MAJORS: tuple[Major, ...] = ("K", "MN")

_HEAD = """struct alignas(64) Map { unsigned long long opaque[16]; };
typedef unsigned int u32;
typedef unsigned long long u64;
__device__ __forceinline__ u32 shared_start(unsigned char* raw) {
  u32 at = static_cast<u32>(__cvta_generic_to_shared(raw));
  return (at + 1023) / 1024 * 1024;
}
__device__ __forceinline__ void fill_shared(u32 base, const u32* from, int words) {
  for (int i = threadIdx.x; i < words; i += blockDim.x)
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(base + 4 * i), "r"(from[i]) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}
"""

_TMA = """
extern "C" __global__ void tma_probe(const __grid_constant__ Map map, const u32* before, u32* out, int x, int y,
                                     int bytes, int words) {
  extern __shared__ unsigned char raw[];
  u32 base = shared_start(raw), bar = base + 49152;
  fill_shared(base, before, words);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bar) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 ::"r"(base), "l"(&map), "r"(x), "r"(y), "r"(bar) : "memory");
  }
  __syncthreads();
  u32 done = 0;
  while (!done)
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(bar) : "memory");
  for (int i = threadIdx.x; i < words; i += blockDim.x) {
    u32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(base + 4 * i) : "memory");
    out[i] = value;
  }
}
"""

_PARITY = """
extern "C" __global__ void parity_probe(u32* out) {
  extern __shared__ unsigned char raw[];
  u32 bar = shared_start(raw);
  if (threadIdx.x != 0) return;
  asm volatile("mbarrier.init.shared.b64 [%0], 2;" ::"r"(bar) : "memory");
  for (int step = 0; step < 7; step++) {
    for (int parity = 0; parity < 2; parity++) {
      u32 done;
      asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                   : "=r"(done) : "r"(bar), "r"(parity) : "memory");
      out[2 * step + parity] = done;
    }
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory");
  }
}
"""

_LDMATRIX = """
extern "C" __global__ void ldmatrix_probe(const u32* before, u32* out) {
  extern __shared__ unsigned char raw[];
  u32 base = shared_start(raw);
  fill_shared(base, before, 128);
  u32 at = base + 16 * threadIdx.x, r[4], t[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(t[0]), "=r"(t[1]), "=r"(t[2]), "=r"(t[3]) : "r"(at) : "memory");
  for (int i = 0; i < 4; i++) {
    out[threadIdx.x * 8 + i] = r[i];
    out[threadIdx.x * 8 + 4 + i] = t[i];
  }
}
"""

_MMA = """
extern "C" __global__ void mma_probe(const u32* a, const u32* b, float* out) {
  float d[4] = {0, 0, 0, 0};
  const u32* ra = a + threadIdx.x * 4;
  const u32* rb = b + threadIdx.x * 2;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
  for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = d[i];
}
"""


def _wgmma(name: str, from_registers: bool, trans_a: int, trans_b: int) -> str:
    count = N // 2
    dest = "{" + ",".join(f"%{i}" for i in range(count)) + "}"
    outs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    if from_registers:
        a_text = "{" + ",".join(f"%{count + i}" for i in range(4)) + "}"
        ins, tail, next_ = ", ".join(f'"r"(r[{i}])' for i in range(4)), f"{trans_b}", count + 4
    else:
        a_text, ins, tail, next_ = f"%{count}", '"l"(da)', f"{trans_a}, {trans_b}", count + 1
    return f"""
extern "C" __global__ void {name}(const u32* before, const u32* a_registers, float* out, u64 a, int a_start, u64 b,
                                  int b_start, int words) {{
  extern __shared__ unsigned char raw[];
  u32 base = shared_start(raw);
  fill_shared(base, before, words);
  u64 da = a | (base + a_start) >> 4, db = b | (base + b_start) >> 4;
  u32 r[4] = {{a_registers[threadIdx.x * 4], a_registers[threadIdx.x * 4 + 1], a_registers[threadIdx.x * 4 + 2],
              a_registers[threadIdx.x * 4 + 3]}};
  float d[{count}];
  for (int i = 0; i < {count}; i++) d[i] = 0;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.mma_async.sync.aligned.m64n{N}k16.f32.bf16.bf16 {dest}, {a_text}, %{next_}, 1, 1, 1, {tail};"
               : {outs} : {ins}, "l"(db));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < {count}; i++) out[threadIdx.x * {count} + i] = d[i];
  if (da == 1 || r[0] == 0xffffffffu) out[0] = 0;
}}
"""


def source() -> str:
    """All probes in one text."""
    wgmmas = [_wgmma(f"wgmma_ss_{a}{b}", False, a, b) for a in (0, 1) for b in (0, 1)]
    wgmmas.append(_wgmma("wgmma_rs_00", True, 0, 0))
    return _HEAD + _TMA + _PARITY + _LDMATRIX + _MMA + "".join(wgmmas)


_ready: list[bytes] = []


def cubin() -> bytes:
    """Compiled for sm_90a, once."""
    if not _ready:
        _ready.append(compile_cuda(source(), ARCH).cubin)
    return _ready[0]


class Bench:
    """Launch a probe on a device and read its result."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def run(
        self, symbol: str, threads: int, inputs: dict[str, np.ndarray], out: np.ndarray, args: list[Arg],
        maps: dict[str, TensorMapPlan] | None = None,
    ) -> np.ndarray:  # fmt: skip
        """`out` gives shape and type of the result tensor named out."""
        smem = 0 if symbol == "mma_probe" else SHARED_BYTES
        plan = LaunchPlan(
            symbol, hashlib.sha256(cubin()).hexdigest(), 1, 1, threads, smem, False, False, tuple(args), maps or {}
        )
        buffers = {name: self.device.alloc(array.nbytes) for name, array in {**inputs, "out": out}.items()}
        try:
            for name, array in inputs.items():
                buffers[name].write(array)
            buffers["out"].poison(0xEE)
            prepare(self.device, cubin(), plan, {n: b.pointer for n, b in buffers.items()}).launch(0)
            self.device.synchronize()
            result = np.empty_like(out)
            buffers["out"].read_into(result)
            damaged = {n: b.damage()[:4] for n, b in buffers.items() if b.damage()}
            assert not damaged, f"guard bands were written: {damaged}"
            return result
        finally:
            for buffer in buffers.values():
                buffer.free(ignore_errors=True)


def bf16(values: np.ndarray) -> np.ndarray:
    """Small integers as bf16 bits (exact)."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """bf16 bits as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def small_integers(count: int, seed: int) -> np.ndarray:
    """Random -8..8: sums of 16 products stay exact in float32."""
    return np.random.default_rng(seed).integers(-8, 9, count)


@dataclass(frozen=True)
class Probe:
    """A named comparison; `check` raises AssertionError when hardware and decoder disagree."""

    name: str
    check: Callable[[Bench], None]


def _tensor(name: str) -> Arg:
    return Arg("tensor", name)


def _i32(value: int) -> Arg:
    return Arg("i32", value=value)


def _i64(value: int) -> Arg:
    return Arg("i64", value=value - (1 << 64) if value >> 63 else value)


def tma_probe(dtype: str, span: int, inner_bytes: int, rows: int, start: tuple[int, int]) -> Callable[[Bench], None]:
    """Load one box; every byte of shared memory must be as the decoder says, untouched bytes included."""

    def check(bench: Bench) -> None:
        size = tensor_map.ELEMENT_BYTES[dtype]
        width, height = 512 // size, 40
        data = np.random.default_rng(5).integers(0, 256, width * height * size, dtype=np.uint8)
        dims, strides, box = [width, height], [width * size], [inner_bytes // size, rows]
        pitch = span if span else inner_bytes
        words = (rows * pitch + 1024) // 4
        expected = bytearray(b"\x5a" * (4 * words))
        copied = tensor_map.copy(dtype, dims, strides, box, span, list(start), 0)
        tensor_map.load(copied, data.tobytes(), expected, size)
        args = [Arg("tensor_map", "m"), _tensor("before"), _tensor("out"), _i32(start[0]), _i32(start[1]),
                _i32(copied.transaction_bytes), _i32(words)]  # fmt: skip
        plan = TensorMapPlan("src", dtype, tuple(dims), tuple(strides), tuple(box), span)
        before = np.full(4 * words, 0x5A, dtype=np.uint8)
        got = bench.run(
            "tma_probe", 128, {"src": data, "before": before}, np.zeros(words, np.uint32), args, {"m": plan}
        )
        assert got.tobytes() == bytes(expected)

    return check


def wgmma_probe(span_a: int, major_a: Major, span_b: int, major_b: Major) -> Callable[[Bench], None]:
    """One m64n64k16 on random bytes: D must be the product of what the decoder says the descriptors read."""

    def check(bench: Bench) -> None:
        values = bf16(small_integers(24 << 9, 7))
        codes = {0: 0, 128: 1, 64: 2, 32: 3}
        descriptors = []
        for span, major, start in ((span_a, major_a, 1024), (span_b, major_b, 12 << 10)):
            if major == "K":
                leading, stride = (1024, 128) if span == 0 else (16, 8 * span)
            else:
                leading, stride = (128, 256) if span == 0 else (16 * span, 8 * span)
            bits = leading >> 4 << 16 | stride >> 4 << 32 | codes[span] << 62
            descriptors.append((bits, start))
        (a, a_start), (b, b_start) = descriptors
        read: list[np.ndarray] = []
        for (bits, start), major in zip(descriptors, (major_a, major_b), strict=True):
            decoded = matrix_descriptor.decode_sm90(bits | start >> 4)
            read.append(from_bf16(values[decoded.addresses(64, 16, 2, major) // 2]))
        args = [_tensor("before"), _tensor("a_registers"), _tensor("out"), _i64(a), _i32(a_start), _i64(b)]
        args += [_i32(b_start), _i32(values.nbytes // 4)]
        symbol = f"wgmma_ss_{int(major_a == 'MN')}{int(major_b == 'MN')}"
        inputs = {"before": values, "a_registers": np.zeros(512, np.uint32)}
        got = bench.run(symbol, 128, inputs, np.zeros((128, N // 2), np.float32), args)
        cells = fragments.wgmma_d(N)
        assert np.array_equal(got, (read[0] @ read[1].T)[cells[..., 0], cells[..., 1]])

    return check


def wgmma_register_probe(bench: Bench) -> None:
    """A from registers: which element each register holds."""
    matrix = small_integers(64 * 16, 3).reshape(64, 16).astype(np.float32)
    values = bf16(small_integers(24 << 9, 7))
    cells = fragments.wgmma_a(2)
    registers = np.ascontiguousarray(bf16(matrix[cells[..., 0], cells[..., 1]])).view(np.uint32)
    bits, start = 1 << 16 | 1024 >> 4 << 32 | 1 << 62, 8192
    right = from_bf16(values[matrix_descriptor.decode_sm90(bits | start >> 4).addresses(64, 16, 2, "K") // 2])
    args = [_tensor("before"), _tensor("a_registers"), _tensor("out"), _i64(0), _i32(0), _i64(bits), _i32(start),
            _i32(values.nbytes // 4)]  # fmt: skip
    inputs = {"before": values, "a_registers": registers}
    got = bench.run("wgmma_rs_00", 128, inputs, np.zeros((128, N // 2), np.float32), args)
    where = fragments.wgmma_d(N)
    assert np.array_equal(got, (matrix @ right.T)[where[..., 0], where[..., 1]])


def mma_probe(bench: Bench) -> None:
    """mma.sync m16n8k16: fragments of A, B and D."""
    a = small_integers(256, 1).reshape(16, 16).astype(np.float32)
    b = small_integers(128, 2).reshape(16, 8).astype(np.float32)
    fa, fb, fd = fragments.mma_a(2), fragments.mma_b(2), fragments.mma_d(8)
    inputs = {
        "a": np.ascontiguousarray(bf16(a[fa[..., 0], fa[..., 1]])).view(np.uint32),
        "b": np.ascontiguousarray(bf16(b[fb[..., 0], fb[..., 1]])).view(np.uint32),
    }
    args = [_tensor("a"), _tensor("b"), _tensor("out")]
    got = bench.run("mma_probe", 32, inputs, np.zeros((32, 4), np.float32), args)
    assert np.array_equal(got, (a @ b)[fd[..., 0], fd[..., 1]])


def ldmatrix_probe(bench: Bench) -> None:
    """ldmatrix x4, plain and transposed."""
    values = np.arange(256, dtype=np.uint16)
    got = bench.run(
        "ldmatrix_probe", 32, {"before": values}, np.zeros((32, 8), np.uint32), [_tensor("before"), _tensor("out")]
    )
    pairs = got.view(np.uint16).reshape(32, 2, 4, 2)
    tiles = values.reshape(4, 8, 8)
    for which, transposed in ((0, False), (1, True)):
        cells = fragments.ldmatrix(transposed)
        for tile in range(4):
            assert np.array_equal(pairs[:, which, tile], tiles[tile][cells[..., 0], cells[..., 1]])


def parity_probe(bench: Bench) -> None:
    """test_wait by parity through three phases of a barrier of two arrivals."""
    got = bench.run("parity_probe", 32, {}, np.zeros((7, 2), np.uint32), [_tensor("out")])
    model = barrier.Mbarrier(2)
    for step in range(7):
        assert got[step].tolist() == [int(model.test_parity(0)), int(model.test_parity(1))]
        model.arrive()


def probes() -> Iterator[Probe]:
    """All comparisons."""
    for span in (0, 32, 64, 128):
        inner = span or 64
        for dtype in ("bf16", "u8", "f32"):
            yield Probe(f"tma-{dtype}-swizzle{span}", tma_probe(dtype, span, inner, 24, (16, 3)))
        yield Probe(f"tma-swizzle{span}-clipped", tma_probe("bf16", span, inner, 24, (-8, 30)))
        yield Probe(f"tma-swizzle{span}-right-edge", tma_probe("bf16", span, inner, 16, (256 - 8, -2)))
    for span in (64, 128):
        yield Probe(f"tma-swizzle{span}-narrow-box", tma_probe("bf16", span, 32, 16, (0, 0)))
    for span in (0, 32, 64, 128):
        for major in MAJORS:
            yield Probe(f"wgmma-a-{major}-swizzle{span}", wgmma_probe(span, major, 128, "K"))
            yield Probe(f"wgmma-b-{major}-swizzle{span}", wgmma_probe(128, "K", span, major))
    yield Probe("wgmma-a-registers", wgmma_register_probe)
    yield Probe("mma-sync-fragments", mma_probe)
    yield Probe("ldmatrix", ldmatrix_probe)
    yield Probe("mbarrier-parity", parity_probe)


def main() -> int:
    """0: hardware and decoder agree everywhere; 1: they do not; 2: no device, or it faulted."""
    parser = argparse.ArgumentParser(prog="hardware_probes")
    parser.add_argument("--save", type=Path, help="only compile, and write the cubin (for a machine without NVRTC)")
    parser.add_argument("--cubin", type=Path, help="use this cubin instead of compiling")
    options = parser.parse_args()
    if options.save:
        options.save.write_bytes(cubin())
        return 0
    if options.cubin:
        _ready.append(options.cubin.read_bytes())
    failed = 0
    try:
        with Device() as device:
            print(json.dumps({"device": device.info().to_json()}))
            for probe in probes():
                row: dict[str, Any] = {"probe": probe.name, "ok": True}
                try:
                    probe.check(Bench(device))
                except AssertionError as exc:
                    row |= {"ok": False, "message": str(exc)[:300]}
                    failed += 1
                print(json.dumps(row))
    except CakeError as exc:
        print(json.dumps({"error": exc.diagnostic.render()}))
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
