// tests/support/few_fds.hpp - lets a process reach its limits.
//
// Threads: one, at a quiet time of the others.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"

namespace linkspan::test {

/// A soft limit of this process, for the length of a scope.
class Limit {
 public:
  Limit(__rlimit_resource which, rlim_t value) : which_(which) {
    if (::getrlimit(which, &old_) != 0) throw std::runtime_error("getrlimit");
    const rlimit now{.rlim_cur = std::min(value, old_.rlim_max), .rlim_max = old_.rlim_max};
    if (::setrlimit(which, &now) != 0) throw std::runtime_error("setrlimit");
  }
  ~Limit() { ::setrlimit(which_, &old_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  const __rlimit_resource which_;
  rlimit old_{};
};

/// This process has room for `spare` more file descriptors and no others.
class FewFds {
 public:
  explicit FewFds(std::size_t spare) : limit_(RLIMIT_NOFILE, 1024), spare_(spare) {
    // An Engine's threads close a moment later what came with a message that was answered.
    for (int quiet = 0; quiet < 20; ++quiet) {
      const std::size_t before = taken_.size();
      fill();
      if (taken_.size() != before) quiet = 0;
      ::poll(nullptr, 0, 1);
    }
    taken_.resize(taken_.size() - spare);
  }
  /// Returns how many of them are not free, or nothing. What has ended may be closed a moment
  /// later.
  std::string kept() {
    const auto limit = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(2));
    for (;;) {
      const std::size_t before = taken_.size();
      fill();
      const std::size_t found = taken_.size() - before;
      taken_.resize(before);
      if (found >= spare_) return {};
      if (limit.passed()) return std::to_string(spare_ - found) + " are kept";
      std::this_thread::yield();
    }
  }

 private:
  void fill() {
    for (;;) {
      base::Fd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!next.valid()) return;
      taken_.push_back(std::move(next));
    }
  }
  // closed after the limit is restored, so there is room for all at once
  std::vector<base::Fd> taken_;
  const Limit limit_;
  const std::size_t spare_;
};

}  // namespace linkspan::test
