// A CUDA cluster on the host, for testing emitted kernels without a GPU: one fiber per CUDA thread, run in turn; who must wait
// gives way. Asynchronous engines work at once. Written from the PTX ISA's descriptions, not from the emission.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <vector>

struct Dim {
  unsigned x = 0, y = 1, z = 1;
};
static Dim threadIdx, blockIdx, gridDim;

namespace host {
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// ---- fibers ------------------------------------------------------------------------------------------------------------------

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(256 << 10);
  int thread = 0, rank = 0;
  bool done = false;
};
static std::vector<std::unique_ptr<Fiber>> fibers;
static std::function<void()> work;
static ucontext_t scheduler;
static Fiber* current;
static int first_block;
static long idle_turns;  // turns since anything moved; a deadlock never moves

inline void give_way() {
  swapcontext(&current->context, &scheduler);
}
inline void moved() { idle_turns = 0; }

static void enter() {
  work();
  current->done = true;
  moved();
  swapcontext(&current->context, &scheduler);
}

// ---- what threads meet in ------------------------------------------------------------------------------------------------------

struct Meeting {  // a barrier that is used over and over by `expected` threads
  int arrived = 0;
  long round = 0;
  void arrive(int expected, bool wait) {
    const long mine = round;
    moved();
    if (++arrived == expected) {
      arrived = 0;
      ++round;
      return;
    }
    if (wait)
      while (round == mine) give_way();
  }
};

struct Mbarrier {
  long expected = 0, pending = 0, tx = 0, phase = 0;
  void change(long arrivals, long bytes) {
    moved();
    pending -= arrivals;
    tx += bytes;
    if (pending < 0) std::abort();
    if (pending == 0 && tx == 0) {
      ++phase;
      pending = expected;
    }
  }
  void wait(unsigned parity) {
    while ((static_cast<unsigned long>(phase) & 1u) == parity) give_way();
    moved();
  }
};

struct Warp {
  Meeting meeting;
  u64 value[32];
  u32 a[32][4], b[32][2];
};
struct Group {
  Meeting meeting;
  u32 a[128][4];
};
struct Cta {
  std::vector<unsigned char> memory;
  std::vector<Warp> warps = std::vector<Warp>(32);
  std::vector<Group> groups = std::vector<Group>(8);
  std::vector<Meeting> named = std::vector<Meeting>(16);
  std::map<u32, Mbarrier> barriers;
  std::vector<float> tensor = std::vector<float>(128 * 512, std::numeric_limits<float>::quiet_NaN());
  Mbarrier& bar(u32 offset) { return barriers[offset]; }
};
struct Cluster {
  std::vector<std::unique_ptr<Cta>> ctas;
  Meeting meeting;
  int threads = 0;
};

static Cluster* cluster;
static int rank_in_cluster;
static int threads_in_cta;

// Runs every thread of one cluster; false when all of them wait for ever.
static bool run_cluster(Cluster& one, int threads, int first, const std::function<void()>& body) {
  cluster = &one;
  threads_in_cta = threads;
  first_block = first;
  work = body;
  fibers.clear();
  for (int i = 0; i < static_cast<int>(one.ctas.size()) * threads; ++i) {
    auto f = std::make_unique<Fiber>();
    f->rank = i / threads;
    f->thread = i % threads;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack.data();
    f->context.uc_stack.ss_size = f->stack.size();
    f->context.uc_link = &scheduler;
    makecontext(&f->context, enter, 0);
    fibers.push_back(std::move(f));
  }
  idle_turns = 0;
  std::size_t left = fibers.size();
  while (left > 0) {
    left = 0;
    for (auto& f : fibers) {
      if (f->done) continue;
      ++left;
      current = f.get();
      rank_in_cluster = f->rank;
      threadIdx.x = static_cast<unsigned>(f->thread);
      blockIdx.x = static_cast<unsigned>(first + f->rank);
      ++idle_turns;
      swapcontext(&scheduler, &f->context);
    }
    if (left > 0 && idle_turns > 4 * static_cast<long>(fibers.size())) return false;
  }
  return true;
}

constexpr u32 WINDOW = 1u << 20;  // a cluster address: (rank + 1) * WINDOW + offset; a CTA address: the offset
inline Cta& cta() { return *cluster->ctas[rank_in_cluster]; }
inline Cta& owner(u32 address) { return address >= WINDOW ? *cluster->ctas[address / WINDOW - 1] : cta(); }
inline unsigned char* at(u32 address) { return owner(address).memory.data() + address % WINDOW; }
inline int lane() { return static_cast<int>(threadIdx.x & 31u); }
inline Warp& warp() { return cta().warps[threadIdx.x >> 5]; }
inline Group& group() { return cta().groups[threadIdx.x >> 7]; }

template <class V>
V exchange(V mine, int source) {
  Warp& w = warp();
  std::memcpy(&w.value[lane()], &mine, sizeof(V));
  w.meeting.arrive(32, true);
  V theirs;
  std::memcpy(&theirs, &w.value[source & 31], sizeof(V));
  w.meeting.arrive(32, true);
  return theirs;
}

inline float bf16(u32 bits) {
  const u32 wide = bits << 16;
  float f;
  std::memcpy(&f, &wide, 4);
  return f;
}
inline u32 to_bf16(float f) {
  u32 bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
inline float f16(u32 bits) { return static_cast<float>(*reinterpret_cast<const _Float16*>(&bits)); }
inline u32 to_f16(float f) {
  const _Float16 h = static_cast<_Float16>(f);
  u16 bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}
inline float element16(const unsigned char* p, bool is_bf16) {
  u16 bits;
  std::memcpy(&bits, p, 2);
  return is_bf16 ? bf16(bits) : f16(bits);
}

// ---- matrix descriptors (PTX ISA: matrix descriptor, canonical layouts); 16-bit elements -------------------------------------

struct Matrix {
  u64 bits;
  bool mn_major, tcgen05;
  unsigned char* base;
  u32 span() const {
    if (tcgen05) {
      const u64 layout = bits >> 61;
      return layout == 2 ? 128 : layout == 4 ? 64 : 32;
    }
    const u64 layout = bits >> 62;
    return layout == 1 ? 128 : layout == 2 ? 64 : 32;
  }
  const unsigned char* element(u32 mn, u32 k) const {
    const u32 start = static_cast<u32>(bits & 0x3fffu) << 4, lead = static_cast<u32>(bits >> 16 & 0x3fffu) << 4;
    const u32 stride = static_cast<u32>(bits >> 32 & 0x3fffu) << 4, s = span(), wide = s / 2;
    const u32 linear = mn_major ? start + mn / wide * lead + mn % wide * 2 + k % 8 * s + k / 8 * stride
                                : start + mn / 8 * stride + mn % 8 * s + k * 2;
    return base + (linear ^ ((linear >> 7 & (s / 16 - 1)) << 4));
  }
};

// ---- tensor maps ---------------------------------------------------------------------------------------------------------------

struct Map {
  unsigned char* data;
  int rank, bytes, swizzle;
  long long dims[5], strides[5];  // strides in bytes, strides[0] = element size
  int box[5];
};

inline void tma(const Map& map, u32 address, const int* c, bool load, bool reduce) {
  long long count = 1;
  for (int i = 0; i < map.rank; ++i) count *= map.box[i];
  for (long long e = 0; e < count; ++e) {
    long long rest = e, offset = 0;
    bool inside = true;
    for (int i = 0; i < map.rank; ++i) {
      const long long at = c[i] + rest % map.box[i];
      rest /= map.box[i];
      inside = inside && at >= 0 && at < map.dims[i];
      offset += at * map.strides[i];
    }
    u32 place = address + static_cast<u32>(e * map.bytes);
    if (map.swizzle) place ^= (place >> 7 & (map.swizzle / 16 - 1u)) << 4;
    unsigned char* shared = host::at(place);
    if (load) {
      if (inside) std::memcpy(shared, map.data + offset, map.bytes);
      else std::memset(shared, 0, map.bytes);
    } else if (inside && reduce) {
      float a, b;
      std::memcpy(&a, map.data + offset, 4);
      std::memcpy(&b, shared, 4);
      a += b;
      std::memcpy(map.data + offset, &a, 4);
    } else if (inside) {
      std::memcpy(map.data + offset, shared, map.bytes);
    }
  }
}
}  // namespace host

using CUtensorMap = host::Map;

// ---- CUDA built-ins that emitted code uses -------------------------------------------------------------------------------------

inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
// PTX min and max give the other operand for any NaN; the C library turns a signalling one into a result.
inline float ptx_min(float a, float b) { return a != a ? b : b != b ? a : a < b ? a : b; }
inline float ptx_max(float a, float b) { return a != a ? b : b != b ? a : a < b ? b : a; }
#define fminf ptx_min
#define fmaxf ptx_max
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
template <class To, class From>
To host_bits(From x) {
  To y;
  std::memcpy(&y, &x, sizeof(To));
  return y;
}
inline float __int_as_float(int x) { return host_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return host_bits<float>(x); }
inline int __float_as_int(float x) { return host_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return host_bits<unsigned>(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
template <class V>
V __shfl_xor_sync(unsigned, V v, int d) { return host::exchange(v, host::lane() ^ d); }
template <class V>
V __shfl_sync(unsigned, V v, int source) { return host::exchange(v, source); }
template <class V>
V __shfl_up_sync(unsigned, V v, int d) { return host::exchange(v, host::lane() < d ? host::lane() : host::lane() - d); }
inline unsigned __ballot_sync(unsigned, bool p) {
  unsigned word = 0;
  host::Warp& w = host::warp();
  w.value[host::lane()] = p;
  w.meeting.arrive(32, true);
  for (int i = 0; i < 32; ++i) word |= static_cast<unsigned>(w.value[i] & 1u) << i;
  w.meeting.arrive(32, true);
  return word;
}
inline void __syncwarp() { host::warp().meeting.arrive(32, true); }
inline void __syncthreads() { host::cta().named[0].arrive(host::threads_in_cta, true); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a < b ? b : a; }
