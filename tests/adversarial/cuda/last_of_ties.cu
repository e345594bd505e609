__device__ void body(const Problem& p) {
  Knobs k;
  k.last_tie = true;
  each(p, [&](int i) { p.out[i] = p.value(i, k); });
}
