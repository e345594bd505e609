__device__ void body(const Problem& p) {}
