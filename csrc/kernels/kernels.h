// The table of hot functions that each instruction-set tier provides. Plain pointers and sizes; no Python, no threads.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

constexpr int kLanes = 16;      // output columns of a panel: one lane each
constexpr int kGroup = 32;      // elements that share an activation scale
constexpr int kChunk = 256;     // most elements of K unpacked at a time
constexpr int kKeyTile = 64;    // keys of one online-softmax step, at fixed absolute positions
constexpr int kKeySplit = 512;  // keys of one partial softmax, at fixed absolute positions

enum class Format : int {
  F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, kCount
};

// Elements per block, bytes per row of a block in the file, bytes per 16-row block packed.
struct FormatInfo {
  const char* name;
  int block;
  int file_bytes;
  int packed_bytes;
};
extern const FormatInfo kFormats[static_cast<int>(Format::kCount)];

// Rows rounded to int8, one scale per group of 32: x = scale * q; scaled_sum = scale * sum(q) of the 32;
// sum16 = sum(q) of each half. Laid out by chunks of up to 256 elements, [k / 256][rows][256], so that a panel reads
// all rows of a chunk as one stream; the scales and sums alike, one per 32 or 16 elements.
struct Quantized {
  int8_t* q = nullptr;
  float* scale = nullptr;
  float* scaled_sum = nullptr;
  int16_t* sum16 = nullptr;

  Quantized at(std::ptrdiff_t element) const {
    return {q + element, scale + element / kGroup, scaled_sum + element / kGroup, sum16 + element / 16};
  }
};

// Activations as the kernels read them: x f32 [rows, k] for float formats, `main` for the others. Groups that hold an
// outlier (see kOutlier) carry what int8 lost in `rest`, a second int8 term, and have their bit in `outliers`, u8
// [k / 256][rows], one bit for each group of a chunk; elsewhere its scales are 0 and its q and sums are not set.
struct Activations {
  int rows = 0;
  int k = 0;
  const float* x = nullptr;
  Quantized main, rest;
  uint8_t* outliers = nullptr;

  // Where the chunk of K at k0 starts for a row, in elements.
  std::ptrdiff_t first(int k0, int row) const {
    return static_cast<std::ptrdiff_t>(k0) * rows + static_cast<std::ptrdiff_t>(row) * (k - k0 < kChunk ? k - k0 : kChunk);
  }
};

// A group whose largest magnitude exceeds this many times the row's root mean square gets a second term. One outlier
// coarsens the step of its 31 neighbours; with the second term the group has 16 bits (docs/performance.md).
constexpr float kOutlier = 6.0f;

enum class Act : int { None, Silu, GeluTanh };
enum class KvType : int { F32, F16, BF16 };

// One layer's pages; layouts in ops/kv.py.
struct KvPages {
  KvType type;
  void* k;
  void* v;
  int page_size;
  int kv_heads;
  int head_dim;
};

struct HeadNorm {  // RMS norm over a head; weight null: none
  const float* weight = nullptr;
  float eps = 0;
};

struct RopeArgs {
  const float* cos = nullptr;  // [positions, rotary / 2]; null: no rotation
  const float* sin = nullptr;
  int rotary = 0;
  bool interleaved = false;
};

struct AttentionArgs {
  int heads;
  int group;  // heads / kv_heads
  float scale;
  int window;     // 0: none
  float softcap;  // 0: none
};

// Query rows of one sequence and one KV head: `tokens` consecutive tokens from position `first`, `group` heads each.
struct AttentionTile {
  const float* q;          // first token's first head of this KV head
  std::ptrdiff_t q_stride;  // floats between tokens
  float* out;              // same layout as q
  int tokens;
  int first;               // position of the first token
  int kv_head;
  const int32_t* pages;    // page table of the sequence
};

struct Kernels {
  const char* name;

  // y = x * rsqrt(mean(x^2) + eps) * weight over one row of n.
  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* y);
  // One row of k floats (k a multiple of 32) into the two int8 terms of a.
  void (*quantize)(const float* x, const Activations& a, int row);
  // One panel (16 columns, all of K) for rows [row0, row1) of a: acc f32 [(row1 - row0), 16] is overwritten.
  void (*panel)(Format format, const uint8_t* packed, const Activations& a, int row0, int row1, float* acc);
  // 16 rows of a packed panel back to floats: out[lane] is the row of lane, k floats.
  void (*unpack_rows)(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]);
  // y[i] = act(gate[i]) * up[i].
  void (*gate)(Act act, const float* gate, const float* up, int n, float* y);
  void (*add)(const float* a, const float* b, int n, float* y);
  // cap * tanh(x / cap), in place.
  void (*softcap)(float* x, std::ptrdiff_t n, float cap);
  // Rotate one token's q into q_out and write its k and v to the slot `page, offset`.
  void (*rope_kv)(const float* qkv, int heads, const KvPages& kv, int page, int offset, int position,
                  const RopeArgs& rope, const HeadNorm& q_norm, const HeadNorm& k_norm, float* q_out);
  // All splits of a tile in order, result to tile.out.
  void (*attend)(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args);
  // One split of a one-token tile: m, l [group], o [group, head_dim].
  void (*attend_split)(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args, int split, float* m,
                       float* l, float* o);
  // Merge n splits of one token in order: m, l [n, group], o [n, group, head_dim] -> out [group, head_dim].
  void (*merge_splits)(const float* m, const float* l, const float* o, int n, int group, int head_dim, float* out);
  // Measuring: sum of all bytes read (so that the reads are not removed).
  uint64_t (*stream)(const uint8_t* p, std::size_t n);
  // Measuring: `steps` times 256 multiply-accumulates of the dot instructions, in registers.
  int64_t (*dot)(int64_t steps);
};

extern const Kernels kPortable;
#if defined(OCTAVO_HAVE_AVX2)
extern const Kernels kAvx2;
#endif

}  // namespace octavo
