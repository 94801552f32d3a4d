// Which tier's kernels run: the best the machine has, or the one asked for by name.
#pragma once
#include <string>
#include <vector>

#include "../kernels/kernels.h"

namespace octavo {

std::vector<std::string> available_tiers();       // best first
const Kernels& find_kernels(const std::string& tier);  // "auto" or a name; throws std::invalid_argument

}  // namespace octavo
