#include "arena.h"

#include <sys/mman.h>

#include <new>

namespace octavo {
namespace {

constexpr std::size_t kHuge = std::size_t{2} << 20;
constexpr std::size_t kMapping = std::size_t{32} << 20;  // untouched pages of the last one cost nothing

std::size_t up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace

class Mapping {
 public:
  explicit Mapping(std::size_t bytes) : bytes_(up(bytes, kHuge)), mapped_(bytes_ + kHuge) {
    void* p = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    base_ = p;
    data_ = reinterpret_cast<uint8_t*>(up(reinterpret_cast<std::uintptr_t>(p), kHuge));
#if defined(MADV_HUGEPAGE)
    madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
  }
  ~Mapping() { munmap(base_, mapped_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uint8_t* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_, mapped_;
  void* base_;
  uint8_t* data_;
};

Memory Arena::take(std::size_t bytes) {
  if (!current_ || used_ + bytes > current_->bytes()) {
    current_ = std::make_shared<Mapping>(bytes > kMapping ? bytes : kMapping);
    used_ = 0;
  }
  Memory m = {current_->data() + used_, bytes, current_};
  used_ = up(used_ + bytes, 64);
  return m;
}

}  // namespace octavo
