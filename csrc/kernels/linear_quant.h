// Matrix product of quantized panels: kPanels times 16 columns x up to kRows rows at a time, chunk after chunk of K.
#pragma once
#include "linear.h"
#include "linear_pass.h"

namespace octavo::OCTAVO_TIER {

template <Shape shape, class Source>
static inline void rows_dispatch(int n, const Source& source, const Scales* const (&s)[kPanels], int offset,
                                 const ChunkRows& a, float* const (&acc)[kPanels]) {
  constexpr bool direct = Source::direct;
#define OCTAVO_CASE(N, used) \
  case N: if constexpr (used) return chunk_pass<shape, N>(source, s, offset, a, acc); else break;
  switch (n) {  // many rows are split evenly, so a pass over a chunk has more than half of kRows
    OCTAVO_CASE(1, direct || kRows < 2)
    OCTAVO_CASE(2, kRows >= 2 && (direct || kRows < 6))
    OCTAVO_CASE(3, kRows >= 3)
    OCTAVO_CASE(4, kRows >= 4)
    OCTAVO_CASE(5, kRows >= 5)
    OCTAVO_CASE(6, kRows >= 6)
    default: break;
  }
#undef OCTAVO_CASE
}

// acc += the outliers of a chunk in f32, element after element.
template <Shape shape, class Source>
static void add_outliers(const Source& source, const Scales* const (&s)[kPanels], int offset, const Outlier* from,
                         const Outlier* to, int row0, int row1, float* const (&acc)[kPanels]) {
  F w[kPanels];
  int last = -1;
  for (const Outlier* o = from; o < to; ++o) {
    if (o->row < row0 || o->row >= row1) continue;
    const int element = o->element;
    if (element != last) {
      OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i) {
        const I byte = b_byte(source(i, element / kGroup, element % kGroup / 4), element % 4);
        w[i] = weights<shape>(*s[i], offset, element, byte);
      }
      last = element;
    }
    const F x = f_set1(o->x);
    OCTAVO_UNROLL for (int i = 0; i < kPanels; ++i) {
      float* sum = acc[i] + kLanes * (o->row - row0);
      f_store(sum, f_fma(x, w[i], f_load(sum)));
    }
  }
}

template <Format format> static inline void unpack(const uint8_t* p, int groups, Chunk& c) {
  for (int g = 0; g < groups; ++g)
    for (int u = 0; u < 8; ++u) b_store(c.w[8 * g + u], Layout<format>::lanes(p, g, u));
}

static inline void fetch(const void* from, Index bytes) {
  for (Index b = 0; b < bytes; b += 64) prefetch(static_cast<const uint8_t*>(from) + b);
}

// One chunk for all rows [row0, row1), split evenly into passes: 9 = 5 + 4. Each pass fetches a part of a later chunk
// (not the next rows' activations and sums: those prefetches cost more than they gain).
template <Shape shape, class Source>
static inline void all_rows(const Source& source, const Scales* const (&s)[kPanels], int offset, const Activations& a,
                            int k0, int row0, int row1, const uint8_t* const (&later)[kPanels], Index chunk_bytes,
                            float* const (&acc)[kPanels]) {
  const int rows = row1 - row0, passes = (rows + kRows - 1) / kRows;
  const Index part = chunk_bytes / passes;
  for (int pass = 0, r = 0; pass < passes; ++pass) {
    const int n = (rows - r + passes - pass - 1) / (passes - pass);
    const ChunkRows x(a, k0, row0 + r);
    float* at[kPanels];
    for (int i = 0; i < kPanels; ++i) {
      at[i] = acc[i] + kLanes * r;
      if (passes > 1) fetch(later[i] + pass * part, part);
    }
    rows_dispatch<shape>(n, source, s, offset, x, at);
    r += n;
  }
}

// kPanels panels for rows [row0, row1).
template <Format format>
static void panels_of(const uint8_t* const (&packed)[kPanels], const uint8_t* const (&next)[kPanels],
                      const Activations& a, int row0, int row1, float* const (&acc)[kPanels]) {
  using L = Layout<format>;
  constexpr Shape shape = L::shape.normal();
  const FormatInfo& info = info_of(format);
  const int rows = row1 - row0, block = row0 / kBlockRows;
  const auto bytes_of = [&info](int k) { return static_cast<Index>(info.packed_bytes) * k / info.block; };
  const Index panel_bytes = info.packed_header + bytes_of(a.k);
  Chunk c[kPanels];
  const Scales* s[kPanels];
  for (int i = 0; i < kPanels; ++i) {
    s[i] = &c[i].s;
    std::memset(acc[i], 0, sizeof(float) * kLanes * rows);
  }
  for (int k0 = 0; k0 < a.k; k0 += kChunk) {
    const int groups = min_int(kChunk, a.k - k0) / kGroup;
    const Index at = info.packed_header + bytes_of(k0), ahead = at + ahead_bytes(shape.kind, rows);
    const uint8_t *p[kPanels], *later[kPanels];
    for (int i = 0; i < kPanels; ++i) {
      later[i] = ahead < panel_bytes ? packed[i] + ahead : next[i] + (ahead - panel_bytes);
      p[i] = packed[i] + at;
      L::scales(packed[i], p[i], groups, c[i].s);
    }
    const int32_t* first = a.first + k0 / kChunk * a.blocks() + block;
    const auto run = [&](auto source) {
      all_rows<shape>(source, s, L::offset, a, k0, row0, row1, later, bytes_of(groups * kGroup), acc);
      add_outliers<shape>(source, s, L::offset, a.outliers + first[0], a.outliers + first[1], row0 - block * kBlockRows,
                          row1 - block * kBlockRows, acc);
    };
    if (rows <= kDirectRows) {
      FromPacked<format> source;
      for (int i = 0; i < kPanels; ++i) {
        source.p[i] = p[i];
        source.later[i] = later[i];
      }
      run(source);
    } else {
      for (int i = 0; i < kPanels; ++i) unpack<format>(p[i], groups, c[i]);
      run(FromChunk{c});
    }
  }
}

template <Format format>
static void panels_any(const PanelPair& w, const Activations& a, int row0, int row1, float* const acc[2]) {
  if constexpr (kPanels == 1) {
    for (int i = 0; i < w.count; ++i) panels_of<format>({w.packed[i]}, {w.next[i]}, a, row0, row1, {acc[i]});
  } else if (w.count == 2) {
    panels_of<format>({w.packed[0], w.packed[1]}, {w.next[0], w.next[1]}, a, row0, row1, {acc[0], acc[1]});
  } else {  // the same panel twice: it costs nothing that memory does not
    alignas(64) float spare[kBlockRows * kLanes];
    panels_of<format>({w.packed[0], w.packed[0]}, {w.next[0], w.next[0]}, a, row0, row1, {acc[0], spare});
  }
}

template <Format format>
static void rows_of(const uint8_t* packed, int k, float scale, float* const out[kLanes]) {
  using L = Layout<format>;
  const FormatInfo& info = info_of(format);
  Chunk c;
  for (int k0 = 0; k0 < k; k0 += kChunk) {
    const int n = min_int(kChunk, k - k0);
    const uint8_t* p = packed + info.packed_header + static_cast<Index>(k0 / info.block) * info.packed_bytes;
    L::scales(packed, p, n / kGroup, c.s);
    for (int e = 0; e < n; ++e) {
      alignas(64) float value[kLanes];
      const I byte = b_byte(L::lanes(p, e / kGroup, e % kGroup / 4), e % 4);
      f_store(value, f_mul(weights<L::shape.normal()>(c.s, L::offset, e, byte), f_set1(scale)));
      for (int lane = 0; lane < kLanes; ++lane) out[lane][k0 + e] = value[lane];
    }
  }
}

}  // namespace octavo::OCTAVO_TIER
