// Vectors that fill a processor's registers, and XLA's threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using Index = int64_t;

constexpr Index kPlane = 16;  // channels of a plane
#ifdef __AVX512F__
constexpr int kAccumulators = 16;  // 64-byte sums that fit into registers
#else
constexpr int kAccumulators = 4;
#endif

template <typename T>
struct VectorOf {
  typedef T type __attribute__((vector_size(64), aligned(sizeof(T)), may_alias));
};
template <typename T>
using Vector = typename VectorOf<T>::type;
template <typename T>
constexpr Index kLanes = 64 / sizeof(T);
template <typename T>
constexpr Index kVectors = kPlane / kLanes<T>;  // of a pixel in a plane

template <typename T>
inline Vector<T> Load(const T* from) {
  return *reinterpret_cast<const Vector<T>*>(from);
}
template <typename T>
inline void Store(T* to, Vector<T> value) {
  *reinterpret_cast<Vector<T>*>(to) = value;
}

// Calls `work(index)` for all indices below `count`, on XLA's threads and this one.
template <typename Work>
void ForAll(ffi::ThreadPool& pool, Index count, Work work) {
  struct Shared {
    std::atomic<Index> next{0}, done{0};
    std::mutex mutex;
    std::condition_variable ended;
  };
  auto shared = std::make_shared<Shared>();
  const Work* one = &work;  // outlives every index, as this function waits for them
  auto run = [shared, one, count] {
    Index own = 0;
    for (Index index; (index = shared->next++) < count; ++own) (*one)(index);
    if (own > 0 && (shared->done += own) == count) {
      std::lock_guard<std::mutex> lock(shared->mutex);
      shared->ended.notify_all();
    }
  };
  const Index others = std::min<Index>(pool.num_threads(), count) - 1;
  for (Index other = 0; other < others; ++other) pool.Schedule(decltype(run)(run));
  run();
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->ended.wait(lock, [&] { return shared->done == count; });
}

// Memory of this thread, kept between calls; a slot for every array that is in use at once.
template <typename T>
T* Scratch(int slot, Index size) {
  thread_local std::vector<T> slots[7];
  if (static_cast<Index>(slots[slot].size()) < size) slots[slot].resize(size);
  return slots[slot].data();
}

// Arguments and results of a handler beyond those that it names, one after the other.
template <typename T>
class Arguments {
 public:
  Arguments(ffi::RemainingArgs args, ffi::RemainingRets rets) : args_(args), rets_(rets) {}
  const T* Next() { return args_.get<ffi::AnyBuffer>(arg_++)->template typed_data<T>(); }
  T* NextResult() { return (*rets_.get<ffi::AnyBuffer>(ret_++))->template typed_data<T>(); }

 private:
  ffi::RemainingArgs args_;
  ffi::RemainingRets rets_;
  size_t arg_ = 0, ret_ = 0;
};

}  // namespace
