// Sixteen lanes, whatever the machine has. Every tier does the same arithmetic in the same order, with fused
// multiply-adds written out, so results are the same bits on every tier.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace octavo::OCTAVO_TIER {

static inline float bf16_to_f32(uint16_t h) {
  uint32_t bits = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int max_int(int a, int b) { return a > b ? a : b; }

// exp(x), relative error about 1e-7: 2^n * p(r), |r| <= ln2 / 2, p of degree 6 (Cephes' coefficients). exp(0) == 1
// exactly; inputs below -87 give 0, above 88 the largest power.
static inline F f_exp(F x) {
  F under = f_set1(-87.0f);
  F clamped = f_min(f_max(x, under), f_set1(88.0f));
  F n = f_round(f_mul(clamped, f_set1(1.44269504088896341f)));
  F r = f_fma(n, f_set1(-0.693359375f), clamped);
  r = f_fma(n, f_set1(2.12194440e-4f), r);
  F p = f_set1(1.9875691500e-4f);
  p = f_fma(p, r, f_set1(1.3981999507e-3f));
  p = f_fma(p, r, f_set1(8.3334519073e-3f));
  p = f_fma(p, r, f_set1(4.1665795894e-2f));
  p = f_fma(p, r, f_set1(1.6666665459e-1f));
  p = f_fma(p, r, f_set1(5.0000001201e-1f));
  p = f_fma(p, f_mul(r, r), f_add(r, f_set1(1.0f)));
  return f_zero_below(f_scale2(p, n), x, under);
}

// tanh(x) = 1 - 2 / (exp(2x) + 1).
static inline F f_tanh(F x) {
  F e = f_exp(f_add(x, x));
  return f_sub(f_set1(1.0f), f_div(f_set1(2.0f), f_add(e, f_set1(1.0f))));
}

}  // namespace octavo::OCTAVO_TIER
