// Row-wise functions: norms, activation quantization, gates. A row's result depends on that row alone.
#include "rows.h"

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

// Symmetric int8 of one group: scale = max |x| / 127, so that |q| <= 127 always.
inline void quantize_group(F a, F b, float top, const Quantized& to) {
  const float d = top / 127.0f, inverse = top > 0 ? 127.0f / top : 0.0f;
  f_to_i8(to.q, f_round(f_mul(a, f_set1(inverse))));
  f_to_i8(to.q + 16, f_round(f_mul(b, f_set1(inverse))));
  int first = 0, second = 0;
  for (int i = 0; i < 16; ++i) {
    first += to.q[i];
    second += to.q[16 + i];
  }
  to.scale[0] = d;
  to.scaled_sum[0] = d * static_cast<float>(first + second);
  to.sum16[0] = static_cast<int16_t>(first);
  to.sum16[1] = static_cast<int16_t>(second);
}

inline float largest(F a, F b) { return f_hmax(f_max(f_abs(a), f_abs(b))); }

// x - scale * q
inline F lost(F x, const int8_t* q, float scale) { return f_fma(f_from_i8(q), f_set1(-scale), x); }

}  // namespace

void quantize(const float* x, const Activations& a, int row) {
  const int k = a.k;
  F squares = f_zero();
  for (int i = 0; i < k; i += 16) {
    F v = f_load(x + i);
    squares = f_fma(v, v, squares);
  }
  const float bound = kOutlier * std::sqrt(f_sum(squares) / static_cast<float>(k));
  for (int i = 0; i < k; i += kGroup) {
    const std::ptrdiff_t at = a.first(i / kChunk * kChunk, row) + i % kChunk;
    const Quantized main = a.main.at(at), rest = a.rest.at(at);
    const F x0 = f_load(x + i), x1 = f_load(x + i + 16);
    const float top = largest(x0, x1);
    quantize_group(x0, x1, top, main);
    uint8_t& outliers = a.outliers[static_cast<std::ptrdiff_t>(i / kChunk) * a.rows + row];
    if (i % kChunk == 0) outliers = 0;
    if (top > bound) {
      outliers = static_cast<uint8_t>(outliers | 1 << (i % kChunk / kGroup));
      const F r0 = lost(x0, main.q, main.scale[0]), r1 = lost(x1, main.q + 16, main.scale[0]);
      quantize_group(r0, r1, largest(r0, r1), rest);
    } else {  // nothing to add, if another row of its set has a second term
      rest.scale[0] = rest.scaled_sum[0] = 0;
    }
  }
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
  for (int i = 0; i < n; ++i) y[i] = a[i] + b[i];
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

int64_t dot(int64_t steps) {
  alignas(64) uint8_t w[64];
  int8_t a[4] = {1, 2, 3, 4};
  for (int i = 0; i < 64; ++i) w[i] = static_cast<uint8_t>(i % 16);
  H sum[4] = {h_zero(), h_zero(), h_zero(), h_zero()};
  B lanes = b_load(w);
  for (int64_t s = 0; s < steps; ++s) {
    for (auto& h : sum) {
      opaque(lanes);
      h = h_dot_unsigned(h, lanes, a);
    }
  }
  I total = i_zero();
  for (auto& h : sum) total = i_add(total, h_sum(h));
  return static_cast<int64_t>(f_sum(f_from_i(total)));
}

}  // namespace octavo::OCTAVO_TIER
