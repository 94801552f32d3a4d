// Plain C++: what any compiler vectorizes as it can. The oracle of the other tiers, and what unknown machines run.
#pragma once

namespace octavo::OCTAVO_TIER {

constexpr int kRows = 1;
constexpr int kPanels = 1;
constexpr int kDirectRows = 0;
constexpr bool kExactDots = true;
constexpr int kAttendRows = 1;  // rows and vectors of an attention tile
constexpr int kAttendVectors = 1;

struct F { float v[16]; };
struct I { int32_t v[16]; };
struct B { uint8_t v[64]; };
struct A4 { int8_t v[4]; };

#define OCTAVO_EACH(expr) \
  do {                    \
    F out_;               \
    for (int i = 0; i < 16; ++i) out_.v[i] = (expr); \
    return out_;          \
  } while (0)

static inline F f_load(const float* p) { OCTAVO_EACH(p[i]); }
static inline void f_store(float* p, F x) { std::memcpy(p, x.v, sizeof x.v); }
static inline F f_set1(float x) { OCTAVO_EACH(x); }
static inline F f_zero() { OCTAVO_EACH(0.0f); }
static inline F f_add(F x, F y) { OCTAVO_EACH(x.v[i] + y.v[i]); }
static inline F f_sub(F x, F y) { OCTAVO_EACH(x.v[i] - y.v[i]); }
static inline F f_mul(F x, F y) { OCTAVO_EACH(x.v[i] * y.v[i]); }
static inline F f_div(F x, F y) { OCTAVO_EACH(x.v[i] / y.v[i]); }
static inline F f_fma(F x, F y, F z) { OCTAVO_EACH(std::fma(x.v[i], y.v[i], z.v[i])); }
static inline F f_max(F x, F y) { OCTAVO_EACH(x.v[i] > y.v[i] ? x.v[i] : y.v[i]); }
static inline F f_min(F x, F y) { OCTAVO_EACH(x.v[i] < y.v[i] ? x.v[i] : y.v[i]); }
static inline F f_abs(F x) { OCTAVO_EACH(std::fabs(x.v[i])); }
static inline F f_round(F x) { OCTAVO_EACH(std::nearbyint(x.v[i])); }
static inline F f_scale2(F x, F n) { OCTAVO_EACH(x.v[i] * std::ldexp(1.0f, static_cast<int>(n.v[i]))); }
static inline F f_zero_below(F x, F y, F bound) { OCTAVO_EACH(y.v[i] >= bound.v[i] ? x.v[i] : 0.0f); }
static inline unsigned f_above(F x, F bound) {
  unsigned bits = 0;
  for (int i = 0; i < 16; ++i) bits |= static_cast<unsigned>(x.v[i] > bound.v[i]) << i;
  return bits;
}
static inline F f_keep(F x, unsigned bits, float other) { OCTAVO_EACH(bits >> i & 1 ? x.v[i] : other); }
static inline F f_twice(const float* p) { OCTAVO_EACH(p[i / 2]); }
static inline F f_swap(F x) { OCTAVO_EACH(x.v[i ^ 1]); }

static inline float f16_to_f32(uint16_t h) {
  uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 1023u, bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | (fraction << 13);
  } else if (exponent) {
    bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  } else {  // zero or subnormal: fraction * 2^-24 is exact
    float f = static_cast<float>(fraction) * 5.9604644775390625e-8f;
    std::memcpy(&bits, &f, 4);
    bits |= sign;
  }
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
static inline uint16_t f32_to_f16(float f) {  // round to nearest even
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal: the addition rounds at 2^-24
    float m, magic = 0.5f;
    std::memcpy(&m, &magnitude, 4);
    m += magic;
    uint32_t rounded, base;
    std::memcpy(&rounded, &m, 4);
    std::memcpy(&base, &magic, 4);
    return static_cast<uint16_t>(sign | (rounded - base));
  }
  uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}
static inline float bf16_bits(uint16_t h) {
  uint32_t bits = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
static inline F f_from_f16(const uint16_t* p) { OCTAVO_EACH(f16_to_f32(p[i])); }
static inline F f_from_bf16(const uint16_t* p) { OCTAVO_EACH(bf16_bits(p[i])); }
static inline void f_from_bf16_pairs(const uint16_t* p, F& even, F& odd) {
  for (int i = 0; i < 16; ++i) {
    even.v[i] = bf16_bits(p[2 * i]);
    odd.v[i] = bf16_bits(p[2 * i + 1]);
  }
}
static inline F f_from_u8(const uint8_t* p) { OCTAVO_EACH(static_cast<float>(p[i])); }
static inline void f_to_f16(uint16_t* p, F x) {
  for (int i = 0; i < 16; ++i) p[i] = f32_to_f16(x.v[i]);
}
static inline uint16_t f32_to_bf16(float f) {  // round to nearest even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}
static inline void f_to_bf16(uint16_t* p, F x) {
  for (int i = 0; i < 16; ++i) p[i] = f32_to_bf16(x.v[i]);
}
static inline void f_to_i8(int8_t* p, F x) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(std::nearbyint(x.v[i]));
}

static inline float f_sum(F x) {
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) x.v[i] += x.v[i + step];
  return x.v[0];
}
static inline float f_hmax(F x) {
  float m = x.v[0];
  for (int i = 1; i < 16; ++i) m = x.v[i] > m ? x.v[i] : m;
  return m;
}

static inline I i_zero() { return {}; }
static inline I i_load(const void* p) {
  I x;
  std::memcpy(x.v, p, sizeof x.v);
  return x;
}
static inline I i_set1(int n) {
  I x;
  for (auto& v : x.v) v = n;
  return x;
}
static inline void i_store(void* p, I x) { std::memcpy(p, x.v, sizeof x.v); }
static inline I i_mul(I x, I y) {
  for (int i = 0; i < 16; ++i) x.v[i] *= y.v[i];
  return x;
}
static inline I i_from_i8(const int8_t* p) {
  I x;
  for (int i = 0; i < 16; ++i) x.v[i] = p[i];
  return x;
}
static inline I i_add(I x, I y) {
  for (int i = 0; i < 16; ++i) x.v[i] = static_cast<int32_t>(static_cast<uint32_t>(x.v[i]) + static_cast<uint32_t>(y.v[i]));
  return x;
}
static inline F f_from_i(I x) { OCTAVO_EACH(static_cast<float>(x.v[i])); }

static inline B b_load(const uint8_t* p) {
  B x;
  std::memcpy(x.v, p, sizeof x.v);
  return x;
}
static inline void b_store(uint8_t* p, B x) { std::memcpy(p, x.v, sizeof x.v); }
static inline B b_shr(B x, int n, int mask) {
  for (auto& v : x.v) v = static_cast<uint8_t>((v >> n) & mask);
  return x;
}
static inline B b_shl(B x, int n, int mask) {
  for (auto& v : x.v) v = static_cast<uint8_t>((v << n) & mask);
  return x;
}
static inline B b_or(B x, B y) {
  for (int i = 0; i < 64; ++i) x.v[i] = static_cast<uint8_t>(x.v[i] | y.v[i]);
  return x;
}
static inline B b_xor(B x, int byte) {
  for (auto& v : x.v) v = static_cast<uint8_t>(v ^ byte);
  return x;
}
static inline B b_lookup(const uint8_t* table, B x) {
  for (auto& v : x.v) v = table[v];
  return x;
}
static inline I b_byte(B x, int n) {
  I out;
  for (int i = 0; i < 16; ++i) out.v[i] = x.v[4 * i + n];
  return out;
}

static inline A4 four(const int8_t* a) {
  A4 x;
  std::memcpy(x.v, a, 4);
  return x;
}
static inline I i_dot(I acc, B w, A4 a) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 4; ++j) acc.v[i] += w.v[4 * i + j] * a.v[j];
  return acc;
}
static inline I i_pair(I acc, const int16_t* s, const int16_t* pair) {
  for (int i = 0; i < 16; ++i) acc.v[i] += s[2 * i] * pair[0] + s[2 * i + 1] * pair[1];
  return acc;
}
static inline I i_half(const int16_t* s, int h) {
  I out;
  for (int i = 0; i < 16; ++i) out.v[i] = s[2 * i + h];
  return out;
}
static inline void sub_store(const int8_t* scale, void* sub) { i_store(sub, i_from_i8(scale)); }
static inline I sub_lanes(const void* sub) { return i_load(sub); }
static inline I i_scaled(I x, const void* sub) { return i_mul(x, i_load(sub)); }

// out[2i] = factor * x[i], out[2i + 1] = factor * y[i], sixteen each.
static inline void i16_pairs(const int8_t* x, const int8_t* y, int factor, int16_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[2 * i] = static_cast<int16_t>(factor * x[i]);
    out[2 * i + 1] = static_cast<int16_t>(factor * y[i]);
  }
}

// Hides from the compiler that w is the same as before.
static inline void opaque(B& w) { asm volatile("" : : "r"(w.v) : "memory"); }

// The same for a sum: what follows cannot be moved before it.
static inline void pin(F& x) { asm volatile("" : : "r"(x.v) : "memory"); }

static inline void prefetch(const void*) {}
static inline void prefetch_write(const void*) {}

#undef OCTAVO_EACH

}  // namespace octavo::OCTAVO_TIER
