// base/repeated_line.hpp - limits log lines of one kind, so that a peer that causes one at will
// does not fill the log.
//
// The first lines of a second are written at once. The others are only counted, and their number is
// written after the second, at the next event. Pure bookkeeping: the owner writes.
// Threads: externally synchronised.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "base/clock.hpp"

namespace linkspan::base {

class RepeatedLine {
 public:
  static constexpr Duration kPeriod = std::chrono::seconds(1);

  /// Writes the first `at_once` lines of each second.
  explicit RepeatedLine(unsigned at_once = 1) : at_once_(at_once) {}

  /// Counts a line, after pop_suppressed(). Returns true if it is to be written now.
  bool count(Time now) {
    if (!begun_ || now - *begun_ >= kPeriod) {
      begun_ = now;
      lines_ = 0;
    }
    ++lines_;
    return lines_ <= at_once_;
  }

  /// Returns how many lines were counted and not written, once their second is over, and forgets
  /// them. 0: none were, or it is not over.
  std::size_t pop_suppressed(Time now) {
    if (!begun_ || now - *begun_ < kPeriod) return 0;
    return pop_all_suppressed();
  }
  /// The same before the second is over.
  std::size_t pop_all_suppressed() {
    const std::size_t lines = std::exchange(lines_, 0);
    begun_.reset();
    return lines > at_once_ ? lines - at_once_ : 0;
  }

  /// Returns when pop_suppressed() will return a number; nullopt if no line was suppressed.
  std::optional<Time> due() const {
    return begun_ && lines_ > at_once_ ? std::optional(*begun_ + kPeriod) : std::nullopt;
  }

 private:
  const unsigned at_once_;
  std::optional<Time> begun_;  // the second that lines_ counts
  std::size_t lines_ = 0;
};

}  // namespace linkspan::base
