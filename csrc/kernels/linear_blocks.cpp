// Instantiations, by family of formats: two files, so that they compile side by side.
#include "linear_quant.h"

namespace octavo::OCTAVO_TIER {

#define OCTAVO_FORMATS(X) \
  X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4) X(INT8) \
  X(INT4_G32) X(INT4_G64) X(INT4_G128) X(INT4_G32_Z) X(INT4_G64_Z) X(INT4_G128_Z)

void panels_blocks(Format format, const PanelPair& w, const Activations& a, int row0, int row1, float* const acc[2]) {
  switch (format) {
#define X(name) case Format::name: return panels_any<Format::name>(w, a, row0, row1, acc);
    OCTAVO_FORMATS(X)
#undef X
    default: return;
  }
}

void unpack_rows_blocks(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]) {
  switch (format) {
#define X(name) case Format::name: return rows_of<Format::name>(packed, k, scale, out);
    OCTAVO_FORMATS(X)
#undef X
    default: return;
  }
}

}  // namespace octavo::OCTAVO_TIER
