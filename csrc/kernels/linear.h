#pragma once
#include "kernels.h"

namespace octavo::OCTAVO_TIER {

void unpack_rows(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]);

// By family. Floats: F32, F16, and where the tier has no bf16 dot, BF16 and FP8.
void panels_floats(Format format, const PanelPair& w, const Activations& a, int row0, int row1, float* const acc[2]);
void panels_blocks(Format format, const PanelPair& w, const Activations& a, int row0, int row1, float* const acc[2]);
void panels_supers(Format format, const PanelPair& w, const Activations& a, int row0, int row1, float* const acc[2]);
void unpack_rows_floats(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]);
void unpack_rows_blocks(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]);
void unpack_rows_supers(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]);

}  // namespace octavo::OCTAVO_TIER
