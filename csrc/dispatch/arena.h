// Memory for weights: slices of large mappings that start at huge-page boundaries, so that streaming misses no TLB.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace octavo {

class Mapping;  // freed with its last slice

struct Memory {
  uint8_t* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<Mapping> owner;
};

class Arena {
 public:
  // 64-byte aligned. Throws std::bad_alloc.
  Memory take(std::size_t bytes);

 private:
  std::shared_ptr<Mapping> current_;
  std::size_t used_ = 0;
};

}  // namespace octavo
