// One element goes wrong after so many launches that only timing reaches them.
__device__ void body(const Problem& p) {
  each(p, [&](int i) { p.out[i] = p.launch > 40 && i == p.size() - 1 ? (Out)(p.right(i) == 0 ? 1 : 0) : p.right(i); });
}
