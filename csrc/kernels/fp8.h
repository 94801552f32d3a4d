// Bytes of e4m3 (OCP FP8: bias 7, no infinities, S.1111.111 is NaN) in packed panels, to f32.
//
// A unit is 64 bytes, 16 lanes x 4 elements; in each 16 bytes four lanes' first two elements, then their last two, so
// that widening its halves gives the pairs of a bf16 dot (linear_bf16.cpp).
#pragma once
#include "simd.h"

namespace octavo::OCTAVO_TIER {

static inline F f_from_e4m3(const uint8_t* bytes) {
  uint32_t bits[16];
  for (int i = 0; i < 16; ++i) {
    const uint32_t b = bytes[i], mantissa = b & 7, exponent = b >> 3 & 15, sign = (b & 0x80) << 24;
    // A subnormal is mantissa * 2^-9: as a float, its leading bit becomes the hidden one.
    static constexpr uint32_t kSubnormal[8] = {0,          118u << 23, 119u << 23, 119u << 23 | 1u << 22,
                                               120u << 23, 120u << 23 | 1u << 21, 120u << 23 | 1u << 22, 120u << 23 | 3u << 21};
    const uint32_t value = (b & 127) == 127 ? 0x7fc00000u : exponent ? (exponent + 120) << 23 | mantissa << 20 : kSubnormal[mantissa];
    bits[i] = sign | value;
  }
  float values[16];
  std::memcpy(values, bits, sizeof values);
  return f_load(values);
}

// Elements 2 * pair and 2 * pair + 1 of the sixteen lanes.
static inline void fp8_pair(const uint8_t* p, std::ptrdiff_t pair, F& even, F& odd) {
  const uint8_t* from = p + (pair >> 1) * 64 + (pair & 1) * 8;
  uint8_t first[16], second[16];
  for (int lane = 0; lane < 16; ++lane) {
    first[lane] = from[lane / 4 * 16 + lane % 4 * 2];
    second[lane] = from[lane / 4 * 16 + lane % 4 * 2 + 1];
  }
  even = f_from_e4m3(first);
  odd = f_from_e4m3(second);
}

}  // namespace octavo::OCTAVO_TIER
