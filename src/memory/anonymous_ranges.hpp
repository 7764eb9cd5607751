// memory/anonymous_ranges.hpp - the memory of this process whose page faults the kernel answers
// alone: anonymous memory, private or shared, without userfaultfd.
//
// Asked at registration, because copies across processes that touch no other memory end soon. Off
// the path of a byte.
// Threads: any thread.
// Invariants: the ranges are sorted and do not overlap.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"

namespace linkspan::memory {

class AnonymousRanges {
 public:
  /// Mappings that were read no longer ago are believed, because the kernel walks the page tables
  /// to write /proc/self/smaps. Mappings made since are read at once.
  static constexpr Duration kFresh = std::chrono::milliseconds(100);

  explicit AnonymousRanges(const base::Clock& clock = base::Clock::steady()) : clock_(clock) {}

  /// Returns whether all of the range was such memory, at most kFresh ago. May cost milliseconds.
  /// Returns false if the kernel does not tell.
  bool contain(std::uint64_t address, std::uint64_t bytes) LINKSPAN_EXCLUDES(mutex_);

 private:
  struct Range {
    std::uint64_t begin = 0, end = 0;
    bool anonymous = false;
  };
  static std::vector<Range> read();
  /// Returns nothing if a part was not mapped when the ranges were read.
  std::optional<bool> find(std::uint64_t address, std::uint64_t bytes) const
      LINKSPAN_REQUIRES(mutex_);

  const base::Clock& clock_;
  base::Mutex mutex_;
  std::vector<Range> ranges_ LINKSPAN_GUARDED_BY(mutex_);
  base::Time fresh_until_ LINKSPAN_GUARDED_BY(mutex_){};
};

}  // namespace linkspan::memory
