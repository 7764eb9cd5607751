#include "memory/anonymous_ranges.hpp"

#include <algorithm>
#include <fstream>
#include <string>

#include "memory/page_access.hpp"

namespace linkspan::memory {

std::vector<AnonymousRanges::Range> AnonymousRanges::read() {
  std::vector<Range> ranges;
  std::ifstream smaps("/proc/self/smaps");
  for (std::string line; std::getline(smaps, line);) {
    if (const auto range = parse_range(line)) {
      ranges.push_back({range->begin, range->end, !range->of_file});
    } else if (line.starts_with("VmFlags:") && !ranges.empty()) {
      // A userfaultfd gets faults of missing, write-protected or minor pages.
      for (const char* flag : {" um", " uw", " ui"})
        ranges.back().anonymous &= line.find(flag) == std::string::npos;
    }
  }
  return ranges;
}

std::optional<bool> AnonymousRanges::find(std::uint64_t address, std::uint64_t bytes) const {
  const std::uint64_t end = address + bytes;
  auto range = std::ranges::upper_bound(ranges_, address, {}, &Range::end);
  for (std::uint64_t seen = address; range != ranges_.end() && range->begin <= seen; ++range) {
    if (!range->anonymous) return false;
    seen = range->end;
    if (seen >= end) return true;
  }
  return std::nullopt;
}

bool AnonymousRanges::contain(std::uint64_t address, std::uint64_t bytes) {
  const base::MutexLock lock(mutex_);
  const base::Time now = clock_.now();
  auto found = now < fresh_until_ ? find(address, bytes) : std::nullopt;
  if (!found) {
    ranges_ = read();
    fresh_until_ = now + kFresh;
    found = find(address, bytes);
  }
  return found.value_or(false);
}

}  // namespace linkspan::memory
