// AVX-512 (F, BW, VL, DQ) with VNNI: sixteen lanes are one register.
#pragma once
#include <immintrin.h>

namespace octavo::OCTAVO_TIER {

constexpr int kRows = 6;        // rows of a pass: 12 dots, 12 sums, 2 weights, 1 activation of 32 registers
constexpr int kPanels = 2;      // panels of a pass: each activation broadcast is used twice
constexpr int kDirectRows = 6;  // up to so many rows read packed weights without a chunk
constexpr bool kExactDots = true;
constexpr int kAttendRows = 6;     // rows and vectors of an attention tile: 24 sums, 4 keys or values, 1 broadcast
constexpr int kAttendVectors = 4;

struct F { __m512 v; };    // 16 x f32
struct I { __m512i v; };   // 16 x i32
struct B { __m512i v; };   // 16 lanes x 4 bytes
struct A4 { __m512i v; };  // four activations, in every lane

static inline F f_load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void f_store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
static inline F f_set1(float x) { return {_mm512_set1_ps(x)}; }
static inline F f_zero() { return {_mm512_setzero_ps()}; }
static inline F f_add(F x, F y) { return {_mm512_add_ps(x.v, y.v)}; }
static inline F f_sub(F x, F y) { return {_mm512_sub_ps(x.v, y.v)}; }
static inline F f_mul(F x, F y) { return {_mm512_mul_ps(x.v, y.v)}; }
static inline F f_div(F x, F y) { return {_mm512_div_ps(x.v, y.v)}; }
static inline F f_fma(F x, F y, F z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
static inline F f_max(F x, F y) { return {_mm512_max_ps(x.v, y.v)}; }
static inline F f_min(F x, F y) { return {_mm512_min_ps(x.v, y.v)}; }
static inline F f_abs(F x) { return {_mm512_abs_ps(x.v)}; }
static inline F f_round(F x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// x * 2^n for whole n in [-126, 127].
static inline F f_scale2(F x, F n) {
  const __m512i e = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23);
  return {_mm512_mul_ps(x.v, _mm512_castsi512_ps(e))};
}
// x where y >= bound, else 0.
static inline F f_zero_below(F x, F y, F bound) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y.v, bound.v, _CMP_GE_OQ), x.v)};
}
// One bit per lane where x > bound.
static inline unsigned f_above(F x, F bound) { return _mm512_cmp_ps_mask(x.v, bound.v, _CMP_GT_OQ); }
// Lanes of x whose bit is set, `other` elsewhere.
static inline F f_keep(F x, unsigned bits, float other) {
  return {_mm512_mask_mov_ps(_mm512_set1_ps(other), static_cast<__mmask16>(bits), x.v)};
}
// Eight numbers, each twice: p0, p0, p1, p1, ...
static inline F f_twice(const float* p) {
  const __m512i lanes = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return {_mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(_mm256_loadu_ps(p)))};
}
// Each lane's neighbour: 1, 0, 3, 2, ...
static inline F f_swap(F x) { return {_mm512_permute_ps(x.v, 0xb1)}; }
static inline F f_from_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline F f_from_bf16(const uint16_t* p) {
  const __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))};
}
// Sixteen pairs of bf16: the even and the odd element of each lane.
static inline void f_from_bf16_pairs(const uint16_t* p, F& even, F& odd) {
  const __m512i w = _mm512_loadu_si512(p);
  even = {_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))};
  odd = {_mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
static inline F f_from_u8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
static inline void f_to_f16(uint16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
static inline void f_to_bf16(uint16_t* p, F x) {  // round to nearest even; NaN stays NaN
  const __m512i bits = _mm512_castps_si512(x.v), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i even = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  const __m512i out = _mm512_mask_mov_epi32(even, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(out));
}
static inline float f16_to_f32(uint16_t h) { return _cvtsh_ss(h); }
static inline uint16_t f32_to_f16(float f) { return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT); }
// Round to int8 (values are within +-127), 16 bytes.
static inline void f_to_i8(int8_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

// Horizontal results add the lanes in one fixed tree: i with i + 8, then + 4, + 2, + 1.
static inline float f_sum(F x) {
  const __m256 s = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
static inline float f_hmax(F x) {
  const __m256 s = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

static inline I i_zero() { return {_mm512_setzero_si512()}; }
static inline I i_set1(int x) { return {_mm512_set1_epi32(x)}; }
static inline I i_load(const void* p) { return {_mm512_loadu_si512(p)}; }
static inline void i_store(void* p, I x) { _mm512_storeu_si512(p, x.v); }
static inline I i_add(I x, I y) { return {_mm512_add_epi32(x.v, y.v)}; }
static inline I i_mul(I x, I y) { return {_mm512_mullo_epi32(x.v, y.v)}; }
static inline F f_from_i(I x) { return {_mm512_cvtepi32_ps(x.v)}; }
static inline I i_from_i8(const int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// acc + s[lane][0] * pair[0] + s[lane][1] * pair[1]; s i16 [16][2].
static inline I i_pair(I acc, const int16_t* s, const int16_t* pair) {
  int32_t v;
  std::memcpy(&v, pair, 4);
  return {_mm512_dpwssd_epi32(acc.v, _mm512_load_si512(s), _mm512_set1_epi32(v))};
}
// Lane i of s i16 [16][2], element h.
static inline I i_half(const int16_t* s, int h) {
  const __m512i w = _mm512_load_si512(s);
  return {_mm512_srai_epi32(h ? w : _mm512_slli_epi32(w, 16), 16)};
}

static inline B b_load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
static inline void b_store(uint8_t* p, B x) { _mm512_storeu_si512(p, x.v); }
// Bytes shifted by n (0..7), then masked; the mask clears what crosses a byte.
static inline B b_shr(B x, int n, int mask) {
  if (!(__builtin_constant_p(n) && n == 0)) x.v = _mm512_srli_epi16(x.v, static_cast<unsigned>(n));
  return {_mm512_and_si512(x.v, _mm512_set1_epi8(static_cast<char>(mask)))};
}
static inline B b_shl(B x, int n, int mask) {
  return {_mm512_and_si512(_mm512_slli_epi16(x.v, static_cast<unsigned>(n)), _mm512_set1_epi8(static_cast<char>(mask)))};
}
static inline B b_or(B x, B y) { return {_mm512_or_si512(x.v, y.v)}; }
static inline B b_xor(B x, int byte) { return {_mm512_xor_si512(x.v, _mm512_set1_epi8(static_cast<char>(byte)))}; }
static inline B b_lookup(const uint8_t* table, B x) {
  const __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm512_shuffle_epi8(t, x.v)};
}
// Byte i of each lane, unsigned.
static inline I b_byte(B x, int i) {
  return {_mm512_and_si512(_mm512_srl_epi32(x.v, _mm_cvtsi32_si128(8 * i)), _mm512_set1_epi32(255))};
}

static inline A4 four(const int8_t* a) {
  int32_t v;
  std::memcpy(&v, a, 4);
  return {_mm512_set1_epi32(v)};
}
// acc += w . a over 4 elements, w unsigned.
static inline I i_dot(I acc, B w, A4 a) {
  I out = {_mm512_dpbusd_epi32(acc.v, w.v, a.v)};
  asm("" : "+v"(out.v));  // one chain a sum, in the order written: left alone, the compiler spills a tree of them
  return out;
}


// Integer scales, 16 x int8 to 64 bytes as `i_scaled` wants them.
static inline void sub_store(const int8_t* scale, void* sub) { i_store(sub, i_from_i8(scale)); }
static inline I sub_lanes(const void* sub) { return i_load(sub); }
static inline I i_scaled(I x, const void* sub) { return i_mul(x, i_load(sub)); }
// out[2i] = factor * x[i], out[2i + 1] = factor * y[i], sixteen each.
static inline void i16_pairs(const int8_t* x, const int8_t* y, int factor, int16_t* out) {
  const __m512i even = i_from_i8(x).v, odd = _mm512_slli_epi32(i_from_i8(y).v, 16);
  const __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaau, even, odd);
  _mm512_store_si512(out, _mm512_mullo_epi16(both, _mm512_set1_epi16(static_cast<int16_t>(factor))));
}

// Hides from the compiler that w is the same as before.
static inline void opaque(B& w) { asm volatile("" : "+v"(w.v)); }

// The same for a sum: what follows cannot be moved before it.
static inline void pin(F& x) { asm volatile("" : "+v"(x.v)); }

// In assembly: the compiler drops a loop of prefetches as one without effect.
static inline void prefetch(const void* p) { asm volatile("prefetcht0 (%0)" : : "r"(p)); }
static inline void prefetch_write(const void* p) { asm volatile("prefetchw (%0)" : : "r"(p)); }

}  // namespace octavo::OCTAVO_TIER
