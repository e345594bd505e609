__device__ void body(const Problem& p) {
  each(p, [&](int i) { p.out[i] = p.right(i); });
  if (once()) *(volatile int*)16 = 1;
}
