// A stretch of one panel as the dot unit wants it: bytes in lanes, scales as floats. Few rows read the bytes straight
// from the packed weights, many rows from a chunk unpacked once for all of them; the arithmetic is the same, so a
// row's result cannot depend on how many rows share it.
#pragma once
#include "simd.h"

namespace octavo::OCTAVO_TIER {

constexpr int kGroups = kChunk / kGroup;

struct Scales {
  alignas(64) float scale[kGroups][16];   // per 32 elements and lane
  alignas(64) float min[kGroups][16];     // times the activations' scaled_sum (or, Sub16Min, the integer minimum)
  alignas(64) int16_t sub[2 * kGroups][32];  // integer scale per 16 elements, twice: [lane][2]
  alignas(64) int16_t off[kGroups][32];      // [lane][first 16, second 16] times sum16
};

struct Chunk {
  Scales s;
  alignas(64) uint8_t w[kChunk / 4][64];  // [k / 4][lane][4]
};

// How a group of 32 is used:
//   Plain     scale * (a . w) + min * sum(a)              w unsigned
//   Signed    scale * (a . w)                             w signed
//   Sub16     scale * (sub * (a . w) + off * sum(a))      w unsigned, integers inside the brackets, sub per 16
//   Sub16Min  scale * sub * (a . w) + min * (off * sum(a))
enum class Kind { Plain, Signed, Sub16, Sub16Min };

// Per format:
//   kind, and flush: the four-element steps that fit into i16 partial sums, 2 * 127 * max(w) * steps < 2^15;
//   lanes(p, g, u): step u (0..7) of group g of the chunk packed at p;
//   scales(p, groups, s): everything else.
// The packed layouts are listed in dispatch/pack.cpp.
template <Format> struct Layout;

}  // namespace octavo::OCTAVO_TIER
