#include "pool.h"

#include <pthread.h>

#include <chrono>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

constexpr int kMaxThreads = 1024;
constexpr auto kSpin = std::chrono::microseconds(100);  // longer than the gaps between the calls of a step

std::atomic<uint64_t> g_forks{0};

// All pools of the process. A fork waits for their operations to end: the child has the forking thread alone, so an
// operation of another thread would stay half done there, its pool locked for good.
struct Registry {
  std::mutex mutex;
  std::vector<Pool*> pools;

  static Registry& get() {
    static Registry* all = [] {
      pthread_atfork([] { get().lock(); }, [] { get().unlock(); }, [] {
        g_forks.fetch_add(1);
        get().unlock();
      });
      return new Registry;  // never deleted: a fork may come last of all
    }();
    return *all;
  }
  void lock() {
    mutex.lock();
    for (Pool* p : pools) p->mutex().lock();
  }
  void unlock() {
    for (Pool* p : pools) p->mutex().unlock();
    mutex.unlock();
  }
  void add(Pool* pool) {
    std::lock_guard lock(mutex);
    pools.push_back(pool);
  }
  void remove(Pool* pool) {
    std::lock_guard lock(mutex);
    std::erase(pools, pool);
  }
};

constexpr std::ptrdiff_t kFetch = 64 << 10;  // most that a waiting thread fetches of each of two streams,
constexpr std::ptrdiff_t kFetchStep = 512;   // and at a time

inline void fetch_line(const uint8_t* p) {
#if defined(__x86_64__)
  asm volatile("prefetcht1 (%0)" : : "r"(p));  // in assembly: the compiler drops a loop of prefetches
#else
  __builtin_prefetch(p, 0, 2);
#endif
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

Pool::Pool(int threads) : threads_(threads) {
  if (threads < 1 || threads > kMaxThreads)
    throw std::invalid_argument("threads must be between 1 and " + std::to_string(kMaxThreads) + ", not " +
                                std::to_string(threads));
  ranges_ = std::make_unique<Range[]>(threads);
  start();
  Registry::get().add(this);
}

Pool::~Pool() {
  Registry::get().remove(this);
  if (forks_ == g_forks.load()) {
    stop();
  } else {
    for (auto& w : workers_) w.detach();  // they live in the parent process
  }
}

void Pool::start() {
  forks_ = g_forks.load();
  quit_ = false;
  const uint32_t seen = state_.load() & ~(kOpen | kCount);
  try {
    for (int i = 1; i < threads_; ++i) workers_.emplace_back([this, i, seen] { work(i, seen); });
  } catch (...) {  // fewer threads than asked for would be a silent lie
    stop();
    throw;
  }
}

void Pool::stop() {
  quit_ = true;
  state_.fetch_add(kGeneration);
  state_.notify_all();
  for (auto& w : workers_) w.join();
  workers_.clear();
}

// Items of a range still to be done, taken by its own thread from the front, by others from the back.
int Pool::take(Range& range, bool own) {
  uint64_t s = range.span.load(std::memory_order_relaxed);
  for (;;) {
    const uint32_t begin = static_cast<uint32_t>(s >> 32), end = static_cast<uint32_t>(s);
    if (begin >= end) return -1;
    const uint64_t left = own ? span_of(begin + 1, end) : span_of(begin, end - 1);
    if (range.span.compare_exchange_weak(s, left, std::memory_order_relaxed))
      return static_cast<int>(own ? begin : end - 1);
  }
}

void Pool::drain(int self) {
  for (int i; (i = take(ranges_[self], true)) >= 0;) call_(context_, i);
  for (int k = 1; k < threads_; ++k)
    for (int i; (i = take(ranges_[(self + k) % threads_], false)) >= 0;) call_(context_, i);
}

void Pool::expect(int thread, const uint8_t* first, const uint8_t* second) {
  ranges_[thread].ahead[0].store(first, std::memory_order_relaxed);
  ranges_[thread].ahead[1].store(second, std::memory_order_relaxed);
}

// Spin as `spin` does, and fetch what the next job begins with meanwhile.
template <class Done> bool Pool::wait_and_fetch(int self, const Done& done) {
  Range& r = ranges_[self];
  return spin([&] {
    if (done()) return true;
    const uint8_t* const first = r.ahead[0].load(std::memory_order_relaxed);
    if (first != r.from) r.from = first, r.fetched = 0;
    if (first && r.fetched < kFetch) {
      const uint8_t* const second = r.ahead[1].load(std::memory_order_relaxed);
      for (const std::ptrdiff_t end = r.fetched + kFetchStep; r.fetched < end; r.fetched += 64) {
        fetch_line(first + r.fetched);
        fetch_line(second + r.fetched);
      }
    }
    return false;
  });
}

// Enter the job of a generation not seen yet; false if it is closed already.
bool Pool::join(uint32_t& seen) {
  uint32_t s = state_.load(std::memory_order_acquire);
  for (;;) {
    seen = s & ~(kOpen | kCount);
    if (!(s & kOpen)) return false;
    if (state_.compare_exchange_weak(s, s + 1, std::memory_order_acq_rel, std::memory_order_acquire)) return true;
  }
}

void Pool::leave() {
  const uint32_t before = state_.fetch_sub(1, std::memory_order_acq_rel);
  if (!(before & kOpen) && (before & kCount) == 1) state_.notify_all();  // the caller may sleep on it
}

void Pool::work(int self, uint32_t seen) {
  DenormalsOff off;
  const auto fresh = [&] { return (state_.load(std::memory_order_acquire) & ~(kOpen | kCount)) != seen; };
  for (;;) {
    if (!wait_and_fetch(self, fresh)) {
      sleepers_.fetch_add(1);
      while (!fresh()) {
        const uint32_t now = state_.load();
        if ((now & ~(kOpen | kCount)) == seen) state_.wait(now);
      }
      sleepers_.fetch_sub(1);
    }
    if (quit_) return;
    if (join(seen)) {
      drain(self);
      leave();
    }
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
    state_ = 0;
    start();
  }
  call_ = call;
  context_ = context;
  for (int t = 0; t < threads_; ++t)
    ranges_[t].span.store(span_of(first_item(items, t), first_item(items, t + 1)), std::memory_order_relaxed);
  const uint32_t next = (state_.load(std::memory_order_relaxed) + kGeneration) & ~(kOpen | kCount);
  state_.store(next | kOpen, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) state_.notify_all();
  drain(0);
  state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  const auto empty = [&] { return (state_.load(std::memory_order_acquire) & kCount) == 0; };
  if (wait_and_fetch(0, empty)) return;
  for (uint32_t s; ((s = state_.load(std::memory_order_acquire)) & kCount) != 0;) state_.wait(s);
}

}  // namespace octavo
