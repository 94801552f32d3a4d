// The tier avx512_bf16: as avx512, but the Bf16 family multiplies with the bf16 dot: both sides bf16, sums f32. One chain a result, in the order
// of k (a new one for each scaled block), whatever the number of rows.
#include <immintrin.h>

#include <cstring>

#include "kernels.h"

namespace octavo::avx512_bf16 {
namespace {

using Index = std::ptrdiff_t;

constexpr int kMost = 6;

// The bf16 of the 128 magnitudes of e4m3, high and low bytes apart.
struct Tables {
  alignas(64) uint8_t high[128], low[128];
  Tables() {
    for (int b = 0; b < 128; ++b) {
      const int mantissa = b & 7, exponent = b >> 3;
      float value = exponent ? static_cast<float>(8 + mantissa) / 8.0f : static_cast<float>(mantissa) / 8.0f;
      for (int e = exponent ? exponent : 1; e < 7; ++e) value /= 2;
      for (int e = 7; e < exponent; ++e) value *= 2;
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      if (b == 127) bits = 0x7fc00000u;
      high[b] = static_cast<uint8_t>(bits >> 24);
      low[b] = static_cast<uint8_t>(bits >> 16);
    }
  }
};
const Tables kTables;

// Pairs of k of 16 lanes, [lane][2]: the two of a unit of four elements.
template <Format format> struct Weights {
  void operator()(const uint8_t* p, Index unit, __m512i& first, __m512i& second) const {
    first = _mm512_loadu_si512(p + 128 * unit);
    second = _mm512_loadu_si512(p + 128 * unit + 64);
  }
};
struct Fp8Weights {
  __m512i high0 = _mm512_load_si512(kTables.high), high1 = _mm512_load_si512(kTables.high + 64);
  __m512i low0 = _mm512_load_si512(kTables.low), low1 = _mm512_load_si512(kTables.low + 64);
  void operator()(const uint8_t* p, Index unit, __m512i& first, __m512i& second) const {
    const __m512i bytes = _mm512_loadu_si512(p + 64 * unit);
    const __m512i sign = _mm512_and_si512(bytes, _mm512_set1_epi8(static_cast<char>(0x80)));
    const __m512i high = _mm512_or_si512(_mm512_permutex2var_epi8(high0, bytes, high1), sign);
    const __m512i low = _mm512_permutex2var_epi8(low0, bytes, low1);
    first = _mm512_unpacklo_epi8(low, high);
    second = _mm512_unpackhi_epi8(low, high);
  }
};
template <> struct Weights<Format::FP8_E4M3> : Fp8Weights {};
template <> struct Weights<Format::FP8_E4M3_B128> : Fp8Weights {};

inline __m512 dot(__m512 acc, __m512i w, const uint16_t* x) {
  int32_t pair;
  std::memcpy(&pair, x, 4);
  acc = _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)));
  asm("" : "+v"(acc));
  return acc;
}

// `units` times four elements of N rows and two panels; out = scale * sum + out, or sum where scale is null.
template <Format format, int N>
void block_pass(const uint8_t* const (&p)[2], int units, const uint16_t* x, Index stride, const float* const (&scale)[2],
                float* const (&out)[2]) {
  const Weights<format> load;
  __m512 acc[N][2];
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
  const Index ahead = 2048 / (info_of(format).packed_bytes / info_of(format).block * 4);
  for (Index u = 0; u < units; ++u) {
    __m512i w[2][2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      load(p[i], u, w[i][0], w[i][1]);
      const uint8_t* next = p[i] + (u + ahead) * (format == Format::BF16 ? 128 : 64);
      _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
      if constexpr (format == Format::BF16) _mm_prefetch(reinterpret_cast<const char*>(next + 64), _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) {
      const uint16_t* row = x + r * stride + 4 * u;
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) acc[r][i] = dot(acc[r][i], w[i][0], row);
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) acc[r][i] = dot(acc[r][i], w[i][1], row + 2);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r)
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      float* to = out[i] + kLanes * r;
      __m512 sum = acc[r][i];
      if (scale[i]) sum = _mm512_fmadd_ps(sum, _mm512_loadu_ps(scale[i]), _mm512_loadu_ps(to));
      _mm512_storeu_ps(to, sum);
    }
}

template <Format format, int N>
void rows_pass(const uint8_t* const (&packed)[2], const Activations& a, int row, float* const (&out)[2]) {
  const FormatInfo& info = info_of(format);
  const uint16_t* x = a.bf16 + static_cast<Index>(row) * a.k;
  const uint8_t* p[2];
  const float* scale[2] = {};
  for (int i = 0; i < 2; ++i) {
    std::memset(out[i], 0, sizeof(float) * kLanes * N);
    if (info.packed_header) scale[i] = reinterpret_cast<const float*>(packed[i]);
    p[i] = packed[i] + info.packed_header;
  }
  if (format != Format::FP8_E4M3_B128) return block_pass<format, N>(p, a.k / 4, x, a.k, scale, out);
  for (int k0 = 0; k0 < a.k; k0 += info.block) {
    for (int i = 0; i < 2; ++i) {
      scale[i] = reinterpret_cast<const float*>(p[i]);
      p[i] += sizeof(float) * kLanes;
    }
    block_pass<format, N>(p, info.block / 4, x + k0, a.k, scale, out);
    for (int i = 0; i < 2; ++i) p[i] += info.block * kLanes;
  }
}

template <Format format>
void panels_of(const uint8_t* const (&packed)[2], const Activations& a, int row0, int row1, float* const (&acc)[2]) {
  const int passes = (row1 - row0 + kMost - 1) / kMost;
  for (int r = row0, pass = 0; pass < passes; ++pass) {
    float* out[2] = {acc[0] + kLanes * (r - row0), acc[1] + kLanes * (r - row0)};
    const int n = (row1 - r + passes - pass - 1) / (passes - pass);
    switch (n) {
      case 1: rows_pass<format, 1>(packed, a, r, out); break;
      case 2: rows_pass<format, 2>(packed, a, r, out); break;
      case 3: rows_pass<format, 3>(packed, a, r, out); break;
      case 4: rows_pass<format, 4>(packed, a, r, out); break;
      case 5: rows_pass<format, 5>(packed, a, r, out); break;
      default: rows_pass<format, 6>(packed, a, r, out); break;
    }
    r += n;
  }
}

void panels(Format format, const PanelPair& w, const Activations& a, int row0, int row1, float* const acc[2]) {
  if (info_of(format).family != Family::Bf16) return kAvx512.panels(format, w, a, row0, row1, acc);
  alignas(64) float spare[kBlockRows * kLanes];
  const bool two = w.count == 2;
  const uint8_t* const p[2] = {w.packed[0], w.packed[two]};
  float* const out[2] = {acc[0], two ? acc[1] : spare};
  switch (format) {
    case Format::BF16: return panels_of<Format::BF16>(p, a, row0, row1, out);
    case Format::FP8_E4M3: return panels_of<Format::FP8_E4M3>(p, a, row0, row1, out);
    default: return panels_of<Format::FP8_E4M3_B128>(p, a, row0, row1, out);
  }
}

void round_bf16(const float* x, int k, uint16_t* y) {
  for (int i = 0; i < k; i += 16) {
    const int n = k - i < 16 ? k - i : 16;
    const __mmask16 m = static_cast<__mmask16>((1u << n) - 1);
    const __m256bh h = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(m, x + i));
    _mm256_mask_storeu_epi16(y + i, m, reinterpret_cast<__m256i>(h));
  }
}

float peak(int64_t steps) {
  __m512 acc[12];
  __m512i w = _mm512_set1_epi16(0x3f80);
  const uint16_t x[2] = {0x3f80, 0x3f80};
#pragma GCC unroll 12
  for (auto& v : acc) v = _mm512_setzero_ps();
  for (int64_t s = 0; s < steps * 2; ++s) {
    asm volatile("" : "+v"(w));
#pragma GCC unroll 12
    for (auto& v : acc) v = dot(dot(dot(dot(dot(dot(dot(dot(v, w, x), w, x), w, x), w, x), w, x), w, x), w, x), w, x);
  }
  float sum = 0;
#pragma GCC unroll 12
  for (auto& v : acc) sum += _mm512_reduce_add_ps(v);
  return sum;
}

Kernels table() {
  Kernels k = kAvx512;
  k.name = "avx512_bf16";
  k.round_bf16 = round_bf16;
  k.panels = panels;
  k.peak_bf16 = peak;
  return k;
}

}  // namespace
}  // namespace octavo::avx512_bf16

namespace octavo {

const Kernels kAvx512Bf16 = avx512_bf16::table();

}  // namespace octavo
