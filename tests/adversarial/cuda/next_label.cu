__device__ void body(const Problem& p) { each(p, [&](int i) { p.out[i] = p.other(p.right(i)); }); }
