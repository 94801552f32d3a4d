// What follows from a batch for attention alone, whatever the layer: where tokens are written, and how queries are cut
// into items for the pool.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../kernels/kernels.h"

namespace octavo {

struct BatchArgs {  // core/batch.py
  const int32_t* positions;
  const int32_t* query_starts;
  const int32_t* kv_lens;
  const int32_t* page_tables;
  int tokens, sequences, table_width;
  const uint64_t* tree = nullptr;  // null: none
  // Not 0: the same in every call of one step, so that what follows from the batch is worked out once.
  uint64_t step = 0;
};

struct TokenSlot { int page, offset; };

// Some new tokens of one sequence and one KV head.
struct AttentionPart {
  int sequence, first, tokens;  // first: of the sequence's new tokens
  int kv_head;
  int splits_begin, splits_end;
  std::ptrdiff_t partials;  // where those of its splits lie; -1: one item takes all splits
};

struct AttentionItem { int part, split; };  // split -1: all

struct AttentionPlan {
  std::vector<AttentionPart> parts;
  std::vector<AttentionItem> items;
  std::ptrdiff_t partials;  // floats
};

// Plans of one batch, kept until another step's batch comes.
class AttentionPlans {
 public:
  // Where each token's K and V go.
  const std::vector<TokenSlot>& slots(const BatchArgs& batch, int page_size);
  const AttentionPlan& plan(const BatchArgs& batch, const KvPages& kv, const AttentionArgs& args);

 private:
  struct Shape {
    int kv_heads, head_dim, group, window;
    bool operator==(const Shape&) const = default;
  };
  struct Kept {
    Shape shape;
    AttentionPlan plan;
  };

  uint64_t step_ = 0;
  std::size_t used_ = 0;  // plans of this step; the others' memory is used again
  std::vector<Kept> kept_;
  uint64_t slots_step_ = 0;
  int slots_page_ = 0;
  std::vector<TokenSlot> slots_;
};

struct AttentionMemory {  // it grows to the largest batch seen
  std::vector<float> partials;
  std::vector<int32_t> left;  // splits of each part not done yet
};

}  // namespace octavo
