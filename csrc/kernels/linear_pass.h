// One chunk of kPanels panels times N rows: the innermost loops of the matrix product.
#pragma once
#include "layouts.h"

namespace octavo::OCTAVO_TIER {

#if defined(__AVX2__)  // sums live in registers only where their loops are unrolled; plain C++ has none to lose
#define OCTAVO_UNROLL _Pragma("GCC unroll 16")
#else
#define OCTAVO_UNROLL
#endif

// How far ahead packed weights are fetched, in bytes: where one pass reads them straight, where it takes longer over the
// super-blocks of a few rows, and where many passes share a chunk, whose bytes are all read at its start.
constexpr Index kAheadPass = 4096, kAheadSupers = 5120, kAheadMany = 6144;

constexpr Index ahead_bytes(Kind kind, int rows) {
  if (rows > kDirectRows) return kAheadMany;
  return rows > 1 && (kind == Kind::Sub32 || kind == Kind::Sub16) ? kAheadSupers : kAheadPass;
}

// Where the bytes of step u of group g of panel i come from. FromPacked is for the only pass over a chunk, which fetches
// a later one as it goes (the hardware's own prefetch starts anew at each 4 KB page).
struct FromChunk {
  static constexpr bool direct = false;
  const Chunk* c;
  void fetch_ahead(Index) const {}
  B operator()(int i, Index g, Index u) const { return b_load(c[i].w[8 * g + u]); }
};
template <Format format> struct FromPacked {
  static constexpr bool direct = true;
  const uint8_t* p[kPanels];
  const uint8_t* later[kPanels];
  void fetch_ahead(Index g) const {
    constexpr Index bytes = Layout<format>::group_bytes;
    OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i)
      OCTAVO_UNROLL for (Index b = 0; b < bytes; b += 64) prefetch(later[i] + g * bytes + b);
  }
  B operator()(int i, Index g, Index u) const { return Layout<format>::lanes(p[i], g, u); }
};

// One chunk of the activations of the rows of a pass: from the first row's numbers on, `width` elements a row.
struct ChunkRows {
  const int8_t* q;
  const float* scale;
  const int16_t* sum16;
  const int16_t* sum32;
  Index width;

  ChunkRows(const Activations& a, int k0, int row)
      : q(a.q + a.start(k0, row)), width(a.k - k0 < kChunk ? a.k - k0 : kChunk) {
    const Index at = static_cast<Index>(k0 / kChunk) * a.rows + row;
    scale = a.scale + at;
    sum16 = a.sum16 + 16 * at;
    sum32 = a.sum32 + 8 * at;
  }
};

template <int N> using Dots = I[N][kPanels];
template <int N> using Sums = F[N][kPanels];

// out += the dots of steps [first, last) of group g; scaled: times the integer scales sub[i].
template <Shape shape, bool scaled, int N, int first, int last, class Source>
static inline void dots(const Source& source, Index g, const ChunkRows& a, const uint8_t* const (&sub)[kPanels], Dots<N>& out) {
  const int8_t* q = a.q + kGroup * g;
  if constexpr (kExactDots) {
    Dots<N> d;
    OCTAVO_UNROLL for (int r = 0; r < N; ++r)
      OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i) d[r][i] = scaled ? i_zero() : out[r][i];
    OCTAVO_UNROLL for (Index u = first; u < last; ++u) {
      B w[kPanels];
      OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i) w[i] = source(i, g, u);
      OCTAVO_UNROLL for (int r = 0; r < N; ++r) {
        const A4 x = four(q + r * a.width + 4 * u);
        OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i) d[r][i] = i_dot(d[r][i], w[i], x);
      }
    }
    OCTAVO_UNROLL for (int r = 0; r < N; ++r)
      OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i)
        out[r][i] = scaled ? i_add(out[r][i], i_scaled(d[r][i], sub[i])) : d[r][i];
  } else {
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(OCTAVO_AVX_VNNI)
    constexpr int flush = shape.flush() < last - first ? shape.flush() : last - first;
    for (Index u0 = first; u0 < last; u0 += flush) {
      H h[N];
      OCTAVO_UNROLL for (int r = 0; r < N; ++r) h[r] = h_zero();
      OCTAVO_UNROLL for (Index u = u0; u < u0 + flush; ++u) {
        B w = source(0, g, u);
        if constexpr (shape.wide()) w = b_xor(w, 128);
        OCTAVO_UNROLL for (int r = 0; r < N; ++r) {
          const A4 x = four(q + r * a.width + 4 * u);
          if constexpr (shape.wide()) h[r] = h_dot_signed(w, x);
          else h[r] = h_dot(h[r], w, x);
        }
      }
      OCTAVO_UNROLL for (int r = 0; r < N; ++r)
        out[r][0] = i_add(out[r][0], scaled ? h_scaled(h[r], sub[0]) : h_sum(h[r]));
    }
#endif
  }
}

// What the bytes lie above their values, times the activations: where every dot of a sum starts. Signed dots (wide
// formats without an exact dot instruction) need none.
template <Shape shape> static inline I dot_start(int offset, int sum) {
  return kExactDots || !shape.wide() ? i_set1(-offset * sum) : i_zero();
}
template <Shape shape> constexpr bool kMerged = !shape.min && (kExactDots || !shape.wide());

template <Shape shape, int N, class Source>
static inline void blocks_pass(const Source& source, const Scales* const (&s)[kPanels], int offset, const ChunkRows& a,
                               Sums<N>& sum) {
  OCTAVO_UNROLL for (int r = 0; r < N; ++r) OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i) sum[r][i] = f_zero();
  const Index groups = a.width / kGroup;
  for (Index g = 0; g < groups; g += shape.span) {
    Dots<N> d;
    int total[N];
    OCTAVO_UNROLL for (int r = 0; r < N; ++r) {
      const int16_t* sums = a.sum32 + 8 * r + g;
      total[r] = sums[0];
      OCTAVO_UNROLL for (int j = 1; j < shape.span; ++j) total[r] += sums[j];
      const I start = shape.min ? i_zero() : dot_start<shape>(offset, total[r]);
      OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i) d[r][i] = start;
    }
    OCTAVO_UNROLL for (int j = 0; j < shape.span; ++j) {
      source.fetch_ahead(g + j);
      dots<shape, false, N, 0, 8>(source, g + j, a, {}, d);
    }
    OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i) {
      const F scale = f_load(s[i]->scale[g / shape.span]);
      OCTAVO_UNROLL for (int r = 0; r < N; ++r) {
        sum[r][i] = f_fma(f_from_i(d[r][i]), scale, sum[r][i]);
        if constexpr (shape.min)
          sum[r][i] = f_fma(f_load(s[i]->min[g / shape.span]), f_set1(static_cast<float>(total[r])), sum[r][i]);
      }
    }
  }
}

template <Shape shape, int N, class Source>
static inline void supers_pass(const Source& source, const Scales* const (&s)[kPanels], const ChunkRows& a, Sums<N>& sum) {
  constexpr bool halves = shape.kind == Kind::Sub16;
  auto offsets = [&](I acc, int r, int i) {
    OCTAVO_UNROLL for (int j = 0; j < (halves ? 8 : 4); ++j)
      acc = i_pair(acc, s[i]->off[j], halves ? a.sum16 + 16 * r + 2 * j : a.sum32 + 8 * r + 2 * j);
    return acc;
  };
  Dots<N> d;
  OCTAVO_UNROLL for (int r = 0; r < N; ++r)
    OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i) d[r][i] = kMerged<shape> ? offsets(i_zero(), r, i) : i_zero();
  for (Index g = 0; g < kGroups; ++g) {
    source.fetch_ahead(g);
    const uint8_t *sub[kPanels], *next[kPanels];
    OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i) {
      sub[i] = s[i]->sub[halves ? 2 * g : g];
      next[i] = s[i]->sub[halves ? 2 * g + 1 : g];
    }
    if constexpr (halves) {
      dots<shape, true, N, 0, 4>(source, g, a, sub, d);
      dots<shape, true, N, 4, 8>(source, g, a, next, d);
    } else {
      dots<shape, true, N, 0, 8>(source, g, a, sub, d);
    }
  }
  OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i) {
    const F scale = f_load(s[i]->d);
    OCTAVO_UNROLL for (int r = 0; r < N; ++r) {
      if constexpr (shape.min)
        sum[r][i] = f_fma(f_from_i(d[r][i]), scale, f_mul(f_from_i(offsets(i_zero(), r, i)), f_load(s[i]->dmin)));
      else sum[r][i] = f_mul(f_from_i(d[r][i]), scale);
    }
  }
}

template <Shape shape, int N, class Source>
static inline void whole_pass(const Source& source, const Scales* const (&s)[kPanels], int offset, const ChunkRows& a,
                              Sums<N>& sum) {
  Dots<N> d;
  const Index groups = a.width / kGroup;
  OCTAVO_UNROLL for (int r = 0; r < N; ++r) {
    int total = 0;
    for (Index g = 0; g < groups; ++g) total += a.sum32[8 * r + g];
    OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i) d[r][i] = dot_start<shape>(offset, total);
  }
  for (Index g = 0; g < groups; ++g) {
    source.fetch_ahead(g);
    dots<shape, false, N, 0, 8>(source, g, a, {}, d);
  }
  OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i)
    OCTAVO_UNROLL for (int r = 0; r < N; ++r) sum[r][i] = f_mul(f_from_i(d[r][i]), f_load(s[i]->d));
}

// acc[i] f32 [rows, 16] += this chunk, for N rows.
template <Shape shape, int N, class Source>
static void chunk_pass(const Source& source, const Scales* const (&s)[kPanels], int offset, const ChunkRows& a,
                       float* const (&acc)[kPanels]) {
  Sums<N> sum;
  if constexpr (shape.kind == Kind::Blocks) blocks_pass<shape, N>(source, s, offset, a, sum);
  else if constexpr (shape.kind == Kind::Whole) whole_pass<shape, N>(source, s, offset, a, sum);
  else supers_pass<shape, N>(source, s, a, sum);
  OCTAVO_UNROLL for (int r = 0; r < N; ++r) {
    const F d = f_set1(a.scale[r]);
    OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i) {
      float* to = acc[i] + kLanes * r;
      f_store(to, f_fma(sum[r][i], d, f_load(to)));
    }
  }
}

// The weights that byte `byte` of a step holds, as floats: element `element` of the chunk.
template <Shape shape> static inline F weights(const Scales& s, int offset, int element, I byte) {
  const int g = element / kGroup, h = element / 16;
  if constexpr (shape.kind == Kind::Blocks) {
    const F scale = f_load(s.scale[g / shape.span]);
    if constexpr (shape.min) return f_fma(f_from_i(byte), scale, f_load(s.min[g / shape.span]));
    else return f_mul(f_from_i(i_add(byte, i_set1(-offset))), scale);
  } else if constexpr (shape.kind == Kind::Whole) {
    return f_mul(f_from_i(i_add(byte, i_set1(-offset))), f_load(s.d));
  } else {
    constexpr bool halves = shape.kind == Kind::Sub16;
    const I off = halves ? i_half(s.off[g], h & 1) : i_half(s.off[g / 2], g & 1);
    const I whole = i_mul(byte, sub_lanes(s.sub[halves ? h : g]));
    if constexpr (shape.min) return f_fma(f_from_i(whole), f_load(s.d), f_mul(f_from_i(off), f_load(s.dmin)));
    else return f_mul(f_from_i(i_add(whole, off)), f_load(s.d));
  }
}

}  // namespace octavo::OCTAVO_TIER
