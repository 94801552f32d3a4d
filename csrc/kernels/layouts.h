// The packed layouts, read: bytes into lanes and scales into floats, one small struct a format.
#pragma once
#include "chunk.h"

namespace octavo::OCTAVO_TIER {

constexpr int kUnit = 64;    // bytes of one step: 16 lanes x 4 elements
constexpr int kHalves = 32;  // bytes of 16 f16

using Index = std::ptrdiff_t;

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

template <int bytes, int d_bytes, bool has_min> struct Block32 {  // what the formats with blocks of 32 share
  static const uint8_t* block(const uint8_t* p, Index g) { return p + g * bytes; }
  static const uint8_t* quants(const uint8_t* p, Index g) { return block(p, g) + (has_min ? 2 : 1) * d_bytes; }
};

template <> struct Layout<Format::Q4_0> : Block32<288, kHalves, false> {
  static constexpr Kind kind = Kind::Plain;
  static constexpr int flush = 8;
  static B lanes(const uint8_t* p, Index g, Index u) { return block_nibble(quants(p, g), u); }
  static void scales(const uint8_t* p, int groups, Scales& s) {
    for (int g = 0; g < groups; ++g) {
      const F d = lanes_f16(block(p, g));
      f_store(s.scale[g], d);
      f_store(s.min[g], f_mul(d, f_set1(-8.0f)));
    }
  }
};

template <> struct Layout<Format::Q4_1> : Block32<320, kHalves, true> {
  static constexpr Kind kind = Kind::Plain;
  static constexpr int flush = 8;
  static B lanes(const uint8_t* p, Index g, Index u) { return block_nibble(quants(p, g), u); }
  static void scales(const uint8_t* p, int groups, Scales& s) {
    for (int g = 0; g < groups; ++g) {
      f_store(s.scale[g], lanes_f16(block(p, g)));
      f_store(s.min[g], lanes_f16(block(p, g) + kHalves));
    }
  }
};

// A fifth bit: one unit of bit planes before the nibbles, bit u of byte i for element 4u + i.
static inline B block_five(const uint8_t* q, Index u) {
  return b_or(block_nibble(q + kUnit, u), b_shl(b_shr(b_load(q), static_cast<int>(u), 1), 4, 16));
}

template <> struct Layout<Format::Q5_0> : Block32<352, kHalves, false> {
  static constexpr Kind kind = Kind::Plain;
  static constexpr int flush = 4;
  static B lanes(const uint8_t* p, Index g, Index u) { return block_five(quants(p, g), u); }
  static void scales(const uint8_t* p, int groups, Scales& s) {
    for (int g = 0; g < groups; ++g) {
      const F d = lanes_f16(block(p, g));
      f_store(s.scale[g], d);
      f_store(s.min[g], f_mul(d, f_set1(-16.0f)));
    }
  }
};

template <> struct Layout<Format::Q5_1> : Block32<384, kHalves, true> {
  static constexpr Kind kind = Kind::Plain;
  static constexpr int flush = 4;
  static B lanes(const uint8_t* p, Index g, Index u) { return block_five(quants(p, g), u); }
  static void scales(const uint8_t* p, int groups, Scales& s) {
    for (int g = 0; g < groups; ++g) {
      f_store(s.scale[g], lanes_f16(block(p, g)));
      f_store(s.min[g], lanes_f16(block(p, g) + kHalves));
    }
  }
};

template <> struct Layout<Format::Q8_0> : Block32<544, kHalves, false> {
  static constexpr Kind kind = Kind::Signed;
  static constexpr int flush = 1;
  static B lanes(const uint8_t* p, Index g, Index u) { return b_load(quants(p, g) + u * kUnit); }
  static void scales(const uint8_t* p, int groups, Scales& s) {
    for (int g = 0; g < groups; ++g) f_store(s.scale[g], lanes_f16(block(p, g)));
  }
};

inline constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kMxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice the value

template <> struct Layout<Format::IQ4_NL> : Block32<288, kHalves, false> {
  static constexpr Kind kind = Kind::Signed;
  static constexpr int flush = 1;
  static B lanes(const uint8_t* p, Index g, Index u) { return b_lookup(kIq4, block_nibble(quants(p, g), u)); }
  static void scales(const uint8_t* p, int groups, Scales& s) { Layout<Format::Q4_0>::scales(p, groups, s); }
};

template <> struct Layout<Format::MXFP4> : Block32<272, 16, false> {
  static constexpr Kind kind = Kind::Signed;
  static constexpr int flush = 1;
  static B lanes(const uint8_t* p, Index g, Index u) { return b_lookup(kMxfp4, block_nibble(quants(p, g), u)); }
  static void scales(const uint8_t* p, int groups, Scales& s) {
    for (int g = 0; g < groups; ++g)
      for (int i = 0; i < 16; ++i) {  // half of 2^(e - 127), since the table holds doubled values
        const uint32_t e = block(p, g)[i], bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
        std::memcpy(&s.scale[g][i], &bits, 4);
      }
  }
};

template <> struct Layout<Format::IQ4_XS> {
  static constexpr Kind kind = Kind::Signed;
  static constexpr int flush = 1;
  static B lanes(const uint8_t* p, Index g, Index u) { return b_lookup(kIq4, block_nibble(p + 160 + 4 * g * kUnit, u)); }
  static void scales(const uint8_t* p, int, Scales& s) {
    const F d = lanes_f16(p);
    for (int g = 0; g < 8; ++g) {
      int8_t scale[16];
      std::memcpy(scale, p + kHalves + 16 * g, 16);
      f_store(s.scale[g], f_mul(d, f_from_i8(scale)));
    }
  }
};

// d and dmin times the 6-bit scales and minimums: bytes [8][16] each.
static inline void k_scales(const uint8_t* p, Scales& s) {
  const F d = lanes_f16(p), dmin = f_sub(f_zero(), lanes_f16(p + kHalves));
  for (int g = 0; g < 8; ++g) {
    f_store(s.scale[g], f_mul(d, f_from_u8(p + 64 + 16 * g)));
    f_store(s.min[g], f_mul(dmin, f_from_u8(p + 192 + 16 * g)));
  }
}

template <> struct Layout<Format::Q4_K> {
  static constexpr Kind kind = Kind::Plain;
  static constexpr int flush = 8;
  static B lanes(const uint8_t* p, Index g, Index u) { return pair_nibble(p + 320, g, u); }
  static void scales(const uint8_t* p, int, Scales& s) { k_scales(p, s); }
};

template <> struct Layout<Format::Q5_K> {
  static constexpr Kind kind = Kind::Plain;
  static constexpr int flush = 4;
  static B lanes(const uint8_t* p, Index g, Index u) {
    return b_or(pair_nibble(p + 832, g, u), b_shl(b_shr(b_load(p + 320 + u * kUnit), static_cast<int>(g), 1), 4, 16));
  }
  static void scales(const uint8_t* p, int, Scales& s) { k_scales(p, s); }
};

static inline void same_scale(F d, float (*scale)[16]) {
  for (int g = 0; g < 8; ++g) f_store(scale[g], d);
}

// int8 scales [16][16] per 16 elements: each twice, and times the quants' offset for the sums.
static inline void sub_scales(const int8_t* scale, int offset, Scales& s) {
  for (int h = 0; h < 16; ++h) i16_pairs(scale + 16 * h, scale + 16 * h, 1, s.sub[h]);
  for (int g = 0; g < 8; ++g) i16_pairs(scale + 32 * g, scale + 32 * g + 16, offset, s.off[g]);
}

static inline const int8_t* as_i8(const uint8_t* p) { return reinterpret_cast<const int8_t*>(p); }

template <> struct Layout<Format::Q6_K> {
  static constexpr Kind kind = Kind::Sub16;
  static constexpr int flush = 2;
  static B lanes(const uint8_t* p, Index g, Index u) {  // four groups share 16 units of nibbles and 8 of bit pairs
    const B low = b_shr(b_load(p + 288 + (16 * (g >> 2) + 8 * (g & 1) + u) * kUnit), static_cast<int>(2 * (g & 2)), 15);
    const B high = b_shr(b_load(p + 2336 + (8 * (g >> 2) + u) * kUnit), static_cast<int>(2 * (g & 3)), 3);
    return b_or(low, b_shl(high, 4, 48));
  }
  static void scales(const uint8_t* p, int, Scales& s) {
    same_scale(lanes_f16(p), s.scale);
    sub_scales(as_i8(p + kHalves), -32, s);
  }
};

template <> struct Layout<Format::Q3_K> {
  static constexpr Kind kind = Kind::Sub16;
  static constexpr int flush = 4;
  static B lanes(const uint8_t* p, Index g, Index u) {
    const B low = b_shr(b_load(p + 288 + (8 * (g >> 2) + u) * kUnit), static_cast<int>(2 * (g & 3)), 3);
    return b_or(low, b_shl(b_shr(b_load(p + 1312 + u * kUnit), static_cast<int>(g), 1), 2, 4));
  }
  static void scales(const uint8_t* p, int, Scales& s) {
    same_scale(lanes_f16(p), s.scale);
    sub_scales(as_i8(p + kHalves), -4, s);
  }
};

template <> struct Layout<Format::Q2_K> {
  static constexpr Kind kind = Kind::Sub16Min;
  static constexpr int flush = 4;
  static B lanes(const uint8_t* p, Index g, Index u) {
    return b_shr(b_load(p + 320 + (8 * (g >> 2) + u) * kUnit), static_cast<int>(2 * (g & 3)), 3);
  }
  static void scales(const uint8_t* p, int, Scales& s) {
    same_scale(lanes_f16(p), s.scale);
    same_scale(f_sub(f_zero(), lanes_f16(p + kHalves)), s.min);
    int8_t low[256], high[256];
    for (int i = 0; i < 256; ++i) {
      low[i] = p[64 + i] & 15;
      high[i] = static_cast<int8_t>(p[64 + i] >> 4);
    }
    for (int h = 0; h < 16; ++h) i16_pairs(low + 16 * h, low + 16 * h, 1, s.sub[h]);
    for (int g = 0; g < 8; ++g) i16_pairs(high + 32 * g, high + 32 * g + 16, 1, s.off[g]);
  }
};

template <Format format> static void unpack(const uint8_t* p, int groups, Chunk& c) {
  using L = Layout<format>;
  L::scales(p, groups, c.s);
  for (int g = 0; g < groups; ++g)
    for (int u = 0; u < 8; ++u) b_store(c.w[8 * g + u], L::lanes(p, g, u));
}

}  // namespace octavo::OCTAVO_TIER
