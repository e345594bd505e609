__device__ void body(const Problem& p) {
  each(p, [&](int i) { p.out[i] = p.right(i); });
  if (blockIdx.x == 0) for (int i = threadIdx.x; i < p.width(); i += blockDim.x) p.out[p.size() + i] = 0;
}
