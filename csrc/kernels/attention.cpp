// Paged attention with an online softmax (Milakov and Gimelshein, 2018; FlashAttention's tiling).
//
// Keys are taken in tiles of 64 and splits of 512 at fixed absolute positions, so a row's arithmetic depends on its
// own position and window alone: a decode step, a prefill chunk and a split over threads give the same bits.
// All query heads of a KV head are rows of one small product, so K and V are read once for the group.
#include "rows.h"
#include "simd.h"

namespace octavo::OCTAVO_TIER {
namespace {

constexpr int kMaxRows = 32;
constexpr int kMaxHeadDim = 512;
constexpr int kBlock = 4;  // rows whose sums stay in registers
constexpr float kNone = -INFINITY;

template <KvType type> inline F load16(const void* array, std::ptrdiff_t index) {
  if constexpr (type == KvType::F32) return f_load(static_cast<const float*>(array) + index);
  else if constexpr (type == KvType::F16) return f_from_f16(static_cast<const uint16_t*>(array) + index);
  else return f_from_bf16(static_cast<const uint16_t*>(array) + index);
}

struct State {  // of up to kMaxRows rows: running maximum, sum, and unscaled output
  float m[kMaxRows];
  float l[kMaxRows];
  float* o;  // [rows, head_dim]
};

struct Span { int lo, hi; };  // keys a row sees: [lo, hi)

struct Work {
  const AttentionTile& tile;
  const KvPages& kv;
  const AttentionArgs& args;
  int rows;
  const float* q;  // [rows, head_dim], scaled
  Span span[kMaxRows];
};

inline std::ptrdiff_t head_base(const Work& w, int key) {
  const int page = w.tile.pages[key / w.kv.page_size];
  return (static_cast<std::ptrdiff_t>(page) * w.kv.kv_heads + w.tile.kv_head) * w.kv.page_size * w.kv.head_dim;
}

template <KvType type, int N>
inline void score16(const Work& w, int row, std::ptrdiff_t column, float* s) {
  const int n = w.kv.head_dim;
  const float* q = w.q + static_cast<std::ptrdiff_t>(row) * n;
  F acc[N];
  for (int r = 0; r < N; ++r) acc[r] = f_zero();
  for (int d = 0; d < n; ++d) {
    F k = load16<type>(w.kv.k, column + 16 * d);
    for (int r = 0; r < N; ++r) acc[r] = f_fma(k, f_set1(q[r * n + d]), acc[r]);
  }
  for (int r = 0; r < N; ++r) f_store(s + r * kKeyTile, acc[r]);
}

// Scores of all rows against keys [key, key + count): s [rows, 64].
template <KvType type> void scores(const Work& w, int key, int count, float* s) {
  for (int j = 0; j < count; j += 16) {
    const std::ptrdiff_t column = head_base(w, key + j) + ((key + j) % w.kv.page_size) / 16 * 16 * w.kv.head_dim;
    int r = 0;
    for (; r + kBlock <= w.rows; r += kBlock) score16<type, kBlock>(w, r, column, s + r * kKeyTile + j);
    switch (w.rows - r) {
      case 3: score16<type, 3>(w, r, column, s + r * kKeyTile + j); break;
      case 2: score16<type, 2>(w, r, column, s + r * kKeyTile + j); break;
      case 1: score16<type, 1>(w, r, column, s + r * kKeyTile + j); break;
      default: break;
    }
  }
}

// Turn a row's scores into weights in place and rescale its state; false if the row sees no key of the tile.
inline bool soften(const Work& w, int row, int key, float* s, State& st) {
  const int lo = max_int(w.span[row].lo - key, 0), hi = min_int(w.span[row].hi - key, kKeyTile), n = w.kv.head_dim;
  if (hi <= lo) return false;
  F v[kKeyTile / 16], top = f_set1(kNone);
  for (int j = 0; j < kKeyTile / 16; ++j) {
    v[j] = f_load(s + 16 * j);
    if (w.args.softcap > 0) {
      F cap = f_set1(w.args.softcap);
      v[j] = f_mul(f_tanh(f_div(v[j], cap)), cap);
    }
    v[j] = f_window(v[j], lo - 16 * j, hi - 16 * j, kNone);
    top = f_max(top, v[j]);
  }
  const float m = f_hmax(top), now = m > st.m[row] ? m : st.m[row];
  F sum = f_zero();
  for (int j = 0; j < kKeyTile / 16; ++j) {
    F p = f_window(f_exp(f_sub(v[j], f_set1(now))), lo - 16 * j, hi - 16 * j, 0.0f);
    f_store(s + 16 * j, p);
    sum = f_add(sum, p);
  }
  if (st.m[row] == kNone) {  // the first keys this row sees
    st.l[row] = f_sum(sum);
  } else {
    alignas(64) float old[16];
    f_store(old, f_exp(f_set1(st.m[row] - now)));
    st.l[row] = std::fma(st.l[row], old[0], f_sum(sum));
    if (old[0] != 1.0f) {
      F a = f_set1(old[0]);
      float* o = st.o + static_cast<std::ptrdiff_t>(row) * n;
      for (int d = 0; d < n; d += 16) f_store(o + d, f_mul(f_load(o + d), a));
    }
  }
  st.m[row] = now;
  return true;
}

template <KvType type, int N>
inline void add_values(const Work& w, const int* rows, int key, int count, const float* p, State& st) {
  const int n = w.kv.head_dim;
  for (int d = 0; d < n; d += 16) {
    F acc[N];
    for (int r = 0; r < N; ++r) acc[r] = f_load(st.o + static_cast<std::ptrdiff_t>(rows[r]) * n + d);
    for (int j = 0; j < count;) {
      const int run = min_int(count - j, w.kv.page_size - (key + j) % w.kv.page_size);
      std::ptrdiff_t at = head_base(w, key + j) + static_cast<std::ptrdiff_t>((key + j) % w.kv.page_size) * n + d;
      for (const int end = j + run; j < end; ++j, at += n) {
        F v = load16<type>(w.kv.v, at);
        for (int r = 0; r < N; ++r) acc[r] = f_fma(v, f_set1(p[rows[r] * kKeyTile + j]), acc[r]);
      }
    }
    for (int r = 0; r < N; ++r) f_store(st.o + static_cast<std::ptrdiff_t>(rows[r]) * n + d, acc[r]);
  }
}

// One tile of keys for every row that sees some of it.
template <KvType type> void tile_step(const Work& w, int key, int end, State& st) {
  alignas(64) float s[kMaxRows * kKeyTile];
  const int count = min_int(kKeyTile, end - key);
  int live[kMaxRows], n = 0;
  scores<type>(w, key, count, s);
  for (int r = 0; r < w.rows; ++r)
    if (soften(w, r, key, s + r * kKeyTile, st)) live[n++] = r;
  int i = 0;
  for (; i + kBlock <= n; i += kBlock) add_values<type, kBlock>(w, live + i, key, count, s, st);
  switch (n - i) {
    case 3: add_values<type, 3>(w, live + i, key, count, s, st); break;
    case 2: add_values<type, 2>(w, live + i, key, count, s, st); break;
    case 1: add_values<type, 1>(w, live + i, key, count, s, st); break;
    default: break;
  }
}

void start(State& st, int rows, int head_dim) {
  for (int r = 0; r < rows; ++r) {
    st.m[r] = kNone;
    st.l[r] = 0;
  }
  std::memset(st.o, 0, sizeof(float) * rows * head_dim);
}

// All tiles of one split that any row sees.
void split_step(const Work& w, int split, State& st) {
  int lo = w.span[0].lo, hi = w.span[0].hi;
  for (int r = 1; r < w.rows; ++r) {
    lo = min_int(lo, w.span[r].lo);
    hi = max_int(hi, w.span[r].hi);
  }
  start(st, w.rows, w.kv.head_dim);
  const int first = max_int(lo / kKeyTile * kKeyTile, split * kKeySplit), last = min_int(hi, (split + 1) * kKeySplit);
  for (int key = first; key < last; key += kKeyTile) switch (w.kv.type) {
      case KvType::F32: tile_step<KvType::F32>(w, key, hi, st); break;
      case KvType::F16: tile_step<KvType::F16>(w, key, hi, st); break;
      case KvType::BF16: tile_step<KvType::BF16>(w, key, hi, st); break;
    }
}

// Fold a split's state into the whole (both unscaled).
void merge(float& m, float& l, float* o, float m2, float l2, const float* o2, int n) {
  if (m2 == kNone) return;
  if (m == kNone) {
    m = m2;
    l = l2;
    std::memcpy(o, o2, sizeof(float) * n);
    return;
  }
  const float now = m > m2 ? m : m2;
  alignas(64) float a[16], b[16];
  f_store(a, f_exp(f_set1(m - now)));
  f_store(b, f_exp(f_set1(m2 - now)));
  l = std::fma(l2, b[0], l * a[0]);
  const F fa = f_set1(a[0]), fb = f_set1(b[0]);
  for (int d = 0; d < n; d += 16) f_store(o + d, f_fma(f_load(o2 + d), fb, f_mul(f_load(o + d), fa)));
  m = now;
}

void finish(float* out, const float* o, float l, int n) {
  const F sum = f_set1(l);
  for (int d = 0; d < n; d += 16) f_store(out + d, f_div(f_load(o + d), sum));
}

// Rows of tokens [t0, t0 + tokens): scaled queries and the keys each sees.
void prepare(Work& w, int t0, int tokens, float* q) {
  const int n = w.kv.head_dim, group = w.args.group;
  const F scale = f_set1(w.args.scale);
  for (int t = 0; t < tokens; ++t)
    for (int h = 0; h < group; ++h) {
      const int r = t * group + h, p = w.tile.first + t0 + t;
      const float* from = w.tile.q + (t0 + t) * w.tile.q_stride + h * n;
      for (int d = 0; d < n; d += 16) f_store(q + r * n + d, f_mul(f_load(from + d), scale));
      w.span[r] = {w.args.window ? max_int(0, p - w.args.window + 1) : 0, p + 1};
    }
}

}  // namespace

void attend(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args) {
  alignas(64) float q[kMaxRows * kMaxHeadDim], part[kMaxRows * kMaxHeadDim], whole[kMaxRows * kMaxHeadDim];
  const int n = kv.head_dim, step = max_int(1, kMaxRows / args.group);
  for (int t0 = 0; t0 < tile.tokens; t0 += step) {
    const int tokens = min_int(step, tile.tokens - t0), rows = tokens * args.group;
    Work w = {tile, kv, args, rows, q, {}};
    prepare(w, t0, tokens, q);
    State all = {{}, {}, whole}, st = {{}, {}, part};
    start(all, rows, n);
    const int last = (w.span[rows - 1].hi - 1) / kKeySplit;
    for (int split = w.span[0].lo / kKeySplit; split <= last; ++split) {
      split_step(w, split, st);
      for (int r = 0; r < rows; ++r) merge(all.m[r], all.l[r], whole + r * n, st.m[r], st.l[r], part + r * n, n);
    }
    for (int r = 0; r < rows; ++r)
      finish(tile.out + (t0 + r / args.group) * tile.q_stride + (r % args.group) * n, whole + r * n, all.l[r], n);
  }
}

void attend_split(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args, int split, float* m,
                  float* l, float* o) {
  alignas(64) float q[kMaxRows * kMaxHeadDim];
  Work w = {tile, kv, args, args.group, q, {}};
  prepare(w, 0, 1, q);
  State st = {{}, {}, o};
  split_step(w, split, st);
  std::memcpy(m, st.m, sizeof(float) * args.group);
  std::memcpy(l, st.l, sizeof(float) * args.group);
}

void merge_splits(const float* m, const float* l, const float* o, int n, int group, int head_dim, float* out) {
  float whole[kMaxHeadDim];
  for (int h = 0; h < group; ++h) {
    float top = kNone, sum = 0;
    std::memset(whole, 0, sizeof(float) * head_dim);
    for (int s = 0; s < n; ++s) {
      const int i = s * group + h;
      merge(top, sum, whole, m[i], l[i], o + static_cast<std::ptrdiff_t>(i) * head_dim, head_dim);
    }
    finish(out + h * head_dim, whole, sum, head_dim);
  }
}

}  // namespace octavo::OCTAVO_TIER
