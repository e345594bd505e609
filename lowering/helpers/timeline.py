"""In-kernel timeline: marks (layout in `lowering.timeline`; PTX ISA: special registers, st, memory consistency model).

Stores are relaxed at system scope: strong operations reach a host that polls mapped memory while the kernel still runs (a weak
store need not become visible before the kernel ends). They are never waited for and order nothing.

A thread keeps the place of its next record, and whether it records at all.
"""

from __future__ import annotations

_D = "__device__ __forceinline__ "

NEEDS: dict[str, tuple[str, ...]] = {"timeline_start": ("timeline_store",)}

TEXT: dict[str, str] = {
    "timeline_store": _D
    + """void timeline_store(u64 at, u64 word) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(word));
}
""",
    # No branch and no memory clobber: lanes that record nothing carry a false predicate past it, accumulators in flight are not
    # touched, and the compiler may move ordinary loads across as in the plain kernel. All lanes read the clock: a predicated
    # read would keep its former value alive.
    "timeline_mark": _D
    + """void timeline_mark(u64& at, bool on, u32 id) {
  asm volatile(
      "{\\n"
      ".reg .pred p;\\n"
      ".reg .b32 low, high;\\n"
      ".reg .b64 word;\\n"
      "setp.ne.u32 p, %2, 0;\\n"
      "mov.u64 word, %%clock64;\\n"
      "mov.b64 {low, high}, word;\\n"
      "add.u32 high, high, %1;\\n"
      "mov.b64 word, {low, high};\\n"
      "@p st.relaxed.sys.global.u64 [%0], word;\\n"
      "}\\n" ::"l"(at), "r"(id << 22), "r"(static_cast<u32>(on)));
  at += 8u;
}
""",
    # At the head of a loop: a place in the upper half of the block goes back to the block's begin.
    "timeline_turn": _D
    + """void timeline_turn(u64& at, u32 half) {
  const u32 low = static_cast<u32>(at);
  at = (at & 0xffffffff00000000ull) | ((low & half) != 0u ? low & ~(2u * half - 1u) : low);
}
""",
    "timeline_start": _D
    + """u64 timeline_start(u64 blocks, u32 half, u32 skip, u32 tracks, u32 index, bool timed) {
  u32 cta, sm;
  u64 clock, time = 0u;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(cta));  // read here: a value shared with the kernel's own would stay alive
  if ((cta & skip) != 0u) return 0u;
  const u64 block = blocks + static_cast<u64>((cta >> __popc(skip)) * tracks + index) * (2u * half);
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (timed) asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock));
  timeline_store(block + 2u * half - 24u, time);
  timeline_store(block + 2u * half - 16u, clock);
  timeline_store(block + 2u * half - 8u, sm | 1ull << 32);
  return block;
}
""",
}
