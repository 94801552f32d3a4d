// This tier's row of the dispatch table.
#include "linear.h"
#include "rows.h"

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
