// Matrix product of float panels in f32 arithmetic: F32, F16, and what the Bf16 family is without a bf16 dot. Even and
// odd k have an accumulator each (two chains hide the multiply-add's latency), added at the end of a row or of a scaled
// block: the same order for every number of rows.
#include "fp8.h"
#include "linear.h"
#include "simd.h"

namespace octavo::OCTAVO_TIER {
namespace {

using Index = std::ptrdiff_t;

template <Format format> inline void load_pair(const uint8_t* p, Index pair, F& even, F& odd) {
  if constexpr (format == Format::F32) {
    const float* w = reinterpret_cast<const float*>(p) + pair * 32;
    even = f_load(w);
    odd = f_load(w + 16);
  } else if constexpr (format == Format::F16) {
    const uint16_t* w = reinterpret_cast<const uint16_t*>(p) + pair * 32;
    even = f_from_f16(w);
    odd = f_from_f16(w + 16);
  } else if constexpr (format == Format::BF16) {
    f_from_bf16_pairs(reinterpret_cast<const uint16_t*>(p) + pair * 32, even, odd);
  } else {
    fp8_pair(p, pair, even, odd);
  }
}

// Elements [k0, k1) of N rows; x at the first row's element k0, `stride` floats a row; out = scale * sum + out.
template <Format format, int N>
void block_pass(const uint8_t* const (&p)[kPanels], int pairs, const float* x, Index stride, const float* const (&scale)[kPanels],
                float* const (&out)[kPanels]) {
  F even[N][kPanels], odd[N][kPanels];
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r)
#pragma GCC unroll 2
    for (int i = 0; i < kPanels; ++i) even[r][i] = odd[r][i] = f_zero();
  for (int j = 0; j < pairs; ++j) {
    F a[kPanels], b[kPanels];
#pragma GCC unroll 2
    for (int i = 0; i < kPanels; ++i) load_pair<format>(p[i], j, a[i], b[i]);
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) {
      const F first = f_set1(x[r * stride + 2 * j]), second = f_set1(x[r * stride + 2 * j + 1]);
#pragma GCC unroll 2
      for (int i = 0; i < kPanels; ++i) {
        even[r][i] = f_fma(a[i], first, even[r][i]);
        odd[r][i] = f_fma(b[i], second, odd[r][i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r)
#pragma GCC unroll 2
    for (int i = 0; i < kPanels; ++i) {
      const F sum = f_add(even[r][i], odd[r][i]);
      float* to = out[i] + kLanes * r;
      f_store(to, scale[i] ? f_fma(sum, f_load(scale[i]), f_load(to)) : sum);
    }
}

template <Format format, int N>
void rows_pass(const uint8_t* const (&packed)[kPanels], int k, const float* x, float* const (&out)[kPanels]) {
  const FormatInfo& info = info_of(format);
  const uint8_t* p[kPanels];
  const float* scale[kPanels] = {};
  const bool blocks = format == Format::FP8_E4M3_B128;
  for (int i = 0; i < kPanels; ++i) {
    std::memset(out[i], 0, sizeof(float) * kLanes * N);
    if (info.packed_header) scale[i] = reinterpret_cast<const float*>(packed[i]);
    p[i] = packed[i] + info.packed_header;
  }
  if (!blocks) return block_pass<format, N>(p, k / 2, x, k, scale, out);
  for (int k0 = 0; k0 < k; k0 += info.block) {
    for (int i = 0; i < kPanels; ++i) {
      scale[i] = reinterpret_cast<const float*>(p[i]);
      p[i] += sizeof(float) * kLanes;
    }
    block_pass<format, N>(p, info.block / 2, x + k0, k, scale, out);
    for (int i = 0; i < kPanels; ++i) p[i] += info.block * kLanes;
  }
}

template <Format format>
void panels_of(const uint8_t* const (&packed)[kPanels], const Activations& a, int row0, int row1,
               float* const (&acc)[kPanels]) {
  constexpr int most = kPanels == 2 ? 5 : 3;
  const int passes = (row1 - row0 + most - 1) / most;
  for (int r = row0, pass = 0; pass < passes; ++pass) {
    const float* x = a.x + static_cast<Index>(r) * a.k;
    float* out[kPanels];
    for (int i = 0; i < kPanels; ++i) out[i] = acc[i] + kLanes * (r - row0);
    const int n = (row1 - r + passes - pass - 1) / (passes - pass);
    switch (n) {
      case 1: rows_pass<format, 1>(packed, a.k, x, out); break;
      case 2: rows_pass<format, 2>(packed, a.k, x, out); break;
      case 3: rows_pass<format, 3>(packed, a.k, x, out); break;
      case 4: if constexpr (most >= 4) rows_pass<format, 4>(packed, a.k, x, out); break;
      default: if constexpr (most >= 5) rows_pass<format, 5>(packed, a.k, x, out); break;
    }
    r += n;
  }
}

template <Format format>
void panels_any(const PanelPair& w, const Activations& a, int row0, int row1, float* const acc[2]) {
  if constexpr (kPanels == 1) {
    for (int i = 0; i < w.count; ++i) panels_of<format>({w.packed[i]}, a, row0, row1, {acc[i]});
  } else if (w.count == 2) {
    panels_of<format>({w.packed[0], w.packed[1]}, a, row0, row1, {acc[0], acc[1]});
  } else {
    alignas(64) float spare[kBlockRows * kLanes];
    panels_of<format>({w.packed[0], w.packed[0]}, a, row0, row1, {acc[0], spare});
  }
}

template <Format format>
void rows_of(const uint8_t* packed, int k, float scale, float* const out[kLanes]) {
  const FormatInfo& info = info_of(format);
  const bool blocks = format == Format::FP8_E4M3_B128;
  alignas(64) float of_lane[kLanes], even[kLanes], odd[kLanes];
  for (float& x : of_lane) x = scale;
  const auto scaled = [&](const uint8_t* scales) {
    f_store(of_lane, f_mul(f_load(reinterpret_cast<const float*>(scales)), f_set1(scale)));
  };
  if (info.packed_header) scaled(packed);
  const uint8_t* p = packed + info.packed_header;
  for (int i = 0; i < k; i += 2) {
    if (blocks && i % info.block == 0) {
      p = packed + static_cast<Index>(i / info.block) * info.packed_bytes;
      scaled(p);
      p += sizeof of_lane;
    }
    F a, b;
    load_pair<format>(p, (blocks ? i % info.block : i) / 2, a, b);
    f_store(even, a);
    f_store(odd, b);
    for (int lane = 0; lane < kLanes; ++lane) {
      out[lane][i] = even[lane] * of_lane[lane];
      out[lane][i + 1] = odd[lane] * of_lane[lane];
    }
  }
}

}  // namespace

#define OCTAVO_FORMATS(X) X(F32) X(F16) X(BF16) X(FP8_E4M3) X(FP8_E4M3_B128)

void panels_floats(Format format, const PanelPair& w, const Activations& a, int row0, int row1, float* const acc[2]) {
  switch (format) {
#define X(name) case Format::name: return panels_any<Format::name>(w, a, row0, row1, acc);
    OCTAVO_FORMATS(X)
#undef X
    default: return;
  }
}

void unpack_rows_floats(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]) {
  switch (format) {
#define X(name) case Format::name: return rows_of<Format::name>(packed, k, scale, out);
    OCTAVO_FORMATS(X)
#undef X
    default: return;
  }
}

}  // namespace octavo::OCTAVO_TIER
