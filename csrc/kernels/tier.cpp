// This tier's row of the dispatch table.
#include "linear.h"
#include "rows.h"

namespace octavo::OCTAVO_TIER {

void panel(Format format, const uint8_t* packed, const Activations& a, int row0, int row1, float* acc) {
  switch (kFormats[static_cast<int>(format)].block) {
    case kChunk: return panel_supers(format, packed, a, row0, row1, acc);
    case kGroup: return panel_blocks(format, packed, a, row0, row1, acc);
    default: return panel_floats(format, packed, a, row0, row1, acc);
  }
}

void unpack_rows(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]) {
  switch (kFormats[static_cast<int>(format)].block) {
    case kChunk: return unpack_rows_supers(format, packed, k, scale, out);
    case kGroup: return unpack_rows_blocks(format, packed, k, scale, out);
    default: return unpack_rows_floats(format, packed, k, scale, out);
  }
}

}  // namespace octavo::OCTAVO_TIER

namespace octavo {

extern const Kernels OCTAVO_TABLE;
const Kernels OCTAVO_TABLE = {
    OCTAVO_TIER_NAME,
    OCTAVO_TIER::rms_norm,
    OCTAVO_TIER::quantize,
    OCTAVO_TIER::panel,
    OCTAVO_TIER::unpack_rows,
    OCTAVO_TIER::gate,
    OCTAVO_TIER::add,
    OCTAVO_TIER::softcap,
    OCTAVO_TIER::rope_kv,
    OCTAVO_TIER::attend,
    OCTAVO_TIER::attend_split,
    OCTAVO_TIER::merge_splits,
    OCTAVO_TIER::stream,
    OCTAVO_TIER::dot,
};

}  // namespace octavo
