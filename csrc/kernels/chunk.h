// A stretch of one panel, unpacked: bytes ready for the dot unit, scales as floats. All row counts read the same
// chunk with the same arithmetic, so a row's result cannot depend on how many rows share it.
#pragma once
#include "simd.h"

namespace octavo::OCTAVO_TIER {

constexpr int kGroups = kChunk / kGroup;

struct Chunk {
  alignas(64) uint8_t w[kChunk / 4][64];  // [k / 4][lane][4]
  alignas(64) float scale[kGroups][16];   // per 32 elements and lane
  alignas(64) float min[kGroups][16];     // times the activations' scaled_sum (or, Sub16Min, the integer minimum)
  alignas(64) int16_t sub[2 * kGroups][32];  // integer scale per 16 elements, twice: [lane][2]
  alignas(64) int16_t off[kGroups][32];      // [lane][first 16, second 16] times sum16
};

// How a chunk is used:
//   Plain     sum over groups of scale * (a . w) + min * sum(a)              w unsigned
//   Signed    sum of scale * (a . w)                                         w signed
//   Sub16     sum of scale * (sub * (a . w) + off * sum(a))                  w unsigned, integers inside the brackets
//   Sub16Min  sum of scale * sub * (a . w) + min * (off * sum(a))
enum class Kind { Plain, Signed, Sub16, Sub16Min };

// Four-element steps that fit into the AVX2 tier's i16 partial sums: 2 * 127 * max(w) * steps < 2^15.
template <Format> struct Layout;
template <> struct Layout<Format::Q4_0> { static constexpr Kind kind = Kind::Plain; static constexpr int flush = 8; };
template <> struct Layout<Format::Q4_1> : Layout<Format::Q4_0> {};
template <> struct Layout<Format::Q4_K> : Layout<Format::Q4_0> {};
template <> struct Layout<Format::Q5_0> { static constexpr Kind kind = Kind::Plain; static constexpr int flush = 4; };
template <> struct Layout<Format::Q5_1> : Layout<Format::Q5_0> {};
template <> struct Layout<Format::Q5_K> : Layout<Format::Q5_0> {};
template <> struct Layout<Format::Q8_0> { static constexpr Kind kind = Kind::Signed; static constexpr int flush = 1; };
template <> struct Layout<Format::IQ4_NL> : Layout<Format::Q8_0> {};
template <> struct Layout<Format::IQ4_XS> : Layout<Format::Q8_0> {};
template <> struct Layout<Format::MXFP4> : Layout<Format::Q8_0> {};
template <> struct Layout<Format::Q6_K> { static constexpr Kind kind = Kind::Sub16; static constexpr int flush = 2; };
template <> struct Layout<Format::Q3_K> { static constexpr Kind kind = Kind::Sub16; static constexpr int flush = 4; };
template <> struct Layout<Format::Q2_K> { static constexpr Kind kind = Kind::Sub16Min; static constexpr int flush = 4; };

// Unpack `groups` groups of 32 (a whole number of blocks) starting at p.
template <Format> void unpack(const uint8_t* p, int groups, Chunk& c);

template <> void unpack<Format::Q4_0>(const uint8_t*, int, Chunk&);
template <> void unpack<Format::Q4_1>(const uint8_t*, int, Chunk&);
template <> void unpack<Format::Q5_0>(const uint8_t*, int, Chunk&);
template <> void unpack<Format::Q5_1>(const uint8_t*, int, Chunk&);
template <> void unpack<Format::Q8_0>(const uint8_t*, int, Chunk&);
template <> void unpack<Format::Q2_K>(const uint8_t*, int, Chunk&);
template <> void unpack<Format::Q3_K>(const uint8_t*, int, Chunk&);
template <> void unpack<Format::Q4_K>(const uint8_t*, int, Chunk&);
template <> void unpack<Format::Q5_K>(const uint8_t*, int, Chunk&);
template <> void unpack<Format::Q6_K>(const uint8_t*, int, Chunk&);
template <> void unpack<Format::IQ4_NL>(const uint8_t*, int, Chunk&);
template <> void unpack<Format::IQ4_XS>(const uint8_t*, int, Chunk&);
template <> void unpack<Format::MXFP4>(const uint8_t*, int, Chunk&);

}  // namespace octavo::OCTAVO_TIER
