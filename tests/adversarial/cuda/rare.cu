// The last element is wrong in one launch of two hundred.
__device__ void body(const Problem& p) {
  each(p, [&](int i) { Out v = p.right(i); p.out[i] = i == p.size() - 1 && p.launch % 200 == 199 ? p.other(v) : v; });
}
