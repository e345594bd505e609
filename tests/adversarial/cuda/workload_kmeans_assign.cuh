// x[B, N, D], c[B, C, D], c_sq[B, C] -> label[B, N]; d0..d3 = B, N, C, D
typedef bf16 In0; typedef bf16 In1; typedef float In2; typedef int Out; typedef unsigned OutBits;

struct Workload {
  In0* in0; In1* in1; In2* in2; Out* out;
  int d0, d1, d2, d3;

  __device__ int width() const { return 1; }
  __device__ int count0() const { return d0 * d1 * d3; }
  __device__ int count1() const { return d0 * d2 * d3; }
  __device__ Out value(int i, Knobs k) const {
    const In0* x = in0 + (size_t)i * d3;
    const In1* c = in1 + (size_t)(i / d1) * d2 * d3;
    const In2* sq = in2 + (size_t)(i / d1) * d2;
    float best = __int_as_float(0x7f800000);
    int label = 0;
    for (int n = 0; n < d2; ++n) {
      float dot = 0;
      for (int j = 0; j < d3 / k.step * k.step && !k.no_products; ++j)
        dot = rounded(fmaf(wide(x[j]), wide(c[(size_t)n * d3 + j]), dot), k.accumulate);
      float score = rounded((k.ignore ? 0.0f : sq[n]) - 2.0f * dot, k.accumulate);
      if (score < best || (k.last_tie && score == best)) { best = score; label = n; }
    }
    return label;
  }
  __device__ Out other(Out v) const { return (v + 1) % d2; }
  __device__ bool edge() const { return d1 == 129; }
  __device__ int size() const { return d0 * d1; }
};
