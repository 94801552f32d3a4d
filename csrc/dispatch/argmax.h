// The largest number of each row, as greedy sampling needs it.
#pragma once
#include <cstdint>

#include "pool.h"

namespace octavo {

// ids[r], values[r]: the first of the largest numbers of row r of x [rows, n], n > 0; the first NaN if there is one.
void argmax(Pool& pool, const float* x, int rows, int n, int32_t* ids, float* values);

}  // namespace octavo
