// transport/verbs/device_call.hpp - a call of a device's control path, which takes milliseconds and
// so runs on the transport's Executor.
//
// Off the path of a byte.
// Threads: run() and the fields until `done` the Executor's; then externally synchronised.
// Invariants: it touches nothing but what the call itself holds, so its starter may end before.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "base/executor.hpp"
#include "base/no_memory.hpp"
#include "transport/verbs/queue_pair.hpp"

namespace linkspan::transport::verbs {

struct DeviceCall {
  std::atomic<bool> done{false};
  Status status;
  std::shared_ptr<QueuePair> queue_pair{};  ///< What it made. Shared with the Executor's task.

  /// Starts `call`, which gets this object.
  static std::shared_ptr<DeviceCall> start(base::Executor& executor,
                                           std::function<Status(DeviceCall&)> call) {
    auto made = std::make_shared<DeviceCall>();  // shared with the task
    executor.run([made, call = std::move(call)] {
      made->status = base::or_no_memory([&] { return call(*made); });
      made->done.store(true, std::memory_order_release);
    });
    return made;
  }
  static std::shared_ptr<DeviceCall> destroy(base::Executor& executor,
                                             std::shared_ptr<QueuePair> queue_pair) {
    return start(executor, [queue_pair = std::move(queue_pair)](DeviceCall&) {
      return queue_pair->destroy();
    });
  }
  bool is_done() const noexcept { return done.load(std::memory_order_acquire); }
};

}  // namespace linkspan::transport::verbs
