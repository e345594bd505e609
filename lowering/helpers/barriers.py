"""mbarriers, named barriers, fences, cluster and launch control, thread identity (PTX ISA: mbarrier, bar, membar, griddepcontrol)."""

from __future__ import annotations

_D = "__device__ __forceinline__ "

TEXT: dict[str, str] = {
    "smem_address": _D
    + """u32 smem_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}
""",
    "lane_id": _D
    + """int lane_id() { return static_cast<int>(threadIdx.x & 31u); }
""",
    # The shuffle tells the compiler that the index is equal in all lanes of the warp.
    "warp_index": _D
    + """int warp_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x >> 5), 0); }
""",
    "elect_one": _D
    + """bool elect_one() {
  u32 elected;
  asm volatile(
      "{\\n"
      ".reg .pred p;\\n"
      "elect.sync _|p, 0xffffffff;\\n"
      "selp.b32 %0, 1, 0, p;\\n"
      "}\\n"
      : "=r"(elected));
  return elected != 0u;
}
""",
    "mbar_init": _D
    + """void mbar_init(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
""",
    "mbar_init_fence": _D
    + """void mbar_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
""",
    "mbar_wait": _D
    + """void mbar_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\\n"
      ".reg .pred done;\\n"
      "AGAIN:\\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n"
      "@done bra DONE;\\n"
      "bra AGAIN;\\n"
      "DONE:\\n"
      "}\\n" ::"r"(bar), "r"(parity) : "memory");
}
""",
    "mbar_wait_cluster": _D
    + """void mbar_wait_cluster(u32 bar, u32 parity) {
  asm volatile(
      "{\\n"
      ".reg .pred done;\\n"
      "AGAIN:\\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\\n"
      "@done bra DONE;\\n"
      "bra AGAIN;\\n"
      "DONE:\\n"
      "}\\n" ::"r"(bar), "r"(parity) : "memory");
}
""",
    "mbar_test_wait": _D
    + """void mbar_test_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\\n"
      ".reg .pred done;\\n"
      "AGAIN:\\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\\n"
      "@done bra DONE;\\n"
      "bra AGAIN;\\n"
      "DONE:\\n"
      "}\\n" ::"r"(bar), "r"(parity) : "memory");
}
""",
    "mbar_arrive": _D
    + """void mbar_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
""",
    "mbar_arrive_sm80": _D
    + """void mbar_arrive_sm80(u32 bar) {
  asm volatile(
      "{\\n"
      ".reg .b64 state;\\n"
      "mbarrier.arrive.shared.b64 state, [%0];\\n"
      "}\\n" ::"r"(bar) : "memory");
}
""",
    "mbar_arrive_on": _D
    + """void mbar_arrive_on(u32 bar, u32 rank) {
  asm volatile(
      "{\\n"
      ".reg .b32 remote;\\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\\n"
      "}\\n" ::"r"(bar), "r"(rank) : "memory");
}
""",
    "mbar_arrive_on_cluster": _D
    + """void mbar_arrive_on_cluster(u32 bar, u32 rank) {
  asm volatile(
      "{\\n"
      ".reg .b32 remote;\\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\\n"
      "}\\n" ::"r"(bar), "r"(rank) : "memory");
}
""",
    "mbar_expect": _D
    + """void mbar_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
""",
    "map_to_rank": _D
    + """u32 map_to_rank(u32 address, u32 rank) {
  u32 mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
""",
    "bar_sync": """template <int ID, int THREADS>
__device__ __forceinline__ void bar_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}
""",
    "bar_arrive": """template <int ID, int THREADS>
__device__ __forceinline__ void bar_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}
""",
    "bar_sync_id": _D
    + """void bar_sync_id(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
""",
    "bar_arrive_id": _D
    + """void bar_arrive_id(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
""",
    # Not `.aligned`: threads of one warp may come from different branches.
    "cta_sync_any": _D
    + """void cta_sync_any() {
  asm volatile("barrier.sync 0;" ::: "memory");
}
""",
    "cluster_sync": _D
    + """void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
""",
    # What the arrival publishes are initialised mbarriers, which fence.mbarrier_init has released: no memory barrier.
    "cluster_meet": _D
    + """void cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
""",
    "cluster_sync_any": _D
    + """void cluster_sync_any() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
""",
    "fence_async_shared": _D
    + """void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
""",
    "fence_async_global": _D
    + """void fence_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
""",
    "griddep_wait": _D
    + """void griddep_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
""",
    "griddep_launch": _D
    + """void griddep_launch() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
""",
    "set_registers_inc": """template <int N>
__device__ __forceinline__ void set_registers_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
""",
    "set_registers_dec": """template <int N>
__device__ __forceinline__ void set_registers_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
""",
}

NEEDS: dict[str, tuple[str, ...]] = {}
