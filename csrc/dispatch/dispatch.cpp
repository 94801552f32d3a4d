#include "dispatch.h"

#include <stdexcept>

#if defined(OCTAVO_HAVE_X86)
#include <cpuid.h>
#endif

namespace octavo {

#if defined(OCTAVO_HAVE_AVXVNNI)
namespace {

bool has_avx_vnni() {  // leaf 7.1, EAX bit 4; compilers name the feature only from some version on
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

}  // namespace
#endif

// name, family, block, then header and bytes of a block: of a row in the file, of 16 rows packed
const FormatInfo kFormats[static_cast<int>(Format::kCount)] = {
    {"F32", Family::Float, 2, 0, 8, 0, 128},
    {"F16", Family::Float, 2, 0, 4, 0, 64},
    {"BF16", Family::Bf16, 4, 0, 8, 0, 128},
    {"Q4_0", Family::Blocks, 32, 0, 18, 0, 288},
    {"Q4_1", Family::Blocks, 32, 0, 20, 0, 320},
    {"Q5_0", Family::Blocks, 32, 0, 22, 0, 352},
    {"Q5_1", Family::Blocks, 32, 0, 24, 0, 384},
    {"Q8_0", Family::Blocks, 32, 0, 34, 0, 544},
    {"Q2_K", Family::Supers, 256, 0, 84, 0, 1344},
    {"Q3_K", Family::Supers, 256, 0, 110, 0, 1824},
    {"Q4_K", Family::Supers, 256, 0, 144, 0, 2368},
    {"Q5_K", Family::Supers, 256, 0, 176, 0, 2880},
    {"Q6_K", Family::Supers, 256, 0, 210, 0, 3360},
    {"IQ4_NL", Family::Blocks, 32, 0, 18, 0, 288},
    {"IQ4_XS", Family::Supers, 256, 0, 136, 0, 2208},
    {"MXFP4", Family::Blocks, 32, 0, 17, 0, 272},
    {"INT4_G32", Family::Blocks, 32, 0, 18, 0, 288},
    {"INT4_G64", Family::Blocks, 64, 0, 34, 0, 544},
    {"INT4_G128", Family::Blocks, 128, 0, 66, 0, 1056},
    {"INT4_G32_Z", Family::Blocks, 32, 0, 19, 0, 304},
    {"INT4_G64_Z", Family::Blocks, 64, 0, 35, 0, 560},
    {"INT4_G128_Z", Family::Blocks, 128, 0, 67, 0, 1072},
    {"INT8", Family::Blocks, 32, 4, 32, 64, 512},
    {"FP8_E4M3", Family::Bf16, 32, 4, 32, 64, 512},
    {"FP8_E4M3_B128", Family::Bf16, 128, 0, 132, 0, 2112},
};

namespace {

std::vector<const Kernels*> tiers() {
  std::vector<const Kernels*> found;
#if defined(OCTAVO_HAVE_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni");
#if defined(OCTAVO_HAVE_AVX512_BF16)
  if (avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi"))
    found.push_back(&kAvx512Bf16);
#endif
  if (avx512) found.push_back(&kAvx512);
#if defined(OCTAVO_HAVE_AVXVNNI)
  if (avx2 && has_avx_vnni()) found.push_back(&kAvxVnni);
#endif
  if (avx2) found.push_back(&kAvx2);
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
