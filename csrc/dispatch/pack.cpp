// Packed layouts, per block of a panel (kernels/layouts.h reads them; sizes in dispatch.cpp):
//
//   Q4_0, IQ4_NL   d f16[16] | nibbles, 4 units          unit: 64 bytes, 16 lanes x 4 bytes as they lie in the file
//   Q4_1           d f16[16] | m f16[16] | 4 units
//   Q5_0 (Q5_1)    d (| m) | high bits, 1 unit | 4 units; byte i, bit u of a lane's high bits is element 4u + i's
//   Q8_0           d f16[16] | 8 units, each byte's top bit flipped
//   MXFP4          e u8[16] | 4 units
//   Q2_K           d | dmin | scales u8[16][16] | 16 units
//   Q3_K           d | scales i8[16][16] | 16 units | high bits, 8 units
//   Q4_K           d | dmin | scales u8[8][16] | mins u8[8][16] | 32 units
//   Q5_K           d | dmin | scales | mins | high bits, 8 units | 32 units
//   Q6_K           d | scales i8[16][16] | low, 32 units | high, 16 units
//   IQ4_XS         d | scales i8[8][16] | 32 units
//   INT4_G*        d f16[16] (| zero u8[16]) | 4 units for each 32
//   INT8           scale f32[16] once a panel; 8 units, each byte's top bit flipped
//   FP8_E4M3       scale f32[16] once a panel (B128: a block); units as kernels/fp8.h says
//   BF16           [k / 2][16][2]       F16, F32: [k][16]
#include "pack.h"

#include <cstring>
#include <stdexcept>
#include <utility>

#if defined(__SSE2__)
#include <xmmintrin.h>
#include <emmintrin.h>
#endif

namespace octavo {
namespace {

using Rows = const uint8_t* const*;

constexpr int kUnit = 4 * kLanes;
#if defined(__SSE2__)
constexpr bool kTransposed = true;
#else
constexpr bool kTransposed = false;
#endif

template <int count> inline uint8_t* units(Rows src, int offset, uint8_t* out) {
  int u = 0;
#if defined(__SSE2__)
  for (; u + 4 <= count; u += 4, out += 4 * kUnit)  // 4 x 4 words at a time
    for (int lane = 0; lane < kLanes; lane += 4) {
      auto row = [&](int i) {
        return _mm_castsi128_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src[lane + i] + offset + 4 * u)));
      };
      __m128 a = row(0), b = row(1), c = row(2), d = row(3);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      float* to = reinterpret_cast<float*>(out) + lane;
      _mm_storeu_ps(to, a);
      _mm_storeu_ps(to + 16, b);
      _mm_storeu_ps(to + 32, c);
      _mm_storeu_ps(to + 48, d);
    }
#endif
  if constexpr (count < 4 || !kTransposed)
    for (; u < count; ++u)
      for (int lane = 0; lane < kLanes; ++lane, out += 4) std::memcpy(out, src[lane] + offset + 4 * u, 4);
  return out;
}

inline uint8_t* halves(Rows src, int offset, uint8_t* out) {
  for (int lane = 0; lane < kLanes; ++lane, out += 2) std::memcpy(out, src[lane] + offset, 2);
  return out;
}

inline uint8_t* words(Rows src, int offset, uint8_t* out) {
  for (int lane = 0; lane < kLanes; ++lane, out += 4) std::memcpy(out, src[lane] + offset, 4);
  return out;
}

inline uint8_t* single_bytes(Rows src, int offset, int count, uint8_t* out) {
  for (int i = 0; i < count; ++i)
    for (int lane = 0; lane < kLanes; ++lane) *out++ = src[lane][offset + i];
  return out;
}

// 32 high bits: element j = 4u + i from bit j to byte i, bit u.
inline uint8_t* high_bits(Rows src, int offset, uint8_t* out) {
  for (int lane = 0; lane < kLanes; ++lane, out += 4) {
    uint32_t bits;
    std::memcpy(&bits, src[lane] + offset, 4);
    uint8_t plane[4];
    for (int i = 0; i < 4; ++i) {  // every fourth bit, drawn together
      uint32_t t = (bits >> i) & 0x11111111u;
      t = (t | (t >> 3)) & 0x03030303u;
      t = (t | (t >> 6)) & 0x000f000fu;
      plane[i] = static_cast<uint8_t>(t | (t >> 12));
    }
    std::memcpy(out, plane, 4);
  }
  return out;
}

// The 6-bit scales and minimums of Q4_K and Q5_K, 12 bytes for 8 of each.
inline uint8_t* k_scales(Rows src, int offset, uint8_t* out) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint8_t* s = src[lane] + offset;
    for (int g = 0; g < 8; ++g) {
      const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | ((s[g - 4] >> 6) << 4);
      const int min = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | ((s[g] >> 6) << 4);
      out[16 * g + lane] = static_cast<uint8_t>(scale);
      out[128 + 16 * g + lane] = static_cast<uint8_t>(min);
    }
  }
  return out + 256;
}

// The 6-bit scales of Q3_K: low nibbles in bytes 0..7, two high bits each in bytes 8..11; stored + 32.
inline uint8_t* q3_scales(Rows src, int offset, uint8_t* out) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint8_t* s = src[lane] + offset;
    for (int i = 0; i < 16; ++i) {
      const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4, high = (s[8 + i % 4] >> (2 * (i / 4))) & 3;
      out[16 * i + lane] = static_cast<uint8_t>((low | (high << 4)) - 32);
    }
  }
  return out + 256;
}

// The 6-bit scales of IQ4_XS: low nibbles in 4 bytes, two high bits each in a u16; stored + 32.
inline uint8_t* iq4_xs_scales(Rows src, uint8_t* out) {
  for (int lane = 0; lane < kLanes; ++lane) {
    uint16_t high;
    std::memcpy(&high, src[lane] + 2, 2);
    for (int g = 0; g < 8; ++g) {
      const int low = (src[lane][4 + g / 2] >> (4 * (g % 2))) & 15;
      out[16 * g + lane] = static_cast<uint8_t>((low | (((high >> (2 * g)) & 3) << 4)) - 32);
    }
  }
  return out + 128;
}

// int8 as unsigned bytes, 128 above their value.
inline void flip(uint8_t* from, const uint8_t* to) {
  for (; from < to; ++from) *from ^= 0x80;
}

// Bytes of e4m3 for the bf16 dot: of each four lanes the first two elements, then the last two.
template <int count> inline void fp8_units(Rows src, int offset, uint8_t* out) {
  for (int u = 0; u < count; ++u, out += kUnit)
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint8_t* from = src[lane] + offset + 4 * u;
      uint8_t* to = out + lane / 4 * 16 + lane % 4 * 2;
      std::memcpy(to, from, 2);
      std::memcpy(to + 8, from + 2, 2);
    }
}

// A group of 32 * span nibbles after `used` bytes of scales.
template <int span> inline void int4_group(Rows src, int used, uint8_t* out) {
  for (int i = 0; i < span; ++i) out = units<4>(src, used + 16 * i, out);
}

template <int bytes> inline void elements(Rows src, uint8_t* out) {
  for (int i = 0; i < 2; ++i)
    for (int lane = 0; lane < kLanes; ++lane, out += bytes) std::memcpy(out, src[lane] + i * bytes, bytes);
}

void pack_block(Format format, Rows s, uint8_t* o) {
  switch (format) {
    case Format::F32: return elements<4>(s, o);
    case Format::F16: return elements<2>(s, o);
    case Format::BF16: units<2>(s, 0, o); return;
    case Format::Q4_0:
    case Format::IQ4_NL: units<4>(s, 2, halves(s, 0, o)); return;
    case Format::Q4_1: units<4>(s, 4, halves(s, 2, halves(s, 0, o))); return;
    case Format::Q5_0: units<4>(s, 6, high_bits(s, 2, halves(s, 0, o))); return;
    case Format::Q5_1: units<4>(s, 8, high_bits(s, 4, halves(s, 2, halves(s, 0, o)))); return;
    case Format::Q8_0: return flip(o + 32, units<8>(s, 2, halves(s, 0, o)));
    case Format::INT8: return flip(o, units<8>(s, 0, o));
    case Format::INT4_G32: return int4_group<1>(s, 2, halves(s, 0, o));
    case Format::INT4_G64: return int4_group<2>(s, 2, halves(s, 0, o));
    case Format::INT4_G128: return int4_group<4>(s, 2, halves(s, 0, o));
    case Format::INT4_G32_Z: return int4_group<1>(s, 3, single_bytes(s, 2, 1, halves(s, 0, o)));
    case Format::INT4_G64_Z: return int4_group<2>(s, 3, single_bytes(s, 2, 1, halves(s, 0, o)));
    case Format::INT4_G128_Z: return int4_group<4>(s, 3, single_bytes(s, 2, 1, halves(s, 0, o)));
    case Format::FP8_E4M3: return fp8_units<8>(s, 0, o);
    case Format::FP8_E4M3_B128: return fp8_units<32>(s, 4, words(s, 0, o));
    case Format::MXFP4: units<4>(s, 1, single_bytes(s, 0, 1, o)); return;
    case Format::Q2_K: units<16>(s, 16, single_bytes(s, 0, 16, halves(s, 82, halves(s, 80, o)))); return;
    case Format::Q3_K: units<8>(s, 0, units<16>(s, 32, q3_scales(s, 96, halves(s, 108, o)))); return;
    case Format::Q4_K: units<32>(s, 16, k_scales(s, 4, halves(s, 2, halves(s, 0, o)))); return;
    case Format::Q5_K: units<32>(s, 48, units<8>(s, 16, k_scales(s, 4, halves(s, 2, halves(s, 0, o))))); return;
    case Format::Q6_K: units<16>(s, 128, units<32>(s, 0, single_bytes(s, 192, 16, halves(s, 208, o)))); return;
    case Format::IQ4_XS: units<32>(s, 8, iq4_xs_scales(s, halves(s, 0, o))); return;
    case Format::kCount: return;
  }
}

}  // namespace

Format find_format(const std::string& name) {
  for (int i = 0; i < static_cast<int>(Format::kCount); ++i)
    if (name == kFormats[i].name) return static_cast<Format>(i);
  throw std::invalid_argument("no kernel for storage format " + name);
}

std::size_t row_bytes(Format format, int columns) {
  const FormatInfo& f = info_of(format);
  return f.file_header + static_cast<std::size_t>(columns / f.block) * f.file_bytes;
}

std::size_t panel_bytes(Format format, int columns) {
  const FormatInfo& f = info_of(format);
  return f.packed_header + static_cast<std::size_t>(columns / f.block) * f.packed_bytes;
}

void pack_panel(Format format, const uint8_t* const rows[kLanes], int columns, uint8_t* out) {
  const FormatInfo& f = info_of(format);
  const uint8_t* at[kLanes];
  if (f.packed_header) words(rows, 0, out);
  out += f.packed_header;
  for (int lane = 0; lane < kLanes; ++lane) at[lane] = rows[lane] + f.file_header;
  for (int k = 0; k < columns; k += f.block, out += f.packed_bytes) {
    pack_block(format, at, out);
    for (int lane = 0; lane < kLanes; ++lane) at[lane] += f.file_bytes;
  }
}

std::unique_ptr<PackedLinear> pack(const std::vector<Part>& parts, int columns, std::vector<float> bias, bool gated,
                                   Pool& pool, Arena& arena) {
  std::size_t total = 0;
  for (const Part& p : parts) {
    total += (p.rows + kLanes - 1) / kLanes * panel_bytes(p.format, columns);
    total = (total + 63) / 64 * 64;
  }
  auto w = std::make_unique<PackedLinear>(columns, gated, arena.take(total));
  w->bias = std::move(bias);
  uint8_t* at = w->memory.data;
  for (const Part& p : parts) {
    const std::size_t bytes = row_bytes(p.format, columns);
    const Segment s = {p.format, static_cast<int>(p.rows), w->rows, at, panel_bytes(p.format, columns)};
    pool.run(s.panel_count(), [&, at](int panel) {
      const uint8_t* rows[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        const std::size_t row = static_cast<std::size_t>(panel) * kLanes + lane;
        rows[lane] = p.data + (row < p.rows ? row : p.rows - 1) * bytes;
      }
      pack_panel(p.format, rows, columns, at + panel * s.panel_bytes);
    });
    at += (s.panel_count() * s.panel_bytes + 63) / 64 * 64;
    w->rows += s.rows;
    w->families |= 1u << static_cast<int>(info_of(p.format).family);
    w->segments.push_back(s);
  }
  return w;
}

}  // namespace octavo
