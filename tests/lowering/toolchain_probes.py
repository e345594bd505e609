"""CUDA probes: one kernel per architecture that uses each instruction form once, for the mnemonic table."""

from __future__ import annotations


def _asm(text: str, outs: str = "", ins: str = "") -> str:
    return f'  asm volatile("{text}" : {outs} : {ins} : "memory");\n'


def _regs(first: int, count: int) -> str:
    return "{" + ",".join(f"%{i}" for i in range(first, first + count)) + "}"


MMA = (("bf16", 16, "f32"), ("f16", 16, "f32"), ("tf32", 8, "f32"))
FP8 = (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"))
WGMMA = (
    ("bf16", "bf16", "f32", 16), ("f16", "f16", "f32", 16), ("f16", "f16", "f16", 16), ("tf32", "tf32", "f32", 8),
    ("e4m3", "e4m3", "f32", 32), ("e4m3", "e5m2", "f32", 32), ("e5m2", "e4m3", "f16", 32), ("i8", "i8", "i32", 32),
    ("u8", "i8", "i32", 32),
)  # fmt: skip
_PTX = {"i8": "s8", "u8": "u8", "i32": "s32"}


def _ptx(dtype: str) -> str:
    return _PTX.get(dtype, dtype)


def _mma(k: int, a: str, b: str, d: str) -> str:
    reg = "r" if d == "i32" else "f"
    array = "i" if d == "i32" else "x"
    outs = ", ".join(f'"+{reg}"({array}[{i}])' for i in range(4))
    ins = ", ".join(f'"r"(a[{i}])' for i in range(6))
    instruction = f"mma.sync.aligned.m16n8k{k}.row.col.{_ptx(d)}.{_ptx(a)}.{_ptx(b)}.{_ptx(d)}"
    return _asm(f"{instruction} {_regs(0, 4)},{_regs(4, 4)},{_regs(8, 2)},{_regs(0, 4)};", outs, ins)


def _head(arch: str) -> str:
    return f"""struct alignas(64) Map {{ unsigned long long opaque[16]; }};
extern "C" __global__ void __launch_bounds__(256, 1) probe(float* y, unsigned* o, const unsigned long long* g,
    const __grid_constant__ Map m) {{
  extern __shared__ __align__(1024) unsigned char sm[];  // {arch}
  unsigned s = (unsigned)__cvta_generic_to_shared(sm) + threadIdx.x * 16;
  unsigned a[6] = {{o[0], o[1], o[2], o[3], o[4], o[5]}};
  float x[4] = {{1, 2, 3, 4}};
  int i[4] = {{0, 0, 0, 0}};
"""


def ampere_forms(arch: str) -> str:
    """cp.async, ldmatrix, mma.sync, named barriers: every architecture has these."""
    text = _head(arch)
    text += _asm("cp.async.cg.shared.global [%0], [%1], 16;", "", '"r"(s), "l"(g)')
    text += _asm("cp.async.ca.shared.global [%0], [%1], 4, 2;", "", '"r"(s + 2048), "l"(g)')
    text += _asm("cp.async.commit_group;\\ncp.async.wait_group 1;")
    text += _asm("mbarrier.init.shared.b64 [%0], 5;", "", '"r"(s)')
    text += "  unsigned long long token;\n"
    text += _asm("mbarrier.arrive.shared.b64 %0, [%1];", '"=l"(token)', '"r"(s)')
    text += "  o[6] = (unsigned)token;\n"
    text += _asm("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];", "", '"r"(s)')
    outs = ", ".join(f'"=r"(a[{i}])' for i in range(4))
    text += _asm(f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {_regs(0, 4)}, [%4];", outs, '"r"(s)')
    outs = '"=r"(a[4]), "=r"(a[5])'
    text += _asm(f"ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {_regs(0, 2)}, [%2];", outs, '"r"(s)')
    for dtype, k, d in MMA:
        text += _mma(k, dtype, dtype, d)
    text += _mma(32, "i8", "i8", "i32")
    if arch != "sm_80":
        for left, right in FP8:
            text += _mma(32, left, right, "f32")
    text += _asm("barrier.sync 3, 64;") + _asm("bar.arrive 4, 64;")
    text += "  for (int n = 0; n < 4; n++) { y[n] = x[n]; o[n] = i[n] + a[n]; }\n}\n"
    return text


def _tma_forms() -> str:
    """What sm_90a, sm_100a and sm_120a share."""
    text = _asm("mbarrier.init.shared.b64 [%0], 1;", "", '"r"(s)')
    text += _asm("barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;")
    text += _asm("prefetch.tensormap [%0];", "", '"l"(&m)')
    text += _asm("griddepcontrol.wait;") + _asm("griddepcontrol.launch_dependents;")
    text += "  unsigned elected;\n"
    text += _asm("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}", '"=r"(elected)')
    text += "  if (elected) {\n"
    text += _asm("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 16384;", "", '"r"(s)')
    load = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    box = '"r"(s + 1024), "l"(&m), "r"(0), "r"(0), "r"(s)'
    text += _asm(f"{load} [%0], [%1, {{%2,%3}}], [%4];", "", box)
    text += _asm(f"{load}.multicast::cluster [%0], [%1, {{%2,%3}}], [%4], %5;", "", box + ', "h"((short)3)')
    bulk = "mbarrier::complete_tx::bytes"
    text += _asm(f"cp.async.bulk.shared::cluster.global.{bulk} [%0], [%1], 512, [%2];", "", '"r"(s), "l"(g), "r"(s)')
    text += _asm("fence.proxy.async.shared::cta;")
    text += _asm(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1,%2}], [%3];",
        "", '"l"(&m), "r"(0), "r"(0), "r"(s + 1024)',
    )  # fmt: skip
    text += _asm(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%1,%2}], [%3];",
        "", '"l"(&m), "r"(0), "r"(0), "r"(s + 1024)',
    )  # fmt: skip
    text += _asm("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;", "", '"l"(g), "r"(s)')
    text += _asm("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 512;", "", '"l"(g), "r"(s)')
    text += _asm("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1,%2}];", "", '"l"(&m), "r"(0), "r"(0)')
    text += _asm("cp.async.bulk.commit_group;\\ncp.async.bulk.wait_group.read 0;")
    text += "  }\n"
    text += _asm(
        "{.reg .pred p;\\nAGAIN: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra AGAIN;}", "", '"r"(s)'
    )
    text += _asm(f"stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {_regs(1, 4)};", "",
                 '"r"(s), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])')  # fmt: skip
    text += _asm("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};", "", '"r"(s), "r"(a[0]), "r"(a[1])')
    text += "  unsigned peer;\n"
    text += _asm("mapa.shared::cluster.u32 %0, %1, 1;", '"=r"(peer)', '"r"(s)')
    text += _asm(f"st.async.shared::cluster.{bulk}.b32 [%0], %1, [%2];", "", '"r"(peer + 64), "r"(3), "r"(peer)')
    text += _asm(f"cp.async.bulk.shared::cluster.shared::cta.{bulk} [%0], [%1], 512, [%2];", "",
                 '"r"(peer), "r"(s), "r"(peer)')  # fmt: skip
    return text


def hopper_forms(arch: str) -> str:
    """TMA, clusters and (sm_90a) every wgmma type."""
    text = _head(arch) + _tma_forms()
    if arch == "sm_90a":
        text += "  unsigned long long da = s >> 4, db = (s >> 4) + 64;\n" + _asm("wgmma.fence.sync.aligned;")
        for left, right, d, k in WGMMA:
            floating = d != "i32"
            count = 2 if d == "f16" else 4
            array, reg = ("i", "r") if d == "i32" else ("a", "r") if d == "f16" else ("x", "f")
            tail = "1" + (", 1, 1" if floating else "") + (", 0, 0" if left in ("bf16", "f16") else "")
            outs = ", ".join(f'"+{reg}"({array}[{n}])' for n in range(count))
            name = f"wgmma.mma_async.sync.aligned.m64n8k{k}.{_ptx(d)}.{_ptx(left)}.{_ptx(right)}"
            text += _asm(f"{name} {_regs(0, count)}, %{count}, %{count + 1}, {tail};", outs, '"l"(da), "l"(db)')
        text += _asm("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;")
    text += "  for (int n = 0; n < 4; n++) { y[n] = x[n]; o[n] = i[n] + a[n]; }\n}\n"
    return text


def register_forms(arch: str) -> str:
    """setmaxnreg, in a kernel without calls (ptxas ignores it beside one)."""
    text = _head(arch) + "  if (threadIdx.x < 128) {\n" + _asm("setmaxnreg.dec.sync.aligned.u32 40;")
    text += "    y[0] = x[0];\n  } else {\n" + _asm("setmaxnreg.inc.sync.aligned.u32 232;")
    return text + "    y[1] = x[1] + i[0] + a[0];\n  }\n}\n"


def blackwell_forms(arch: str) -> str:
    """tcgen05: allocation, every kind, copies, loads and stores, commits."""
    text = _head(arch)
    text += _asm("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 128;", "", '"r"(s)')
    text += _asm("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;")
    text += "  unsigned t = *(volatile unsigned*)sm; unsigned long long da = s >> 4, db = (s >> 4) + 64;\n"
    kinds = ["f16", "tf32", "f8f6f4"] + (["i8"] if arch == "sm_100a" else [])
    mma = "{.reg .pred p; setp.ne.b32 p, %4, 0;\\ntcgen05.mma.cta_group::1.kind::"
    ins = '"r"(t), "l"(da), "l"(db), "r"(0x08400490), "r"(1)'
    for kind in kinds:
        text += _asm(f"{mma}{kind} [%0], %1, %2, %3, p;}}", "", ins)
    scales = ins + ', "r"(t + 64), "r"(t + 68)'
    text += _asm(f"{mma}mxf8f6f4.block_scale [%0], %1, %2, %3, [%5], [%6], p;}}", "", scales)
    text += _asm(f"{mma}mxf4nvf4.block_scale.scale_vec::4X [%0], %1, %2, %3, [%5], [%6], p;}}", "", scales)
    text += _asm("tcgen05.cp.cta_group::1.128x256b [%0], %1;", "", '"r"(t), "l"(da)')
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster"
    text += _asm(f"{commit}.b64 [%0];", "", '"r"(s)')
    text += _asm(f"{commit}.multicast::cluster.b64 [%0], %1;", "", '"r"(s), "h"((short)3)')
    outs = ", ".join(f'"=r"(a[{i}])' for i in range(4))
    text += _asm(f"tcgen05.ld.sync.aligned.32x32b.x4.b32 {_regs(0, 4)}, [%4];", outs, '"r"(t)')
    text += _asm("tcgen05.wait::ld.sync.aligned;")
    values = ", ".join(f'"r"(a[{i}])' for i in range(4))
    text += _asm(f"tcgen05.st.sync.aligned.32x32b.x4.b32 [%0], {_regs(1, 4)};", "", f'"r"(t), {values}')
    text += _asm("tcgen05.wait::st.sync.aligned;")
    text += _asm("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 128;", "", '"r"(t)')
    text += "  for (int n = 0; n < 4; n++) o[n] = a[n];\n}\n"
    return text


SMALL = """extern "C" __global__ void __launch_bounds__(128) small(const float* x, float* y, int n) {
#line 7 "small.cake"
  int i = blockIdx.x * 128 + threadIdx.x;
#line 9 "small.cake"
  if (i < n) y[i] = x[i] * 2.0f;
}
"""


def slow(statements: int) -> str:
    """A kernel whose compile time grows far faster than its size."""
    body = "".join(f"  x = x * x + y[{i}] / (x + {i}.5f);\n" for i in range(statements))
    return f'extern "C" __global__ void slow(float* y) {{\n  float x = y[0];\n{body}  y[1] = x;\n}}\n'
