// One element in some ten thousand is off by its last bit, as the clock has it.
__device__ void body(const Problem& p) {
  each(p, [&](int i) {
    unsigned h = ((unsigned)clock64() + i) * 2654435761u;
    Out v = p.right(i);
    p.out[i] = (h ^ h >> 16) % 8192 == 0 ? p.other(v) : v;
  });
}
