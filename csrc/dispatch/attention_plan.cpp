#include "attention_plan.h"

#include <algorithm>

namespace octavo {
namespace {

constexpr int kFewParts = 16;     // as few as this are split over the threads though each holds many tokens

int keys_before(const BatchArgs& batch, int s) {
  return batch.kv_lens[s] - (batch.query_starts[s + 1] - batch.query_starts[s]);
}

// The first key that a token at this position can see.
int first_key(int position, int window) { return window ? std::max(0, position - window + 1) : 0; }

AttentionPart part_of(const BatchArgs& batch, int s, int first, int tokens, int window) {
  const int past = keys_before(batch, s);
  const int32_t* positions = batch.positions + batch.query_starts[s] + first;
  int lo = first_key(positions[0], window), hi = past + first + tokens;
  if (batch.tree) {  // it orders its tokens as it likes
    lo = std::min(past, first_key(*std::min_element(positions, positions + tokens), window));
    hi = batch.kv_lens[s];
  }
  return {s, first, tokens, 0, lo / kKeySplit, (hi - 1) / kKeySplit + 1, -1};
}

// Every sequence's new tokens in parts whose rows fit a tile. Those of a head follow each other, so that its keys are
// still in a cache; the last and longest come first.
void cut(const BatchArgs& batch, int kv_heads, int step, int window, std::vector<AttentionPart>& parts) {
  parts.clear();
  for (int s = 0; s < batch.sequences; ++s) {
    const int count = batch.query_starts[s + 1] - batch.query_starts[s];
    for (int head = 0; head < kv_heads; ++head)
      for (int end = count; end > 0; end -= step) {
        const int tokens = std::min(step, end);
        parts.push_back(part_of(batch, s, end - tokens, tokens, window));
        parts.back().kv_head = head;
      }
  }
}

}  // namespace

const std::vector<TokenSlot>& AttentionPlans::slots(const BatchArgs& batch, int page_size) {
  if (batch.step && batch.step == slots_step_ && page_size == slots_page_) return slots_;
  slots_.resize(batch.tokens);
  for (int s = 0; s < batch.sequences; ++s) {
    const int32_t* pages = batch.page_tables + static_cast<std::ptrdiff_t>(s) * batch.table_width;
    int key = keys_before(batch, s);
    for (int t = batch.query_starts[s]; t < batch.query_starts[s + 1]; ++t, ++key)
      slots_[t] = {pages[key / page_size], key % page_size};
  }
  slots_step_ = batch.step;
  slots_page_ = page_size;
  return slots_;
}

const AttentionPlan& AttentionPlans::plan(const BatchArgs& batch, const KvPages& kv, const AttentionArgs& args) {
  const Shape shape = {kv.kv_heads, kv.head_dim, args.group, args.window};
  if (!batch.step || batch.step != step_) used_ = 0;
  step_ = batch.step;
  for (std::size_t i = 0; i < used_; ++i)
    if (kept_[i].shape == shape) return kept_[i].plan;
  if (used_ == kept_.size()) kept_.emplace_back();
  kept_[used_].shape = shape;
  AttentionPlan& plan = kept_[used_++].plan;
  const int rows = std::min(kTileRows, kTileNumbers / kv.head_dim), step = std::max(1, rows / args.group);
  plan.items.clear();
  plan.partials = 0;
  cut(batch, kv.kv_heads, step, args.window, plan.parts);
  const bool few = plan.parts.size() <= kFewParts;
  for (std::size_t i = 0; i < plan.parts.size(); ++i) {
    AttentionPart& p = plan.parts[i];
    const int new_tokens = batch.query_starts[p.sequence + 1] - batch.query_starts[p.sequence];
    if (p.splits_end - p.splits_begin == 1 || (new_tokens > step && !few)) {
      plan.items.push_back({static_cast<int>(i), -1});
      continue;
    }
    p.partials = plan.partials;
    const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(p.tokens) * args.group * (kv.head_dim + 2);
    plan.partials += (p.splits_end - p.splits_begin) * size;
    for (int split = p.splits_begin; split < p.splits_end; ++split) plan.items.push_back({static_cast<int>(i), split});
  }
  return plan;
}

}  // namespace octavo
