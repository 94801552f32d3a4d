#include <algorithm>

#include "ops.h"

namespace octavo {
namespace {

constexpr int kTileRows = 32;  // query rows (tokens x heads of a group) of one work item
constexpr int kFewTokens = 4;  // up to this many tokens, a sequence's splits are spread over the threads

struct Item {
  int sequence, token, tokens, kv_head;
  int split;  // -1: all splits, written to the output
  std::ptrdiff_t partial;
};

int last_split(int position) { return position / kKeySplit; }

int first_split(int position, int window) { return (window ? std::max(0, position - window + 1) : 0) / kKeySplit; }

}  // namespace

void Context::rope_kv_write(const float* qkv, const KvPages& kv, const BatchArgs& batch, int heads,
                            const RopeArgs& rope, const HeadNorm& q_norm, const HeadNorm& k_norm, float* q) {
  const std::ptrdiff_t width = static_cast<std::ptrdiff_t>(heads + 2 * kv.kv_heads) * kv.head_dim;
  std::vector<int32_t> owner(batch.tokens);
  for (int s = 0; s < batch.sequences; ++s)
    std::fill(owner.begin() + batch.query_starts[s], owner.begin() + batch.query_starts[s + 1], s);
  auto token = [&](int t) {
    const int position = batch.positions[t];
    const int page = batch.page_tables[static_cast<std::ptrdiff_t>(owner[t]) * batch.table_width + position / kv.page_size];
    kernels_.rope_kv(qkv + t * width, heads, kv, page, position % kv.page_size, position, rope, q_norm, k_norm,
                     q + static_cast<std::ptrdiff_t>(t) * heads * kv.head_dim);
  };
  if (batch.tokens < 4) {
    DenormalsOff off;
    for (int t = 0; t < batch.tokens; ++t) token(t);
  } else {
    constexpr int step = 4;
    pool_.run((batch.tokens + step - 1) / step, [&](int i) {
      for (int t = i * step; t < std::min(batch.tokens, (i + 1) * step); ++t) token(t);
    });
  }
}

void Context::attention(const float* q, const KvPages& kv, const BatchArgs& batch, const AttentionArgs& args,
                        float* out) {
  const int n = kv.head_dim, group = args.group;
  const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(kv.kv_heads) * group * n;
  const std::ptrdiff_t part = static_cast<std::ptrdiff_t>(group) * (n + 2);  // m, l, o of one split
  std::vector<Item> items, merges;
  std::ptrdiff_t partials = 0;
  for (int s = 0; s < batch.sequences; ++s) {
    const int begin = batch.query_starts[s], end = batch.query_starts[s + 1];
    const int step = end - begin > kFewTokens ? std::max(1, kTileRows / group) : 1;
    for (int t = end - 1; t >= begin;) {  // the longest rows first
      const int tokens = std::min(step, t - begin + 1), first = t - tokens + 1;
      for (int h = 0; h < kv.kv_heads; ++h) {
        const int s0 = first_split(batch.positions[first], args.window), s1 = last_split(batch.positions[t]);
        if (step > 1 || s0 == s1) {
          items.push_back({s, first, tokens, h, -1, 0});
          continue;
        }
        merges.push_back({s, first, 1, h, s1 - s0 + 1, partials});
        for (int split = s0; split <= s1; ++split, partials += part) items.push_back({s, first, 1, h, split, partials});
      }
      t -= tokens;
    }
  }
  if (partial_.size() < static_cast<std::size_t>(partials)) partial_.resize(partials);
  auto at = [&](const Item& i) { return i.token * stride + static_cast<std::ptrdiff_t>(i.kv_head) * group * n; };
  pool_.run(static_cast<int>(items.size()), [&](int index) {
    const Item& i = items[index];
    const AttentionTile tile = {q + at(i), stride, out + at(i), i.tokens, batch.positions[i.token], i.kv_head,
                                batch.page_tables + static_cast<std::ptrdiff_t>(i.sequence) * batch.table_width};
    if (i.split < 0) {
      kernels_.attend(tile, kv, args);
    } else {
      float* p = partial_.data() + i.partial;
      kernels_.attend_split(tile, kv, args, i.split, p, p + group, p + 2 * group);
    }
  });
  pool_.run(static_cast<int>(merges.size()), [&](int index) {
    const Item& i = merges[index];
    std::vector<float> m(static_cast<std::size_t>(i.split) * group), l(m.size()), o(m.size() * n);
    for (int s = 0; s < i.split; ++s) {
      const float* p = partial_.data() + i.partial + s * part;
      std::copy(p, p + group, m.begin() + static_cast<std::ptrdiff_t>(s) * group);
      std::copy(p + group, p + 2 * group, l.begin() + static_cast<std::ptrdiff_t>(s) * group);
      std::copy(p + 2 * group, p + part, o.begin() + static_cast<std::ptrdiff_t>(s) * group * n);
    }
    kernels_.merge_splits(m.data(), l.data(), o.data(), i.split, group, n, out + at(i));
  });
}

}  // namespace octavo
