// The table of hot functions that each instruction-set tier provides. Plain pointers and sizes; no Python, no threads.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

constexpr int kLanes = 16;       // output columns of a panel: one lane each
constexpr int kGroup = 32;       // elements of the smallest weight block
constexpr int kChunk = 256;      // elements that share an activation scale, and the most unpacked at a time
constexpr int kBlockRows = 256;  // rows of activations that pass a panel before the next panel is read
constexpr int kKeyTile = 64;     // keys of one online-softmax step, at fixed absolute places
constexpr int kKeySplit = 512;   // keys of one partial softmax, at fixed absolute places
constexpr int kTileRows = 128;   // most query rows (tokens x heads of a group) of an attention tile,
constexpr int kTileNumbers = 16384;  // and most numbers in them

enum class Format : int {
  F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4,
  INT4_G32, INT4_G64, INT4_G128, INT4_G32_Z, INT4_G64_Z, INT4_G128_Z, INT8, FP8_E4M3, FP8_E4M3_B128, kCount
};

// How a format's weights meet the activations.
enum class Family : int { Float, Bf16, Blocks, Supers };

// A row in the file is a header and blocks of `block` elements; packed, 16 rows are one header and blocks.
struct FormatInfo {
  const char* name;
  Family family;
  int block;
  int file_header, file_bytes;
  int packed_header, packed_bytes;
};
extern const FormatInfo kFormats[static_cast<int>(Format::kCount)];
inline const FormatInfo& info_of(Format format) { return kFormats[static_cast<int>(format)]; }

// An activation too large for the int8 step of its chunk: it is 0 there and multiplies its weights in f32.
struct Outlier {
  uint16_t row;      // of its block of kBlockRows
  uint16_t element;  // of its chunk
  float x;
};

// Rows of activations as the kernels read them. Quantized formats: q int8, |q| <= 127, by chunks of up to 256 elements,
// [k / 256][rows][256], so that a panel reads all rows of a chunk as one stream; and for each chunk and row a scale,
// x = scale * q, and the sums of q over 16 and over 32 elements, i16 [16] and [8]. Float formats read x, f32 [rows, k];
// Bf16 formats the same rounded to bf16 where the tier multiplies in bf16.
struct Activations {
  int rows = 0;
  int k = 0;
  const float* x = nullptr;
  uint16_t* bf16 = nullptr;
  int8_t* q = nullptr;
  float* scale = nullptr;
  int16_t* sum16 = nullptr;
  int16_t* sum32 = nullptr;
  // Of chunk c and row block b, by element: [first[c * blocks + b], first[c * blocks + b + 1]).
  const Outlier* outliers = nullptr;
  const int32_t* first = nullptr;

  int chunks() const { return (k + kChunk - 1) / kChunk; }
  int blocks() const { return (rows + kBlockRows - 1) / kBlockRows; }
  // Where the chunk of K at k0 starts for a row, in elements.
  std::ptrdiff_t start(int k0, int row) const {
    return static_cast<std::ptrdiff_t>(k0) * rows + static_cast<std::ptrdiff_t>(row) * (k - k0 < kChunk ? k - k0 : kChunk);
  }
};

// An activation above this many times its row's root mean square is an outlier. A chunk's int8 step then stays below
// 1/28 of that mean, whatever few huge activations it holds (docs/performance.md); a row has at most k / 20 of them.
constexpr float kOutlier = 4.5f;

// What one call of the matrix kernel takes: one or two panels of one format. next: what the same thread will probably
// read after them, to be fetched meanwhile; any address will do.
struct PanelPair {
  int count;
  const uint8_t* packed[2];
  const uint8_t* next[2];
};

enum class Act : int { None, Silu, GeluTanh };
enum class KvType : int { F32, F16, BF16 };

// One layer's pages; layouts in ops/kv.py. stride: numbers from a page to the next.
struct KvPages {
  KvType type;
  void* k;
  void* v;
  std::ptrdiff_t stride;
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
  const float* sinks = nullptr;  // [heads], logits that join the softmax's sum alone; null: none
};

// Query rows of one sequence and one KV head: `tokens` of its new tokens from the one numbered `first`, `group` heads
// each. New token i is key past + i of the sequence.
struct AttentionTile {
  const float* q;             // first token's first head of this KV head
  std::ptrdiff_t q_stride;    // floats between tokens
  float* out;                 // same layout as q
  int tokens, first, past;
  const int32_t* positions;   // of the sequence's new tokens
  const uint64_t* tree;       // of the sequence's new tokens: which of them each sees; null: those up to itself
  int kv_head;
  const int32_t* pages;       // page table of the sequence
  int splits_begin, splits_end;  // splits that hold all keys its rows see
};

constexpr int kPeakMacs = 12 * 64 * 8;

struct Kernels {
  const char* name;

  // y = x * rsqrt(mean(x^2) + eps) * weight over one row of n.
  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* y);
  // One row of k floats (k a multiple of 32) to int8. Its outliers, at most k / 20 + 1, go to `outliers` in the order of
  // k, with the row's number in its block of kBlockRows; counts i32 [k / 256] says how many of each chunk. Returns how many in all.
  int (*quantize)(const float* x, const Activations& a, int row, Outlier* outliers, int32_t* counts);
  // One row of k floats to bf16, round to nearest even; null: the tier reads f32 for Bf16 formats.
  void (*round_bf16)(const float* x, int k, uint16_t* y);
  // Panels (16 columns each, all of K) for rows [row0, row1) of a, which lie in one block of kBlockRows:
  // acc[i] f32 [(row1 - row0), 16] is overwritten.
  void (*panels)(Format format, const PanelPair& w, const Activations& a, int row0, int row1, float* const acc[2]);
  // 16 rows of a packed panel back to floats: out[lane] is the row of lane, k floats.
  void (*unpack_rows)(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]);
  // y[i] = act(gate[i]) * up[i].
  void (*gate)(Act act, const float* gate, const float* up, int n, float* y);
  void (*add)(const float* a, const float* b, int n, float* y);
  // y[r][i] = acc[r][i] + bias[i] + residual[r][i] for the n columns of one or two neighbouring panels: acc[j] f32
  // [rows, 16], acc[1] unread for n <= 16; residual and y with `stride` floats a row; bias, residual null: none.
  void (*store_rows)(const float* const acc[2], int rows, int n, const float* bias, const float* residual, float* y,
                     std::ptrdiff_t stride);
  // cap * tanh(x / cap), in place.
  void (*softcap)(float* x, std::ptrdiff_t n, float cap);
  // Rotate one token's q by its position into q_out and write its rotated k and its v to the slot `page, offset`.
  void (*rope_kv)(const float* qkv, int heads, const KvPages& kv, int page, int offset, int position,
                  const RopeArgs& rope, const HeadNorm& q_norm, const HeadNorm& k_norm, float* q_out);
  // All splits of a tile in order, result to tile.out.
  void (*attend)(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args);
  // One split of a tile, for `merge_splits`: [rows] maxima, [rows] sums, [rows, head_dim] outputs before the division.
  void (*attend_split)(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args, int split,
                       float* partial);
  // Merge a tile's splits in order, result to tile.out; partials [splits, rows * (head_dim + 2)].
  void (*merge_splits)(const AttentionTile& tile, const KvPages& kv, const AttentionArgs& args, const float* partials);
  // Measuring: sum of all bytes read (so that the reads are not removed).
  uint64_t (*stream)(const uint8_t* p, std::size_t n);
  // Measuring: `steps` times kPeakMacs multiply-accumulates in registers, of int8 dots, bf16 dots (or what stands in for
  // them here), f32.
  float (*peak_int8)(int64_t steps);
  float (*peak_bf16)(int64_t steps);
  float (*peak_f32)(int64_t steps);
};

extern const Kernels kPortable;
#if defined(OCTAVO_HAVE_X86)
extern const Kernels kAvx2, kAvxVnni, kAvx512, kAvx512Bf16;
#endif

}  // namespace octavo
