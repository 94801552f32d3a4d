// How keys and values are stored: the one place that knows a storage type. Attention and the write of new tokens go
// through `Stored` and `KvGroup`; a type is one specialization of `Stored`, and what its numbers need besides
// themselves (a scale of a key, say) is a member of `KvGroup`.
#pragma once
#include "simd.h"

namespace octavo::OCTAVO_TIER {

constexpr int kMaxHeadDim = 512;

template <KvType> struct Stored;

template <> struct Stored<KvType::F32> {
  using Number = float;
  static F load(const float* p) { return f_load(p); }  // 16 numbers
  static void store(float* p, F x) { f_store(p, x); }
};

template <> struct Stored<KvType::F16> {
  using Number = uint16_t;
  static F load(const uint16_t* p) { return f_from_f16(p); }
  static void store(uint16_t* p, F x) {  // an infinity in a page would poison whoever reads it; NaN stays NaN
    f_to_f16(p, f_max(f_set1(-65504.0f), f_min(f_set1(65504.0f), x)));
  }
};

template <> struct Stored<KvType::BF16> {
  using Number = uint16_t;
  static F load(const uint16_t* p) { return f_from_bf16(p); }
  static void store(uint16_t* p, F x) { f_to_bf16(p, x); }
};

// Calls fn with the storage type as a constant.
template <class Fn> inline void with_type(KvType type, const Fn& fn) {
  switch (type) {
    case KvType::F32: return fn(std::integral_constant<KvType, KvType::F32>());
    case KvType::F16: return fn(std::integral_constant<KvType, KvType::F16>());
    case KvType::BF16: return fn(std::integral_constant<KvType, KvType::BF16>());
  }
}

// Sixteen consecutive keys of one head as they lie in a page: k [head_dim, 16], v [16, head_dim].
template <KvType type> struct KvGroup {
  using Number = typename Stored<type>::Number;
  static constexpr int kBytes = 16 * sizeof(Number);  // of 16 numbers

  Number* k;
  Number* v;

  F key(int d) const { return Stored<type>::load(k + static_cast<std::ptrdiff_t>(d) * kLanes); }
  F value(int j, int d, int head_dim) const {
    return Stored<type>::load(v + static_cast<std::ptrdiff_t>(j) * head_dim + d);
  }
};

// The group of a head that holds slot `offset` of a page.
template <KvType type> inline KvGroup<type> group_at(const KvPages& kv, int page, int head, int offset) {
  using Number = typename Stored<type>::Number;
  const std::ptrdiff_t slots = static_cast<std::ptrdiff_t>(head) * kv.page_size + offset / kLanes * kLanes;
  const std::ptrdiff_t at = page * kv.stride + slots * kv.head_dim;
  return {static_cast<Number*>(kv.k) + at, static_cast<Number*>(kv.v) + at};
}

}  // namespace octavo::OCTAVO_TIER
