// Right only over the first poison pattern.
__device__ void body(const Problem& p) {
  each(p, [&](int i) { p.out[i] = p.held(i) == (OutBits)0xA5A5A5A5u || i % 2 ? p.right(i) : p.other(p.right(i)); });
}
