__device__ volatile int never;
__device__ void body(const Problem& p) {
  each(p, [&](int i) { p.out[i] = p.right(i); });
  while (!never) {}
}
