__device__ void body(const Problem& p) { each(p, [&](int i) { if (i % 97 != 5) p.out[i] = p.right(i); }); }
