// x[M, D], gain[D] -> y[M, D]; d0, d1 = M, D
typedef bf16 In0; typedef bf16 In1; typedef bf16 In2; typedef bf16 Out; typedef unsigned short OutBits;

struct Workload {
  In0* in0; In1* in1; In2* in2; Out* out;
  int d0, d1, d2, d3;

  __device__ int width() const { return d1; }
  __device__ int count0() const { return d0 * d1; }
  __device__ int count1() const { return d1; }
  __device__ Out value(int i, Knobs k) const {
    const In0* x = in0 + (size_t)(i / d1) * d1;
    float sum = 0;
    for (int j = 0; j < d1 / k.step * k.step; ++j) sum = rounded(fmaf(wide(x[j]), wide(x[j]), sum), k.accumulate);
    float scale = rsqrtf(sum / d1 + 0x1p-20f);
    return narrow(wide(x[i % d1]) * scale * (k.ignore ? 1.0f : wide(in1[i % d1])));
  }
  __device__ Out other(Out v) const { return v ^ 1; }
  __device__ bool edge() const { return d1 == 1000; }
  __device__ int size() const { return d0 * d1; }
};
