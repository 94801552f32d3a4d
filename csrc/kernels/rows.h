#pragma once
#include "kernels.h"

namespace octavo::OCTAVO_TIER {

void rms_norm(const float* x, const float* weight, float eps, int n, float* y);
void quantize(const float* x, const Activations& a, int row);
void gate(Act act, const float* g, const float* up, int n, float* y);
void add(const float* a, const float* b, int n, float* y);
void softcap(float* x, std::ptrdiff_t n, float cap);
uint64_t stream(const uint8_t* p, std::size_t n);
int64_t dot(int64_t steps);

void rope_kv(const float* qkv, int heads, const KvPages& kv, int page, int offset, int position, const RopeArgs& rope,
             const HeadNorm& q_norm, const HeadNorm& k_norm, float* q_out);

void attend(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args);
void attend_split(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args, int split, float* m,
                  float* l, float* o);
void merge_splits(const float* m, const float* l, const float* o, int n, int group, int head_dim, float* out);

}  // namespace octavo::OCTAVO_TIER
