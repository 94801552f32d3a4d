// Row-wise functions: norms, activation quantization, gates. A row's result depends on that row alone.
#include "rows.h"

#include <limits>

#include "simd.h"

namespace octavo::OCTAVO_TIER {
namespace {

// Up to 16 floats, zeros past n.
inline F load_tail(const float* p, int n) {
  if (n >= 16) return f_load(p);
  alignas(64) float v[16] = {};
  for (int i = 0; i < n; ++i) v[i] = p[i];
  return f_load(v);
}

inline void store_tail(float* p, F x, int n) {
  if (n >= 16) return f_store(p, x);
  alignas(64) float v[16];
  f_store(v, x);
  for (int i = 0; i < n; ++i) p[i] = v[i];
}

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, int n, float* y) {
  F sum = f_zero();
  for (int i = 0; i < n; i += 16) {
    F v = load_tail(x + i, n - i);
    sum = f_fma(v, v, sum);
  }
  const F scale = f_set1(1.0f / std::sqrt(f_sum(sum) / static_cast<float>(n) + eps));
  for (int i = 0; i < n; i += 16) {
    F v = f_mul(load_tail(x + i, n - i), scale);
    store_tail(y + i, f_mul(v, load_tail(weight + i, n - i)), n - i);
  }
}

namespace {

constexpr float kSmall = 1e-15f;
constexpr float kLeast = 1e-36f;  // 127 over less is no float; the scale would be denormal, and so 0

inline float max_float(float a, float b) { return a > b ? a : b; }

bool finite(const float* x, int n) {
  for (int i = 0; i < n; ++i)
    if (!std::isfinite(x[i])) return false;
  return true;
}

// A row with NaN or infinity in it: its scales, and so all results, are NaN.
int refuse_row(const Activations& a, int row, int32_t* counts) {
  for (int k0 = 0; k0 < a.k; k0 += kChunk) {
    const int c = k0 / kChunk;
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(c) * a.rows + row;
    counts[c] = 0;
    a.scale[at] = std::numeric_limits<float>::quiet_NaN();
    std::memset(a.q + a.start(k0, row), 0, min_int(kChunk, a.k - k0));
    std::memset(a.sum16 + 16 * at, 0, 16 * sizeof *a.sum16);
    std::memset(a.sum32 + 8 * at, 0, 8 * sizeof *a.sum32);
  }
  return 0;
}

}  // namespace

int quantize(const float* x, const Activations& a, int row, Outlier* outliers, int32_t* counts) {
  F squares = f_zero();
  for (int i = 0; i < a.k; i += 16) {
    const F v = f_load(x + i);
    squares = f_fma(v, v, squares);
  }
  const float mean = f_sum(squares) / static_cast<float>(a.k);
  if (!std::isfinite(mean) && !finite(x, a.k)) return refuse_row(a, row, counts);
  // Squares of numbers far below kSmall vanish, and above a bound of 0 everything would be an outlier.
  const F bound = f_set1(max_float(kOutlier * std::sqrt(mean), kSmall));
  const F below = f_sub(f_zero(), bound);
  int found = 0;
  for (int k0 = 0; k0 < a.k; k0 += kChunk) {
    const int n = min_int(kChunk, a.k - k0), before = found, c = k0 / kChunk;
    alignas(64) float kept[kChunk];
    F top = f_zero();
    for (int i = 0; i < n; i += 16) {
      const F v = f_load(x + k0 + i), size = f_abs(v);
      const F small = f_zero_below(v, f_sub(f_zero(), size), below);
      for (unsigned large = f_above(size, bound); large; large &= large - 1) {
        const int at = i + __builtin_ctz(large);
        outliers[found++] = {static_cast<uint16_t>(row % kBlockRows), static_cast<uint16_t>(at), x[k0 + at]};
      }
      f_store(kept + i, small);
      top = f_max(top, f_abs(small));
    }
    counts[c] = found - before;
    const float most = f_hmax(top), inverse = most > kLeast ? 127.0f / most : 0.0f;
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(c) * a.rows + row;
    int8_t* q = a.q + a.start(k0, row);
    a.scale[at] = most / 127.0f;
    for (int i = 0; i < n; i += 16) {
      const F whole = f_round(f_mul(f_load(kept + i), f_set1(inverse)));
      f_to_i8(q + i, whole);
      a.sum16[16 * at + i / 16] = static_cast<int16_t>(f_sum(whole));
    }
    for (int g = 0; g < n / kGroup; ++g)
      a.sum32[8 * at + g] = static_cast<int16_t>(a.sum16[16 * at + 2 * g] + a.sum16[16 * at + 2 * g + 1]);
    for (int g = n / kGroup; g < kChunk / kGroup; ++g)
      a.sum32[8 * at + g] = a.sum16[16 * at + 2 * g] = a.sum16[16 * at + 2 * g + 1] = 0;
  }
  return found;
}

void gate(Act act, const float* g, const float* up, int n, float* y) {
  const F one = f_set1(1.0f), zero = f_zero();
  for (int i = 0; i < n; i += 16) {
    F x = load_tail(g + i, n - i), z = x;
    if (act == Act::GeluTanh) {  // 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
      F cube = f_mul(f_mul(x, x), x);
      z = f_mul(f_fma(cube, f_set1(0.044715f), x), f_set1(2.0f * 0.7978845608028654f));
    }
    F s = f_div(x, f_add(one, f_exp(f_sub(zero, z))));
    store_tail(y + i, f_mul(s, load_tail(up + i, n - i)), n - i);
  }
}

void add(const float* a, const float* b, int n, float* y) {
  for (int i = 0; i < n; i += 16) store_tail(y + i, f_add(load_tail(a + i, n - i), load_tail(b + i, n - i)), n - i);
}

void store_rows(const float* const acc[2], int rows, int n, const float* bias, const float* residual, float* y,
                std::ptrdiff_t stride) {
  constexpr int ahead = 8;  // rows lie a page or more apart: nothing else fetches them in time
  for (int r = 0; r < rows; ++r) {
    const bool more = r + ahead < rows;
    for (int i = 0, panel = 0; i < n; i += kLanes, ++panel) {
      const std::ptrdiff_t at = r * stride + i;
      if (more) {
        prefetch_write(y + at + ahead * stride);
        if (residual) prefetch(residual + at + ahead * stride);
      }
      F v = f_load(acc[panel] + r * kLanes);
      if (bias) v = f_add(v, load_tail(bias + i, n - i));
      if (residual) v = f_add(v, load_tail(residual + at, n - i));
      store_tail(y + at, v, n - i);
    }
  }
}

void softcap(float* x, std::ptrdiff_t n, float cap) {
  for (std::ptrdiff_t i = 0; i < n; i += 16) {
    const int m = n - i < 16 ? static_cast<int>(n - i) : 16;
    store_tail(x + i, f_mul(f_tanh(f_div(load_tail(x + i, m), f_set1(cap))), f_set1(cap)), m);
  }
}

uint64_t stream(const uint8_t* p, std::size_t n) {
  I sum[4] = {i_zero(), i_zero(), i_zero(), i_zero()};
  for (std::size_t i = 0; i + 256 <= n; i += 256)
    for (int j = 0; j < 4; ++j) sum[j] = i_add(sum[j], i_load(p + i + 64 * j));
  const I all = i_add(i_add(sum[0], sum[1]), i_add(sum[2], sum[3]));
  return static_cast<uint64_t>(f_sum(f_abs(f_from_i(all))));
}

namespace {

constexpr int kChains = kRows * kPanels < 4 ? 4 : kRows * kPanels;  // independent sums, as many as a pass has

}  // namespace

float peak_int8(int64_t steps) {
  alignas(64) uint8_t w[64];
  const int8_t a[4] = {1, 2, 3, 4};
  for (int i = 0; i < 64; ++i) w[i] = static_cast<uint8_t>(i % 16);
  B lanes = b_load(w);
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(OCTAVO_AVX_VNNI)
  H sum[kChains];
  for (auto& h : sum) h = h_zero();
  const auto dot = [](H x, B b, A4 y) { return h_dot(x, b, y); };
  const auto whole = [](H x) { return h_sum(x); };
#else
  I sum[kChains];
  for (auto& h : sum) h = i_zero();
  const auto dot = [](I x, B b, A4 y) { return i_dot(x, b, y); };
  const auto whole = [](I x) { return x; };
#endif
  for (int64_t s = 0; s < steps; ++s) {
    opaque(lanes);
    const A4 x = four(a);
    for (int i = 0; i < kPeakMacs / 64 / kChains; ++i)
#pragma GCC unroll 12
      for (auto& h : sum) h = dot(h, lanes, x);
  }
  I total = i_zero();
  for (auto& h : sum) total = i_add(total, whole(h));
  return f_sum(f_from_i(total));
}

float peak_f32(int64_t steps) {
  F sum[kChains];
#pragma GCC unroll 12
  for (auto& x : sum) x = f_zero();
  float one = 1.0f;
  for (int64_t s = 0; s < steps; ++s) {
    asm volatile("" : "+x"(one));  // not the same as before, as far as the compiler knows
    const F w = f_set1(one);
    for (int i = 0; i < kPeakMacs / 16 / kChains; ++i)
#pragma GCC unroll 12
      for (auto& x : sum) {
        x = f_fma(w, w, x);
        pin(x);
      }
  }
  F total = f_zero();
#pragma GCC unroll 12
  for (auto& x : sum) total = f_add(total, x);
  return f_sum(total);
}

}  // namespace octavo::OCTAVO_TIER
