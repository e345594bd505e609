"""The faulty kernels: CUDA bodies behind one right RMSNorm, and corpus programs with one synchronisation taken out or moved.

Every CUDA kernel computes the right result first, so that only the fault can fail it. `launch` counts from 0 over all
launches of the process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Ending = Literal["hang", "fault", "stop", "refused"]
"""`stop`: hangs or faults, as the bytes happen to lie that it runs as code."""

PRELUDE = r"""
typedef unsigned short bf16;
typedef unsigned long long u64;
__device__ inline float wide(bf16 v) { return __uint_as_float((unsigned)v << 16); }
__device__ inline bf16 narrow(float v) {
  unsigned u = __float_as_uint(v);
  return (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
__device__ volatile int never;
__device__ unsigned tickets, arrived;
__shared__ unsigned shared_launch;
__shared__ __align__(16) u64 barrier;
__device__ inline unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ inline void barrier_init(unsigned count) {
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(&barrier)), "r"(count));
  __syncthreads();
}
__device__ inline void barrier_wait() {
  unsigned done = 0;
  while (!done)
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
        : "=r"(done) : "r"(address(&barrier)) : "memory");
}
__device__ inline void right(const bf16* x, const bf16* gain, bf16* y, int M, int D) {
  for (int row = blockIdx.x; row < M; row += gridDim.x) {
    float sum = 0;
    for (int i = 0; i < D; ++i) sum += wide(x[row * D + i]) * wide(x[row * D + i]);
    float scale = 1.0f / sqrtf(sum / D + 9.5367431640625e-07f);
    for (int i = threadIdx.x; i < D; i += blockDim.x) y[row * D + i] = narrow(wide(x[row * D + i]) * scale * wide(gain[i]));
  }
}
"""

FRAME = r"""
extern "C" __global__ void %(bounds)s faulty(const bf16* x, const bf16* gain, bf16* y, int M, int D) {
  if (threadIdx.x == 0) shared_launch = atomicAdd(&tickets, 1u) / gridDim.x;
  __syncthreads();
  const unsigned launch = shared_launch;
  const bool one = blockIdx.x == 0 && threadIdx.x == 0;
  right(x, gain, y, M, D);
  __syncthreads();
  %(body)s
}
"""


@dataclass(frozen=True)
class Cuda:
    """A kernel behind `FRAME`. job: check, or a mode of bench. plan: fields of the launch plan that differ. cubin: what is
    done to the compiled kernel; after_right: launched behind a right kernel, whose results must not pass for its own."""

    name: str
    ending: Ending
    body: str = ""
    extra: str = ""
    bounds: str = ""
    job: Literal["check", "warm", "cold"] = "check"
    plan: dict[str, int | bool | str] = field(default_factory=dict)
    target: str = "sm_90a"
    cubin: Literal["", "truncated", "bad opcode"] = ""
    after_right: bool = False


@dataclass(frozen=True)
class Changed:
    """A corpus kernel in which `old` is `new` everywhere; it hangs at `shape`."""

    name: str
    kernel: str
    old: str
    new: str
    shape: dict[str, int]
    ending: Ending = "hang"


SPIN = "while (!never) {}"
WILD = "*(volatile int*)16 = 1;"

HANGS = (
    Cuda("spin_everywhere", "hang", SPIN),
    Cuda("spin_one_thread", "hang", f"if (one) {SPIN}"),
    Cuda("spin_last_block", "hang", f"if (blockIdx.x == gridDim.x - 1) {SPIN}"),
    Cuda("spin_one_warp", "hang", f"if (threadIdx.x / 32 == 2) {SPIN}"),
    Cuda("sleep_for_ever", "hang", "while (!never) __nanosleep(1000);"),
    Cuda("flag_that_never_comes", "hang", "if (one) while (*(volatile unsigned*)&arrived == 0) {}"),
    Cuda("mbarrier_without_arrival", "hang", "barrier_init(1); barrier_wait();"),
    Cuda(
        "mbarrier_without_its_bytes", "hang",
        'barrier_init(1); if (threadIdx.x == 0) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 64;" '
        '::"r"(address(&barrier))); barrier_wait();',
    ),
    Cuda("mbarrier_one_arrival_short", "hang",
         'barrier_init(blockDim.x + 1); asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(&barrier))); '
         "barrier_wait();"),
    Cuda("named_barrier_short_of_warps", "hang", 'if (threadIdx.x < 32) asm volatile("bar.sync 1, 128;");'),
    Cuda("grid_barrier_short", "hang",
         "if (threadIdx.x == 0) { atomicAdd(&arrived, 1u); while (*(volatile unsigned*)&arrived % (gridDim.x + 1) != gridDim.x + 2) {} }"),
    Cuda("lock_that_is_kept", "hang", "while (atomicCAS(&arrived, 0u, 1u) != 0u) {}"),
    Cuda("spin_at_the_third_launch", "hang", f"if (launch == 2) {SPIN}"),
    Cuda("spin_when_timed_warm", "hang", f"if (launch > 60) {SPIN}", job="warm"),
    Cuda("spin_when_replayed", "hang", f"if (launch > 12000) {SPIN}", job="warm"),
    Cuda("spin_when_timed_cold", "hang", f"if (launch > 60) {SPIN}", job="cold"),
)  # fmt: skip

FAULTS = (
    Cuda("write_null", "fault", WILD),
    Cuda("write_null_one_thread", "fault", f"if (one) {WILD}"),
    Cuda("write_far", "fault", "((volatile char*)y)[1ull << 42] = 1;"),
    Cuda("read_far", "fault", "if (((const volatile char*)x)[1ull << 42] == 3) y[0] = 1;"),
    Cuda("atomic_null", "fault", "atomicAdd((unsigned*)32, 1u);"),
    Cuda("misaligned_global", "fault", "*(volatile int*)((char*)y + 1) = 1;"),
    Cuda("misaligned_vector_store", "fault",
         'if (one) asm volatile("st.global.v4.b32 [%0], {%1, %1, %1, %1};" ::"l"((char*)y + 4), "r"(1) : "memory");'),
    Cuda("misaligned_atomic", "fault", "atomicAdd((unsigned*)((char*)y + 2), 1u);"),
    Cuda("misaligned_shared", "fault",
         'asm volatile("st.shared.u32 [%0], %1;" ::"r"(address(&barrier) + 1u), "r"(1u) : "memory");'),
    Cuda("shared_out_of_range", "fault",
         'asm volatile("st.shared.u32 [%0], %1;" ::"r"(1u << 20), "r"(1u) : "memory");'),
    Cuda("bulk_copy_from_nowhere", "fault",
         'barrier_init(1); if (threadIdx.x == 0) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16;" '
         '::"r"(address(&barrier))); '
         'asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];" '
         '::"r"(address(landing)), "l"(1ull << 46), "r"(address(&barrier)) : "memory"); } barrier_wait();',
         extra="__shared__ __align__(16) char landing[16];"),
    Cuda("trap", "fault", 'if (one) asm volatile("trap;");'),
    Cuda("assertion", "fault", 'if (one) __assertfail("false", "faulty.cu", 1, "faulty", 1);',
         extra='extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);'),
    Cuda("stack_overflow", "fault", "if (one) y[0] = (bf16)deep(M, D);",
         extra="__device__ __noinline__ int deep(int n, int d) { volatile int held[64]; held[n & 63] = d; "
               "return n == -7 ? d : deep(n + 1, held[d & 63] + 1) + held[n & 63]; }"),
    Cuda("jump_into_data", "stop", "if (one) { typedef void (*F)(); F f = (F)(u64)(0x10 + never); f(); }"),
    Cuda("no_such_instruction", "fault", cubin="bad opcode"),
    Cuda("fault_at_the_third_launch", "fault", f"if (launch == 2) {WILD}"),
    Cuda("fault_after_a_while", "fault",
         f"if (one) {{ long long from = clock64(); while (clock64() - from < 600000000ll) {{}} {WILD} }}"),
    Cuda("fault_when_timed_warm", "fault", f"if (launch > 60) {WILD}", job="warm"),
    Cuda("fault_when_timed_cold", "fault", f"if (launch > 60) {WILD}", job="cold"),
)  # fmt: skip

REFUSED = (
    Cuda("too_much_shared_memory", "refused", plan={"smem_bytes": 256 << 10}),
    Cuda("256_bytes_of_shared_memory_too_many", "refused", "if (never) y[0] = held[threadIdx.x];",
         extra="__shared__ bf16 held[512];", plan={"smem_bytes": 227 * 1024 - 768}),
    Cuda("too_many_threads", "refused", bounds="__launch_bounds__(128)", plan={"threads": 1024}),
    Cuda("cluster_too_large", "refused", plan={"cluster": 32, "grid": 128}),
    Cuda("cooperative_grid_too_large", "refused", plan={"cooperative": True, "grid": 1 << 20}),
    Cuda("another_architecture", "refused", target="sm_80"),
    Cuda("torn_cubin", "refused", cubin="truncated"),
    Cuda("no_such_kernel", "refused", plan={"symbol": "another"}),
    Cuda("refused_after_a_right_launch", "refused", plan={"smem_bytes": 256 << 10}, after_right=True),
)  # fmt: skip

GEMM = {"M": 300, "N": 520, "K": 640}
ONE_TILE = {"B": 1, "N": 130, "C": 1000, "D": 128}
TWO_TILES = {"B": 1, "N": 192 * 150, "C": 200, "D": 128}

DEADLOCKS = (
    Changed("gemm_release_of_the_other_cta_left_out", "gemm_sm90",
            "                        arrive(free[n - 1].on(1))\n", "", GEMM),
    Changed("gemm_release_of_the_first_cta_left_out", "gemm_sm90",
            "                        arrive(free[n - 1].on(0))\n", "", GEMM),
    Changed("gemm_one_round_not_released", "gemm_sm90", "if k > 0:", "if k > 1:", GEMM),
    Changed("gemm_wait_for_the_next_slot", "gemm_sm90", "wait(full[n])", "wait(full[n + 1])", GEMM),
    Changed("gemm_refill_waits_for_the_last_round", "gemm_sm90", "wait(free[n - STAGES])", "wait(free[n - 1])", GEMM),
    Changed("kmeans_first_round_not_released", "kmeans_assign", "                arrive(free[n])\n",
            "                if k > 0:\n                    arrive(free[n])\n", ONE_TILE),
    Changed("kmeans_turn_not_passed_on", "kmeans_assign",
            "                arrive(turn[(wg + 1) % WG])\n", "", ONE_TILE),
    Changed("kmeans_points_not_released", "kmeans_assign", "if k == 0:", "if k == 2:", TWO_TILES),
    Changed("kmeans_first_turn_not_given", "kmeans_assign", "if wg == WG - 1:", "if wg == WG:", ONE_TILE),
    Changed("gemm_refill_waits_for_itself", "gemm_sm90", "wait(free[n - STAGES])", "wait(free[n])", GEMM),
    Changed("kmeans_wait_for_the_next_slot", "kmeans_assign", "wait(full[n])", "wait(full[n + 1])", ONE_TILE),
    Changed("kmeans_refill_waits_for_itself", "kmeans_assign", "wait(free[n - STAGES])", "wait(free[n])", ONE_TILE),
    Changed("kmeans_points_wait_for_themselves", "kmeans_assign", "wait(x_free[t - 1])", "wait(x_free[t])", ONE_TILE),
    Changed("kmeans_released_in_three_rounds", "kmeans_assign", "                arrive(free[n])\n",
            "                if k < 3:\n                    arrive(free[n])\n", ONE_TILE),
)  # fmt: skip

KERNELS: tuple[Cuda | Changed, ...] = (*HANGS, *DEADLOCKS, *FAULTS, *REFUSED)
TRIAL = (
    "spin_everywhere", "gemm_release_of_the_other_cta_left_out", "kmeans_turn_not_passed_on", "spin_when_timed_warm",
    "write_null", "no_such_instruction", "stack_overflow", "too_much_shared_memory", "another_architecture",
)  # fmt: skip
"""A first look before all of them."""
