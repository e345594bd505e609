// Right in the first four launches of the process, then one element off.
__device__ void body(const Problem& p) {
  each(p, [&](int i) { p.out[i] = p.launch >= 4 && i == p.size() / 2 ? (Out)(p.right(i) == 0 ? 1 : 0) : p.right(i); });
}
