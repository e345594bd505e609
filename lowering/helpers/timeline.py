"""In-kernel timeline: marks and headers (layout in `lowering.timeline`; PTX ISA: special registers, st, memory consistency model).

Stores are relaxed at system scope: strong operations reach a host that polls mapped memory while the kernel still runs (a weak
store need not become visible before the kernel ends). They are never waited for and order nothing.
"""

from __future__ import annotations

_D = "__device__ __forceinline__ "

NEEDS: dict[str, tuple[str, ...]] = {
    "timeline_start": ("timeline_header", "timeline_store"),
    "timeline_end": ("timeline_header", "timeline_store", "timeline_mark"),
}

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
    + """void timeline_mark(u64 rings, u32 mask, u32 ring, u32& count, u32 id) {
  count += 1u;
  asm volatile(
      "{\\n"
      ".reg .pred p;\\n"
      ".reg .b32 low, high;\\n"
      ".reg .b64 at, word;\\n"
      "setp.ne.u32 p, %1, 0xffffffff;\\n"
      "mad.wide.u32 at, %2, 8, %0;\\n"
      "mov.u64 word, %%clock64;\\n"
      "mov.b64 {low, high}, word;\\n"
      "add.u32 high, high, %3;\\n"
      "mov.b64 word, {low, high};\\n"
      "@p st.relaxed.sys.global.u64 [at], word;\\n"
      "}\\n" ::"l"(rings), "r"(ring), "r"((count & mask) | ring), "r"(count + (id << 22)));
}
""",
    "timeline_header": _D
    + """u64 timeline_header(u64 rings, u32 mask, u32 stride, u32 tracks, u32 ring) {
  u32 grid;  // read here, not kept from here to the kernel's own use of it
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(grid));
  const u32 total = (grid + stride - 1u) / stride * tracks;
  return rings + static_cast<u64>(total) * (mask + 1u) * 8u + ring / (mask + 1u) * 64u;
}
""",
    "timeline_start": _D
    + """u32 timeline_start(u64 rings, u32 mask, u32 stride, u32 tracks, u32 index) {
  u32 cta;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(cta));
  if (cta % stride != 0u) return 0xffffffffu;
  const u32 ring = (cta / stride * tracks + index) * (mask + 1u);
  const u64 header = timeline_header(rings, mask, stride, tracks, ring);
  u32 sm;
  u64 time, clock;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock));
  timeline_store(header, time);
  timeline_store(header + 8, clock);
  timeline_store(header + 16, sm | 1ull << 32);
  return ring;
}
""",
    "timeline_end": _D
    + """void timeline_end(u64 rings, u32 mask, u32 stride, u32 tracks, u32 ring, u32 count) {
  if (ring == 0xffffffffu) return;
  timeline_mark(rings, mask, ring, count, 0u);
  const u64 header = timeline_header(rings, mask, stride, tracks, ring);
  u64 time, clock;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  timeline_store(header + 24, time);
  timeline_store(header + 32, clock);
  timeline_store(header + 40, count);
}
""",
}
