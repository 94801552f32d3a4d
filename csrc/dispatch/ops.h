// The operations of ops/api.py over raw arrays: shapes checked by the caller, work split over the pool.
#pragma once
#include <cstdint>
#include <vector>

#include "../kernels/kernels.h"
#include "pack.h"
#include "pool.h"

namespace octavo {

struct NormArgs {
  const float* weight = nullptr;
  float eps = 0;
};

struct BatchArgs {  // core/batch.py
  const int32_t* positions;
  const int32_t* query_starts;
  const int32_t* kv_lens;
  const int32_t* page_tables;
  int tokens, sequences, table_width;
  uint64_t step = 0;  // not 0: the same in every call of one step, so that what follows from the batch is worked out once
};

// Memory for quantized rows; it grows to the largest batch seen.
struct QuantizedRows {
  Quantized room(std::size_t elements);

  std::vector<int8_t> q;
  std::vector<float> scale, scaled_sum;
  std::vector<int16_t> sum16;
};

// One engine's threads and scratch memory. Calls on one Context are serialized.
class Context {
 public:
  Context(int threads, const Kernels& kernels) : pool_(threads), kernels_(kernels) {}
  Pool& pool() { return pool_; }
  Arena& arena() { return arena_; }
  const Kernels& kernels() const { return kernels_; }

  void rms_norm(const float* x, int rows, int n, const NormArgs& norm, float* y);
  void linear(const float* x, int rows, const PackedLinear& w, const NormArgs& norm, Act act, const float* residual,
              const NormArgs& post, float* y);
  void softcap(float* x, std::ptrdiff_t n, float cap);
  void embedding(Format format, const uint8_t* table, int columns, const int32_t* tokens, int count, float scale,
                 float* y);
  void rope_kv_write(const float* qkv, const KvPages& kv, const BatchArgs& batch, int heads, const RopeArgs& rope,
                     const HeadNorm& q_norm, const HeadNorm& k_norm, float* q);
  void attention(const float* q, const KvPages& kv, const BatchArgs& batch, const AttentionArgs& args, float* out);

 private:
  Activations activate(const float* x, int rows, const PackedLinear& w, const NormArgs& norm);

  Pool pool_;
  Arena arena_;
  const Kernels& kernels_;
  std::vector<float> normed_, partial_;
  QuantizedRows main_, rest_;
  std::vector<uint8_t> outliers_;
};

double stream_gb_s(Pool& pool, const Kernels& kernels, std::size_t bytes, double seconds);
double dot_gmac_s(Pool& pool, const Kernels& kernels, double seconds);

}  // namespace octavo
