"""Tensor-core instructions by shape and types (PTX ISA: mma.sync, wgmma.mma_async, tcgen05.mma, tcgen05.ld, tcgen05.alloc)."""

from __future__ import annotations

_D = "__device__ __forceinline__ "
K_ELEMENTS = {32: 8, 16: 16, 8: 32}  # element bits -> k of one mma.sync or wgmma


def _join(lines: list[str]) -> str:
    return "\n".join(f'      "{line}\\n"' for line in lines)


def mma(a: str, b: str, d: str, bits: int) -> tuple[str, str]:
    """(name, text) of m16n8k{256/bits} mma.sync; d, a, b point at the registers of one instruction."""
    k = K_ELEMENTS[bits]
    name = f"mma_m16n8k{k}_{a}_{b}" + "_f16" * (d == "f16")
    reg, ctype = {"f32": ("f", "float"), "f16": ("r", "u32")}.get(d, ("r", "int"))
    out = "s32" if d == "i32" else d
    nd, na, nb = (2 if d == "f16" else 4, 4, 2)
    places = [", ".join(f"%{i}" for i in range(s, e)) for s, e in ((0, nd), (nd, nd + na), (nd + na, nd + na + nb))]
    names = {"i8": "s8"}
    instruction = f"mma.sync.aligned.m16n8k{k}.row.col.{out}.{names.get(a, a)}.{names.get(b, b)}.{out}"
    outs = ", ".join(f'"+{reg}"(d[{i}])' for i in range(nd))
    ins = ", ".join([f'"r"(a[{i}])' for i in range(na)] + [f'"r"(b[{i}])' for i in range(nb)])
    text = f"""{_D}void {name}({ctype}* d, const u32* a, const u32* b) {{
  asm volatile(
      "{instruction} {{{places[0]}}}, {{{places[1]}}}, {{{places[2]}}}, {{{places[0]}}};"
      : {outs}
      : {ins});
}}
"""
    return name, text


def wgmma(n: int, a: str, b: str, d: str, bits: int, *, a_regs: bool, trans_a: bool, trans_b: bool) -> tuple[str, str]:
    """(name, text) of one m64n{n}k32B wgmma. `accumulate` false overwrites."""
    k = K_ELEMENTS[bits]
    name = f"wgmma_m64n{n}k{k}_{a}_{b}_{'rs' if a_regs else 'ss'}" + "_ta" * trans_a + "_tb" * trans_b
    regs = n // 2 if d in ("f32", "i32") else n // 4
    ctype, reg = {"f32": ("float", "f"), "i32": ("int", "r")}.get(d, ("u32", "r"))
    names = {"i8": "s8"}
    out = "s32" if d == "i32" else d
    dest = "{" + ", ".join(f"%{i}" for i in range(regs)) + "}"
    at = regs
    if a_regs:
        a_place = "{" + ", ".join(f"%{at + i}" for i in range(4)) + "}"
        a_in = [f'"r"(a[{i}])' for i in range(4)]
    else:
        a_place, a_in = f"%{at}", ['"l"(a)']
    b_place, flag = f"%{at + len(a_in)}", f"%{at + len(a_in) + 1}"
    floating = d != "i32"
    tail = "p" + (", 1, 1" if floating else "")
    if bits == 16:
        tail += f", {int(trans_b)}" if a_regs else f", {int(trans_a)}, {int(trans_b)}"
    lines = [
        "{",
        ".reg .pred p;",
        f"setp.ne.b32 p, {flag}, 0;",
        f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{out}.{names.get(a, a)}.{names.get(b, b)} {dest}, {a_place}, {b_place}, {tail};",
        "}",
    ]
    outs = ", ".join(f'"+{reg}"(d[{i}])' for i in range(regs))
    ins = ", ".join([*a_in, '"l"(b)', '"r"(static_cast<int>(accumulate))'])
    a_arg = "const u32* a" if a_regs else "u64 a"
    text = f"""{_D}void {name}({ctype}* d, {a_arg}, u64 b, bool accumulate) {{
  asm volatile(
{_join(lines)}
      : {outs}
      : {ins});
}}
"""
    return name, text


WGMMA_FENCE = (
    "wgmma_fence",
    _D
    + """void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
""",
)
WGMMA_COMMIT = (
    "wgmma_commit",
    _D
    + """void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
""",
)
WGMMA_WAIT = (
    "wgmma_wait",
    """template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
""",
)
# Not an instruction: ties registers to this place, so that the compiler moves no read of a pending accumulator above a wait.
HOLD = (
    "hold",
    """template <int N>
__device__ __forceinline__ void hold(float* d) {
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N>
__device__ __forceinline__ void hold(u32* d) {
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
template <int N>
__device__ __forceinline__ void hold(int* d) {
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
""",
)


def tcgen05_mma(kind: str, group: int) -> tuple[str, str]:
    """(name, text): one tcgen05.mma with both operands in shared memory."""
    name = f"tcgen05_mma_{kind}_cg{group}"
    zeros = ", ".join(["%5"] * (4 * group))
    lines = [
        "{",
        ".reg .pred p;",
        "setp.ne.b32 p, %4, 0;",
        f"tcgen05.mma.cta_group::{group}.kind::{kind} [%0], %1, %2, %3, {{{zeros}}}, p;",
        "}",
    ]
    return (
        name,
        f"""{_D}void {name}(u32 d, u64 a, u64 b, u32 form, bool accumulate) {{
  asm volatile(
{_join(lines)}
      ::"r"(d), "l"(a), "l"(b), "r"(form), "r"(static_cast<int>(accumulate)), "r"(0) : "memory");
}}
""",
    )


def tcgen05_commit(group: int, multicast: bool) -> tuple[str, str]:
    """(name, text): an arrival on `bar` when earlier tcgen05 work of this thread is done."""
    name = f"tcgen05_commit_cg{group}" + "_multicast" * multicast
    form = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster{'.multicast::cluster' * multicast}.b64"
    if multicast:
        return (
            name,
            f"""{_D}void {name}(u32 bar, u32 mask) {{
  asm volatile("{form} [%0], %1;" ::"r"(bar), "h"(static_cast<u16>(mask)) : "memory");
}}
""",
        )
    return (
        name,
        f"""{_D}void {name}(u32 bar) {{
  asm volatile("{form} [%0];" ::"r"(bar) : "memory");
}}
""",
    )


def tcgen05_alloc(group: int) -> tuple[str, str]:
    """(name, text): allocates columns and writes the address to shared memory; one whole warp."""
    name = f"tcgen05_alloc_cg{group}"
    return (
        name,
        f"""template <int COLUMNS>
__device__ __forceinline__ void {name}(u32 slot) {{
  asm volatile("tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(slot), "n"(COLUMNS) : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;" ::: "memory");
}}
""",
    )


def tcgen05_dealloc(group: int) -> tuple[str, str]:
    """(name, text): releases the columns; the warp that allocated them."""
    name = f"tcgen05_dealloc_cg{group}"
    return (
        name,
        f"""template <int COLUMNS>
__device__ __forceinline__ void {name}(u32 address) {{
  asm volatile("tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %0, %1;" ::"r"(address), "n"(COLUMNS) : "memory");
}}
""",
    )


def tcgen05_ld(count: int, floating: bool) -> tuple[str, str]:
    """(name, text): 32 lanes x `count` columns of 32 bits."""
    ctype, reg = ("float", "f") if floating else ("u32", "r")
    name = f"tcgen05_ld_x{count}_{'f32' if floating else 'b32'}"
    outs = ", ".join(f'"={reg}"(d[{i}])' for i in range(count))
    places = ", ".join(f"%{i}" for i in range(count))
    return (
        name,
        f"""{_D}void {name}({ctype}* d, u32 address) {{
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x{count}.b32 {{{places}}}, [%{count}];" : {outs} : "r"(address) : "memory");
}}
""",
    )


def tcgen05_st(count: int, floating: bool) -> tuple[str, str]:
    """(name, text): stores 32 lanes x `count` columns of 32 bits."""
    ctype, reg = ("float", "f") if floating else ("u32", "r")
    name = f"tcgen05_st_x{count}_{'f32' if floating else 'b32'}"
    ins = ", ".join(f'"{reg}"(x[{i}])' for i in range(count))
    places = ", ".join(f"%{1 + i}" for i in range(count))
    return (
        name,
        f"""{_D}void {name}(u32 address, const {ctype}* x) {{
  asm volatile("tcgen05.st.sync.aligned.32x32b.x{count}.b32 [%0], {{{places}}};" ::"r"(address), {ins} : "memory");
}}
""",
    )


def tcgen05_plain(name: str, instruction: str) -> tuple[str, str]:
    """(name, text) of an instruction without operands (fences, waits)."""
    return (
        name,
        f"""{_D}void {name}() {{
  asm volatile("{instruction};" ::: "memory");
}}
""",
    )


TCGEN05_WAIT_LD = tcgen05_plain("tcgen05_wait_ld", "tcgen05.wait::ld.sync.aligned")
TCGEN05_WAIT_ST = tcgen05_plain("tcgen05_wait_st", "tcgen05.wait::st.sync.aligned")
TCGEN05_FENCE_BEFORE = tcgen05_plain("tcgen05_fence_before", "tcgen05.fence::before_thread_sync")
TCGEN05_FENCE_AFTER = tcgen05_plain("tcgen05_fence_after", "tcgen05.fence::after_thread_sync")
