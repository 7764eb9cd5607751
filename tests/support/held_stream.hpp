// tests/support/held_stream.hpp - a user's stream that the test can block.
//
// Threads: externally synchronised.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {

/// A stream of the first GPU that the test can hold. It is released by itself after a while,
/// because the thread that would release it may be blocked in the driver by that very stream.
class HeldStream {
 public:
  HeldStream() : HeldStream(take(topology()->activate(topology()->devices()[0].uuid))) {}
  ~HeldStream() {
    go_on();
    (void)stream_.synchronize(enter());
  }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  void hold(Duration at_most = 15s) {
    must(stream_.wait_value(enter(), word_.device_address(), ++holds_));
    valve_ = std::jthread([this, at_most, number = holds_](const std::stop_token& stop) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, stop, at_most, [] { return false; });
      if (!stop.stop_requested()) word().store(number, std::memory_order_release);
    });
  }
  void go_on() { word().store(holds_, std::memory_order_release); }
  void synchronize() { must(stream_.synchronize(enter())); }
  /// Copies in the stream. The GPU must reach `to` and `from`.
  void copy(const void* to, const void* from, std::uint64_t bytes) {
    must(stream_.copy(enter(), reinterpret_cast<cuda::CUdeviceptr>(to),
                      reinterpret_cast<cuda::CUdeviceptr>(from), bytes));
  }
  StreamOrder order() const {
    return {
        .kind = StreamOrder::Kind::created, .gpu = device_->info().uuid, .handle = stream_.get()};
  }

 private:
  explicit HeldStream(const cuda::Device* device)
      : device_(device),
        word_(take(cuda::PinnedBuffer::create(enter(), 64))),
        stream_(take(cuda::Stream::create(enter()))) {
    word().store(0);
  }
  cuda::DeviceScope enter() const { return take(device_->enter()); }
  std::atomic_ref<std::uint64_t> word() {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(word_.data()));
  }

  const cuda::Device* const device_;
  cuda::PinnedBuffer word_;
  cuda::Stream stream_;
  std::uint64_t holds_ = 0;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread valve_;  // last: it uses all of the above
};

}  // namespace linkspan::test
