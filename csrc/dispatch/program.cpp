#include "program.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace octavo {
namespace {

template <class... Fs> struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs> Overloaded(Fs...) -> Overloaded<Fs...>;

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

// Every step of this process has a number of its own, so that a Context never takes one program's step for another's.
uint64_t next_step() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

const Program::Buffer& Program::buffer(int id) const {
  require(id >= 0 && static_cast<std::size_t>(id) < buffers_.size(), "no such buffer");
  return buffers_[id];
}

int Program::add(Op op, int in, int residual, int width, bool by_row) {
  require(output_ < 0, "the program is finished");
  const int out = static_cast<int>(buffers_.size());
  buffers_.push_back({width, by_row, -1, -1});
  code_.push_back({std::move(op), in, residual, out, nullptr});
  return out;
}

int Program::embedding(const Embedding& op) { return add(op, -1, -1, op.columns, false); }

int Program::rms_norm(int x, const RmsNorm& op) {
  const Buffer b = buffer(x);
  return add(op, x, -1, b.width, b.by_row);
}

int Program::linear(int x, const Linear& op, int residual) {
  const Buffer b = buffer(x);
  const int n = op.w->gated ? op.w->rows / 2 : op.w->rows;
  require(b.width == op.w->columns, "x does not have the matrix's number of columns");
  require(op.w->gated == (op.act != Act::None), "an activation belongs to a gated matrix, and only to it");
  if (residual >= 0)
    require(buffer(residual).width == n && buffer(residual).by_row == b.by_row, "residual has the wrong shape");
  return add(op, x, residual, n, b.by_row);
}

int Program::rope_kv_write(int qkv, const RopeKvWrite& op) {
  const Buffer b = buffer(qkv);
  require(!b.by_row && b.width == (op.heads + 2 * op.kv_heads) * op.head_dim, "qkv has the wrong shape");
  return add(op, qkv, -1, op.heads * op.head_dim, false);
}

int Program::attention(int q, const Attention& op) {
  const Buffer b = buffer(q);
  require(!b.by_row && b.width == op.args.heads * op.head_dim, "q has the wrong shape");
  return add(op, q, -1, b.width, false);
}

int Program::select_rows(int x) {
  const Buffer b = buffer(x);
  require(!b.by_row, "rows can be selected from the tokens of the batch once");
  return add(SelectRows{}, x, -1, b.width, true);
}

void Program::softcap(int x, const Softcap& op) {
  require(output_ < 0, "the program is finished");
  buffer(x);
  code_.push_back({op, x, -1, x, nullptr});
}

void Program::finish(int output) {
  require(output_ < 0, "the program is finished");
  buffer(output);
  for (std::size_t at = 0; at < code_.size(); ++at)
    for (const int id : {code_[at].in, code_[at].residual, code_[at].out})
      if (id >= 0) buffers_[id].last_use = static_cast<int>(at);
  output_ = output;
  const PackedLinear* next = nullptr;
  for (int round = 0; round < 2; ++round)  // after the last instruction comes the next step's first
    for (auto i = code_.rbegin(); i != code_.rend(); ++i) {
      i->next = next;
      if (const auto* op = std::get_if<Linear>(&i->op)) next = op->w;
    }
  // An output never lies where an input of the same instruction does: slots are given back after it.
  std::vector<int> free;
  for (std::size_t at = 0; at < code_.size(); ++at) {
    const Instruction& i = code_[at];
    if (i.out != output && i.out != i.in) take_slot(buffers_[i.out], free);
    for (const int id : {i.in, i.residual == i.in ? -1 : i.residual, i.out == i.in ? -1 : i.out})
      if (id >= 0 && buffers_[id].slot >= 0 && buffers_[id].last_use == static_cast<int>(at))
        free.push_back(buffers_[id].slot);
  }
  offsets_.resize(slots_.size());
}

// The free slot whose widest buffer is nearest to this one, or a new slot.
void Program::take_slot(Buffer& b, std::vector<int>& free) {
  const std::size_t width = b.width;
  auto distance = [&](int slot) {
    const std::size_t have = b.by_row ? slots_[slot].by_row : slots_[slot].by_token;
    return have > width ? have - width : width - have;
  };
  const auto best = std::min_element(free.begin(), free.end(), [&](int x, int y) { return distance(x) < distance(y); });
  if (best == free.end()) {
    b.slot = static_cast<int>(slots_.size());
    slots_.emplace_back();
  } else {
    b.slot = *best;
    free.erase(best);
  }
  std::size_t& widest = b.by_row ? slots_[b.slot].by_row : slots_[b.slot].by_token;
  widest = std::max(widest, width);
}

int Program::width() const {
  require(output_ >= 0, "the program is not finished");
  return buffers_[output_].width;
}

bool Program::output_by_row() const {
  require(output_ >= 0, "the program is not finished");
  return buffers_[output_].by_row;
}

void Program::check(const KvLayers& kv, const StepArgs& step) const {
  require(output_ >= 0, "the program is not finished");
  const int tokens = step.batch.tokens;
  auto below = [](const int32_t* values, int count, std::size_t limit, const char* what) {
    for (int i = 0; i < count; ++i) require(values[i] >= 0 && static_cast<std::size_t>(values[i]) < limit, what);
  };
  auto shape = [&](int layer, int kv_heads, int head_dim) {
    require(layer >= 0 && static_cast<std::size_t>(layer) < kv.layers.size(), "the KV store has too few layers");
    const KvPages& pages = kv.layers[layer];
    require(pages.kv_heads == kv_heads && pages.head_dim == head_dim, "the KV store is of another model's shape");
  };
  below(step.rows, step.row_count, tokens, "logit row out of range");
  std::size_t positions = SIZE_MAX;
  for (const Instruction& i : code_) {
    if (const auto* op = std::get_if<Embedding>(&i.op)) below(step.tokens, tokens, op->vocab, "token id out of range");
    if (const auto* op = std::get_if<Attention>(&i.op)) shape(op->layer, op->kv_heads, op->head_dim);
    if (const auto* op = std::get_if<RopeKvWrite>(&i.op)) {
      shape(op->layer, op->kv_heads, op->head_dim);
      if (op->rope.cos) positions = std::min(positions, op->positions);
    }
  }
  below(step.batch.positions, tokens, positions, "position past the rotary tables");
}

// Memory for every slot, grown to the largest batch so far; each starts on a cache line.
void Program::place(const StepArgs& step) {
  std::size_t total = 0;
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    offsets_[s] = total;
    const std::size_t floats = std::max(slots_[s].by_token * step.batch.tokens, slots_[s].by_row * step.row_count);
    total += (floats + 15) / 16 * 16;
  }
  if (total <= capacity_) return;
  memory_ = {};
  capacity_ = 0;
  memory_ = Arena().take(total * sizeof(float));  // rows of a wide matrix each lie on a page of their own: huge ones
  capacity_ = total;
}

void Program::run(Context& c, const KvLayers& kv, const StepArgs& given, float* out) {
  check(kv, given);
  std::lock_guard lock(mutex_);
  StepArgs step = given;
  step.batch.step = next_step();
  place(step);
  for (const Instruction& i : code_)
    if ((buffers_[i.out].by_row ? step.row_count : step.batch.tokens) > 0) execute(c, i, kv, step, out);
}

void Program::execute(Context& c, const Instruction& i, const KvLayers& kv, const StepArgs& step, float* out) {
  auto at = [&](int id) -> float* {
    if (id < 0) return nullptr;
    return buffers_[id].slot < 0 ? out : reinterpret_cast<float*>(memory_.data) + offsets_[buffers_[id].slot];
  };
  const float *x = at(i.in), *residual = at(i.residual);
  float* y = at(i.out);
  const int width = buffers_[i.out].width, rows = buffers_[i.out].by_row ? step.row_count : step.batch.tokens;
  std::visit(Overloaded{
    [&](const Embedding& op) { c.embedding(op.format, op.table, op.columns, step.tokens, rows, op.scale, y); },
    [&](const RmsNorm& op) { c.rms_norm(x, rows, width, op.norm, y); },
    [&](const Linear& op) { c.linear(x, rows, *op.w, op.norm, op.act, residual, op.post, y, i.next); },
    [&](const RopeKvWrite& op) {
      c.rope_kv_write(x, kv.layers[op.layer], step.batch, op.heads, op.rope, op.q, op.k, y);
    },
    [&](const Attention& op) { c.attention(x, kv.layers[op.layer], step.batch, op.args, y); },
    [&](const SelectRows&) {
      for (int r = 0; r < rows; ++r)
        std::memcpy(y + static_cast<std::ptrdiff_t>(r) * width, x + static_cast<std::ptrdiff_t>(step.rows[r]) * width,
                    width * sizeof(float));
    },
    [&](const Softcap& op) { c.softcap(y, static_cast<std::ptrdiff_t>(rows) * width, op.cap); },
  }, i.op);
}

}  // namespace octavo
