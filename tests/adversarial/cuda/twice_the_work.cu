// Honest and slow: no fault at all.
__device__ void body(const Problem& p) {
  each(p, [&](int i) { p.out[i] = p.right(i); __threadfence(); p.out[i] = p.right(i); });
}
