#include "arrays.h"

#include <stdexcept>

namespace octavo {

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

NormArgs norm_args(const std::optional<F32x1>& weight, double eps, std::size_t n, const char* what) {
  if (!weight) return {};
  require(weight->shape(0) == n, what);
  return {weight->data(), static_cast<float>(eps)};
}

Act act_of(const std::string& name) {
  if (name.empty()) return Act::None;
  if (name == "silu") return Act::Silu;
  if (name == "gelu_tanh") return Act::GeluTanh;
  throw std::invalid_argument("activation '" + name + "' is not known; possible: silu, gelu_tanh");
}

void require_rows(Format format, const Bytes& matrix, int columns) {
  const FormatInfo& info = kFormats[static_cast<int>(format)];
  require(columns > 0 && columns % info.block == 0, "columns are not a multiple of the format's block");
  require(matrix.shape(1) == row_bytes(format, columns),
          "row bytes do not match the number of columns");
}

RopeArgs rope_args(const std::optional<F32x2>& cos, const std::optional<F32x2>& sin, bool interleaved,
                   std::size_t head_dim) {
  if (!cos) return {};
  require(sin && sin->shape(0) == cos->shape(0) && sin->shape(1) == cos->shape(1), "cos and sin differ in shape");
  require(2 * cos->shape(1) <= head_dim, "rotary dimensions exceed the head");
  return {cos->data(), sin->data(), static_cast<int>(2 * cos->shape(1)), interleaved};
}

AttentionArgs attention_args(int heads, int kv_heads, double scale, int window, double softcap,
                             const std::optional<F32x1>& sinks) {
  require(kv_heads > 0 && heads % kv_heads == 0 && heads / kv_heads >= 1 && heads / kv_heads <= 32,
          "heads must be 1 to 32 times kv_heads");
  require(!sinks || sinks->shape(0) == static_cast<std::size_t>(heads), "sinks do not have one number per head");
  return {heads, heads / kv_heads, static_cast<float>(scale), window, static_cast<float>(softcap),
          sinks ? sinks->data() : nullptr};
}

// Whether what follows the first index lies in memory without gaps, in order.
static bool page_is_dense(const Pages& pages) {
  int64_t step = 1;
  for (std::size_t axis = pages.ndim(); axis-- > 1;) {
    if (pages.shape(axis) != 1 && pages.stride(axis) != step) return false;
    step *= static_cast<int64_t>(pages.shape(axis));
  }
  return pages.shape(0) < 2 || pages.stride(0) >= step;
}

KvPages kv_pages(const Pages& k, const Pages& v, const std::string& dtype) {
  require(k.ndim() == 5 && v.ndim() == 4 && k.shape(4) == kLanes, "KV arrays do not have the layout of ops/kv.py");
  const KvType type = dtype == "float32" ? KvType::F32 : dtype == "float16" ? KvType::F16 : KvType::BF16;
  const std::size_t size = type == KvType::F32 ? 4 : 2, page = v.shape(2), dim = v.shape(3);
  require(k.itemsize() == size && v.itemsize() == size, "KV arrays do not have the storage size of their dtype");
  require(k.shape(0) == v.shape(0) && k.shape(1) == v.shape(1) && k.shape(2) * kLanes == page && k.shape(3) == dim,
          "K and V pages differ in shape");
  require(dim % 16 == 0 && dim <= 512, "head_dim must be a multiple of 16, at most 512");
  require(page_is_dense(k) && page_is_dense(v), "KV pages are not contiguous");
  require(k.shape(0) < 2 || k.stride(0) == v.stride(0), "K and V pages are not equally far apart");
  return {type, k.data(), v.data(), k.stride(0), static_cast<int>(page), static_cast<int>(v.shape(1)), static_cast<int>(dim)};
}

// New tokens [begin, end) of a sequence of `len`: each sees itself and others of them only, at depths that fit.
static void require_tree(const U64x1& tree, const I32x1& positions, int begin, int end, int len) {
  const int n = end - begin;
  require(n <= 64, "a sequence with a tree has at most 64 new tokens");
  for (int t = begin; t < end; ++t) {
    const uint64_t seen = tree.data()[t];
    require(seen >> (t - begin) & 1, "a token of a tree does not see itself");
    require(n == 64 || seen >> n == 0, "a token of a tree sees one that is not there");
    const int position = positions.data()[t];
    require(position >= len - n && position < len, "positions of a tree are not depths after the tokens before it");
  }
}

BatchArgs batch_args(const I32x1& positions, const I32x1& starts, const I32x1& lens, const I32x2& tables,
                     const std::optional<U64x1>& tree, const KvPages& kv, std::size_t pages) {
  const int tokens = static_cast<int>(positions.shape(0)), n = static_cast<int>(lens.shape(0));
  const int width = static_cast<int>(tables.shape(1));
  require(starts.shape(0) == lens.shape(0) + 1 && tables.shape(0) == lens.shape(0), "batch arrays differ in length");
  require(!tree || tree->shape(0) == positions.shape(0), "batch arrays differ in length");
  require(starts.data()[0] == 0 && starts.data()[n] == tokens, "query_starts do not cover the batch");
  for (int s = 0; s < n; ++s) {
    const int begin = starts.data()[s], end = starts.data()[s + 1], len = lens.data()[s];
    require(end >= begin && len >= end - begin, "query_starts or kv_lens are out of order");
    if (tree) require_tree(*tree, positions, begin, end, len);
    for (int t = begin; t < end && !tree; ++t)
      require(positions.data()[t] == len - (end - t), "positions do not run on to kv_len");
    const int used = (len + kv.page_size - 1) / kv.page_size;
    require(used <= width, "page table is shorter than kv_len");
    for (int p = 0; p < used; ++p) {
      const int32_t page = tables.data()[static_cast<std::ptrdiff_t>(s) * width + p];
      require(page >= 0 && static_cast<std::size_t>(page) < pages, "page number out of range");
    }
  }
  return {positions.data(), starts.data(), lens.data(), tables.data(), tokens, n, width, tree ? tree->data() : nullptr};
}

}  // namespace octavo
