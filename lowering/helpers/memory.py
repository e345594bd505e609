"""Loads and stores by width, ldmatrix, stmatrix, movmatrix (PTX ISA: ld, st, ldmatrix, stmatrix, movmatrix)."""

from __future__ import annotations

_D = "__device__ __forceinline__ "

TEXT: dict[str, str] = {
    "transpose_8x8": _D
    + """u32 transpose_8x8(u32 x) {
  u32 y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
""",
    # Needs a cooperative launch. The counter only grows, so one that starts at zero serves every later launch of the module.
    "grid_sync": "__device__ u64 grid_arrivals = 0;\n"
    + _D
    + """void grid_sync() {
  asm volatile("barrier.sync 0;" ::: "memory");
  if (threadIdx.x == 0) {
    __threadfence();
    const u64 ticket = atomicAdd(&grid_arrivals, 1ull);
    const u64 target = (ticket / gridDim.x + 1ull) * gridDim.x;
    u64 seen;
    do {
      asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(&grid_arrivals) : "memory");
    } while (seen < target);
  }
  asm volatile("barrier.sync 0;" ::: "memory");
}
""",
}

NEEDS: dict[str, tuple[str, ...]] = {}

_REG = {"f32": ("float", "f", "f32"), "b32": ("u32", "r", "b32"), "i32": ("int", "r", "b32"),
        "b16": ("u16", "h", "b16"),
    "b8": ("u32", "r", "u8"), "b64": ("u64", "l", "b64"), "i64": ("long long", "l", "b64")}  # fmt: skip


def _vec(count: int) -> str:
    return "" if count == 1 else f".v{count}"


def _list(count: int, first: int) -> str:
    names = ", ".join(f"%{first + i}" for i in range(count))
    return names if count == 1 else "{" + names + "}"


def load(space: str, kind: str, count: int, *, modifiers: str = "", guarded: bool = False) -> tuple[str, str]:
    """(name, text) of a load of `count` registers of `kind` (f32, b32, i32, b16, b64) from global, shared or cluster memory.

    modifiers: PTX modifiers behind the space (`.nc`, `.L1::evict_first`). guarded: takes a condition and a fill value.
    """
    ctype, constraint, ptx = _REG[kind]
    tag = modifiers.replace("::", "_").replace(".", "_").lower()
    name = f"ld_{space}{tag}_{'v' + str(count) + '_' if count > 1 else ''}{kind}" + "_if" * guarded
    wide = space == "global"
    where = {"global": "global", "shared": "shared", "cluster": "shared::cluster"}[space]
    outs = ", ".join(f'"={constraint}"(d[{i}])' for i in range(count))
    address = '"l"(p)' if wide else '"r"(p)'
    args = f"{ctype}* d, {'const void*' if wide else 'u32'} p" + (f", bool in, {ctype} fill" if guarded else "")
    instruction = f"ld.{where}{modifiers}{_vec(count)}.{ptx} {_list(count, 0)}, [%{count}];"
    if guarded:
        lines = ["{", ".reg .pred q;", f"setp.ne.b32 q, %{count + 1}, 0;"]
        lines += [f"mov.{'b32' if kind == 'b8' else ptx} %{i}, %{count + 2};" for i in range(count)]
        lines += [f"@q {instruction}", "}"]
        body = "\n".join(f'      "{line}\\n"' for line in lines)
        inputs = f'{address}, "r"(static_cast<int>(in)), "{constraint}"(fill)'
        # Early-clobber is implied: every output is written before the address is read only for the fill moves.
        outs = outs.replace('"=', '"=&')
        text = (
            f'{_D}void {name}({args}) {{\n  asm volatile(\n{body}\n      : {outs}\n      : {inputs} : "memory");\n}}\n'
        )
    else:
        text = f'{_D}void {name}({args}) {{\n  asm volatile("{instruction}" : {outs} : {address} : "memory");\n}}\n'
    return name, text


def store(space: str, kind: str, count: int, *, modifiers: str = "") -> tuple[str, str]:
    """(name, text) of a store of `count` registers of `kind`. Takes the address, then the registers."""
    ctype, constraint, ptx = _REG[kind]
    tag = modifiers.replace("::", "_").replace(".", "_").lower()
    name = f"st_{space}{tag}_{'v' + str(count) + '_' if count > 1 else ''}{kind}"
    wide = space == "global"
    where = {"global": "global", "shared": "shared", "cluster": "shared::cluster"}[space]
    args = f"{'void*' if wide else 'u32'} p, " + ", ".join(f"{ctype} x{i}" for i in range(count))
    ins = ", ".join([('"l"(p)' if wide else '"r"(p)'), *(f'"{constraint}"(x{i})' for i in range(count))])
    instruction = f"st.{where}{modifiers}{_vec(count)}.{ptx} [%0], {_list(count, 1)};"
    return name, f'{_D}void {name}({args}) {{\n  asm volatile("{instruction}" ::{ins} : "memory");\n}}\n'


def store_async(kind: str, count: int) -> tuple[str, str]:
    """(name, text) of an asynchronous store to a CTA of the cluster. Takes the address, the registers, the barrier there."""
    ctype, constraint, ptx = _REG[kind]
    name = f"st_async_{'v' + str(count) + '_' if count > 1 else ''}{kind}"
    args = "u32 p, " + ", ".join(f"{ctype} x{i}" for i in range(count)) + ", u32 bar"
    ins = ", ".join(['"r"(p)', *(f'"{constraint}"(x{i})' for i in range(count)), '"r"(bar)'])
    form = f"st.async.shared::cluster.mbarrier::complete_tx::bytes{_vec(count)}.{ptx}"
    instruction = f"{form} [%0], {_list(count, 1)}, [%{count + 1}];"
    return name, f'{_D}void {name}({args}) {{\n  asm volatile("{instruction}" ::{ins} : "memory");\n}}\n'


def ldmatrix(count: int, transposed: bool) -> tuple[str, str]:
    """(name, text): `count` 8x8 matrices of 16-bit elements."""
    name = f"ldmatrix_x{count}" + "_trans" * transposed
    outs = ", ".join(f'"=r"(d[{i}])' for i in range(count))
    registers = ", ".join(f"%{i}" for i in range(count))
    instruction = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' * transposed}.shared.b16 {{{registers}}}, [%{count}];"
    return (
        name,
        f'{_D}void {name}(u32* d, u32 p) {{\n  asm volatile("{instruction}" : {outs} : "r"(p) : "memory");\n}}\n',
    )


def stmatrix(count: int, transposed: bool) -> tuple[str, str]:
    """(name, text): stores `count` 8x8 matrices of 16-bit elements."""
    name = f"stmatrix_x{count}" + "_trans" * transposed
    args = ", ".join(f"u32 x{i}" for i in range(count))
    ins = ", ".join(f'"r"(x{i})' for i in range(count))
    registers = ", ".join(f"%{1 + i}" for i in range(count))
    instruction = f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' * transposed}.shared.b16 [%0], {{{registers}}};"
    return name, f'{_D}void {name}(u32 p, {args}) {{\n  asm volatile("{instruction}" ::"r"(p), {ins} : "memory");\n}}\n'


def red(op: str, kind: str, count: int = 1) -> tuple[str, str]:
    """(name, text): relaxed GPU-scope reduction into global memory. kind: f32, i32, f16, bf16 (16-bit sums have the
    `.noftz` form only: PTX ISA, red). count: neighbours at once, f32 only. Takes the address, then the registers."""
    ctype, constraint = {"f32": ("float", "f"), "i32": ("int", "r")}.get(kind, ("u16", "h"))
    ptx = {"f32": "f32", "i32": "s32"}.get(kind, f"noftz.{kind}")
    name = f"red_{op}_{f'v{count}_' if count > 1 else ''}{kind}"
    args = ", ".join(f"{ctype} x{i}" for i in range(count))
    ins = ", ".join(f'"{constraint}"(x{i})' for i in range(count))
    instruction = f"red.relaxed.gpu.global.{op}{_vec(count)}.{ptx} [%0], {_list(count, 1)};"
    return (
        name,
        f"""{_D}void {name}(void* p, {args}) {{
  asm volatile("{instruction}" ::"l"(p), {ins} : "memory");
}}
""",
    )


def fetch(op: str) -> tuple[str, str]:
    """(name, text): relaxed GPU-scope i32 atomic on global memory that returns the value before (PTX ISA, atom)."""
    name = f"atom_{op}_i32"
    return (
        name,
        f"""{_D}int {name}(void* p, int x) {{
  int old;
  asm volatile("atom.relaxed.gpu.global.{op}.s32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(x) : "memory");
  return old;
}}
""",
    )
