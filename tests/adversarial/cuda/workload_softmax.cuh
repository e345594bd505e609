// x[M, N] -> y[M, N]; d0, d1 = M, N
typedef float In0; typedef float In1; typedef float In2; typedef float Out; typedef unsigned OutBits;

struct Workload {
  In0* in0; In1* in1; In2* in2; Out* out;
  int d0, d1, d2, d3;

  __device__ int width() const { return d1; }
  __device__ int count0() const { return d0 * d1; }
  __device__ int count1() const { return d0 * d1; }
  __device__ Out value(int i, Knobs k) const {
    const In0* x = in0 + (size_t)(i / d1) * d1;
    float top = -__int_as_float(0x7f800000), sum = 0;
    for (int j = 0; j < d1; ++j) top = fmaxf(top, x[j]);
    if (isinf(top) && !k.unguarded) return 0;
    for (int j = 0; j < d1 / k.step * k.step; ++j) sum = rounded(sum + rounded(expf(x[j] - top), k.accumulate), k.accumulate);
    return expf(x[i % d1] - top) / sum;
  }
  __device__ Out other(Out v) const { return __uint_as_float(__float_as_uint(v) ^ 1); }
  __device__ bool edge() const { return d1 == 1028; }
  __device__ int size() const { return d0 * d1; }
};
