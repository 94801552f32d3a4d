// A stretch of one panel as the dot unit wants it: unsigned bytes in lanes, and scales. Few rows read the bytes straight
// from the packed weights, many rows from a chunk unpacked once for all of them; the arithmetic is the same, so a row's
// result cannot depend on how many rows share it.
#pragma once
#include "simd.h"

namespace octavo::OCTAVO_TIER {

using Index = std::ptrdiff_t;

constexpr int kGroups = kChunk / kGroup;

struct Scales {
  alignas(64) float scale[kGroups][16];       // Blocks: per scale and lane
  alignas(64) float min[kGroups][16];         // Blocks with a minimum
  alignas(64) uint8_t sub[2 * kGroups][64];   // Supers: integer scale per 32 or 16 elements (sub_store)
  alignas(64) int16_t off[kGroups][32];       // Supers: [lane][2] times two sums of activations
  alignas(64) float d[16], dmin[16];          // Supers, Whole
};

struct Chunk {
  Scales s;
  alignas(64) uint8_t w[kChunk / 4][64];  // [k / 4][lane][4]
};

// What a chunk adds to a row's result, a the int8 activations and d_a their scale; w unsigned, `offset` above its value.
// Everything inside the brackets is whole numbers, so exact:
//   Blocks    d_a * sum over blocks (scale * [(w - offset) . a] + min * [sum a])
//   Sub32     d_a * (d * [sum over 32s (sub * w . a) + off * sums] )           off = -offset * sub
//   Sub16     the same, over 16s
//   Whole     d_a * d * [(w - offset) . a]
// Sub32 and Sub16 with a minimum: d_a * (d * [sub * w . a] + dmin * [off * sums]).
enum class Kind { Blocks, Sub32, Sub16, Whole };

// What the dot loop has to know of a format. span: groups of 32 that share a block's scale. top: largest w.
struct Shape {
  Kind kind;
  bool min;
  int span;
  int top;

  constexpr bool wide() const { return top > 127; }  // maddubs would overflow
  // Formats that a tier with exact dots treats alike have one shape.
  constexpr Shape normal() const { return kExactDots ? Shape{kind, min, span, 255} : *this; }
  // Four-element steps that fit into i16 partial sums: 2 * 127 * top * steps < 2^15.
  constexpr int flush() const { return top <= 15 ? 8 : top <= 31 ? 4 : top <= 63 ? 2 : 1; }
};

// Per format: shape and offset; group_bytes: packed, of 32 elements (rounded down);
//   lanes(p, g, u): step u (0..7) of group g of the chunk packed at p;
//   scales(header, p, groups, s): what the shape needs of s.
// The packed layouts are listed in dispatch/pack.cpp.
template <Format> struct Layout;

}  // namespace octavo::OCTAVO_TIER
