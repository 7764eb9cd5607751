// store/server_log.hpp - the log of a server: why connections were closed, one line a second.
//
// Threads: externally synchronised. The callback is called on a thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.hpp"
#include "base/log_queue.hpp"
#include "base/repeated_line.hpp"

namespace linkspan::store {

class ServerLog {
 public:
  using Callback = std::function<void(std::string_view)>;

  /// Logs nothing if `callback` is empty.
  explicit ServerLog(Callback callback) {
    if (callback) queue_.emplace(std::make_unique<LogOutlet>(std::move(callback)));
  }
  ServerLog(const ServerLog&) = delete;
  ServerLog& operator=(const ServerLog&) = delete;
  ~ServerLog() { write_number(lines_.pop_all_suppressed()); }

  void warn(const std::string& what) {
    if (!queue_) return;
    const base::Time now = base::Clock::steady().now();
    write_suppressed(now);
    if (lines_.count(now)) queue_->push(base::Level::warning, "store: " + what);
  }
  /// Writes how many lines were suppressed, once their second is over.
  void write_suppressed(base::Time now) { write_number(lines_.pop_suppressed(now)); }
  /// Returns when write_suppressed() will write a line.
  std::optional<base::Time> due() const { return lines_.due(); }

 private:
  class LogOutlet final : public base::LogQueue::Outlet {
   public:
    explicit LogOutlet(Callback callback) : callback_(std::move(callback)) {}
    void deliver(base::Level, std::string_view line) override { callback_(line); }

   private:
    const Callback callback_;
  };

  void write_number(std::size_t lines) {
    if (lines != 0)
      queue_->push(base::Level::warning,
                   "store: " + std::to_string(lines) + " more connections were closed");
  }

  std::optional<base::LogQueue> queue_;
  base::RepeatedLine lines_;
};

}  // namespace linkspan::store
