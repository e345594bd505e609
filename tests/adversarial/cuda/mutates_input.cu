__device__ void body(const Problem& p) {
  each(p, [&](int i) { p.out[i] = p.right(i); });
}
__device__ void after(const Problem& p) { ((unsigned char*)p.in0)[0] ^= 1; }
