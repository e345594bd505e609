__device__ void body(const Problem& p) {
  Knobs k;
  k.ignore = true;
  each(p, [&](int i) { p.out[i] = p.value(i, k); });
}
