// Instantiations, by family of formats: two files, so that they compile side by side.
#include "linear_quant.h"

namespace octavo::OCTAVO_TIER {

#define OCTAVO_FORMATS(X) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_XS)

void panels_supers(Format format, const PanelPair& w, const Activations& a, int row0, int row1, float* const acc[2]) {
  switch (format) {
#define X(name) case Format::name: return panels_any<Format::name>(w, a, row0, row1, acc);
    OCTAVO_FORMATS(X)
#undef X
    default: return;
  }
}

void unpack_rows_supers(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]) {
  switch (format) {
#define X(name) case Format::name: return rows_of<Format::name>(packed, k, scale, out);
    OCTAVO_FORMATS(X)
#undef X
    default: return;
  }
}

}  // namespace octavo::OCTAVO_TIER
