// Every fixture is: this text, the workload of its contract (workload_*.cuh), launch.cuh, and the cheat. One signature
// serves all contracts, so one cheat is one `body`: `p.right(i)` is what output element i should be, `p.value(i, knobs)`
// a wrong one. The arithmetic is naive on purpose: a fixture must be right where it does not cheat.

typedef unsigned short bf16;
__device__ inline float wide(bf16 v) { return __uint_as_float((unsigned)v << 16); }
__device__ inline float wide(float v) { return v; }
__device__ inline bf16 narrow(float v) {  // to nearest even
  unsigned u = __float_as_uint(v);
  return v != v ? 0x7fff : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
__device__ inline float through_bf16(float v) { return wide(narrow(v)); }
__device__ inline float through_f16(float v) {
  unsigned short h;
  float back;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
  asm("cvt.f32.f16 %0, %1;" : "=f"(back) : "h"(h));
  return back;
}

enum Accumulate { F32, BF16, F16 };
struct Knobs {
  Accumulate accumulate = F32;  // what partial sums are rounded to
  int step = 1;                 // a reduction that ignores the rest of its length divided by this
  bool ignore = false;          // the last operand is not read (gemm: b is 1; k-means: c_sq is 0; rmsnorm: gain is 1)
  bool no_products = false;     // every matrix product is skipped
  bool unguarded = false;       // softmax: no guard for rows that are masked everywhere
  bool last_tie = false;        // k-means: the last of equal scores
};
__device__ inline float rounded(float v, Accumulate to) {
  return to == F32 ? v : to == BF16 ? through_bf16(v) : through_f16(v);
}
