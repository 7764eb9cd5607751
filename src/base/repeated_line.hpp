// base/repeated_line.hpp - how many lines of one kind are written, so that a peer or a stranger who
// causes one at will does not fill the log.
//
// The first lines of a second are written at once; the others are only counted, and their number is
// written when the second is over and anything happens. Pure bookkeeping: the owner writes.
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

  /// Counts a line, after pop_suppressed(). Returns whether it is to be written now.
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

  /// When pop_suppressed() will answer a number. None: nothing was only counted.
  std::optional<Time> due() const {
    return begun_ && lines_ > at_once_ ? std::optional(*begun_ + kPeriod) : std::nullopt;
  }

 private:
  const unsigned at_once_;
  std::optional<Time> begun_;  // the second of which lines_ are
  std::size_t lines_ = 0;
};

}  // namespace linkspan::base
