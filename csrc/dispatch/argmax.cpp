#include "argmax.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace octavo {
namespace {

constexpr int kWidth = 16;           // maxima kept side by side: what the compiler makes vectors of
constexpr int kBlock = 512;          // numbers between two looks at the maxima
constexpr int kSegment = 32 * kBlock;  // numbers of one work item

struct Best {
  float value;
  int index;
};

// The largest of x[0, n); NaN if there is one.
float block_max(const float* x, int n) {
  float best[kWidth], odd[kWidth] = {};
  std::fill(best, best + kWidth, -std::numeric_limits<float>::infinity());
  int i = 0;
  for (; i + kWidth <= n; i += kWidth)
    for (int j = 0; j < kWidth; ++j) {
      best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
      odd[j] = x[i + j] == x[i + j] ? odd[j] : 1.0f;
    }
  for (int j = 0; i < n; ++i, ++j) {
    best[j] = x[i] > best[j] ? x[i] : best[j];
    odd[j] = x[i] == x[i] ? odd[j] : 1.0f;
  }
  for (int j = 0; j < kWidth; ++j)
    if (odd[j] != 0) return std::numeric_limits<float>::quiet_NaN();
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
