__device__ void body(const Problem& p) { each(p, [&](int i) { p.out[i] = (Out)p.in0[i % p.count0()]; }); }
