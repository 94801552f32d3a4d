#include <algorithm>

#include "ops.h"

namespace octavo {
namespace {

constexpr int kBlockRows = 128;          // rows of activations that stay in the L2 while panels pass by
constexpr std::size_t kItemBytes = 64 << 10;  // weights of one work item, about 5 us of streaming

}  // namespace

Quantized QuantizedRows::room(std::size_t n) {
  if (q.size() < n) {
    q.resize(n);
    scale.resize(n / kGroup);
    scaled_sum.resize(n / kGroup);
    sum16.resize(n / 16);
  }
  return {q.data(), scale.data(), scaled_sum.data(), sum16.data()};
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

// Norm (if any) and quantization of every row, as far as the matrix's formats need them.
Activations Context::activate(const float* x, int rows, const PackedLinear& w, const NormArgs& norm) {
  const std::size_t k = w.columns, n = rows;
  if (norm.weight && normed_.size() < n * k) normed_.resize(n * k);
  float* normed = normed_.data();
  Activations a = {rows, w.columns, norm.weight ? normed : x, {}, {}};
  if (w.any_quantized) {
    a.main = main_.room(n * k);
    a.rest = rest_.room(n * k);
    const std::size_t chunks = (k + kChunk - 1) / kChunk;
    if (outliers_.size() < n * chunks) outliers_.resize(n * chunks);
    a.outliers = outliers_.data();
  }
  auto row = [&](int r) {
    const float* from = x + r * k;
    if (norm.weight) {
      kernels_.rms_norm(from, norm.weight, norm.eps, w.columns, normed + r * k);
      from = normed + r * k;
    }
    if (w.any_quantized) kernels_.quantize(from, a, r);
  };
  if (!norm.weight && !w.any_quantized) return a;
  if (rows < 4) {  // cheaper than a barrier
    DenormalsOff off;
    for (int r = 0; r < rows; ++r) row(r);
  } else {
    pool_.run(rows, row);
  }
  return a;
}

void Context::linear(const float* x, int rows, const PackedLinear& w, const NormArgs& norm, Act act,
                     const float* residual, const NormArgs& post, float* y) {
  const Activations a = activate(x, rows, w, norm);
  const int columns = w.gated ? w.rows / 2 : w.rows;
  const float* add = post.weight ? nullptr : residual;
  const float* bias = w.bias.empty() ? nullptr : w.bias.data();

  // One panel for the rows of one block, from the matrix product to the output.
  auto panel = [&](const Segment& s, int p, int row0, int row1) {
    alignas(64) float acc[kBlockRows * kLanes], up[kBlockRows * kLanes];
    const int first = (w.gated ? 0 : s.first_row) + p * kLanes, n = std::min(kLanes, s.rows - p * kLanes);
    auto product = [&](const Segment& from, float* out) {
      kernels_.panel(from.format, from.panels + p * from.panel_bytes, a, row0, row1, out);
      if (bias)
        for (int r = 0; r < row1 - row0; ++r)
          for (int i = 0; i < n; ++i) out[r * kLanes + i] += bias[from.first_row + p * kLanes + i];
    };
    product(s, acc);
    if (w.gated) {
      product(w.segments[1], up);
      kernels_.gate(act, acc, up, (row1 - row0) * kLanes, acc);
    }
    for (int r = row0; r < row1; ++r) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(r) * columns + first;
      const float* from = acc + (r - row0) * kLanes;
      if (add) kernels_.add(from, add + at, n, y + at);
      else std::copy(from, from + n, y + at);
    }
  };

  const int blocks = (rows + kBlockRows - 1) / kBlockRows;
  for (std::size_t i = 0; i < (w.gated ? 1 : w.segments.size()); ++i) {
    const Segment& s = w.segments[i];
    const int panels = s.panel_count(), fair = std::max(1, panels / (4 * pool_.threads()));
    const int per_item = std::clamp<int>(static_cast<int>(kItemBytes / s.panel_bytes), 1, fair);
    const int items = (panels + per_item - 1) / per_item;
    pool_.run(blocks * items, [&](int item) {  // all panels pass by one block of rows before the next block
      const int block = item / items, p0 = item % items * per_item;
      const int row0 = static_cast<int>(static_cast<int64_t>(rows) * block / blocks);
      const int row1 = static_cast<int>(static_cast<int64_t>(rows) * (block + 1) / blocks);
      for (int p = p0; p < std::min(panels, p0 + per_item); ++p) panel(s, p, row0, row1);
    });
  }
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
  const FormatInfo& f = kFormats[static_cast<int>(format)];
  const std::size_t row_bytes = static_cast<std::size_t>(columns / f.block) * f.file_bytes;
  pool_.run((count + kLanes - 1) / kLanes, [&](int item) {
    std::vector<uint8_t> packed(panel_bytes(format, columns));
    std::vector<float> spare(columns);
    const uint8_t* rows[kLanes];
    float* out[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const int t = item * kLanes + lane;
      rows[lane] = table + static_cast<std::size_t>(tokens[std::min(t, count - 1)]) * row_bytes;
      out[lane] = t < count ? y + static_cast<std::ptrdiff_t>(t) * columns : spare.data();
    }
    pack_panel(format, rows, columns, packed.data());
    kernels_.unpack_rows(format, packed.data(), columns, scale, out);
  });
}

}  // namespace octavo
