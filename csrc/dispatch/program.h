// One step of a model as a list of instructions over numbered buffers: written down once, run with one call.
//
// A buffer has a row for each token of the batch, or for each of its logit rows, and keeps its width; memory is shared
// by buffers that are never alive together. Where a program reads a weight or a table, `keep` holds what owns it.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <variant>
#include <vector>

#include "ops.h"

namespace octavo {

struct KvLayers {  // a KV store: the pages of every layer, all of one shape
  std::vector<KvPages> layers;
  std::size_t pages = 0;
};

struct StepArgs {  // what changes from step to step
  BatchArgs batch;
  const int32_t* tokens;  // [batch.tokens]
  const int32_t* rows;    // [row_count], rows of the batch that need logits
  int row_count;
};

class Program {
 public:
  struct Embedding { Format format; const uint8_t* table; std::size_t vocab; int columns; float scale; };
  struct RmsNorm { NormArgs norm; };
  struct Linear { const PackedLinear* w; NormArgs norm; Act act; NormArgs post; };
  struct RopeKvWrite { int layer, kv_heads, head_dim, heads; RopeArgs rope; std::size_t positions; HeadNorm q, k; };
  struct Attention { int layer, kv_heads, head_dim; AttentionArgs args; };
  struct SelectRows {};
  struct Softcap { float cap; };

  // Each adds an instruction and returns the number of the buffer it writes; softcap works in place. Throws
  // std::invalid_argument where widths do not fit together, or after `finish`.
  int embedding(const Embedding& op);
  int rms_norm(int x, const RmsNorm& op);
  int linear(int x, const Linear& op, int residual);  // residual -1: none
  int rope_kv_write(int qkv, const RopeKvWrite& op);  // positions: rows of the rotary tables
  int attention(int q, const Attention& op);
  int select_rows(int x);  // the batch's logit rows of x
  void softcap(int x, const Softcap& op);
  // The buffer that `run` writes for its caller. No instruction can follow.
  void finish(int output);

  void keep(std::shared_ptr<const void> owner) { owners_.push_back(std::move(owner)); }
  int width() const;          // of the output
  bool output_by_row() const;  // it has a row for each logit row, not for each token

  // Throws std::invalid_argument, before anything is computed, for tokens, positions or rows outside their tables and
  // for a KV store of another shape. out: [rows of the output, width].
  void run(Context& c, const KvLayers& kv, const StepArgs& step, float* out);

 private:
  using Op = std::variant<Embedding, RmsNorm, Linear, RopeKvWrite, Attention, SelectRows, Softcap>;
  struct Instruction { Op op; int in, residual, out; const PackedLinear* next; };  // next: matrix read after this
  struct Buffer { int width; bool by_row; int last_use; int slot; };  // slot -1: the caller's memory
  struct Slot { std::size_t by_token = 0, by_row = 0; };              // widths of the widest buffers in it

  int add(Op op, int in, int residual, int width, bool by_row);
  const Buffer& buffer(int id) const;
  void take_slot(Buffer& b, std::vector<int>& free);
  void check(const KvLayers& kv, const StepArgs& step) const;
  void place(const StepArgs& step);
  void execute(Context& c, const Instruction& i, const KvLayers& kv, const StepArgs& step, float* out);

  std::vector<Instruction> code_;
  std::vector<Buffer> buffers_;
  std::vector<Slot> slots_;
  std::vector<std::shared_ptr<const void>> owners_;
  int output_ = -1;
  std::mutex mutex_;  // of the memory below
  Memory memory_;
  std::size_t capacity_ = 0;  // floats
  std::vector<std::size_t> offsets_;  // of each slot in memory_
};

}  // namespace octavo
