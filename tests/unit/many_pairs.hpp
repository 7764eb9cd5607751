// tests/unit/many_pairs.hpp - two Engines that have met, with several regions on each side.
//
// Threads: externally synchronised.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "tests/unit/engine_pair.hpp"

namespace linkspan::test {

/// As many regions on each side, filled with what depends on the region and the place.
class ManyPairs : public EnginePair, public ::testing::WithParamInterface<const char*> {
 public:
  static constexpr std::uint64_t kBytes = 64u << 10;

 protected:
  ManyPairs() : EnginePair(GetParam()) {}
  void add(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      local_.push_back(take(near_.allocate_shared(kBytes)));
      auto [region, remote] = share("layer/" + std::to_string(i), kBytes);
      theirs_.push_back(region);
      remote_.push_back(remote);
      fill(local_[i], 2 * i);
      fill(theirs_[i], 2 * i + 1);
    }
  }
  static unsigned char value(std::size_t seed, std::uint64_t at) {
    return static_cast<unsigned char>(at * 7 + at / 251 + seed * 31);
  }
  static unsigned char* data(const Region& region) {
    return static_cast<unsigned char*>(region.data());
  }
  static void fill(const Region& region, std::size_t seed) {
    for (std::uint64_t at = 0; at < kBytes; ++at) data(region)[at] = value(seed, at);
  }
  /// Expects the bytes of a region that were filled with `seed`, but for blocks from `other`.
  static void expect(const Region& region, std::size_t seed, std::size_t other,
                     std::span<const Block> written) {
    std::vector<unsigned char> due(kBytes);
    for (std::uint64_t at = 0; at < kBytes; ++at) due[at] = value(seed, at);
    for (const Block& b : written)
      for (std::uint64_t at = 0; at < b.bytes; ++at)
        due[b.remote_offset + at] = value(other, b.local_offset + at);
    EXPECT_EQ(std::memcmp(data(region), due.data(), kBytes), 0) << "seed " << seed;
  }

  std::vector<Region> local_, theirs_;
  std::vector<RemoteRegion> remote_;
};

}  // namespace linkspan::test
