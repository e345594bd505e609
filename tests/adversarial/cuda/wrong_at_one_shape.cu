__device__ void body(const Problem& p) {
  each(p, [&](int i) { Out v = p.right(i); p.out[i] = p.edge() && i == p.size() - 1 ? p.right(0) : v; });
}
