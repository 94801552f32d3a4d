// Paged attention with an online softmax (Milakov and Gimelshein, 2018; FlashAttention's tiling).
//
// Keys are taken in tiles of 64 and splits of 512 at fixed absolute places, so a row's arithmetic depends on its
// own place and what it sees alone: a decode step, a prefill chunk and a split over threads give the same bits.
// All query heads of a KV head are rows of one product, so K and V are read once for the group.
#include <bit>

#include "attention_tile.h"
#include "rows.h"

namespace octavo::OCTAVO_TIER {
namespace {

constexpr int kMaxNumbers = kTileNumbers;  // rows x head_dim of a tile
constexpr int kConvertRows = 32;           // from so many rows on, a tile's keys and values become f32 once
constexpr float kNone = -INFINITY;

// The keys that a row sees: [lo, hi), and of those from `past` on only the ones whose bit is set in `tree`.
struct Sight {
  int lo, hi, past;
  uint64_t tree;

  static uint64_t below(int n) { return n <= 0 ? 0 : n >= 64 ? ~0ull : (1ull << n) - 1; }

  // One bit for each key of the tile at `key`.
  uint64_t of_tile(int key) const {
    const uint64_t range = below(hi - key) & ~below(lo - key);
    const int shift = past - key;
    if (shift >= kKeyTile) return range;
    return range & (below(shift) | (shift >= 0 ? tree << shift : shift > -64 ? tree >> -shift : 0));
  }
};

struct Work {
  const AttentionTile& tile;
  const KvPages& kv;
  const AttentionArgs& args;
  int rows;
  float* q;  // [rows, head_dim], scaled
  Sight* sight;  // [rows]
};

struct State {  // of the rows: running maximum, sum, and unscaled output [rows, head_dim]
  float *m, *l, *o;
};

struct Scratch {
  alignas(64) float k[kKeyTile * kMaxHeadDim];
  alignas(64) float v[kKeyTile * kMaxHeadDim];
};

template <KvType type> inline KvGroup<type> group_of(const Work& w, int key) {
  return group_at<type>(w.kv, w.tile.pages[key / w.kv.page_size], w.tile.kv_head, key % w.kv.page_size);
}

// The tile of keys [key, min(key + 64, end)); `convert`: its numbers are about to become f32.
template <KvType type> KeyTile<type> tile_at(const Work& w, int key, int end, bool convert) {
  KeyTile<type> tile = {};
  tile.count = min_int(kKeyTile, end - key);
  for (int g = 0; g * kLanes < tile.count; ++g) {
    const int at = key + g * kLanes;
    const KvGroup<type> now = group_of<type>(w, at);
    const KvGroup<type> next = at + kKeyTile < end ? group_of<type>(w, at + kKeyTile) : now;
    tile.group[g] = now;
    tile.soon[g] = reinterpret_cast<const char*>(convert ? next.k : now.v);
    tile.then[g] = reinterpret_cast<const char*>(convert ? next.v : next.k);
  }
  return tile;
}

// The first tile's keys, for which no tile before has asked.
template <KvType type> void fetch_keys(const KeyTile<type>& tile, int n) {
  for (int g = 0; g * kLanes < tile.count; ++g) {
    const char* k = reinterpret_cast<const char*>(tile.group[g].k);
    for (int at = 0; at < n * KvGroup<type>::kBytes; at += 64) prefetch(k + at);
  }
}

// The same tile in f32.
template <KvType type> KeyTile<KvType::F32> convert(const KeyTile<type>& tile, int n, Scratch& scratch) {
  KeyTile<KvType::F32> out = {};
  out.count = tile.count;
  for (int g = 0; g * kLanes < tile.count; ++g) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(g) * kLanes * n;
    out.group[g] = {scratch.k + at, scratch.v + at};
    out.soon[g] = tile.soon[g];
    out.then[g] = tile.then[g];
    for (int d = 0; d < n; ++d) f_store(scratch.k + at + d * kLanes, tile.group[g].key(d));
    for (int j = 0; j < min_int(kLanes, tile.count - g * kLanes); ++j)
      for (int d = 0; d < n; d += kLanes) f_store(scratch.v + at + j * n + d, tile.group[g].value(j, d, n));
  }
  return out;
}

// Turn a row's scores into weights in place and rescale its state, for the keys whose bit is set in `seen`.
inline void soften(const Work& w, int row, uint64_t seen, float* s, State& st) {
  F v[kGroups], top = f_set1(kNone);
  for (int g = 0; g < kGroups; ++g) {
    v[g] = f_load(s + kLanes * g);
    if (w.args.softcap > 0) {
      const F cap = f_set1(w.args.softcap);
      v[g] = f_mul(f_tanh(f_div(v[g], cap)), cap);
    }
    v[g] = f_keep(v[g], static_cast<unsigned>(seen >> kLanes * g & 0xffff), kNone);
    top = f_max(top, v[g]);
  }
  const float m = f_hmax(top), now = m > st.m[row] ? m : st.m[row];
  F sum = f_zero();
  for (int g = 0; g < kGroups; ++g) {
    const F p = f_keep(f_exp(f_sub(v[g], f_set1(now))), static_cast<unsigned>(seen >> kLanes * g & 0xffff), 0.0f);
    f_store(s + kLanes * g, p);
    sum = f_add(sum, p);
  }
  if (st.m[row] == kNone) {  // the first keys this row sees
    st.l[row] = f_sum(sum);
  } else if (now == st.m[row]) {
    st.l[row] = st.l[row] + f_sum(sum);
  } else {
    alignas(64) float old[kLanes];
    const F a = f_exp(f_set1(st.m[row] - now));
    f_store(old, a);
    st.l[row] = std::fma(st.l[row], old[0], f_sum(sum));
    float* o = st.o + static_cast<std::ptrdiff_t>(row) * w.kv.head_dim;
    for (int d = 0; d < w.kv.head_dim; d += kLanes) f_store(o + d, f_mul(f_load(o + d), a));
  }
  st.m[row] = now;
}

// One tile for rows [begin, end); bytes: of 16 numbers in a page.
template <int bytes, KvType type>
void tile_step(const Work& w, int key, const KeyTile<type>& tile, int begin, int end, State& st) {
  alignas(64) float s[kTileRows * kKeyTile];
  tile_scores<type, bytes>(tile, begin, end, w.q, w.kv.head_dim, s);
  for (int r = begin; r < end; ++r) {
    const uint64_t seen = w.sight[r].of_tile(key);
    if (seen) soften(w, r, seen, s + r * kKeyTile, st);
    else std::memset(s + r * kKeyTile, 0, sizeof(float) * kKeyTile);
  }
  tile_values<type, bytes>(tile, begin, end, s, w.kv.head_dim, st.o);
}

void start(const Work& w, State& st) {
  for (int r = 0; r < w.rows; ++r) {
    st.m[r] = kNone;
    st.l[r] = 0;
  }
  std::memset(st.o, 0, sizeof(float) * w.rows * w.kv.head_dim);
}

// All tiles of one split, each for the rows between the first and the last that see some of it.
template <KvType type> void split_tiles(const Work& w, int split, State& st) {
  Scratch scratch;
  int lo = w.sight[0].lo, hi = w.sight[0].hi;
  for (int r = 1; r < w.rows; ++r) {
    lo = min_int(lo, w.sight[r].lo);
    hi = max_int(hi, w.sight[r].hi);
  }
  const int first = max_int(lo / kKeyTile * kKeyTile, split * kKeySplit), last = min_int(hi, (split + 1) * kKeySplit);
  for (int key = first; key < last; key += kKeyTile) {
    int begin = 0, end = w.rows;
    while (begin < end && !w.sight[begin].of_tile(key)) ++begin;
    while (begin < end && !w.sight[end - 1].of_tile(key)) --end;
    if (begin == end) continue;
    const bool shared = type != KvType::F32 && end - begin >= kConvertRows;
    const KeyTile<type> tile = tile_at<type>(w, key, hi, shared);
    if (key == first) fetch_keys(tile, w.kv.head_dim);
    if (shared) tile_step<KvGroup<type>::kBytes>(w, key, convert(tile, w.kv.head_dim, scratch), begin, end, st);
    else tile_step<KvGroup<type>::kBytes>(w, key, tile, begin, end, st);
  }
}

void split_step(const Work& w, int split, State& st) {
  start(w, st);
  with_type(w.kv.type, [&](auto type) { split_tiles<type()>(w, split, st); });
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
  alignas(64) float a[kLanes], b[kLanes];
  const F fa = f_exp(f_set1(m - now)), fb = f_exp(f_set1(m2 - now));
  f_store(a, fa);
  f_store(b, fb);
  l = std::fma(l2, b[0], l * a[0]);
  for (int d = 0; d < n; d += kLanes) f_store(o + d, f_fma(f_load(o2 + d), fb, f_mul(f_load(o + d), fa)));
  m = now;
}

// The row's output, scaled; a sink joins the sum but has no value.
void finish(const Work& w, int row, float m, float l, const float* o) {
  const int n = w.kv.head_dim, group = w.args.group, head = row % group;
  F sum = f_set1(l), scale = f_set1(1.0f);
  if (w.args.sinks) {
    const float sink = w.args.sinks[w.tile.kv_head * group + head], top = m > sink ? m : sink;
    scale = f_exp(f_set1(m - top));
    sum = f_fma(sum, scale, f_exp(f_set1(sink - top)));
  }
  float* out = w.tile.out + row / group * w.tile.q_stride + head * n;
  for (int d = 0; d < n; d += kLanes) f_store(out + d, f_div(f_mul(f_load(o + d), scale), sum));
}

Sight sight_of(const AttentionTile& tile, int token, int window) {
  const int i = tile.first + token, p = tile.positions[i], lo = window ? max_int(0, p - window + 1) : 0;
  if (!tile.tree) return {lo, p + 1, p + 1, 0};
  uint64_t seen = tile.tree[i];
  if (window)
    for (uint64_t left = seen; left; left &= left - 1)
      if (tile.positions[std::countr_zero(left)] < lo) seen &= ~(left & -left);
  return {min_int(lo, tile.past), tile.past + static_cast<int>(std::bit_width(seen)), tile.past, seen};
}

void prepare(Work& w) {
  const int n = w.kv.head_dim, group = w.args.group;
  const F scale = f_set1(w.args.scale);
  for (int t = 0; t < w.tile.tokens; ++t) {
    const Sight sight = sight_of(w.tile, t, w.args.window);
    for (int h = 0; h < group; ++h) {
      const int r = t * group + h;
      const float* from = w.tile.q + t * w.tile.q_stride + h * n;
      for (int d = 0; d < n; d += kLanes) f_store(w.q + r * n + d, f_mul(f_load(from + d), scale));
      w.sight[r] = sight;
    }
  }
}

}  // namespace

void attend(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args) {
  alignas(64) float q[kMaxNumbers], part[kMaxNumbers], whole[kMaxNumbers];
  float m[kTileRows], l[kTileRows], m2[kTileRows], l2[kTileRows];
  Sight sight[kTileRows];
  const int n = kv.head_dim, rows = tile.tokens * args.group;
  Work w = {tile, kv, args, rows, q, sight};
  prepare(w);
  State all = {m, l, whole}, st = {m2, l2, part};
  split_step(w, tile.splits_begin, all);
  for (int split = tile.splits_begin + 1; split < tile.splits_end; ++split) {
    split_step(w, split, st);
    for (int r = 0; r < rows; ++r) merge(m[r], l[r], whole + r * n, m2[r], l2[r], part + r * n, n);
  }
  for (int r = 0; r < rows; ++r) finish(w, r, m[r], l[r], whole + r * n);
}

void attend_split(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args, int split, float* partial) {
  alignas(64) float q[kMaxNumbers];
  Sight sight[kTileRows];
  const int rows = tile.tokens * args.group;
  Work w = {tile, kv, args, rows, q, sight};
  prepare(w);
  State st = {partial, partial + rows, partial + 2 * rows};
  split_step(w, split, st);
}

void merge_splits(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args, const float* partials) {
  alignas(64) float whole[kMaxHeadDim];
  const int n = kv.head_dim, rows = tile.tokens * args.group;
  const Work w = {tile, kv, args, rows, nullptr, nullptr};
  for (int r = 0; r < rows; ++r) {
    float m = kNone, l = 0;
    const float* p = partials;
    for (int s = tile.splits_begin; s < tile.splits_end; ++s, p += rows * (n + 2))
      merge(m, l, whole, p[r], p[rows + r], p + 2 * rows + static_cast<std::ptrdiff_t>(r) * n, n);
    finish(w, r, m, l, whole);
  }
}

}  // namespace octavo::OCTAVO_TIER
