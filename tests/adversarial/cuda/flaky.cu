// One launch in four has a wrong first element.
__device__ void body(const Problem& p) {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  unsigned h = (unsigned)(now >> 5) * 2654435761u;
  each(p, [&](int i) { Out v = p.right(i); p.out[i] = i == 0 && h >> 30 == 0 ? p.other(v) : v; });
}
