// a[M, K], b[N, K] -> d[M, N]; d0..d2 = M, N, K
typedef bf16 In0; typedef bf16 In1; typedef bf16 In2; typedef bf16 Out; typedef unsigned short OutBits;

struct Workload {
  In0* in0; In1* in1; In2* in2; Out* out;
  int d0, d1, d2, d3;

  __device__ int width() const { return d1; }
  __device__ int count0() const { return d0 * d2; }
  __device__ int count1() const { return d1 * d2; }
  __device__ Out value(int i, Knobs k) const {
    const In0* a = in0 + (size_t)(i / d1) * d2;
    const In1* b = in1 + (size_t)(i % d1) * d2;
    float sum = 0;
    for (int j = 0; j < d2 / k.step * k.step && !k.no_products; ++j)
      sum = rounded(fmaf(wide(a[j]), k.ignore ? 1.0f : wide(b[j]), sum), k.accumulate);
    return narrow(sum);
  }
  __device__ Out other(Out v) const { return v ^ 1; }
  __device__ bool edge() const { return d0 == 129; }
  __device__ int size() const { return d0 * d1; }
};
