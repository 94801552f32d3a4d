#include <algorithm>
#include <cstring>

#include "ops.h"

namespace octavo {
namespace {

constexpr std::size_t kItemBytes = 128 << 10;  // weights of one work item, some 5 us of streaming
constexpr int kFarRows = 16;                  // see Cut
constexpr int kFewRows = 4;                   // bound by memory; quantized by one thread, cheaper than a barrier
// A row has fewer outliers than this: x^2 of each is above kOutlier^2 times the mean.
int most_outliers(int k) { return static_cast<int>(static_cast<float>(k) / (kOutlier * kOutlier)) + 1; }

template <class T> void grow(std::vector<T>& v, std::size_t n) {
  if (v.size() < n) v.resize(n);
}

}  // namespace

void ActivationMemory::reserve_quantized(int rows, int k) {
  const std::size_t n = rows, chunks = (k + kChunk - 1) / kChunk;
  grow(q, n * k);
  grow(scale, n * chunks);
  grow(sum16, n * chunks * (kChunk / 16));
  grow(sum32, n * chunks * (kChunk / kGroup));
  grow(found, n * most_outliers(k));
  grow(counts, n * chunks);
}

// From rows, each by chunk, to chunks and row blocks, each by element: models have channels where most rows have one,
// and a kernel then makes the channel's weights once.
void ActivationMemory::sort_outliers(Activations& a) {
  const int chunks = a.chunks(), blocks = a.blocks(), most = most_outliers(a.k);
  const auto slot = [&](int r, int c) { return c * blocks + r / kBlockRows; };
  first.assign(chunks * blocks + 2, 0);
  for (int r = 0; r < a.rows; ++r)
    for (int c = 0; c < chunks; ++c) first[slot(r, c) + 2] += counts[static_cast<std::size_t>(r) * chunks + c];
  for (int i = 2; i < chunks * blocks + 2; ++i) first[i] += first[i - 1];
  grow(outliers, first[chunks * blocks + 1]);
  for (int r = 0; r < a.rows; ++r) {  // first[i + 1] runs from the start of slot i to its end
    const Outlier* from = found.data() + static_cast<std::size_t>(r) * most;
    for (int c = 0; c < chunks; ++c) {
      const int n = counts[static_cast<std::size_t>(r) * chunks + c];
      int32_t& at = first[slot(r, c) + 1];
      std::copy(from, from + n, outliers.data() + at);
      from += n;
      at += n;
    }
  }
  if (a.rows > 1)
    for (int i = 0; i < chunks * blocks; ++i) sort_by_element(outliers.data() + first[i], first[i + 1] - first[i]);
  a.outliers = outliers.data();
  a.first = first.data();
}

void ActivationMemory::sort_by_element(Outlier* from, int n) {  // counting sort; rows stay in order
  if (n < 2) return;
  int32_t at[kChunk + 1] = {};
  for (int i = 0; i < n; ++i) ++at[from[i].element + 1];
  for (int e = 1; e < kChunk; ++e) at[e] += at[e - 1];
  grow(spare, n);
  for (int i = 0; i < n; ++i) spare[at[from[i].element]++] = from[i];
  std::copy(spare.data(), spare.data() + n, from);
}

void Context::rms_norm(const float* x, int rows, int n, const NormArgs& norm, float* y) {
  pool_.run(rows, [&](int r) {
    kernels_.rms_norm(x + static_cast<std::ptrdiff_t>(r) * n, norm.weight, norm.eps, n,
                      y + static_cast<std::ptrdiff_t>(r) * n);
  });
}

void Context::softcap(float* x, std::ptrdiff_t n, float cap) {
  constexpr std::ptrdiff_t step = 1 << 14;
  pool_.run(static_cast<int>((n + step - 1) / step),
            [&](int i) { kernels_.softcap(x + i * step, std::min(step, n - i * step), cap); });
}

// Norm (if any) and rounding of every row, as far as the matrix's formats need them.
Activations Context::activate(const float* x, int rows, const PackedLinear& w, const NormArgs& norm) {
  const std::size_t k = w.columns, n = rows;
  ActivationMemory& m = activations_;
  const bool quantized = w.has(Family::Blocks) || w.has(Family::Supers);
  const bool bf16 = kernels_.round_bf16 && w.has(Family::Bf16);
  Activations a;
  a.rows = rows;
  a.k = w.columns;
  a.x = x;
  if (norm.weight) {
    grow(m.normed, n * k);
    a.x = m.normed.data();
  }
  if (quantized) {
    m.reserve_quantized(rows, w.columns);
    a.q = m.q.data();
    a.scale = m.scale.data();
    a.sum16 = m.sum16.data();
    a.sum32 = m.sum32.data();
  }
  if (bf16) {
    grow(m.bf16, n * k);
    a.bf16 = m.bf16.data();
  }
  const int most = most_outliers(a.k), chunks = a.chunks();
  auto row = [&](int r) {
    const float* from = x + r * k;
    if (norm.weight) {
      kernels_.rms_norm(from, norm.weight, norm.eps, w.columns, m.normed.data() + r * k);
      from = m.normed.data() + r * k;
    }
    if (bf16) kernels_.round_bf16(from, a.k, a.bf16 + r * k);
    if (quantized)
      kernels_.quantize(from, a, r, m.found.data() + static_cast<std::size_t>(r) * most,
                        m.counts.data() + static_cast<std::size_t>(r) * chunks);
  };
  if (!norm.weight && !quantized && !bf16) return a;
  if (rows <= kFewRows) {
    DenormalsOff off;
    for (int r = 0; r < rows; ++r) row(r);
  } else {
    pool_.run(rows, row);
  }
  if (quantized) m.sort_outliers(a);
  return a;
}

namespace {

struct Share {  // of a segment; a pair is two panels of it, or a gate's and its up's
  const Segment* segment;
  int pairs, per_item, items;
};

// A matrix cut into work items. Few rows take panels half a segment apart, so that a thread that walks on reads two
// streams without gaps; many take neighbours, whose outputs share pages.
struct Cut {
  std::vector<Share> shares;
  int items = 0;

  Cut(const PackedLinear& w, int threads) {
    const std::size_t segments = w.gated ? 1 : w.segments.size();
    for (std::size_t i = 0; i < segments; ++i) {
      const Segment& s = w.segments[i];
      const int pairs = w.gated ? s.panel_count() : half_of(s);
      const int fair = std::max(1, pairs / (4 * threads));
      const int per_item = std::clamp<int>(static_cast<int>(kItemBytes / (2 * s.panel_bytes)), 1, fair);
      shares.push_back({&s, pairs, per_item, (pairs + per_item - 1) / per_item});
      items += shares.back().items;
    }
  }

  // The share that an item belongs to; item becomes its number there.
  const Share& share_of(int& item) const {
    const Share* share = shares.data();
    for (; item >= share->items; ++share) item -= share->items;
    return *share;
  }

  static int half_of(const Segment& s) { return (s.panel_count() + 1) / 2; }
};

// Tell the pool where each thread will begin to read w for a few rows.
void expect(Pool& pool, const PackedLinear& w) {
  const Cut cut(w, pool.threads());
  for (int t = 0; t < pool.threads(); ++t) {
    int item = pool.first_item(cut.items, t);
    if (item == cut.items) continue;
    const Share& share = cut.share_of(item);
    const Segment &s = *share.segment, &other = w.gated ? w.segments[1] : s;
    const std::size_t p = static_cast<std::size_t>(item) * share.per_item, q = w.gated ? p : p + Cut::half_of(s);
    pool.expect(t, s.panels + p * s.panel_bytes, other.panels + q * other.panel_bytes);
  }
}

}  // namespace

void Context::linear(const float* x, int rows, const PackedLinear& w, const NormArgs& norm, Act act,
                     const float* residual, const NormArgs& post, float* y, const PackedLinear* next) {
  const Activations a = activate(x, rows, w, norm);
  const int columns = w.gated ? w.rows / 2 : w.rows;
  const float* add = post.weight ? nullptr : residual;
  const float* bias = w.bias.empty() ? nullptr : w.bias.data();
  const auto bias_of = [&](const Segment& s, int p) { return bias ? bias + s.first_row + p * kLanes : nullptr; };

  // Two panels for one block of rows, from the product to the output (one of an odd number is alone).
  const bool far = rows <= kFarRows;
  auto pair = [&](const Segment& s, int index, int row0, int row1) {
    alignas(64) float acc[2][kBlockRows * kLanes];
    float* const out[2] = {acc[0], acc[1]};
    const int apart = far ? Cut::half_of(s) : 1, step = far ? 1 : 2, p = step * index;
    const int count = p + apart < s.panel_count() ? 2 : 1, m = row1 - row0;
    const std::size_t bytes = s.panel_bytes;
    const uint8_t *first = s.panels + p * bytes, *second = first + apart * bytes;
    kernels_.panels(s.format, {count, {first, second}, {first + step * bytes, second + step * bytes}}, a, row0, row1, out);
    const int stores = far ? count : 1, width = far ? kLanes : count * kLanes;
    for (int i = 0; i < stores; ++i) {
      const int panel = p + i * apart, column = s.first_row + panel * kLanes, n = std::min(width, s.rows - panel * kLanes);
      const std::ptrdiff_t to = static_cast<std::ptrdiff_t>(row0) * columns + column;
      kernels_.store_rows(out + i, m, n, bias_of(s, panel), add ? add + to : nullptr, y + to, columns);
    }
  };
  auto gate = [&](const Segment& s, int p, int row0, int row1) {
    alignas(64) float acc[2][kBlockRows * kLanes];
    float* const out[2] = {acc[0], acc[1]};
    const Segment* const both[2] = {&s, &w.segments[1]};
    const int n = std::min(kLanes, s.rows - p * kLanes), m = row1 - row0;
    const auto panel = [p](const Segment& of) { return of.panels + p * of.panel_bytes; };
    if (s.format == both[1]->format) {
      const uint8_t *g = panel(s), *u = panel(*both[1]);
      const PanelPair panels = {2, {g, u}, {g + s.panel_bytes, u + s.panel_bytes}};
      kernels_.panels(s.format, panels, a, row0, row1, out);
    } else {
      for (int i = 0; i < 2; ++i) {
        const uint8_t* one = panel(*both[i]);
        kernels_.panels(both[i]->format, {1, {one, nullptr}, {one + both[i]->panel_bytes, nullptr}}, a, row0, row1, out + i);
      }
    }
    if (bias)
      for (int i = 0; i < 2; ++i)
        kernels_.store_rows(out + i, m, n, bias_of(*both[i], p), nullptr, acc[i], kLanes);
    kernels_.gate(act, acc[0], acc[1], m * kLanes, acc[0]);
    const std::ptrdiff_t to = static_cast<std::ptrdiff_t>(row0) * columns + p * kLanes;
    kernels_.store_rows(out, m, n, nullptr, add ? add + to : nullptr, y + to, columns);
  };

  const Cut cut(w, pool_.threads());
  if (next && rows <= kFewRows) expect(pool_, *next);
  pool_.run(a.blocks() * cut.items, [&](int item) {  // all panels pass by one block of rows before the next block
    const int row0 = item / cut.items * kBlockRows, row1 = std::min(rows, row0 + kBlockRows);
    item %= cut.items;
    const Share& share = cut.share_of(item);
    const int end = std::min(share.pairs, (item + 1) * share.per_item);
    for (int p = item * share.per_item; p < end; ++p) {
      if (w.gated) gate(*share.segment, p, row0, row1);
      else pair(*share.segment, p, row0, row1);
    }
  });
  if (post.weight)
    pool_.run(rows, [&](int r) {
      float* row = y + static_cast<std::ptrdiff_t>(r) * columns;
      kernels_.rms_norm(row, post.weight, post.eps, columns, row);
      if (residual) kernels_.add(row, residual + static_cast<std::ptrdiff_t>(r) * columns, columns, row);
    });
}

// Rows of the table through the same pack and unpack as the matrices: 16 tokens make a panel.
void Context::embedding(Format format, const uint8_t* table, int columns, const int32_t* tokens, int count,
                        float scale, float* y) {
  const std::size_t bytes = row_bytes(format, columns);
  pool_.run((count + kLanes - 1) / kLanes, [&](int item) {
    std::vector<uint8_t> packed(panel_bytes(format, columns));
    std::vector<float> spare(columns);
    const uint8_t* rows[kLanes];
    float* out[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const int t = item * kLanes + lane;
      rows[lane] = table + static_cast<std::size_t>(tokens[std::min(t, count - 1)]) * bytes;
      out[lane] = t < count ? y + static_cast<std::ptrdiff_t>(t) * columns : spare.data();
    }
    pack_panel(format, rows, columns, packed.data());
    kernels_.unpack_rows(format, packed.data(), columns, scale, out);
  });
}

}  // namespace octavo
