// From the packed layouts (see dispatch/pack.cpp) to chunks. Byte loops over 64-byte rows: the compiler vectorizes them.
#include "chunk.h"

namespace octavo::OCTAVO_TIER {
namespace {

constexpr int kRow = 64;      // bytes of one unit: 16 lanes x 4 elements
constexpr int kHalves = 32;   // bytes of 16 f16

inline F lanes_f16(const uint8_t* p) {
  uint16_t h[16];
  std::memcpy(h, p, sizeof h);
  return f_from_f16(h);
}

inline void nibbles(const uint8_t* p, uint8_t* low, uint8_t* high) {
  for (int i = 0; i < kRow; ++i) {
    uint8_t v = p[i];
    low[i] = v & 15;
    high[i] = v >> 4;
  }
}

// out |= bit `bit` of p, moved to bit `to`.
inline void add_bit(const uint8_t* p, int bit, int to, uint8_t* out) {
  for (int i = 0; i < kRow; ++i) out[i] = static_cast<uint8_t>(out[i] | (((p[i] >> bit) & 1) << to));
}

inline void two_bits(const uint8_t* p, int shift, uint8_t* out) {
  for (int i = 0; i < kRow; ++i) out[i] = (p[i] >> shift) & 3;
}

inline void lookup(const int8_t* table, uint8_t* w) {
#if defined(__AVX2__)
  __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  for (int i = 0; i < kRow; i += 32) {
    auto* p = reinterpret_cast<__m256i*>(w + i);
    _mm256_store_si256(p, _mm256_shuffle_epi8(t, _mm256_load_si256(p)));
  }
#else
  for (int i = 0; i < kRow; ++i) w[i] = static_cast<uint8_t>(table[w[i]]);
#endif
}

// One block of 32 in nibbles: bytes 0..15 hold elements 0..15 low and 16..31 high.
inline void nibble_block(const uint8_t* p, uint8_t (*w)[kRow]) {
  for (int u = 0; u < 4; ++u) nibbles(p + u * kRow, w[u], w[u + 4]);
}

// Integer scales per 16 elements: the lane's scale twice, and offset * scale for the sums.
inline void sub_scale(int s, int offset, int sixteenth, int lane, Chunk& c) {
  c.sub[sixteenth][2 * lane] = c.sub[sixteenth][2 * lane + 1] = static_cast<int16_t>(s);
  c.off[sixteenth / 2][2 * lane + (sixteenth & 1)] = static_cast<int16_t>(offset * s);
}

constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kMxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice the value

inline void five_bit_block(const uint8_t* high, const uint8_t* p, uint8_t (*w)[kRow]) {
  nibble_block(p, w);
  for (int u = 0; u < 8; ++u) add_bit(high, u, 4, w[u]);
}

// d and dmin times the 6-bit scales and minimums of Q4_K and Q5_K: bytes [8][16] each.
inline void k_scales(const uint8_t* p, Chunk& c) {
  F d = lanes_f16(p), dmin = f_sub(f_zero(), lanes_f16(p + kHalves));
  for (int g = 0; g < 8; ++g) {
    f_store(c.scale[g], f_mul(d, f_from_u8(p + 64 + 16 * g)));
    f_store(c.min[g], f_mul(dmin, f_from_u8(p + 192 + 16 * g)));
  }
}

inline void same_scale(F d, float (*scale)[16]) {
  for (int g = 0; g < 8; ++g) f_store(scale[g], d);
}

}  // namespace

template <> void unpack<Format::Q4_0>(const uint8_t* p, int groups, Chunk& c) {
  for (int g = 0; g < groups; ++g, p += kHalves + 4 * kRow) {
    F d = lanes_f16(p);
    f_store(c.scale[g], d);
    f_store(c.min[g], f_mul(d, f_set1(-8.0f)));
    nibble_block(p + kHalves, c.w + 8 * g);
  }
}

template <> void unpack<Format::Q4_1>(const uint8_t* p, int groups, Chunk& c) {
  for (int g = 0; g < groups; ++g, p += 2 * kHalves + 4 * kRow) {
    f_store(c.scale[g], lanes_f16(p));
    f_store(c.min[g], lanes_f16(p + kHalves));
    nibble_block(p + 2 * kHalves, c.w + 8 * g);
  }
}

template <> void unpack<Format::Q5_0>(const uint8_t* p, int groups, Chunk& c) {
  for (int g = 0; g < groups; ++g, p += kHalves + 5 * kRow) {
    F d = lanes_f16(p);
    f_store(c.scale[g], d);
    f_store(c.min[g], f_mul(d, f_set1(-16.0f)));
    five_bit_block(p + kHalves, p + kHalves + kRow, c.w + 8 * g);
  }
}

template <> void unpack<Format::Q5_1>(const uint8_t* p, int groups, Chunk& c) {
  for (int g = 0; g < groups; ++g, p += 2 * kHalves + 5 * kRow) {
    f_store(c.scale[g], lanes_f16(p));
    f_store(c.min[g], lanes_f16(p + kHalves));
    five_bit_block(p + 2 * kHalves, p + 2 * kHalves + kRow, c.w + 8 * g);
  }
}

template <> void unpack<Format::Q8_0>(const uint8_t* p, int groups, Chunk& c) {
  for (int g = 0; g < groups; ++g, p += kHalves + 8 * kRow) {
    f_store(c.scale[g], lanes_f16(p));
    std::memcpy(c.w + 8 * g, p + kHalves, 8 * kRow);
  }
}

template <> void unpack<Format::IQ4_NL>(const uint8_t* p, int groups, Chunk& c) {
  for (int g = 0; g < groups; ++g, p += kHalves + 4 * kRow) {
    f_store(c.scale[g], lanes_f16(p));
    nibble_block(p + kHalves, c.w + 8 * g);
    for (int u = 0; u < 8; ++u) lookup(kIq4, c.w[8 * g + u]);
  }
}

template <> void unpack<Format::MXFP4>(const uint8_t* p, int groups, Chunk& c) {
  for (int g = 0; g < groups; ++g, p += 16 + 4 * kRow) {
    for (int i = 0; i < 16; ++i) {  // half of 2^(e - 127), since the table holds doubled values
      uint32_t e = p[i], bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
      std::memcpy(&c.scale[g][i], &bits, 4);
    }
    nibble_block(p + 16, c.w + 8 * g);
    for (int u = 0; u < 8; ++u) lookup(kMxfp4, c.w[8 * g + u]);
  }
}

template <> void unpack<Format::IQ4_XS>(const uint8_t* p, int, Chunk& c) {
  F d = lanes_f16(p);
  for (int g = 0; g < 8; ++g) {
    int8_t s[16];
    std::memcpy(s, p + kHalves + 16 * g, 16);
    f_store(c.scale[g], f_mul(d, f_from_i8(s)));
    nibble_block(p + 160 + 4 * g * kRow, c.w + 8 * g);
    for (int u = 0; u < 8; ++u) lookup(kIq4, c.w[8 * g + u]);
  }
}

template <> void unpack<Format::Q4_K>(const uint8_t* p, int, Chunk& c) {
  k_scales(p, c);
  const uint8_t* q = p + 320;
  for (int u = 0; u < 32; ++u) nibbles(q + u * kRow, c.w[16 * (u / 8) + u % 8], c.w[16 * (u / 8) + 8 + u % 8]);
}

template <> void unpack<Format::Q5_K>(const uint8_t* p, int, Chunk& c) {
  k_scales(p, c);
  const uint8_t *high = p + 320, *q = p + 832;
  for (int u = 0; u < 32; ++u) {
    uint8_t *a = c.w[16 * (u / 8) + u % 8], *b = c.w[16 * (u / 8) + 8 + u % 8];
    nibbles(q + u * kRow, a, b);
    add_bit(high + (u % 8) * kRow, 2 * (u / 8), 4, a);
    add_bit(high + (u % 8) * kRow, 2 * (u / 8) + 1, 4, b);
  }
}

template <> void unpack<Format::Q6_K>(const uint8_t* p, int, Chunk& c) {
  same_scale(lanes_f16(p), c.scale);
  for (int h = 0; h < 16; ++h)
    for (int i = 0; i < 16; ++i) sub_scale(static_cast<int8_t>(p[kHalves + 16 * h + i]), -32, h, i, c);
  const uint8_t *ql = p + 288, *qh = p + 2336;
  for (int half = 0; half < 2; ++half)
    for (int u = 0; u < 8; ++u) {
      const uint8_t *l0 = ql + (16 * half + u) * kRow, *l1 = l0 + 8 * kRow, *h = qh + (8 * half + u) * kRow;
      uint8_t *w0 = c.w[32 * half + u], *w1 = c.w[32 * half + 8 + u];
      uint8_t *w2 = c.w[32 * half + 16 + u], *w3 = c.w[32 * half + 24 + u];
      for (int i = 0; i < kRow; ++i) {
        uint8_t a = l0[i], b = l1[i], v = h[i];
        w0[i] = static_cast<uint8_t>((a & 15) | ((v & 3) << 4));
        w1[i] = static_cast<uint8_t>((b & 15) | ((v & 12) << 2));
        w2[i] = static_cast<uint8_t>((a >> 4) | (v & 48));
        w3[i] = static_cast<uint8_t>((b >> 4) | ((v & 192) >> 2));
      }
    }
}

template <> void unpack<Format::Q3_K>(const uint8_t* p, int, Chunk& c) {
  same_scale(lanes_f16(p), c.scale);
  for (int h = 0; h < 16; ++h)
    for (int i = 0; i < 16; ++i) sub_scale(static_cast<int8_t>(p[kHalves + 16 * h + i]), -4, h, i, c);
  const uint8_t *q = p + 288, *high = p + 1312;
  for (int g = 0; g < 8; ++g)
    for (int u = 0; u < 8; ++u) {
      two_bits(q + (8 * (g / 4) + u) * kRow, 2 * (g % 4), c.w[8 * g + u]);
      add_bit(high + u * kRow, g, 2, c.w[8 * g + u]);
    }
}

template <> void unpack<Format::Q2_K>(const uint8_t* p, int, Chunk& c) {
  same_scale(lanes_f16(p), c.scale);
  same_scale(f_sub(f_zero(), lanes_f16(p + kHalves)), c.min);
  for (int h = 0; h < 16; ++h)
    for (int i = 0; i < 16; ++i) {
      uint8_t s = p[64 + 16 * h + i];
      c.sub[h][2 * i] = c.sub[h][2 * i + 1] = s & 15;
      c.off[h / 2][2 * i + (h & 1)] = s >> 4;
    }
  const uint8_t* q = p + 320;
  for (int g = 0; g < 8; ++g)
    for (int u = 0; u < 8; ++u) two_bits(q + (8 * (g / 4) + u) * kRow, 2 * (g % 4), c.w[8 * g + u]);
}

}  // namespace octavo::OCTAVO_TIER
