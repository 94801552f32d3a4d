#pragma once
#include "kernels.h"

namespace octavo::OCTAVO_TIER {

void rms_norm(const float* x, const float* weight, float eps, int n, float* y);
int quantize(const float* x, const Activations& a, int row, Outlier* outliers, int32_t* counts);
void gate(Act act, const float* g, const float* up, int n, float* y);
void add(const float* a, const float* b, int n, float* y);
void store_rows(const float* const acc[2], int rows, int n, const float* bias, const float* residual, float* y,
                std::ptrdiff_t stride);
void softcap(float* x, std::ptrdiff_t n, float cap);
uint64_t stream(const uint8_t* p, std::size_t n);
float peak_int8(int64_t steps);
float peak_f32(int64_t steps);

void rope_kv(const float* qkv, int heads, const KvPages& kv, int page, int offset, int position, const RopeArgs& rope,
             const HeadNorm& q_norm, const HeadNorm& k_norm, float* q_out);

void attend(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args);
void attend_split(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args, int split, float* partial);
void merge_splits(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args, const float* partials);

}  // namespace octavo::OCTAVO_TIER
