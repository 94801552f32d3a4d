// Matrix product of f32, f16 and bf16 panels in f32 arithmetic. Even and odd k have an accumulator each (two chains
// hide the multiply-add's latency), added at the end: the same order for every number of rows.
#include "linear.h"
#include "simd.h"

namespace octavo::OCTAVO_TIER {
namespace {

template <Format format> inline void load_pair(const uint8_t* p, std::ptrdiff_t pair, F& even, F& odd) {
  if constexpr (format == Format::F32) {
    const float* w = reinterpret_cast<const float*>(p) + pair * 32;
    even = f_load(w);
    odd = f_load(w + 16);
  } else if constexpr (format == Format::F16) {
    const uint16_t* w = reinterpret_cast<const uint16_t*>(p) + pair * 32;
    even = f_from_f16(w);
    odd = f_from_f16(w + 16);
  } else {
    f_from_bf16_pairs(reinterpret_cast<const uint16_t*>(p) + pair * 32, even, odd);
  }
}

template <Format format, int N>
void rows_pass(const uint8_t* packed, int k, const float* x, float* out) {
  F even[N], odd[N];
  for (int r = 0; r < N; ++r) even[r] = odd[r] = f_zero();
  for (int i = 0; i < k; i += 2) {
    F a, b;
    load_pair<format>(packed, i / 2, a, b);
    for (int r = 0; r < N; ++r) {
      const float* row = x + static_cast<std::ptrdiff_t>(r) * k + i;
      even[r] = f_fma(a, f_set1(row[0]), even[r]);
      odd[r] = f_fma(b, f_set1(row[1]), odd[r]);
    }
  }
  for (int r = 0; r < N; ++r) f_store(out + 16 * r, f_add(even[r], odd[r]));
}

template <Format format>
void panel_of(const uint8_t* packed, const Activations& a, int row0, int row1, float* acc) {
  for (int r = row0; r < row1;) {
    const float* x = a.x + static_cast<std::ptrdiff_t>(r) * a.k;
    float* out = acc + 16 * (r - row0);
    const int n = min_int(3, row1 - r);
    if (n == 3) rows_pass<format, 3>(packed, a.k, x, out);
    else if (n == 2) rows_pass<format, 2>(packed, a.k, x, out);
    else rows_pass<format, 1>(packed, a.k, x, out);
    r += n;
  }
}

template <Format format>
void rows_of(const uint8_t* packed, int k, float scale, float* const out[kLanes]) {
  for (int i = 0; i < k; i += 2) {
    F a, b;
    alignas(64) float even[16], odd[16];
    load_pair<format>(packed, i / 2, a, b);
    f_store(even, a);
    f_store(odd, b);
    for (int lane = 0; lane < kLanes; ++lane) {
      out[lane][i] = even[lane] * scale;
      out[lane][i + 1] = odd[lane] * scale;
    }
  }
}

}  // namespace

void panel_floats(Format format, const uint8_t* packed, const Activations& a, int row0, int row1, float* acc) {
  switch (format) {
    case Format::F32: return panel_of<Format::F32>(packed, a, row0, row1, acc);
    case Format::F16: return panel_of<Format::F16>(packed, a, row0, row1, acc);
    default: return panel_of<Format::BF16>(packed, a, row0, row1, acc);
  }
}

void unpack_rows_floats(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]) {
  switch (format) {
    case Format::F32: return rows_of<Format::F32>(packed, k, scale, out);
    case Format::F16: return rows_of<Format::F16>(packed, k, scale, out);
    default: return rows_of<Format::BF16>(packed, k, scale, out);
  }
}

}  // namespace octavo::OCTAVO_TIER
