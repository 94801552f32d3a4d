// A persistent pool: workers spin for a while after a job, then sleep, so that back-to-back calls wake nobody and an
// idle engine costs nothing. A job waits only for workers that joined it: where a core is taken away, its worker comes
// too late, finds the job closed, and the others have done its share.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }
  std::mutex& mutex() { return mutex_; }  // held by a caller for the length of an operation

  // Where a thread's share of the next job begins, in two streams: while it waits, it fetches some of them into its
  // cache. Any address will do, also of what is gone by then.
  void expect(int thread, const uint8_t* first, const uint8_t* second);
  // The first of a job's items that a thread takes.
  int first_item(int items, int thread) const {
    return static_cast<int>(static_cast<int64_t>(items) * thread / threads_);
  }

  // fn(item) for every item of [0, items), on all threads, each item once. Returns when all are done.
  template <class Fn> void run(int items, const Fn& fn) {
    run_job(items, [](const void* f, int item) { (*static_cast<const Fn*>(f))(item); }, &fn);
  }

 private:
  using Call = void (*)(const void*, int);
  void run_job(int items, Call call, const void* context);
  void start();
  void stop();
  void work(int self, uint32_t seen);
  bool join(uint32_t& seen);
  void leave();
  void drain(int self);
  template <class Done> bool wait_and_fetch(int self, const Done& done);

  // Each thread starts with a stretch of items of its own, so that it walks through memory in order, and helps the
  // others when it is done: begin << 32 | end.
  struct alignas(64) Range {
    std::atomic<uint64_t> span{0};
    std::atomic<const uint8_t*> ahead[2]{};  // what `expect` said
    std::ptrdiff_t fetched = 0;              // of it, by the thread itself
    const uint8_t* from = nullptr;           // the ahead[0] that this counts for
  };
  static uint64_t span_of(uint32_t begin, uint32_t end) { return static_cast<uint64_t>(begin) << 32 | end; }
  static int take(Range& range, bool own);

  // state_: generation of the job | open for workers | workers in it.
  static constexpr uint32_t kCount = 0x7ff, kOpen = 0x800, kGeneration = 0x1000;

  int threads_;
  uint64_t forks_ = 0;  // forks of this process when the workers were started
  std::vector<std::thread> workers_;
  std::unique_ptr<Range[]> ranges_;
  std::mutex mutex_;
  Call call_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<bool> quit_{false};
  alignas(64) std::atomic<uint32_t> state_{0};
  alignas(64) std::atomic<int> sleepers_{0};
};

// Flushes denormals to zero on this thread for its lifetime, so that every thread computes alike.
class DenormalsOff {
 public:
  DenormalsOff();
  ~DenormalsOff();

 private:
  unsigned saved_;
};

}  // namespace octavo
