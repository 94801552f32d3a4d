#include "dispatch.h"

#include <stdexcept>

namespace octavo {

const FormatInfo kFormats[static_cast<int>(Format::kCount)] = {
    {"F32", 2, 8, 128},        {"F16", 2, 4, 64},          {"BF16", 2, 4, 64},         {"Q4_0", 32, 18, 288},
    {"Q4_1", 32, 20, 320},     {"Q5_0", 32, 22, 352},      {"Q5_1", 32, 24, 384},      {"Q8_0", 32, 34, 544},
    {"Q2_K", 256, 84, 1344},   {"Q3_K", 256, 110, 1824},   {"Q4_K", 256, 144, 2368},   {"Q5_K", 256, 176, 2880},
    {"Q6_K", 256, 210, 3360},  {"IQ4_NL", 32, 18, 288},    {"IQ4_XS", 256, 136, 2208}, {"MXFP4", 32, 17, 272},
};

namespace {

std::vector<const Kernels*> tiers() {
  std::vector<const Kernels*> found;
#if defined(OCTAVO_HAVE_AVX2)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    found.push_back(&kAvx2);
#endif
  found.push_back(&kPortable);
  return found;
}

}  // namespace

std::vector<std::string> available_tiers() {
  std::vector<std::string> names;
  for (const Kernels* k : tiers()) names.emplace_back(k->name);
  return names;
}

const Kernels& find_kernels(const std::string& tier) {
  std::string known;
  for (const Kernels* k : tiers()) {
    if (tier == "auto" || tier == k->name) return *k;
    known += std::string(known.empty() ? "" : ", ") + k->name;
  }
  throw std::invalid_argument("instruction-set tier '" + tier + "' is not available here; possible: auto, " + known);
}

}  // namespace octavo
