// The packed layouts, read: bytes into lanes and scales into floats, one small struct a format.
#pragma once
#include "chunk.h"

namespace octavo::OCTAVO_TIER {

constexpr int kUnit = 64;    // bytes of one step: 16 lanes x 4 elements
constexpr int kHalves = 32;  // bytes of 16 f16

static inline F lanes_f16(const uint8_t* p) {
  uint16_t h[16];
  std::memcpy(h, p, sizeof h);
  return f_from_f16(h);
}

// Nibbles of a block of 32: 4 units, elements 0..15 low and 16..31 high.
static inline B block_nibble(const uint8_t* p, Index u) { return b_shr(b_load(p + (u & 3) * kUnit), static_cast<int>(u & 4), 15); }

// Nibbles of super-blocks: 8 units hold two groups, the even one low and the odd one high.
static inline B pair_nibble(const uint8_t* p, Index g, Index u) {
  return b_shr(b_load(p + (8 * (g >> 1) + u) * kUnit), static_cast<int>(4 * (g & 1)), 15);
}

// Blocks of 32 * span elements: `scale_bytes` of scales, then the quants.
template <int bytes, int scale_bytes, int span_ = 1> struct Block {
  static constexpr int span = span_;
  static const uint8_t* at(const uint8_t* p, Index g) { return p + g / span * bytes; }
  static const uint8_t* quants(const uint8_t* p, Index g) { return at(p, g) + scale_bytes; }
};

template <> struct Layout<Format::Q4_0> : Block<288, 32> {
  static constexpr Shape shape = {Kind::Blocks, false, 1, 15};
  static constexpr int offset = 8;
  static constexpr Index group_bytes = 288;
  static B lanes(const uint8_t* p, Index g, Index u) { return block_nibble(quants(p, g), u); }
  static void scales(const uint8_t*, const uint8_t* p, int groups, Scales& s) {
    for (int g = 0; g < groups; ++g) f_store(s.scale[g], lanes_f16(at(p, g)));
  }
};

template <> struct Layout<Format::Q4_1> : Block<320, 64> {
  static constexpr Shape shape = {Kind::Blocks, true, 1, 15};
  static constexpr int offset = 0;
  static constexpr Index group_bytes = 320;
  static B lanes(const uint8_t* p, Index g, Index u) { return block_nibble(quants(p, g), u); }
  static void scales(const uint8_t*, const uint8_t* p, int groups, Scales& s) {
    for (int g = 0; g < groups; ++g) {
      f_store(s.scale[g], lanes_f16(at(p, g)));
      f_store(s.min[g], lanes_f16(at(p, g) + kHalves));
    }
  }
};

// A fifth bit: one unit of bit planes before the nibbles, bit u of byte i for element 4u + i.
static inline B block_five(const uint8_t* q, Index u) {
  return b_or(block_nibble(q + kUnit, u), b_shl(b_shr(b_load(q), static_cast<int>(u), 1), 4, 16));
}

template <> struct Layout<Format::Q5_0> : Block<352, 32> {
  static constexpr Shape shape = {Kind::Blocks, false, 1, 31};
  static constexpr int offset = 16;
  static constexpr Index group_bytes = 352;
  static B lanes(const uint8_t* p, Index g, Index u) { return block_five(quants(p, g), u); }
  static void scales(const uint8_t*, const uint8_t* p, int groups, Scales& s) {
    for (int g = 0; g < groups; ++g) f_store(s.scale[g], lanes_f16(at(p, g)));
  }
};

template <> struct Layout<Format::Q5_1> : Block<384, 64> {
  static constexpr Shape shape = {Kind::Blocks, true, 1, 31};
  static constexpr int offset = 0;
  static constexpr Index group_bytes = 384;
  static B lanes(const uint8_t* p, Index g, Index u) { return block_five(quants(p, g), u); }
  static void scales(const uint8_t*, const uint8_t* p, int groups, Scales& s) {
    for (int g = 0; g < groups; ++g) {
      f_store(s.scale[g], lanes_f16(at(p, g)));
      f_store(s.min[g], lanes_f16(at(p, g) + kHalves));
    }
  }
};

// Signed bytes are packed with their top bit flipped: 128 above their value.
template <> struct Layout<Format::Q8_0> : Block<544, 32> {
  static constexpr Shape shape = {Kind::Blocks, false, 1, 255};
  static constexpr int offset = 128;
  static constexpr Index group_bytes = 544;
  static B lanes(const uint8_t* p, Index g, Index u) { return b_load(quants(p, g) + u * kUnit); }
  static void scales(const uint8_t*, const uint8_t* p, int groups, Scales& s) {
    for (int g = 0; g < groups; ++g) f_store(s.scale[g], lanes_f16(at(p, g)));
  }
};

// The sixteen values of IQ4 plus 128, and twice those of MXFP4 plus 12.
inline constexpr uint8_t kIq4[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
inline constexpr uint8_t kMxfp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

template <> struct Layout<Format::IQ4_NL> : Block<288, 32> {
  static constexpr Shape shape = {Kind::Blocks, false, 1, 255};
  static constexpr int offset = 128;
  static constexpr Index group_bytes = 288;
  static B lanes(const uint8_t* p, Index g, Index u) { return b_lookup(kIq4, block_nibble(quants(p, g), u)); }
  static void scales(const uint8_t* h, const uint8_t* p, int groups, Scales& s) {
    Layout<Format::Q4_0>::scales(h, p, groups, s);
  }
};

template <> struct Layout<Format::MXFP4> : Block<272, 16> {
  static constexpr Shape shape = {Kind::Blocks, false, 1, 31};
  static constexpr int offset = 12;
  static constexpr Index group_bytes = 272;
  static B lanes(const uint8_t* p, Index g, Index u) { return b_lookup(kMxfp4, block_nibble(quants(p, g), u)); }
  static void scales(const uint8_t*, const uint8_t* p, int groups, Scales& s) {
    for (int g = 0; g < groups; ++g)
      for (int i = 0; i < 16; ++i) {  // half of 2^(e - 127), since the table holds doubled values
        const uint32_t e = at(p, g)[i], bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
        std::memcpy(&s.scale[g][i], &bits, 4);
      }
  }
};

// Groups of 32, 64 or 128 with one scale; symmetric, or with a zero point: d * (q - z) = d * q + (-d * z).
template <int span, bool zeros> struct Int4 : Block<(zeros ? 48 : 32) + 256 * span, zeros ? 48 : 32, span> {
  using Base = Block<(zeros ? 48 : 32) + 256 * span, zeros ? 48 : 32, span>;
  static constexpr Shape shape = {Kind::Blocks, zeros, span, 15};
  static constexpr int offset = zeros ? 0 : 8;
  static constexpr Index group_bytes = ((zeros ? 48 : 32) + 256 * span) / span;
  static B lanes(const uint8_t* p, Index g, Index u) {
    return block_nibble(Base::quants(p, g) + g % span * 4 * kUnit, u);
  }
  static void scales(const uint8_t*, const uint8_t* p, int groups, Scales& s) {
    for (int g = 0; g < groups; g += span) {
      const F d = lanes_f16(Base::at(p, g));
      f_store(s.scale[g / span], d);
      if constexpr (zeros) f_store(s.min[g / span], f_mul(f_sub(f_zero(), d), f_from_u8(Base::at(p, g) + kHalves)));
    }
  }
};
template <> struct Layout<Format::INT4_G32> : Int4<1, false> {};
template <> struct Layout<Format::INT4_G64> : Int4<2, false> {};
template <> struct Layout<Format::INT4_G128> : Int4<4, false> {};
template <> struct Layout<Format::INT4_G32_Z> : Int4<1, true> {};
template <> struct Layout<Format::INT4_G64_Z> : Int4<2, true> {};
template <> struct Layout<Format::INT4_G128_Z> : Int4<4, true> {};

template <> struct Layout<Format::INT8> {
  static constexpr Shape shape = {Kind::Whole, false, 1, 255};
  static constexpr int offset = 128;
  static constexpr Index group_bytes = 512;
  static B lanes(const uint8_t* p, Index g, Index u) { return b_load(p + (8 * g + u) * kUnit); }
  static void scales(const uint8_t* header, const uint8_t*, int, Scales& s) { std::memcpy(s.d, header, sizeof s.d); }
};

static inline const int8_t* as_i8(const uint8_t* p) { return reinterpret_cast<const int8_t*>(p); }

template <> struct Layout<Format::IQ4_XS> {
  static constexpr Shape shape = {Kind::Sub32, false, 1, 255};
  static constexpr int offset = 128;
  static constexpr Index group_bytes = 276;
  static B lanes(const uint8_t* p, Index g, Index u) { return b_lookup(kIq4, block_nibble(p + 160 + 4 * g * kUnit, u)); }
  static void scales(const uint8_t*, const uint8_t* p, int, Scales& s) {
    const int8_t* sub = as_i8(p + kHalves);
    f_store(s.d, lanes_f16(p));
    for (int g = 0; g < 8; ++g) sub_store(sub + 16 * g, s.sub[g]);
    for (int j = 0; j < 4; ++j) i16_pairs(sub + 32 * j, sub + 32 * j + 16, -offset, s.off[j]);
  }
};

// d, -dmin, and the 6-bit scales and minimums: bytes [8][16] each.
static inline void k_scales(const uint8_t* p, Scales& s) {
  f_store(s.d, lanes_f16(p));
  f_store(s.dmin, f_sub(f_zero(), lanes_f16(p + kHalves)));
  for (int g = 0; g < 8; ++g) sub_store(as_i8(p + 64 + 16 * g), s.sub[g]);
  for (int j = 0; j < 4; ++j) i16_pairs(as_i8(p + 192 + 32 * j), as_i8(p + 208 + 32 * j), 1, s.off[j]);
}

template <> struct Layout<Format::Q4_K> {
  static constexpr Shape shape = {Kind::Sub32, true, 1, 15};
  static constexpr int offset = 0;
  static constexpr Index group_bytes = 296;
  static B lanes(const uint8_t* p, Index g, Index u) { return pair_nibble(p + 320, g, u); }
  static void scales(const uint8_t*, const uint8_t* p, int, Scales& s) { k_scales(p, s); }
};

template <> struct Layout<Format::Q5_K> {
  static constexpr Shape shape = {Kind::Sub32, true, 1, 31};
  static constexpr int offset = 0;
  static constexpr Index group_bytes = 360;
  static B lanes(const uint8_t* p, Index g, Index u) {
    return b_or(pair_nibble(p + 832, g, u), b_shl(b_shr(b_load(p + 320 + u * kUnit), static_cast<int>(g), 1), 4, 16));
  }
  static void scales(const uint8_t*, const uint8_t* p, int, Scales& s) { k_scales(p, s); }
};

// d, and int8 scales [16][16] per 16 elements.
static inline void sub_scales(const uint8_t* p, int offset, Scales& s) {
  const int8_t* sub = as_i8(p + kHalves);
  f_store(s.d, lanes_f16(p));
  for (int h = 0; h < 16; ++h) sub_store(sub + 16 * h, s.sub[h]);
  for (int g = 0; g < 8; ++g) i16_pairs(sub + 32 * g, sub + 32 * g + 16, -offset, s.off[g]);
}

template <> struct Layout<Format::Q6_K> {
  static constexpr Shape shape = {Kind::Sub16, false, 1, 63};
  static constexpr int offset = 32;
  static constexpr Index group_bytes = 420;
  static B lanes(const uint8_t* p, Index g, Index u) {  // four groups share 16 units of nibbles and 8 of bit pairs
    const B low = b_shr(b_load(p + 288 + (16 * (g >> 2) + 8 * (g & 1) + u) * kUnit), static_cast<int>(2 * (g & 2)), 15);
    const B high = b_shr(b_load(p + 2336 + (8 * (g >> 2) + u) * kUnit), static_cast<int>(2 * (g & 3)), 3);
    return b_or(low, b_shl(high, 4, 48));
  }
  static void scales(const uint8_t*, const uint8_t* p, int, Scales& s) { sub_scales(p, offset, s); }
};

template <> struct Layout<Format::Q3_K> {
  static constexpr Shape shape = {Kind::Sub16, false, 1, 15};
  static constexpr int offset = 4;
  static constexpr Index group_bytes = 228;
  static B lanes(const uint8_t* p, Index g, Index u) {
    const B low = b_shr(b_load(p + 288 + (8 * (g >> 2) + u) * kUnit), static_cast<int>(2 * (g & 3)), 3);
    return b_or(low, b_shl(b_shr(b_load(p + 1312 + u * kUnit), static_cast<int>(g), 1), 2, 4));
  }
  static void scales(const uint8_t*, const uint8_t* p, int, Scales& s) { sub_scales(p, offset, s); }
};

template <> struct Layout<Format::Q2_K> {
  static constexpr Shape shape = {Kind::Sub16, true, 1, 15};
  static constexpr int offset = 0;
  static constexpr Index group_bytes = 168;
  static B lanes(const uint8_t* p, Index g, Index u) {
    return b_shr(b_load(p + 320 + (8 * (g >> 2) + u) * kUnit), static_cast<int>(2 * (g & 3)), 3);
  }
  static void scales(const uint8_t*, const uint8_t* p, int, Scales& s) {
    f_store(s.d, lanes_f16(p));
    f_store(s.dmin, f_sub(f_zero(), lanes_f16(p + kHalves)));
    alignas(64) uint8_t low[256], high[256];
    for (int i = 0; i < 256; i += kUnit) {
      const B x = b_load(p + 64 + i);
      b_store(low + i, b_shr(x, 0, 15));
      b_store(high + i, b_shr(x, 4, 15));
    }
    for (int h = 0; h < 16; ++h) sub_store(as_i8(low) + 16 * h, s.sub[h]);
    for (int g = 0; g < 8; ++g) i16_pairs(as_i8(high) + 32 * g, as_i8(high) + 32 * g + 16, 1, s.off[g]);
  }
};

}  // namespace octavo::OCTAVO_TIER
