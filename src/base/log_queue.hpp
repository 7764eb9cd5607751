// base/log_queue.hpp - lines for a reader that may be slow or not return: a thread hands them
// over, in order.
//
// It stands between a Log, which is written under locks and by threads that peers wait for, and
// what runs code that is not ours: the user's callback, or a stderr whose pipe is full.
// Threads: any thread. Its own starts with the first line.
// Invariants: the Outlet is called by that thread alone, with no lock held; push() never waits for
// it; what finds no room is counted, and a line says so. Nothing is delivered after the destructor,
// except by a call that has not returned.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "base/clock.hpp"
#include "base/log.hpp"

namespace linkspan::base {

class LogQueue {
 public:
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
  static constexpr std::size_t kLineCost = 64;  ///< Beside its text.

  class Outlet {
   public:
    virtual ~Outlet() = default;
    virtual void deliver(Level level, std::string_view line) = 0;
    /// Any thread: a deliver() that waits ends, and so do those that come.
    virtual void stop() noexcept {}
  };

  explicit LogQueue(std::unique_ptr<Outlet> outlet);
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;
  /// Delivers queued lines for at most `kPatience` and drops the rest. A deliver() that has not
  /// returned by then keeps the thread until it does.
  ~LogQueue();
  static constexpr Duration kPatience = std::chrono::milliseconds(500);

  void push(Level level, std::string_view line) noexcept;
  /// Waits until all that was pushed is delivered. Returns false at the deadline, and at once on
  /// the thread itself.
  bool flush(Deadline deadline);
  bool empty() const noexcept;  ///< Nothing waits, and nothing is being delivered.

 private:
  struct LogQueueState;
  const std::shared_ptr<LogQueueState> state_;  // shared with its thread
};

}  // namespace linkspan::base
