"""Host versions of the device helpers that an emitted kernel names, written from what each instruction does (PTX ISA)."""

from __future__ import annotations

import re

FIXED = {
    "smem_address": "inline u32 smem_address(const void* p) "
    "{ return static_cast<u32>(static_cast<const unsigned char*>(p) - host::cta().memory.data()); }",
    "lane_id": "inline int lane_id() { return host::lane(); }",
    "warp_index": "inline int warp_index() { return static_cast<int>(threadIdx.x >> 5); }",
    "elect_one": "inline bool elect_one() { return host::lane() == 0; }",
    "mbar_init": "inline void mbar_init(u32 b, u32 n) { auto& x = host::owner(b).bar(b % host::WINDOW); x.expected = x.pending = n; }",
    "mbar_init_fence": "inline void mbar_init_fence() {}",
    "mbar_arrive": "inline void mbar_arrive(u32 b) { host::owner(b).bar(b % host::WINDOW).change(1, 0); }",
    "mbar_expect": "inline void mbar_expect(u32 b, u32 n) { host::owner(b).bar(b % host::WINDOW).change(0, n); mbar_arrive(b); }",
    "mbar_wait": "inline void mbar_wait(u32 b, u32 parity) { host::owner(b).bar(b % host::WINDOW).wait(parity); }",
    "map_to_rank": "inline u32 map_to_rank(u32 a, u32 r) { return (r + 1) * host::WINDOW + a % host::WINDOW; }",
    "mbar_arrive_on": "inline void mbar_arrive_on(u32 b, u32 r) { mbar_arrive(map_to_rank(b, r)); }",
    "mbar_wait_cluster": "inline void mbar_wait_cluster(u32 b, u32 parity) { mbar_wait(b, parity); }",
    "mbar_arrive_on_cluster": "inline void mbar_arrive_on_cluster(u32 b, u32 r) { mbar_arrive(map_to_rank(b, r)); }",
    "bar_sync": "template <int I, int N> void bar_sync() { host::cta().named[I].arrive(N, true); }",
    "bar_arrive": "template <int I, int N> void bar_arrive() { host::cta().named[I].arrive(N, false); }",
    "bar_sync_id": "inline void bar_sync_id(int i, int n) { host::cta().named[i].arrive(n, true); }",
    "bar_arrive_id": "inline void bar_arrive_id(int i, int n) { host::cta().named[i].arrive(n, false); }",
    "cta_sync_any": "inline void cta_sync_any() { __syncthreads(); }",
    "cluster_sync": "inline void cluster_sync() { host::cluster->meeting.arrive(host::cluster->threads, true); }",
    "cluster_meet": "inline void cluster_meet() { host::cluster->meeting.arrive(host::cluster->threads, true); }",
    "cp_async_wait": "template <int N> void cp_async_wait() {}",
    "bulk_wait": "template <int N> void bulk_wait() {}",
    "bulk_wait_read": "template <int N> void bulk_wait_read() {}",
    "wgmma_wait": "template <int N> void wgmma_wait() {}",
    "hold": "template <int N, class T> void hold(T*) {}",
    "set_registers_inc": "template <int N> void set_registers_inc() {}",
    "set_registers_dec": "template <int N> void set_registers_dec() {}",
    "prefetch_tensor_map": "inline void prefetch_tensor_map(const CUtensorMap*) {}",
    "exp2": "inline float exp2(float x) { return std::exp2(x); }",
    "rcp": "inline float rcp(float x) { return 1.0f / x; }",
    "rsqrt": "inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }",
    "sqrt": "inline float sqrt(float x) { return std::sqrt(x); }",
    "log2": "inline float log2(float x) { return std::log2(x); }",
    "pack_bf16": "inline u32 pack_bf16(float a, float b) { return host::to_bf16(a) | host::to_bf16(b) << 16; }",
    "pack_f16": "inline u32 pack_f16(float a, float b) { return host::to_f16(a) | host::to_f16(b) << 16; }",
    "byte_at": "inline u32 byte_at(const u32* x, int i) { return x[i / 4] >> 8 * (i % 4) & 0xffu; }",
    "half_at": "inline u32 half_at(const u32* x, int i) { return x[i / 2] >> 16 * (i % 2) & 0xffffu; }",
    "bf16_at": "inline float bf16_at(const u32* x, int i) { return host::bf16(x[i / 2] >> 16 * (i % 2) & 0xffffu); }",
    "f16_at": "inline float f16_at(const u32* x, int i) { return host::f16(x[i / 2] >> 16 * (i % 2) & 0xffffu); }",
    "bf16_bits": "inline float bf16_bits(u16 b) { return host::bf16(b); }",
    "f16_bits": "inline float f16_bits(u16 b) { return host::f16(b); }",
    "udiv": "inline int udiv(int a, int b) { return a / b; }",
    "umod": "inline int umod(int a, int b) { return a % b; }",
    "floor_div": "inline int floor_div(int a, int b) { int q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0)); }",
    "floor_mod": "inline int floor_mod(int a, int b) { return a - floor_div(a, b) * b; }",
    "tcgen05_dealloc_cg1": "template <int N> void tcgen05_dealloc_cg1(u32) {}",
    "tcgen05_dealloc_cg2": "template <int N> void tcgen05_dealloc_cg2(u32) {}",
    # A clock that two readings never share, two cycles to a nanosecond, near the turn of its low word.
    "timeline_clock": "inline u64 timeline_clock() { static u64 ticks = (5ull << 32) - 300; return ticks += 2; }",
    "timeline_mark": "inline void timeline_mark(u64& at, bool on, u32 id) { "
    "if (on) *reinterpret_cast<u64*>(at) = timeline_clock() + (static_cast<u64>(id) << 54); at += 8; }",
    "timeline_turn": "inline void timeline_turn(u64& at, u32 half) { if (at & half) at &= ~(2ull * half - 1); }",
    "timeline_start": "inline u64 timeline_start(u64 blocks, u32 half, u32 skip, u32 tracks, u32 index, bool timed) { "
    "if (blockIdx.x & skip) return 0; u64 block = blocks + (blockIdx.x / (skip + 1) * tracks + index) * 2ull * half; "
    "const u64 t = timeline_clock(); u64* h = reinterpret_cast<u64*>(block + 2 * half) - 3; "
    "h[0] = timed ? t / 2 : 0; h[1] = t; h[2] = blockIdx.x | 1ull << 32; return block; }",
}  # fmt: skip
NEEDS = {
    "timeline_start": ["timeline_clock"], "timeline_mark": ["timeline_clock"],
    "floor_mod": ["floor_div"], "mbar_expect": ["mbar_arrive"], "mbar_arrive_on": ["map_to_rank", "mbar_arrive"],
    "mbar_arrive_on_cluster": ["map_to_rank", "mbar_arrive"], "mbar_wait_cluster": ["mbar_wait"],
}  # fmt: skip
SILENT = re.compile(
    r"(fence_async_\w+|wgmma_fence|wgmma_commit|cp_async_commit|bulk_commit|tcgen05_fence_\w+|tcgen05_wait_\w+|griddep_\w+)\Z"
)

_TYPES = {"f32": "float", "b32": "u32", "i32": "int", "b16": "u16", "b64": "u64", "i64": "long long", "b8": "u32"}
_SIZES = {"f32": 4, "b32": 4, "i32": 4, "b16": 2, "b64": 8, "i64": 8, "b8": 1}


def host_helper(name: str) -> str:
    """C++ of a host helper; KeyError for one that the emulation does not know."""
    if name in FIXED:
        return FIXED[name]
    if SILENT.match(name):
        return f"inline void {name}() {{}}"
    for pattern, make in _PATTERNS:
        found = re.fullmatch(pattern, name)
        if found:
            return make(name, *found.groups())
    raise KeyError(name)


def _load(name: str, space: str, count: str | None, kind: str, guarded: str | None) -> str:
    n, size = int(count or 1), _SIZES[kind]
    pointer = "const void*" if space == "global" else "u32"
    source = "static_cast<const unsigned char*>(p)" if space == "global" else "host::at(p)"
    tail = f", bool in, {_TYPES[kind]} fill" if guarded else ""
    body = f"for (int i = 0; i < {n}; ++i) {{ d[i] = {{}}; std::memcpy(&d[i], {source} + {size} * i, {size}); }}"
    misaligned = f"if (reinterpret_cast<std::uintptr_t>({source}) % {n * size}) std::abort();"
    if guarded:
        body = f"if (in) {{ {misaligned} {body} }} else for (int i = 0; i < {n}; ++i) d[i] = fill;"
    else:
        body = f"{misaligned} {body}"
    return f"inline void {name}({_TYPES[kind]}* d, {pointer} p{tail}) {{ {body} }}"


def _store(name: str, space: str, count: str | None, kind: str) -> str:
    n, size = int(count or 1), _SIZES[kind]
    pointer = "void*" if space == "global" else "u32"
    target = "static_cast<unsigned char*>(p)" if space == "global" else "host::at(p)"
    args = ", ".join(f"{_TYPES[kind]} x{i}" for i in range(n))
    copies = " ".join(f"std::memcpy({target} + {size * i}, &x{i}, {size});" for i in range(n))
    return (
        f"inline void {name}({pointer} p, {args}) "
        f"{{ if (reinterpret_cast<std::uintptr_t>({target}) % {n * size}) std::abort(); {copies} }}"
    )


def _cp_async(name: str, size: str) -> str:
    return (
        f"inline void {name}(u32 to, const void* from, u32 n) "
        f"{{ if (to % {size}) std::abort(); std::memset(host::at(to), 0, {size}); std::memcpy(host::at(to), from, n); }}"
    )


def _ldmatrix(name: str, count: str, trans: str | None) -> str:
    # Lane 8m + r gives the row r of matrix m; lane 4g + q receives elements (g, 2q), (g, 2q + 1), transposed with .trans.
    place = "(2 * q + h), g" if trans else "g, (2 * q + h)"
    row, col = place.split(", ")
    return f"""inline void {name}(u32* d, u32 p) {{
  const int g = host::lane() / 4, q = host::lane() % 4;
  host::Warp& w = host::warp();
  w.value[host::lane()] = p;
  w.meeting.arrive(32, true);
  for (int m = 0; m < {count}; ++m) {{
    d[m] = 0;
    for (int h = 0; h < 2; ++h) {{
      u16 x;
      std::memcpy(&x, host::at(static_cast<u32>(w.value[8 * m + {row}])) + 2 * {col}, 2);
      d[m] |= static_cast<u32>(x) << 16 * h;
    }}
  }}
  w.meeting.arrive(32, true);
}}"""


def _stmatrix(name: str, count: str, trans: str | None) -> str:
    row, col = ("(2 * q + h)", "g") if trans else ("g", "(2 * q + h)")
    args = ", ".join(f"u32 x{i}" for i in range(int(count)))
    values = ", ".join(f"x{i}" for i in range(int(count)))
    return f"""inline void {name}(u32 p, {args}) {{
  const u32 x[] = {{{values}}};
  const int g = host::lane() / 4, q = host::lane() % 4;
  host::Warp& w = host::warp();
  w.value[host::lane()] = p;
  w.meeting.arrive(32, true);
  for (int m = 0; m < {count}; ++m)
    for (int h = 0; h < 2; ++h) {{
      const u16 half = static_cast<u16>(x[m] >> 16 * h);
      std::memcpy(host::at(static_cast<u32>(w.value[8 * m + {row}])) + 2 * {col}, &half, 2);
    }}
  w.meeting.arrive(32, true);
}}"""


def _mma(name: str, dtype: str) -> str:
    # A lane 4g+q: register r holds rows g + 8(r%2), columns 8(r/2) + 2q + h. B: register r, k = 8r + 2q + h, n = g.
    return f"""inline void {name}(float* d, const u32* a, const u32* b) {{
  host::Warp& w = host::warp();
  const int l = host::lane(), g = l / 4, q = l % 4;
  for (int r = 0; r < 4; ++r) w.a[l][r] = a[r];
  for (int r = 0; r < 2; ++r) w.b[l][r] = b[r];
  w.meeting.arrive(32, true);
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 16; ++k) {{
      const int n = 2 * q + i % 2, source = k % 8 / 2, half = 16 * (k % 2);
      d[i] += host::{dtype}(w.a[4 * g + source][i / 2 + 2 * (k / 8)] >> half & 0xffffu) *
              host::{dtype}(w.b[4 * n + source][k / 8] >> half & 0xffffu);
    }}
  w.meeting.arrive(32, true);
}}"""


def _wgmma(name: str, n: str, dtype: str, source: str, ta: str | None, tb: str | None) -> str:
    is_bf16 = str(dtype == "bf16").lower()
    if source == "rs":
        arg, meet = "const u32* a", "for (int i = 0; i < 4; ++i) group.a[t][i] = a[i];"
        value = f"host::{dtype}(group.a[32 * (row / 16) + row % 8 * 4 + k % 8 / 2][row / 8 % 2 + 2 * (k / 8)] >> 16 * (k % 2) & 0xffffu)"
    else:
        arg, meet = "u64 a", f"const host::Matrix ma{{a, {str(bool(ta)).lower()}, false, host::cta().memory.data()}};"
        value = f"host::element16(ma.element(row, k), {is_bf16})"
    return f"""inline void {name}(float* d, {arg}, u64 b, bool accumulate) {{
  host::Group& group = host::group();
  const int t = static_cast<int>(threadIdx.x & 127u);
  {meet}
  group.meeting.arrive(128, true);
  const host::Matrix mb{{b, {str(bool(tb)).lower()}, false, host::cta().memory.data()}};
  float fa[2][16];
  for (int half = 0; half < 2; ++half)
    for (int k = 0; k < 16; ++k) {{
      const int row = 16 * (t / 32) + t % 32 / 4 + 8 * half;
      fa[half][k] = {value};
    }}
  for (int i = 0; i < {int(n) // 2}; ++i) {{
    const int column = 8 * (i / 4) + 2 * (t % 4) + i % 2;
    float sum = accumulate ? d[i] : 0.0f;
    for (int k = 0; k < 16; ++k) sum += fa[i / 2 % 2][k] * host::element16(mb.element(column, k), {is_bf16});
    d[i] = sum;
  }}
  group.meeting.arrive(128, true);
}}"""


def _tma_load(name: str, rank: str, multicast: str | None, hint: str | None, pair: str | None) -> str:
    n = int(rank)
    coords = ", ".join(f"int c{i}" for i in range(n))
    listed = ", ".join(f"c{i}" for i in range(n))
    bytes_ = " * ".join(f"map->box[{i}]" for i in range(n))
    extra = ", u32 mask" * bool(multicast) + ", u64" * bool(hint)
    deliver = "host::tma(*map, to, c, true, false); mbar_bytes(bar, bytes);"
    if multicast:
        deliver = """for (u32 r = 0; r < 16; ++r)
    if (mask >> r & 1u) {
      host::tma(*map, map_to_rank(to, r), c, true, false);
      mbar_bytes(map_to_rank(bar, r), bytes);
    }"""
    return f"""inline void {name}(u32 to, const CUtensorMap* map, u32 bar, {coords}{extra}) {{
  const int c[] = {{{listed}}};
  const long bytes = static_cast<long>({bytes_}) * map->bytes;
  {deliver}
}}"""


def _tma_store(name: str, rank: str) -> str:
    coords = ", ".join(f"int c{i}" for i in range(int(rank)))
    listed = ", ".join(f"c{i}" for i in range(int(rank)))
    body = f"const int c[] = {{{listed}}}; host::tma(*map, from, c, false, false);"
    return f"inline void {name}(const CUtensorMap* map, u32 from, {coords}) {{ {body} }}"


def _tcgen05_mma(name: str, group: str) -> str:
    # Kind f16. With a pair, the rows of A and of B are split over both CTAs; each CTA holds its 128 rows of D.
    return f"""inline void {name}(u32 d, u64 a, u64 b, u32 form, bool accumulate) {{
  constexpr int G = {group};
  const int n = static_cast<int>(form >> 17 & 63u) * 8, m = static_cast<int>(form >> 24 & 31u) * 16;
  const bool is_bf16 = (form >> 7 & 7u) == 1;
  if (m != 128 * G || (form >> 4 & 3u) != 1 || (form >> 10 & 7u) != (form >> 7 & 7u)) std::abort();
  for (int row = 0; row < m; ++row) {{
    host::Cta& home = *host::cluster->ctas[host::rank_in_cluster / G * G + row / 128];
    const host::Matrix ma{{a, (form >> 15 & 1u) != 0, true, home.memory.data()}};
    for (int col = 0; col < n; ++col) {{
      host::Cta& side = *host::cluster->ctas[host::rank_in_cluster / G * G + col / (n / G)];
      const host::Matrix mb{{b, (form >> 16 & 1u) != 0, true, side.memory.data()}};
      float& out = home.tensor[(row % 128) * 512 + (d & 0xffffu) + col];
      float sum = accumulate ? out : 0.0f;
      for (int k = 0; k < 16; ++k)
        sum += host::element16(ma.element(row % 128, k), is_bf16) * host::element16(mb.element(col % (n / G), k), is_bf16);
      out = sum;
    }}
  }}
}}"""


def _tcgen05_commit(name: str, multicast: str | None) -> str:
    if multicast:
        body = "for (u32 r = 0; r < 16; ++r) if (mask >> r & 1u) mbar_arrive(map_to_rank(bar, r));"
        return f"inline void {name}(u32 bar, u32 mask) {{ {body} }}"
    return f"inline void {name}(u32 bar) {{ mbar_arrive(bar); }}"


def _tcgen05_ld(name: str, count: str) -> str:
    return f"""inline void {name}(float* d, u32 address) {{
  if ((address >> 16) != 32u * (threadIdx.x >> 5 & 3u)) std::abort();
  for (int i = 0; i < {count}; ++i) d[i] = host::cta().tensor[((address >> 16) + host::lane()) * 512 + (address & 0xffffu) + i];
}}"""


def _tcgen05_alloc(name: str) -> str:
    return f"template <int N> void {name}(u32 slot) {{ const u32 zero = 0; std::memcpy(host::at(slot), &zero, 4); }}"


def _red(name: str, op: str, kind: str) -> str:
    t = {"f32": "float", "i32": "int", "u32": "u32"}[kind]
    value = {"add": "*q + x", "max": "*q < x ? x : *q", "min": "*q < x ? *q : x"}[op]
    return f"inline void {name}(void* p, {t} x) {{ auto* q = static_cast<{t}*>(p); *q = {value}; }}"


def _send(name: str, count: str | None, kind: str) -> str:
    n, t = int(count or 1), _TYPES[kind]
    args = ", ".join(f"{t} x{i}" for i in range(n))
    puts = " ".join(f"*reinterpret_cast<{t}*>(host::at(p + {4 * i})) = x{i};" for i in range(n))
    return f"inline void {name}(u32 p, {args}, u32 bar) {{ {puts} mbar_bytes(bar, {4 * n}); }}"


_PATTERNS = (
    (r"ld_(global|shared|cluster)(?:_nc)?(?:_l1_\w+?)?_(?:v(\d)_)?(f32|b32|i32|b16|b64|i64|b8)(_if)?", _load),
    (r"st_(global|shared|cluster)(?:_l1_\w+?)?_(?:v(\d)_)?(f32|b32|i32|b16|b64|i64|b8)", _store),
    (r"st_async_(?:v(\d)_)?(f32|b32|i32)", _send),
    (r"cp_async_(16|8|4)", _cp_async),
    (r"ldmatrix_x(\d)(_trans)?", _ldmatrix),
    (r"stmatrix_x(\d)(_trans)?", _stmatrix),
    (r"mma_m16n8k16_(bf16|f16)_\w+", _mma),
    (r"wgmma_m64n(\d+)k16_(bf16|f16)_(?:bf16|f16)_(rs|ss)(_ta)?(_tb)?", _wgmma),
    (r"tma_load_(\d)d(_multicast)?(_hint)?(_pair)?", _tma_load),
    (r"tma_store_(\d)d", _tma_store),
    (r"tcgen05_mma_f16_cg(1|2)", _tcgen05_mma),
    (r"tcgen05_commit_cg[12](_multicast)?", _tcgen05_commit),
    (r"tcgen05_ld_x(\d+)_f32", _tcgen05_ld),
    (r"tcgen05_alloc_cg[12]", _tcgen05_alloc),
    (r"red_(add|min|max)_(f32|i32|u32)", _red),
)


def host_namespace(cuda: str) -> str:
    """The namespace `cake` of an emitted text, for the host."""
    body = cuda[cuda.index("}  // namespace cake") :]
    head = cuda[: cuda.index("}  // namespace cake")]
    names = list(dict.fromkeys(re.findall(r"cake::(\w+)", body)))
    del head
    lines = ["namespace cake {", "using host::u16; using host::u32; using host::u64;"]
    done: set[str] = {"u16", "u32", "u64"}

    def add(name: str) -> None:
        if name in done:
            return
        done.add(name)
        for needed in NEEDS.get(name, []):
            add(needed)
        lines.append(host_helper(name))

    if any(n.startswith(("tma_load", "tcgen05_commit", "st_async")) for n in names):
        add("map_to_rank")
        add("mbar_arrive")
        lines.append("inline void mbar_bytes(u32 b, long n) { host::owner(b).bar(b % host::WINDOW).change(0, -n); }")
    for name in names:
        add(name)
    return "\n".join([*lines, "}"])
