// The operations of ops/api.py over raw arrays: shapes checked by the caller, work split over the pool.
#pragma once
#include <cstdint>
#include <vector>

#include "../kernels/kernels.h"
#include "attention_plan.h"
#include "pack.h"
#include "pool.h"

namespace octavo {

struct NormArgs {
  const float* weight = nullptr;
  float eps = 0;
};

// Memory for the activations of one matrix product; it grows to the largest batch seen.
struct ActivationMemory {
  std::vector<float> normed, scale;
  std::vector<uint16_t> bf16;
  std::vector<int8_t> q;
  std::vector<int16_t> sum16, sum32;
  std::vector<Outlier> found, outliers, spare;  // as rows found them; by chunk, row block and element
  std::vector<int32_t> counts, first;

  void reserve_quantized(int rows, int k);
  void sort_outliers(Activations& a);

 private:
  void sort_by_element(Outlier* from, int n);
};

// One engine's threads and scratch memory. Calls on one Context are serialized.
class Context {
 public:
  Context(int threads, const Kernels& kernels) : pool_(threads), kernels_(kernels) {}
  Pool& pool() { return pool_; }
  Arena& arena() { return arena_; }
  const Kernels& kernels() const { return kernels_; }

  void rms_norm(const float* x, int rows, int n, const NormArgs& norm, float* y);
  // next: the matrix that will be read after w; null: not known.
  void linear(const float* x, int rows, const PackedLinear& w, const NormArgs& norm, Act act, const float* residual,
              const NormArgs& post, float* y, const PackedLinear* next = nullptr);
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
  AttentionPlans plans_;
  AttentionMemory attention_;
  ActivationMemory activations_;
};

double stream_gb_s(Pool& pool, const Kernels& kernels, std::size_t bytes, double seconds);
enum class Peak { Int8, Bf16, F32 };
double peak_gmac_s(Pool& pool, const Kernels& kernels, Peak kind, double seconds);

}  // namespace octavo
