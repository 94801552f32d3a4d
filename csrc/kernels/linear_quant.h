// Matrix product of quantized panels: 16 columns x up to kRows rows at a time.
#pragma once
#include "layouts.h"
#include "linear.h"

namespace octavo::OCTAVO_TIER {

// Where the bytes of step u of group g come from.
struct FromChunk {
  const Chunk& c;
  void prefetch_group(Index) const {}
  B operator()(Index g, Index u) const { return b_load(c.w[8 * g + u]); }
};
template <Format format> struct FromPacked {
  const uint8_t* p;
  Index group_bytes;
  // One chunk ahead, a group at a time: the hardware's own prefetch starts anew at each 4 KB page.
  void prefetch_group(Index g) const {
    const uint8_t* next = p + (kGroups + g) * group_bytes;
    for (Index i = 0; i < group_bytes; i += 64) prefetch(next + i);
  }
  B operator()(Index g, Index u) const { return Layout<format>::lanes(p, g, u); }
};

// Integer dots of steps [first, last) of group g for each row, partial sums flushed every `flush` steps.
template <int N, Kind kind, int flush, int first, int last, class Source>
static inline void dots(const Source& source, Index g, const int8_t* q, std::ptrdiff_t k, const int16_t* sub, I out[N]) {
  for (Index u0 = first; u0 < last; u0 += flush) {
    H h[N];
    for (int r = 0; r < N; ++r) h[r] = h_zero();
    for (Index u = u0; u < u0 + flush; ++u) {
      const B lanes = source(g, u);
      for (int r = 0; r < N; ++r) {
        const int8_t* a = q + r * k + 4 * u;
        if constexpr (kind == Kind::Signed) h[r] = h_dot_signed(lanes, a);
        else h[r] = h_dot_unsigned(h[r], lanes, a);
      }
    }
    for (int r = 0; r < N; ++r) {
      const I part = (kind == Kind::Sub16 || kind == Kind::Sub16Min) ? h_scaled(h[r], sub) : h_sum(h[r]);
      out[r] = i_add(out[r], part);
    }
  }
}

// acc += one group of 32, `a` at its first element; k elements between rows.
template <int N, Kind kind, int flush, class Source>
static inline void group(const Source& source, const Scales& s, Index g, const Quantized& a, std::ptrdiff_t k, F acc[N]) {
  I sum[N];
  for (int r = 0; r < N; ++r) sum[r] = i_zero();
  if constexpr (kind == Kind::Sub16 || kind == Kind::Sub16Min) {
    dots<N, kind, flush, 0, 4>(source, g, a.q, k, s.sub[2 * g], sum);
    dots<N, kind, flush, 4, 8>(source, g, a.q, k, s.sub[2 * g + 1], sum);
  } else {
    dots<N, kind, flush, 0, 8>(source, g, a.q, k, nullptr, sum);
  }
  const F scale = f_load(s.scale[g]);
  for (int r = 0; r < N; ++r) {
    const F d = f_set1(a.scale[r * (k / kGroup)]);
    const int16_t* halves = a.sum16 + r * (k / 16);
    if constexpr (kind == Kind::Sub16) sum[r] = i_add(sum[r], i_pair(s.off[g], halves));
    acc[r] = f_fma(f_mul(f_from_i(sum[r]), d), scale, acc[r]);
    if constexpr (kind == Kind::Plain)
      acc[r] = f_fma(f_load(s.min[g]), f_set1(a.scaled_sum[r * (k / kGroup)]), acc[r]);
    if constexpr (kind == Kind::Sub16Min)
      acc[r] = f_fma(f_mul(f_from_i(i_pair(s.off[g], halves)), d), f_load(s.min[g]), acc[r]);
  }
}

// The second term of a group for a set of rows. Kept apart so that its registers do not weigh on the main loop.
template <int N, Kind kind, int flush, class Source>
[[gnu::noinline]] static void second_terms(Source source, const Scales& s, Index g, const Quantized& rest, Index k,
                                           F* acc) {
  F sum[N];
  for (int r = 0; r < N; ++r) sum[r] = acc[r];
  group<N, kind, flush>(source, s, g, rest, k, sum);
  for (int r = 0; r < N; ++r) acc[r] = sum[r];
}

template <int N, Kind kind, int flush, class Source>
static void rows_pass(const Source& source, const Scales& s, int groups, const Quantized& a, const Quantized& rest,
                      const uint8_t* outliers, Index k, float* out) {
  F acc[N];
  unsigned once = 0, twice = 0;  // groups with a second term in some row, in several
  for (int r = 0; r < N; ++r) {
    acc[r] = f_load(out + 16 * r);
    twice |= once & outliers[r];
    once |= outliers[r];
  }
  for (Index g = 0; g < groups; ++g) {
    source.prefetch_group(g);
    group<N, kind, flush>(source, s, g, a.at(kGroup * g), k, acc);
    if (!(once >> g & 1)) continue;
    F sum[N];
    for (int r = 0; r < N; ++r) sum[r] = acc[r];
    if (twice >> g & 1) {  // cheaper together; where a row has none its scales are 0, which adds nothing
      second_terms<N, kind, flush>(source, s, g, rest.at(kGroup * g), k, sum);
    } else {
      for (int r = 0; r < N; ++r)
        if (outliers[r] >> g & 1)
          second_terms<1, kind, flush>(source, s, g, rest.at(r * k + kGroup * g), k, sum + r);
    }
    for (int r = 0; r < N; ++r) acc[r] = sum[r];
  }
  for (int r = 0; r < N; ++r) f_store(out + 16 * r, acc[r]);
}

template <Format format, class Source>
static inline void rows_dispatch(int n, const Source& source, const Scales& s, int groups, const Quantized& a,
                                 const Quantized& rest, const uint8_t* outliers, Index k, float* out) {
  using L = Layout<format>;
  if constexpr (kRows == 4) switch (n) {
      case 2: return rows_pass<2, L::kind, L::flush>(source, s, groups, a, rest, outliers, k, out);
      case 3: return rows_pass<3, L::kind, L::flush>(source, s, groups, a, rest, outliers, k, out);
      case 4: return rows_pass<4, L::kind, L::flush>(source, s, groups, a, rest, outliers, k, out);
      default: break;
    }
  rows_pass<1, L::kind, L::flush>(source, s, groups, a, rest, outliers, k, out);
}

// Rows [row0, row1) of a panel, few enough that their part of a chunk stays in the L1 beside the unpacked weights.
template <Format format>
static void panel_rows(const uint8_t* packed, const Activations& a, int row0, int row1, float* acc) {
  const FormatInfo& info = kFormats[static_cast<int>(format)];
  const int rows = row1 - row0, passes = (rows + kRows - 1) / kRows;
  Chunk c;
  std::memset(acc, 0, sizeof(float) * 16 * rows);
  for (int k0 = 0; k0 < a.k; k0 += kChunk) {
    const Index width = min_int(kChunk, a.k - k0), first = a.first(k0, row0);
    const int groups = static_cast<int>(width) / kGroup;
    const uint8_t* outliers = a.outliers + static_cast<Index>(k0 / kChunk) * a.rows + row0;
    const uint8_t* p = packed + static_cast<Index>(k0 / info.block) * info.packed_bytes;
    if (kDirect && passes == 1) {
      Layout<format>::scales(p, groups, c.s);
      const FromPacked<format> source = {p, static_cast<Index>(info.packed_bytes) * kGroup / info.block};
      rows_dispatch<format>(rows, source, c.s, groups, a.main.at(first), a.rest.at(first), outliers, width, acc);
      continue;
    }
    unpack<format>(p, groups, c);
    for (int pass = 0, r = 0; pass < passes; ++pass) {  // rows split evenly: 5 = 3 + 2
      const int n = (rows - r + passes - pass - 1) / (passes - pass);
      const Index at = first + r * width;
      rows_dispatch<format>(n, FromChunk{c}, c.s, groups, a.main.at(at), a.rest.at(at), outliers + r, width, acc + 16 * r);
      r += n;
    }
  }
}

template <Format format>
static void panel_of(const uint8_t* packed, const Activations& a, int row0, int row1, float* acc) {
  constexpr int step = 32;  // 8 KB of activations, 16 KB of weights
  for (int r = row0; r < row1; r += step)
    panel_rows<format>(packed, a, r, min_int(r + step, row1), acc + 16 * (r - row0));
}

template <Format format>
static void rows_of(const uint8_t* packed, int k, float scale, float* const out[kLanes]) {
  constexpr Kind kind = Layout<format>::kind;
  const FormatInfo& info = kFormats[static_cast<int>(format)];
  Chunk c;
  for (int k0 = 0; k0 < k; k0 += kChunk) {
    const int n = min_int(kChunk, k - k0);
    unpack<format>(packed + static_cast<std::ptrdiff_t>(k0 / info.block) * info.packed_bytes, n / kGroup, c);
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < n; ++i) {
        const int g = i / kGroup, h = i / 16, w = c.w[i / 4][4 * lane + i % 4];
        const float d = c.s.scale[g][lane];
        float v;
        if constexpr (kind == Kind::Plain) v = std::fma(d, static_cast<float>(w), c.s.min[g][lane]);
        else if constexpr (kind == Kind::Signed) v = d * static_cast<float>(static_cast<int8_t>(w));
        else {
          const int sub = c.s.sub[h][2 * lane], off = c.s.off[g][2 * lane + (h & 1)];
          if constexpr (kind == Kind::Sub16) v = d * static_cast<float>(sub * w + off);
          else v = std::fma(d, static_cast<float>(sub * w), c.s.min[g][lane] * static_cast<float>(off));
        }
        out[lane][k0 + i] = v * scale;
      }
  }
}

}  // namespace octavo::OCTAVO_TIER
