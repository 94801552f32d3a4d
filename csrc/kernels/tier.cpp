// This tier's row of the dispatch table.
#include "linear.h"
#include "rows.h"

namespace octavo::OCTAVO_TIER {

void panels(Format format, const PanelPair& w, const Activations& a, int row0, int row1, float* const acc[2]) {
  switch (info_of(format).family) {
    case Family::Supers: return panels_supers(format, w, a, row0, row1, acc);
    case Family::Blocks: return panels_blocks(format, w, a, row0, row1, acc);
    case Family::Bf16:
    case Family::Float: return panels_floats(format, w, a, row0, row1, acc);
  }
}

void unpack_rows(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]) {
  switch (info_of(format).family) {
    case Family::Supers: return unpack_rows_supers(format, packed, k, scale, out);
    case Family::Blocks: return unpack_rows_blocks(format, packed, k, scale, out);
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
    nullptr,  // f32 for the Bf16 family
    OCTAVO_TIER::panels,
    OCTAVO_TIER::unpack_rows,
    OCTAVO_TIER::gate,
    OCTAVO_TIER::add,
    OCTAVO_TIER::store_rows,
    OCTAVO_TIER::softcap,
    OCTAVO_TIER::rope_kv,
    OCTAVO_TIER::attend,
    OCTAVO_TIER::attend_split,
    OCTAVO_TIER::merge_splits,
    OCTAVO_TIER::stream,
    OCTAVO_TIER::peak_int8,
    OCTAVO_TIER::peak_f32,  // which the Bf16 family runs on
    OCTAVO_TIER::peak_f32,
};

}  // namespace octavo
