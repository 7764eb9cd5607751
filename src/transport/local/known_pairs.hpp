// transport/local/known_pairs.hpp - what a transfer needs of the pairs that share its launch, kept
// for the next transfer between the same pairs.
//
// On the path of a byte: LocalEndpoint::join() reads it in the place of a Mapping of each
// pair, which are hundreds of cache lines.
// Threads: externally synchronised (SharedCopiers::mutex).
// Invariants: true while SharedCopiers has the same epoch, but for `liveness`.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/local/mapping.hpp"

namespace linkspan::transport::local {

struct KnownPair {
  std::uint64_t local_address = 0, remote_address = 0;  ///< Where the regions begin.
  LivenessEntry liveness;                               ///< Of the peer's region.
  const ImportedMemory* memory = nullptr;               ///< The peer's region.
};

struct KnownPairs {
  WaitingPairs::Place place;
  std::uint64_t epoch = 0;  ///< 0: none is known.
  std::vector<KnownPair> pairs;
};

}  // namespace linkspan::transport::local
