"""Delays in emitted CUDA: the schedules of the judge that starve a role, on the device.

A second cubin of every program spins at its synchronisation points for a time that a launch chooses by seed, warp, block
and place. What a right program computes does not depend on that; a missing wait or release gets its chance to show.
"""

from __future__ import annotations

import re

CONFIG = "cake_delay_config"
"""Device symbol: two u32, the seed and the longest spin in rounds of some 30 cycles (0: none)."""

_DECLARED = """extern "C" { __device__ unsigned cake_delay_config[2] = {0, 0}; }
namespace cake {
__device__ __forceinline__ void delay(unsigned site) {
  const volatile unsigned* config = cake_delay_config;
  const unsigned seed = config[0], most = config[1];
  if (most == 0) return;
  // a third of the warps of each block is slow for the whole launch, everyone is late now and then
  unsigned h = (seed ^ (threadIdx.x >> 5) * 0x9e3779b1u ^ blockIdx.x * 0x85ebca6bu) * 0xc2b2ae35u;
  h ^= h >> 15;
  const bool slow = h % 3u == 0u;
  h = (h ^ site * 0x27d4eb2fu) * 0x165667b1u;
  h ^= h >> 13;
  if (!slow && (h & 15u) != 0u) return;
  const unsigned n = (h >> 4) % most;
#pragma unroll 1
  for (unsigned i = 0, t; i < n; ++i) asm volatile("mov.u32 %0, %%clock;" : "=r"(t)::"memory");
}
}  // namespace cake
"""

_AFTER = re.compile(
    r"^\s*(?:cake::(?:mbar_wait|mbar_try_wait|bar_sync|cta_sync|cluster_sync|cluster_meet|griddep_wait|cluster_wait|cp_async_wait|bulk_wait|wgmma_wait<0>|"
    r"grid_)\w*.*|__syncthreads\(\));(?:\s*//.*)?$"
)
_BEFORE = re.compile(r"^\s*cake::(?:mbar_arrive|mbar_expect|tma_store|bulk_store|cp_async_commit)\w*\(.*;$")
_ENTRY = re.compile(r'^extern "C" __global__', re.MULTILINE)
_WGMMA = re.compile(r"^\s*cake::(wgmma_fence|wgmma_commit|wgmma_wait)\b")


def with_delays(cuda: str) -> str:
    """The kernel with a delay behind each wait and before each release or store. Places inside a wgmma sequence stay free:
    a branch there would make ptxas serialise it, which hides races. Raises ValueError when the text has no entry point."""
    entry = _ENTRY.search(cuda)
    if entry is None:
        raise ValueError("the text has no entry point")
    head, body = cuda[: entry.start()], cuda[entry.start() :]
    out: list[str] = []
    inside, site = False, 0
    for line in body.splitlines():
        found = _WGMMA.match(line)
        if found:
            inside = found.group(1) == "wgmma_fence"
        before, after = not inside and bool(_BEFORE.match(line)), not inside and bool(_AFTER.match(line))
        site += before or after
        indent = line[: len(line) - len(line.lstrip())]
        if before:
            out.append(f"{indent}cake::delay({site}u);")
        out.append(line)
        if after:
            out.append(f"{indent}cake::delay({site}u);")
    return head + _DECLARED + "\n".join(out) + "\n"
