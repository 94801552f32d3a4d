#include "pool.h"

#include <pthread.h>

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

constexpr auto kSpin = std::chrono::microseconds(100);  // longer than the gaps between the calls of a step

std::atomic<uint64_t> g_forks{0};

void count_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { g_forks.fetch_add(1); }); });
}

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spin until done() or the time is up; true if done.
template <class Done> bool spin(const Done& done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

}  // namespace

DenormalsOff::DenormalsOff() : saved_(0) {
#if defined(__x86_64__)
  saved_ = _mm_getcsr();
  _mm_setcsr(saved_ | 0x8040u);
#endif
}

DenormalsOff::~DenormalsOff() {
#if defined(__x86_64__)
  _mm_setcsr(saved_);
#endif
}

Pool::Pool(int threads) : threads_(threads < 1 ? 1 : threads) {
  count_forks();
  start();
}

Pool::~Pool() {
  if (forks_ == g_forks.load()) {
    stop();
  } else {
    for (auto& w : workers_) w.detach();  // they live in the parent process
  }
}

void Pool::start() {
  forks_ = g_forks.load();
  quit_ = false;
  const uint32_t seen = generation_.load();
  for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i, seen] { work(i, seen); });
}

void Pool::stop() {
  quit_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (auto& w : workers_) w.join();
  workers_.clear();
}

void Pool::drain() {
  for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < items_;) call_(context_, i);
}

void Pool::work(int, uint32_t seen) {
  DenormalsOff off;
  for (;;) {
    if (!spin([&] { return generation_.load(std::memory_order_acquire) != seen; })) {
      sleepers_.fetch_add(1);
      while (generation_.load(std::memory_order_acquire) == seen) generation_.wait(seen);
      sleepers_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (quit_) return;
    drain();
    if (active_.fetch_sub(1, std::memory_order_acq_rel) == 1) active_.notify_one();
  }
}

void Pool::run_job(int items, Call call, const void* context) {
  DenormalsOff off;
  if (threads_ == 1 || items <= 1) {
    for (int i = 0; i < items; ++i) call(context, i);
    return;
  }
  if (forks_ != g_forks.load(std::memory_order_relaxed)) {  // a fork kept the calling thread only: start anew
    for (auto& w : workers_) w.detach();
    workers_.clear();
    sleepers_ = 0;
    start();
  }
  call_ = call;
  context_ = context;
  items_ = items;
  next_.store(0, std::memory_order_relaxed);
  active_.store(threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) generation_.notify_all();
  drain();
  if (spin([&] { return active_.load(std::memory_order_acquire) == 0; })) return;
  for (int left; (left = active_.load(std::memory_order_acquire)) != 0;) active_.wait(left);
}

}  // namespace octavo
