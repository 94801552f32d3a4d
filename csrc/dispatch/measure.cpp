// The machine's ceilings, measured with the kernels' own instructions on the engine's own threads.
#include <algorithm>
#include <atomic>
#include <vector>
#include <chrono>

#include "ops.h"

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The best rate of repeated runs of `once`, which does `amount` of work.
template <class Once> double best_rate(double amount, double seconds, const Once& once) {
  double best = 0;
  for (const auto start = Clock::now(); since(start) < seconds;) {
    const auto t0 = Clock::now();
    once();
    best = std::max(best, amount / since(t0));
  }
  return best / 1e9;
}

}  // namespace

double stream_gb_s(Pool& pool, const Kernels& kernels, std::size_t bytes, double seconds) {
  constexpr std::size_t step = 1 << 20;
  Arena arena;
  const Memory buffer = arena.take(bytes / step * step);
  const int items = static_cast<int>(bytes / step);
  pool.run(items, [&](int i) { std::fill_n(buffer.data + i * step, step, static_cast<uint8_t>(i)); });
  std::atomic<uint64_t> sum{0};
  return best_rate(items * static_cast<double>(step), seconds, [&] {
    pool.run(items, [&](int i) { sum += kernels.stream(buffer.data + i * step, step); });
  });
}

double peak_gmac_s(Pool& pool, const Kernels& kernels, Peak kind, double seconds) {
  constexpr int64_t steps = 2'000;
  const auto run = kind == Peak::Int8 ? kernels.peak_int8 : kind == Peak::Bf16 ? kernels.peak_bf16 : kernels.peak_f32;
  const int items = 8 * pool.threads();
  std::vector<float> sums(items);
  return best_rate(items * static_cast<double>(steps) * kPeakMacs, seconds,
                   [&] { pool.run(items, [&](int i) { sums[i] += run(steps); }); });
}

}  // namespace octavo
