#pragma once
#include "kernels.h"

namespace octavo::OCTAVO_TIER {

void panel(Format format, const uint8_t* packed, const Activations& a, int row0, int row1, float* acc);
void unpack_rows(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]);

// By family: F32, F16, BF16; blocks of 32; super-blocks of 256.
void panel_floats(Format format, const uint8_t* packed, const Activations& a, int row0, int row1, float* acc);
void panel_blocks(Format format, const uint8_t* packed, const Activations& a, int row0, int row1, float* acc);
void panel_supers(Format format, const uint8_t* packed, const Activations& a, int row0, int row1, float* acc);
void unpack_rows_floats(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]);
void unpack_rows_blocks(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]);
void unpack_rows_supers(Format format, const uint8_t* packed, int k, float scale, float* const out[kLanes]);

}  // namespace octavo::OCTAVO_TIER
