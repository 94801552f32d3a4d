#include <algorithm>
#include <atomic>

#include "ops.h"

namespace octavo {

void Context::rope_kv_write(const float* qkv, const KvPages& kv, const BatchArgs& batch, int heads,
                            const RopeArgs& rope, const HeadNorm& q_norm, const HeadNorm& k_norm, float* q) {
  const std::ptrdiff_t width = static_cast<std::ptrdiff_t>(heads + 2 * kv.kv_heads) * kv.head_dim;
  const std::vector<TokenSlot>& slots = plans_.slots(batch, kv.page_size);
  auto token = [&](int t) {
    kernels_.rope_kv(qkv + t * width, heads, kv, slots[t].page, slots[t].offset, batch.positions[t], rope, q_norm,
                     k_norm, q + static_cast<std::ptrdiff_t>(t) * heads * kv.head_dim);
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
  const AttentionPlan& plan = plans_.plan(batch, kv, args);
  const int n = kv.head_dim, group = args.group;
  const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(args.heads) * n;
  std::vector<float>& partials = attention_.partials;
  std::vector<int32_t>& left = attention_.left;
  if (partials.size() < static_cast<std::size_t>(plan.partials)) partials.resize(plan.partials);
  left.resize(plan.parts.size());
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = plan.parts[i].splits_end - plan.parts[i].splits_begin;
  auto tile_of = [&](const AttentionPart& p) -> AttentionTile {
    const int begin = batch.query_starts[p.sequence];
    const std::ptrdiff_t at = (begin + p.first) * stride + static_cast<std::ptrdiff_t>(p.kv_head) * group * n;
    return {q + at, stride, out + at, p.tokens, p.first,
            batch.kv_lens[p.sequence] - (batch.query_starts[p.sequence + 1] - begin), batch.positions + begin,
            batch.tree ? batch.tree + begin : nullptr, p.kv_head,
            batch.page_tables + static_cast<std::ptrdiff_t>(p.sequence) * batch.table_width, p.splits_begin,
            p.splits_end};
  };
  pool_.run(static_cast<int>(plan.items.size()), [&](int index) {
    const AttentionItem& item = plan.items[index];
    const AttentionPart& part = plan.parts[item.part];
    const AttentionTile tile = tile_of(part);
    if (item.split < 0) return kernels_.attend(tile, kv, args);
    const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(part.tokens) * group * (n + 2);
    float* all = partials.data() + part.partials;
    kernels_.attend_split(tile, kv, args, item.split, all + (item.split - part.splits_begin) * size);
    // Whoever ends a part's last split merges them, in their order.
    if (std::atomic_ref<int32_t>(left[item.part]).fetch_sub(1, std::memory_order_acq_rel) == 1)
      kernels_.merge_splits(tile, kv, args, all);
  });
}

}  // namespace octavo
