#pragma once
#include "kernels.h"

namespace octavo::OCTAVO_TIER {

void panel(Format format, const uint8_t* packed, const Activations& a, int row0, int row1, float* acc);
void unpack_rows(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]);

// Float formats (linear_float.cpp).
void panel_float(Format format, const uint8_t* packed, const Activations& a, int row0, int row1, float* acc);
void unpack_rows_float(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]);

}  // namespace octavo::OCTAVO_TIER
