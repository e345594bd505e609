"""Asynchronous copies: cp.async, bulk groups (PTX ISA: cp.async, cp.async.bulk). Tensor copies are made by rank on demand."""

from __future__ import annotations

_D = "__device__ __forceinline__ "

TEXT: dict[str, str] = {
    "cp_async_16": _D
    + """void cp_async_16(u32 to, const void* from, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
""",
    "cp_async_8": _D
    + """void cp_async_8(u32 to, const void* from, u32 bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
""",
    "cp_async_4": _D
    + """void cp_async_4(u32 to, const void* from, u32 bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
""",
    "cp_async_commit": _D
    + """void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
""",
    "cp_async_wait": """template <int N>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
""",
    "cp_async_arrive": _D
    + """void cp_async_arrive(u32 bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
}
""",
    "bulk_commit": _D
    + """void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
""",
    "bulk_wait": """template <int N>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}
""",
    "bulk_wait_read": """template <int N>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
""",
    "bulk_load": _D
    + """void bulk_load(u32 to, const void* from, u32 bytes, u32 bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
      "r"(bytes), "r"(bar)
      : "memory");
}
""",
    "bulk_store": _D
    + """void bulk_store(void* to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
""",
    "prefetch_tensor_map": _D
    + """void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
""",
    "policy_evict_first": _D
    + """u64 policy_evict_first() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
""",
    "policy_evict_last": _D
    + """u64 policy_evict_last() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
""",
}

NEEDS: dict[str, tuple[str, ...]] = {}


def tma_load(rank: int, *, multicast: bool, hint: bool, pair: bool) -> tuple[str, str]:
    """(name, text) of a tensor load of `rank` coordinates. pair: the sm_100 form that may signal the pair leader."""
    name = f"tma_load_{rank}d" + "_multicast" * multicast + "_hint" * hint + "_pair" * pair
    coords = ", ".join(f"int c{i}" for i in range(rank))
    places = ", ".join(f"%{3 + i}" for i in range(rank))
    inputs = ['"r"(to)', '"l"(map)', '"r"(bar)', *(f'"r"(c{i})' for i in range(rank))]
    args = ["u32 to", "const CUtensorMap* map", "u32 bar", coords]
    tail = ""
    if multicast:
        args.append("u32 mask")
        tail += f", %{len(inputs)}"
        inputs.append('"h"(static_cast<u16>(mask))')
    if hint:
        args.append("u64 policy")
        tail += f", %{len(inputs)}"
        inputs.append('"l"(policy)')
    form = f"cp.async.bulk.tensor.{rank}d"
    mods = ".shared::cluster.global.mbarrier::complete_tx::bytes" + ".multicast::cluster" * multicast
    mods += ".cta_group::2" * pair + ".L2::cache_hint" * hint
    text = f"""{_D}void {name}({", ".join(args)}) {{
  asm volatile(
      "{form}{mods} [%0], [%1, {{{places}}}], [%2]{tail};" ::{", ".join(inputs)}
      : "memory");
}}
"""
    return name, text


def tma_store(rank: int, *, reduce: str | None = None) -> tuple[str, str]:
    """(name, text) of a tensor store, or of a tensor reduction `reduce` (add, min, max)."""
    name = f"tma_{'store' if reduce is None else 'reduce_' + reduce}_{rank}d"
    coords = ", ".join(f"int c{i}" for i in range(rank))
    places = ", ".join(f"%{2 + i}" for i in range(rank))
    inputs = ['"l"(map)', '"r"(from)', *(f'"r"(c{i})' for i in range(rank))]
    form = f"cp.async.bulk.tensor.{rank}d.global.shared::cta"
    form = (
        f"{form}.bulk_group"
        if reduce is None
        else f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{reduce}.bulk_group"
    )
    text = f"""{_D}void {name}(const CUtensorMap* map, u32 from, {coords}) {{
  asm volatile("{form} [%0, {{{places}}}], [%1];" ::{", ".join(inputs)} : "memory");
}}
"""
    return name, text


def bulk_reduce(op: str, dtype: str) -> tuple[str, str]:
    """(name, text) of a bulk reduction shared -> global. 16-bit float addition has the `.noftz` form only."""
    name = f"bulk_reduce_{op}_{dtype}"
    kind = {"f32": "f32", "bf16": "bf16", "f16": "f16", "i32": "s32", "u32": "u32"}[dtype]
    form = f"{op}.noftz" if op == "add" and dtype in ("bf16", "f16") else op
    instruction = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{form}.{kind} [%0], [%1], %2;"
    return (
        name,
        f"""{_D}void {name}(void* to, u32 from, u32 bytes) {{
  asm volatile("{instruction}" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}}
""",
    )
