// Matrix product of quantized panels: 16 columns x up to 4 rows at a time.
#include "chunk.h"
#include "linear.h"

namespace octavo::OCTAVO_TIER {
namespace {

constexpr int kRows = 4;  // rows per pass: 4 x 2 partial-sum registers, 2 weights, 1 activation fit AVX2's sixteen

// Integer dots of `steps` steps of 4 elements for each row, i16 partial sums flushed every `flush` steps.
template <int N, Kind kind, int flush>
inline void dots(const uint8_t (*w)[64], int steps, const int8_t* q, std::ptrdiff_t k, const int16_t* sub, I out[N]) {
  for (int u0 = 0; u0 < steps; u0 += flush) {
    H h[N];
    for (int r = 0; r < N; ++r) h[r] = h_zero();
    for (int u = u0; u < u0 + flush && u < steps; ++u) {
      const B lanes = b_load(w[u]);
      for (int r = 0; r < N; ++r) {
        const int8_t* a = q + r * k + 4 * u;
        if constexpr (kind == Kind::Signed) h[r] = h_dot_signed(lanes, a);
        else h[r] = h_dot_unsigned(h[r], lanes, a);
      }
    }
    for (int r = 0; r < N; ++r) {
      I part = (kind == Kind::Sub16 || kind == Kind::Sub16Min) ? h_scaled(h[r], sub) : h_sum(h[r]);
      out[r] = i_add(out[r], part);
    }
  }
}

// acc += one group of 32, `a` at its first element; k elements between rows.
template <int N, Kind kind, int flush>
inline void group(const Chunk& c, int g, const Quantized& a, std::ptrdiff_t k, F acc[N]) {
  I sum[N];
  for (int r = 0; r < N; ++r) sum[r] = i_zero();
  if constexpr (kind == Kind::Sub16 || kind == Kind::Sub16Min) {
    dots<N, kind, flush>(c.w + 8 * g, 4, a.q, k, c.sub[2 * g], sum);
    dots<N, kind, flush>(c.w + 8 * g + 4, 4, a.q + 16, k, c.sub[2 * g + 1], sum);
  } else {
    dots<N, kind, flush>(c.w + 8 * g, 8, a.q, k, nullptr, sum);
  }
  const F scale = f_load(c.scale[g]);
  for (int r = 0; r < N; ++r) {
    const F d = f_set1(a.scale[r * (k / kGroup)]);
    const int16_t* halves = a.sum16 + r * (k / 16);
    if constexpr (kind == Kind::Sub16) sum[r] = i_add(sum[r], i_pair(c.off[g], halves));
    acc[r] = f_fma(f_mul(f_from_i(sum[r]), d), scale, acc[r]);
    if constexpr (kind == Kind::Plain)
      acc[r] = f_fma(f_load(c.min[g]), f_set1(a.scaled_sum[r * (k / kGroup)]), acc[r]);
    if constexpr (kind == Kind::Sub16Min)
      acc[r] = f_fma(f_mul(f_from_i(i_pair(c.off[g], halves)), d), f_load(c.min[g]), acc[r]);
  }
}

template <int N, Kind kind, int flush>
void rows_pass(const Chunk& c, int groups, const Quantized& a, const Quantized& rest, std::ptrdiff_t k, float* out) {
  F acc[N];
  for (int r = 0; r < N; ++r) acc[r] = f_load(out + 16 * r);
  for (int g = 0; g < groups; ++g) {
    group<N, kind, flush>(c, g, a.at(kGroup * g), k, acc);
    for (int r = 0; r < N; ++r)
      if (rest.scale[r * (k / kGroup) + g] != 0)
        group<1, kind, flush>(c, g, rest.at(r * k + kGroup * g), k, acc + r);
  }
  for (int r = 0; r < N; ++r) f_store(out + 16 * r, acc[r]);
}

template <Format format>
void panel_of(const uint8_t* packed, const Activations& a, int row0, int row1, float* acc) {
  using L = Layout<format>;
  const FormatInfo& info = kFormats[static_cast<int>(format)];
  const int rows = row1 - row0, passes = (rows + kRows - 1) / kRows;
  Chunk c;
  std::memset(acc, 0, sizeof(float) * 16 * rows);
  for (int k0 = 0; k0 < a.k; k0 += kChunk) {
    const int groups = min_int(kChunk, a.k - k0) / kGroup;
    unpack<format>(packed + static_cast<std::ptrdiff_t>(k0 / info.block) * info.packed_bytes, groups, c);
    for (int pass = 0, r = 0; pass < passes; ++pass) {  // rows split evenly: 5 = 3 + 2
      const int n = (rows - r + passes - pass - 1) / (passes - pass);
      const std::ptrdiff_t k = a.k, at = (row0 + r) * k + k0;
      const Quantized main = a.main.at(at), rest = a.rest.at(at);
      float* out = acc + 16 * r;
      switch (n) {
        case 1: rows_pass<1, L::kind, L::flush>(c, groups, main, rest, k, out); break;
        case 2: rows_pass<2, L::kind, L::flush>(c, groups, main, rest, k, out); break;
        case 3: rows_pass<3, L::kind, L::flush>(c, groups, main, rest, k, out); break;
        default: rows_pass<4, L::kind, L::flush>(c, groups, main, rest, k, out); break;
      }
      r += n;
    }
  }
}

template <Format format>
void rows_of(const uint8_t* packed, int k, float scale, float* const out[kLanes]) {
  constexpr Kind kind = Layout<format>::kind;
  const FormatInfo& info = kFormats[static_cast<int>(format)];
  Chunk c;
  for (int k0 = 0; k0 < k; k0 += kChunk) {
    const int n = min_int(kChunk, k - k0);
    unpack<format>(packed + static_cast<std::ptrdiff_t>(k0 / info.block) * info.packed_bytes, n / kGroup, c);
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < n; ++i) {
        const int g = i / kGroup, h = i / 16, w = c.w[i / 4][4 * lane + i % 4];
        const float d = c.scale[g][lane];
        float v;
        if constexpr (kind == Kind::Plain) v = std::fma(d, static_cast<float>(w), c.min[g][lane]);
        else if constexpr (kind == Kind::Signed) v = d * static_cast<float>(static_cast<int8_t>(w));
        else {
          const int sub = c.sub[h][2 * lane], off = c.off[g][2 * lane + (h & 1)];
          if constexpr (kind == Kind::Sub16) v = d * static_cast<float>(sub * w + off);
          else v = std::fma(d, static_cast<float>(sub * w), c.min[g][lane] * static_cast<float>(off));
        }
        out[lane][k0 + i] = v * scale;
      }
  }
}

}  // namespace

#define OCTAVO_QUANTIZED(X) \
  X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS) X(MXFP4)

void panel(Format format, const uint8_t* packed, const Activations& a, int row0, int row1, float* acc) {
  switch (format) {
#define X(name) case Format::name: return panel_of<Format::name>(packed, a, row0, row1, acc);
    OCTAVO_QUANTIZED(X)
#undef X
    default: return panel_float(format, packed, a, row0, row1, acc);
  }
}

void unpack_rows(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]) {
  switch (format) {
#define X(name) case Format::name: return rows_of<Format::name>(packed, k, scale, out);
    OCTAVO_QUANTIZED(X)
#undef X
    default: return unpack_rows_float(format, packed, k, scale, out);
  }
}

}  // namespace octavo::OCTAVO_TIER
