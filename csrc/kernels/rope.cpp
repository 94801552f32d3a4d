// Head norm, rotary embedding, and the write of one token's K and V into its page slot.
#include "rows.h"
#include "simd.h"

namespace octavo::OCTAVO_TIER {
namespace {

constexpr int kMaxHeadDim = 512;

// y = rotated (normed x). Pairs (i, i + rotary/2), or (2i, 2i + 1) if interleaved; the rest passes through.
void turn(const float* x, int n, int position, const RopeArgs& rope, const HeadNorm& norm, float* y) {
  float normed[kMaxHeadDim];
  if (norm.weight) {
    rms_norm(x, norm.weight, norm.eps, n, normed);
    x = normed;
  }
  const int half = rope.cos ? rope.rotary / 2 : 0;
  const float* cos = rope.cos + static_cast<std::ptrdiff_t>(position) * half;
  const float* sin = rope.sin + static_cast<std::ptrdiff_t>(position) * half;
  for (int i = 0; i < half; ++i) {
    const int a = rope.interleaved ? 2 * i : i, b = rope.interleaved ? 2 * i + 1 : i + half;
    const float xa = x[a], xb = x[b], c = cos[i], s = sin[i];
    y[a] = std::fma(-xb, s, xa * c);
    y[b] = std::fma(xa, s, xb * c);
  }
  for (int i = 2 * half; i < n; ++i) y[i] = x[i];
}

inline float within_f16(float x) {  // an infinity in a page would poison whoever reads it
  const float top = 65504.0f;
  return x > top ? top : x < -top ? -top : x;
}

inline void put(const KvPages& kv, void* array, std::ptrdiff_t index, float x) {
  if (kv.type == KvType::F32) static_cast<float*>(array)[index] = x;
  else static_cast<uint16_t*>(array)[index] = kv.type == KvType::F16 ? f32_to_f16(within_f16(x)) : f32_to_bf16(x);
}

}  // namespace

void rope_kv(const float* qkv, int heads, const KvPages& kv, int page, int offset, int position, const RopeArgs& rope,
             const HeadNorm& q_norm, const HeadNorm& k_norm, float* q_out) {
  const int n = kv.head_dim;
  for (int h = 0; h < heads; ++h) turn(qkv + h * n, n, position, rope, q_norm, q_out + h * n);
  const float *k = qkv + heads * n, *v = k + kv.kv_heads * n;
  for (int h = 0; h < kv.kv_heads; ++h) {
    float rotated[kMaxHeadDim];
    turn(k + h * n, n, position, rope, k_norm, rotated);
    const std::ptrdiff_t base = (static_cast<std::ptrdiff_t>(page) * kv.kv_heads + h) * kv.page_size * n;
    const std::ptrdiff_t column = base + static_cast<std::ptrdiff_t>(offset / 16) * n * 16 + offset % 16;
    for (int d = 0; d < n; ++d) put(kv, kv.k, column + 16 * d, rotated[d]);
    for (int d = 0; d < n; ++d) put(kv, kv.v, base + static_cast<std::ptrdiff_t>(offset) * n + d, v[h * n + d]);
  }
}

}  // namespace octavo::OCTAVO_TIER
