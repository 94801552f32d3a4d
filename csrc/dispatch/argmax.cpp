#include "argmax.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace octavo {
namespace {

constexpr int kWidth = 16;           // maxima kept side by side
constexpr int kBlock = 512;          // numbers between two looks at the maxima
constexpr int kSegment = 32 * kBlock;  // numbers of one work item

struct Best {
  float value;
  int index;
};

// Maxima of kWidth lanes, and their sums: a NaN stays in a sum (and two infinities make one).
struct Lanes {
#if defined(__SSE2__)
  __m128 best[kWidth / 4], sum[kWidth / 4];
  Lanes() {
    for (int j = 0; j < kWidth / 4; ++j)
      best[j] = _mm_set1_ps(-std::numeric_limits<float>::infinity()), sum[j] = _mm_setzero_ps();
  }
  void add(const float* x) {
    for (int j = 0; j < kWidth / 4; ++j) {
      const __m128 v = _mm_loadu_ps(x + 4 * j);
      best[j] = _mm_max_ps(v, best[j]);  // the second where one is a NaN
      sum[j] = _mm_add_ps(sum[j], v);
    }
  }
  void store(float* b, float* s) const {
    for (int j = 0; j < kWidth / 4; ++j) _mm_storeu_ps(b + 4 * j, best[j]), _mm_storeu_ps(s + 4 * j, sum[j]);
  }
#else
  float best[kWidth], sum[kWidth] = {};
  Lanes() { std::fill(best, best + kWidth, -std::numeric_limits<float>::infinity()); }
  void add(const float* x) {
    for (int j = 0; j < kWidth; ++j) {
      best[j] = x[j] > best[j] ? x[j] : best[j];
      sum[j] += x[j];
    }
  }
  void store(float* b, float* s) const {
    std::copy(best, best + kWidth, b);
    std::copy(sum, sum + kWidth, s);
  }
#endif
};

bool is_nan(float x) { return x != x; }

// The largest of x[0, n); NaN if there is one.
float block_max(const float* x, int n) {
  Lanes lanes;
  int i = 0;
  for (; i + kWidth <= n; i += kWidth) lanes.add(x + i);
  float best[kWidth], sum[kWidth];
  lanes.store(best, sum);
  for (; i < n; ++i) {
    best[0] = x[i] > best[0] ? x[i] : best[0];
    sum[0] += x[i];
  }
  if (std::any_of(sum, sum + kWidth, is_nan) && std::any_of(x, x + n, is_nan))
    return std::numeric_limits<float>::quiet_NaN();
  return *std::max_element(best, best + kWidth);
}

Best segment_best(const float* x, int begin, int end) {
  int block = begin;
  float best = -std::numeric_limits<float>::infinity();
  for (int at = begin; at < end; at += kBlock) {
    const float m = block_max(x + at, std::min(kBlock, end - at));
    if (m != m) {
      while (x[at] == x[at]) ++at;
      return {x[at], at};
    }
    if (m > best) best = m, block = at;
  }
  while (x[block] != best) ++block;
  return {best, block};
}

}  // namespace

void argmax(Pool& pool, const float* x, int rows, int n, int32_t* ids, float* values) {
  const int segments = (n + kSegment - 1) / kSegment;
  std::vector<Best> found(static_cast<std::size_t>(rows) * segments);
  pool.run(rows * segments, [&](int item) {
    const int begin = item % segments * kSegment;
    found[item] = segment_best(x + static_cast<std::ptrdiff_t>(item / segments) * n, begin, std::min(n, begin + kSegment));
  });
  for (int r = 0; r < rows; ++r) {
    Best best = found[static_cast<std::size_t>(r) * segments];
    for (int s = 1; s < segments && best.value == best.value; ++s) {
      const Best& other = found[static_cast<std::size_t>(r) * segments + s];
      if (other.value > best.value || other.value != other.value) best = other;
    }
    ids[r] = best.index;
    values[r] = best.value;
  }
}

}  // namespace octavo
