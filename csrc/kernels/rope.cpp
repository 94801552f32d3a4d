// Head norm, rotary embedding, and the write of one token's K and V into its page slot.
#include "kv.h"
#include "rows.h"

namespace octavo::OCTAVO_TIER {
namespace {

// Cosines and sines of a position, [rotary / 2] each; rotary 0: nothing turns.
struct Angles {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int rotary = 0;
  bool interleaved = false;
};

Angles angles_of(const RopeArgs& rope, int position) {
  if (!rope.cos) return {};
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(position) * (rope.rotary / 2);
  return {rope.cos + at, rope.sin + at, rope.rotary, rope.interleaved};
}

inline void turn_pair(float xa, float xb, float c, float s, float& ya, float& yb) {
  ya = std::fma(-xb, s, xa * c);
  yb = std::fma(xa, s, xb * c);
}

// Pairs (i, i + half).
void turn_halves(const float* x, const Angles& a, float* y) {
  const int half = a.rotary / 2;
  if (half < kLanes) {
    for (int i = 0; i < half; ++i) turn_pair(x[i], x[i + half], a.cos[i], a.sin[i], y[i], y[i + half]);
    return;
  }
  for (int at = 0; at < half; at += kLanes) {
    const int i = min_int(at, half - kLanes);  // the last 16 again where half is no multiple of 16
    const F xa = f_load(x + i), xb = f_load(x + i + half), c = f_load(a.cos + i), s = f_load(a.sin + i);
    f_store(y + i, f_fma(f_mul(xb, f_set1(-1.0f)), s, f_mul(xa, c)));
    f_store(y + i + half, f_fma(xa, s, f_mul(xb, c)));
  }
}

// Pairs (2i, 2i + 1): y = x * cos + neighbour * (-sin, sin).
void turn_neighbours(const float* x, const Angles& a, float* y) {
  alignas(64) static constexpr float kSigns[kLanes] = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
  int i = 0;
  for (; i + kLanes <= a.rotary; i += kLanes) {
    const F v = f_load(x + i), c = f_twice(a.cos + i / 2), s = f_mul(f_twice(a.sin + i / 2), f_load(kSigns));
    f_store(y + i, f_fma(f_swap(v), s, f_mul(v, c)));
  }
  for (; i < a.rotary; i += 2) turn_pair(x[i], x[i + 1], a.cos[i / 2], a.sin[i / 2], y[i], y[i + 1]);
}

// y = rotated (normed x); dimensions past the rotary ones pass through.
void turn(const float* x, int n, const Angles& a, const HeadNorm& norm, float* y) {
  alignas(64) float normed[kMaxHeadDim];
  if (norm.weight) {
    rms_norm(x, norm.weight, norm.eps, n, normed);
    x = normed;
  }
  if (a.interleaved) turn_neighbours(x, a, y);
  else turn_halves(x, a, y);
  if (a.rotary < n) std::memcpy(y + a.rotary, x + a.rotary, sizeof(float) * (n - a.rotary));
}

// A head's k and v [n] to slot `lane` of their group.
template <KvType type> void put(const KvGroup<type>& group, int lane, int n, const float* k, const float* v) {
  alignas(64) typename Stored<type>::Number key[kMaxHeadDim];
  for (int d = 0; d < n; d += kLanes) {
    Stored<type>::store(key + d, f_load(k + d));
    Stored<type>::store(group.v + static_cast<std::ptrdiff_t>(lane) * n + d, f_load(v + d));
  }
  auto* column = group.k + lane;
  for (int d = 0; d < n; ++d) column[d * kLanes] = key[d];
}

template <KvType type>
void write_kv(const float* k, const KvPages& kv, int page, int offset, const Angles& angles, const HeadNorm& norm) {
  const int n = kv.head_dim;
  const float* v = k + kv.kv_heads * n;
  alignas(64) float rotated[kMaxHeadDim];
  for (int h = 0; h < kv.kv_heads; ++h) {
    turn(k + h * n, n, angles, norm, rotated);
    put(group_at<type>(kv, page, h, offset), offset % kLanes, n, rotated, v + h * n);
  }
}

}  // namespace

void rope_kv(const float* qkv, int heads, const KvPages& kv, int page, int offset, int position, const RopeArgs& rope,
             const HeadNorm& q_norm, const HeadNorm& k_norm, float* q_out) {
  const int n = kv.head_dim;
  const Angles angles = angles_of(rope, position);
  // A slot of K touches every line of its group: have them come while the queries turn.
  with_type(kv.type, [&](auto type) {
    for (int h = 0; h < kv.kv_heads; ++h) {
      const auto* k = reinterpret_cast<const char*>(group_at<type()>(kv, page, h, offset).k);
      for (int at = 0; at < n * KvGroup<type()>::kBytes; at += 64) prefetch(k + at);
    }
  });
  for (int h = 0; h < heads; ++h) turn(qkv + h * n, n, angles, q_norm, q_out + h * n);
  with_type(kv.type, [&](auto type) { write_kv<type()>(qkv + heads * n, kv, page, offset, angles, k_norm); });
}

}  // namespace octavo::OCTAVO_TIER
