// AVX2 + FMA + F16C, and with OCTAVO_AVX_VNNI its dot instruction: sixteen lanes are two 256-bit registers.
#pragma once
#include <immintrin.h>

namespace octavo::OCTAVO_TIER {

constexpr int kRows = 4;  // rows of a pass: 8 partial sums, 2 weights, 1 activation, 2 products of 16 registers
constexpr int kPanels = 1;
constexpr int kDirectRows = 4;  // up to so many rows read packed weights without a chunk
constexpr int kAttendRows = 6;  // rows and vectors of an attention tile: 12 sums, 2 of a key or value, 1 broadcast
constexpr int kAttendVectors = 1;
#if defined(OCTAVO_AVX_VNNI)
constexpr bool kExactDots = true;
#else
constexpr bool kExactDots = false;
#endif

struct F { __m256 a, b; };    // 16 x f32
struct I { __m256i a, b; };   // 16 x i32
struct B { __m256i a, b; };   // 16 lanes x 4 bytes
struct A4 { __m256i v; };     // four activations, in every lane

static inline F f_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void f_store(float* p, F x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
static inline F f_set1(float x) { __m256 v = _mm256_set1_ps(x); return {v, v}; }
static inline F f_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline F f_add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline F f_sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static inline F f_mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
static inline F f_div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
static inline F f_fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
static inline F f_max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static inline F f_min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
static inline F f_abs(F x) {
  __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
}
static inline F f_round(F x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
// x * 2^n for whole n in [-126, 127].
static inline F f_scale2(F x, F n) {
  auto pow2 = [](__m256 v) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127)), 23));
  };
  return {_mm256_mul_ps(x.a, pow2(n.a)), _mm256_mul_ps(x.b, pow2(n.b))};
}
// x where y >= bound, else 0.
static inline F f_zero_below(F x, F y, F bound) {
  return {_mm256_and_ps(x.a, _mm256_cmp_ps(y.a, bound.a, _CMP_GE_OQ)),
          _mm256_and_ps(x.b, _mm256_cmp_ps(y.b, bound.b, _CMP_GE_OQ))};
}
// One bit per lane where x > bound.
static inline unsigned f_above(F x, F bound) {
  const int a = _mm256_movemask_ps(_mm256_cmp_ps(x.a, bound.a, _CMP_GT_OQ));
  const int b = _mm256_movemask_ps(_mm256_cmp_ps(x.b, bound.b, _CMP_GT_OQ));
  return static_cast<unsigned>(a | b << 8);
}
// Lanes of x whose bit is set, `other` elsewhere.
static inline F f_keep(F x, unsigned bits, float other) {
  const __m256i lanes = _mm256_set1_epi32(static_cast<int>(bits));
  const __m256 o = _mm256_set1_ps(other);
  auto keep = [&](__m256i bit) { return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(lanes, bit), bit)); };
  return {_mm256_blendv_ps(o, x.a, keep(_mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128))),
          _mm256_blendv_ps(o, x.b, keep(_mm256_setr_epi32(256, 512, 1024, 2048, 4096, 8192, 16384, 32768)))};
}
// Eight numbers, each twice: p0, p0, p1, p1, ...
static inline F f_twice(const float* p) {
  const __m256 v = _mm256_loadu_ps(p);
  return {_mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
          _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
}
// Each lane's neighbour: 1, 0, 3, 2, ...
static inline F f_swap(F x) { return {_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)}; }
static inline F f_from_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
static inline F f_from_bf16(const uint16_t* p) {
  auto half = [](const uint16_t* s) {
    __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(s)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
  };
  return {half(p), half(p + 8)};
}
// Sixteen pairs of bf16: the even and the odd element of each lane.
static inline void f_from_bf16_pairs(const uint16_t* p, F& even, F& odd) {
  __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  __m256i m = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(a, m)), _mm256_castsi256_ps(_mm256_and_si256(b, m))};
}
static inline F f_from_u8(const uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8))))};
}
static inline void f_to_f16(uint16_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
static inline void f_to_bf16(uint16_t* p, F x) {  // round to nearest even; NaN stays NaN
  auto round = [](__m256 v) {
    const __m256i bits = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i even = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(even, quiet, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
  };
  const __m256i packed = _mm256_packus_epi32(round(x.a), round(x.b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
static inline float f16_to_f32(uint16_t h) { return _cvtsh_ss(h); }
static inline uint16_t f32_to_f16(float f) { return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT); }
// Round to int8 (values are within +-127), 16 bytes.
static inline void f_to_i8(int8_t* p, F x) {
  __m256i w = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
  w = _mm256_permute4x64_epi64(w, 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}

// Horizontal results add the lanes in one fixed tree: i with i + 8, then + 4, + 2, + 1.
static inline float f_sum(F x) {
  __m256 s = _mm256_add_ps(x.a, x.b);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
static inline float f_hmax(F x) {
  __m256 s = _mm256_max_ps(x.a, x.b);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

static inline I i_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
static inline I i_set1(int x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline I i_load(const void* p) {
  auto* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
static inline void i_store(void* p, I x) {
  auto* v = static_cast<__m256i*>(p);
  _mm256_storeu_si256(v, x.a);
  _mm256_storeu_si256(v + 1, x.b);
}
static inline I i_add(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
static inline I i_mul(I x, I y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
static inline F f_from_i(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
static inline __m128i eight_bytes(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
static inline I i_from_i8(const int8_t* p) {
  return {_mm256_cvtepi8_epi32(eight_bytes(p)), _mm256_cvtepi8_epi32(eight_bytes(p + 8))};
}
// acc + s[lane][0] * pair[0] + s[lane][1] * pair[1]; s i16 [16][2].
static inline I i_pair(I acc, const int16_t* s, const int16_t* pair) {
  int32_t v;
  std::memcpy(&v, pair, 4);
  const __m256i p = _mm256_set1_epi32(v);
  auto* lanes = reinterpret_cast<const __m256i*>(s);
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(p, _mm256_load_si256(lanes))),
          _mm256_add_epi32(acc.b, _mm256_madd_epi16(p, _mm256_load_si256(lanes + 1)))};
}
// Lane i of s i16 [16][2], element h.
static inline I i_half(const int16_t* s, int h) {
  auto half = [h](__m256i w) { return _mm256_srai_epi32(h ? w : _mm256_slli_epi32(w, 16), 16); };
  auto* lanes = reinterpret_cast<const __m256i*>(s);
  return {half(_mm256_load_si256(lanes)), half(_mm256_load_si256(lanes + 1))};
}

static inline B b_load(const uint8_t* p) {
  auto* v = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
static inline void b_store(uint8_t* p, B x) {
  auto* v = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(v, x.a);
  _mm256_storeu_si256(v + 1, x.b);
}
// Bytes shifted by n (0..7), then masked; the mask clears what crosses a byte.
static inline B b_shr(B x, int n, int mask) {
  const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
  if (!(__builtin_constant_p(n) && n == 0)) x = {_mm256_srli_epi16(x.a, n), _mm256_srli_epi16(x.b, n)};
  return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
static inline B b_shl(B x, int n, int mask) {
  const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
  return {_mm256_and_si256(_mm256_slli_epi16(x.a, n), m), _mm256_and_si256(_mm256_slli_epi16(x.b, n), m)};
}
static inline B b_or(B x, B y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
static inline B b_xor(B x, int byte) {
  const __m256i m = _mm256_set1_epi8(static_cast<char>(byte));
  return {_mm256_xor_si256(x.a, m), _mm256_xor_si256(x.b, m)};
}
static inline B b_lookup(const uint8_t* table, B x) {
  __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(t, x.a), _mm256_shuffle_epi8(t, x.b)};
}
// Byte i of each lane, unsigned.
static inline I b_byte(B x, int i) {
  const __m128i n = _mm_cvtsi32_si128(8 * i);
  const __m256i m = _mm256_set1_epi32(255);
  return {_mm256_and_si256(_mm256_srl_epi32(x.a, n), m), _mm256_and_si256(_mm256_srl_epi32(x.b, n), m)};
}

static inline A4 four(const int8_t* a) {
  int32_t v;
  std::memcpy(&v, a, 4);
  return {_mm256_set1_epi32(v)};
}

#if defined(OCTAVO_AVX_VNNI)

// acc += w . a over 4 elements, w unsigned.
static inline I i_dot(I acc, B w, A4 a) {
  I out = {_mm256_dpbusd_avx_epi32(acc.a, w.a, a.v), _mm256_dpbusd_avx_epi32(acc.b, w.b, a.v)};
  asm("" : "+x"(out.a), "+x"(out.b));
  return out;
}
// Integer scales, 16 x int8 to 64 bytes as `i_scaled` wants them.
static inline void sub_store(const int8_t* scale, void* sub) { i_store(sub, i_from_i8(scale)); }
static inline I sub_lanes(const void* sub) { return i_load(sub); }
static inline I i_scaled(I x, const void* sub) { return i_mul(x, i_load(sub)); }

#else

struct H { __m256i a, b; };  // 16 lanes x 2 i16 partial sums

static inline H h_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
// acc += w . a over 4 elements, w unsigned; the caller keeps |acc| < 2^15.
// The empty asm pins each step's sums: left alone, the compiler makes a tree of all products of a group and spills them.
static inline H h_dot(H acc, B w, A4 v) {
  acc = {_mm256_add_epi16(acc.a, _mm256_maddubs_epi16(w.a, v.v)), _mm256_add_epi16(acc.b, _mm256_maddubs_epi16(w.b, v.v))};
  asm("" : "+x"(acc.a), "+x"(acc.b));
  return acc;
}
// w signed; one step alone fills 15 bits, so it does not accumulate.
static inline H h_dot_signed(B w, A4 v) {
  return {_mm256_maddubs_epi16(_mm256_abs_epi8(w.a), _mm256_sign_epi8(v.v, w.a)),
          _mm256_maddubs_epi16(_mm256_abs_epi8(w.b), _mm256_sign_epi8(v.v, w.b))};
}
static inline I h_sum(H x) {
  __m256i one = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(x.a, one), _mm256_madd_epi16(x.b, one)};
}
// Integer scales, 16 x int8 to 64 bytes as `h_scaled` wants them: i16, each twice.
static inline void sub_store(const int8_t* scale, void* sub) {
  auto twice = [](const int8_t* p) {
    const __m256i w = _mm256_cvtepi8_epi32(eight_bytes(p));
    return _mm256_blend_epi16(w, _mm256_slli_epi32(w, 16), 0xaa);
  };
  i_store(sub, {twice(scale), twice(scale + 8)});
}
static inline I sub_lanes(const void* sub) { return i_half(static_cast<const int16_t*>(sub), 0); }
// Sum of both partial sums times the lane's scale.
static inline I h_scaled(H x, const void* sub) {
  auto* s = static_cast<const __m256i*>(sub);
  return {_mm256_madd_epi16(x.a, _mm256_load_si256(s)), _mm256_madd_epi16(x.b, _mm256_load_si256(s + 1))};
}

#endif

// out[2i] = factor * x[i], out[2i + 1] = factor * y[i], sixteen each.
static inline void i16_pairs(const int8_t* x, const int8_t* y, int factor, int16_t* out) {
  auto wide = [](const int8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); };
  const __m256i f = _mm256_set1_epi16(static_cast<int16_t>(factor));
  const __m256i a = _mm256_mullo_epi16(wide(x), f), b = _mm256_mullo_epi16(wide(y), f);
  const __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
  auto* to = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(low, high, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(low, high, 0x31));
}

// Hides from the compiler that w is the same as before.
static inline void opaque(B& w) { asm volatile("" : "+x"(w.a), "+x"(w.b)); }

// The same for a sum: what follows cannot be moved before it.
static inline void pin(F& x) { asm volatile("" : "+x"(x.a), "+x"(x.b)); }

// In assembly: the compiler drops a loop of prefetches as one without effect.
static inline void prefetch(const void* p) { asm volatile("prefetcht0 (%0)" : : "r"(p)); }
static inline void prefetch_write(const void* p) { asm volatile("prefetchw (%0)" : : "r"(p)); }

}  // namespace octavo::OCTAVO_TIER
