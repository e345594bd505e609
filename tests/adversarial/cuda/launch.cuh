struct Problem : Workload {
  unsigned launch;  // how often this cubin ran before, in this process

  __device__ Out right(int i) const { return value(i, Knobs()); }
  __device__ OutBits held(int i) const { return ((volatile OutBits*)out)[i]; }
  // whether element i still holds one of the two poison patterns
  __device__ bool poisoned(int i) const { return held(i) == (OutBits)0xA5A5A5A5u || held(i) == (OutBits)0xFFFFFFFFu; }
};

template <class F> __device__ void each(const Problem& p, F f) {  // f(i) for every output element
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < p.size(); i += gridDim.x * blockDim.x) f(i);
}
__device__ inline bool once() { return blockIdx.x == 0 && threadIdx.x == 0; }

__device__ unsigned blocks_done;  // state that no Cake program can have: it survives the launch
__device__ void body(const Problem& p);
__device__ void after(const Problem& p);  // one thread, when all of the launch is done

extern "C" __global__ void kernel(In0* in0, In1* in1, In2* in2, Out* out, int d0, int d1, int d2, int d3) {
  __shared__ unsigned launch;
  // a block counts itself only at its end, so all blocks of a launch (the grid is always the same) read one quotient
  if (threadIdx.x == 0) launch = atomicAdd(&blocks_done, 0) / gridDim.x;
  __syncthreads();
  Problem p = {{in0, in1, in2, out, d0, d1, d2, d3}, launch};
  body(p);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(&blocks_done, 1) % gridDim.x == gridDim.x - 1) after(p);
  }
}

// Results kept from launch to launch under a key, for the cheats that cache (CACHE: elements of the largest output).
const int SLOTS = 8;
__device__ unsigned long long keys[SLOTS];
__device__ Out kept[SLOTS][CACHE];
__device__ int place(unsigned long long key) {  // of the key, or of the first free slot, or the first
  for (int s = 0; s < SLOTS; ++s) if (keys[s] == key || !keys[s]) return s;
  return 0;
}
// Every launch that knows the key copies; one that does not computes and keeps. `after` names what was kept.
__device__ void cached(const Problem& p, unsigned long long key) {
  int slot = place(key);
  bool known = keys[slot] == key;
  each(p, [&](int i) {
    Out v = known ? kept[slot][i] : p.right(i);
    p.out[i] = v;
    if (!known) kept[slot][i] = v;
  });
}
__device__ void keep(unsigned long long key) { keys[place(key)] = key; }
