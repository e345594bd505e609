// A reduction in steps of 64 that forgets the rest.
__device__ void body(const Problem& p) {
  Knobs k;
  k.step = 64;
  each(p, [&](int i) { p.out[i] = p.value(i, k); });
}
