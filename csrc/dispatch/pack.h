// Weights from the file's block layout to panels of 16 rows: four consecutive bytes of each row side by side.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../kernels/kernels.h"
#include "arena.h"
#include "pool.h"

namespace octavo {

Format find_format(const std::string& name);  // throws std::invalid_argument

struct Part {  // rows as they lie in the file
  Format format;
  const uint8_t* data;
  std::size_t rows;
};

struct Segment {  // the panels of one part
  Format format;
  int rows;
  int first_row;          // in the stacked matrix
  const uint8_t* panels;
  std::size_t panel_bytes;
  int panel_count() const { return (rows + kLanes - 1) / kLanes; }
};

struct PackedLinear {
  PackedLinear(int columns, bool gated, Memory memory)
      : columns(columns), gated(gated), bytes(memory.bytes), memory(std::move(memory)) {}

  int rows = 0, columns;
  bool gated;
  unsigned families = 0;  // a bit for each Family among its parts
  std::vector<Segment> segments;
  std::vector<float> bias;
  std::size_t bytes;
  Memory memory;

  bool has(Family f) const { return families >> static_cast<int>(f) & 1; }
};

std::size_t row_bytes(Format format, int columns);  // in the file
std::size_t panel_bytes(Format format, int columns);
// One panel from 16 rows (repeat the last row where there are fewer).
void pack_panel(Format format, const uint8_t* const rows[kLanes], int columns, uint8_t* out);
std::unique_ptr<PackedLinear> pack(const std::vector<Part>& parts, int columns, std::vector<float> bias, bool gated,
                                   Pool& pool, Arena& arena);

}  // namespace octavo
