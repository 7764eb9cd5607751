// tests/faults/lane.hpp - keeps several transfers of random shapes in flight between a memory here
// and a region there, and verifies every byte.
//
// Threads: externally synchronised.
// Invariants: where a read comes from, the remote region has the pattern given to aim(), and no
// other process writes to it. Transfers of one Lane touch disjoint bytes.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {

using Random = std::mt19937_64;

class Lane {
 public:
  static constexpr std::uint64_t kDepth = 4;  // transfers in flight

  /// `bytes` are the region's, a multiple of kDepth * 4096.
  Lane(Held near, std::uint64_t bytes) : near_(std::move(near)), bytes_(bytes) {}

  /// Moves from now on between all of its memory and the same size of `remote` from `offset` on.
  void aim(Op op, Peer peer, RemoteRegion remote, std::uint64_t offset, std::uint64_t remote_seed);
  /// Runs its transfers after that stream from now on.
  void follow(const StreamOrder& stream) { after_ = stream; }
  /// Replaces transfers that have ended; sometimes verifies the bytes before that. Returns the
  /// first Status that was not ok, of a submission or of a transfer.
  Status pump(Random& random);
  /// Waits until nothing is in flight, checks that each transfer was ok or `disconnected`, and
  /// drops the remote region. Returns what is wrong, or nothing.
  std::string settle(base::Deadline limit);
  /// Verifies after that every byte that came since the last check, and those beside. Returns what
  /// is wrong, or nothing.
  std::string poll();
  /// Runs one more round with a living peer, after aim(); all transfers must be ok. Adds to `there`
  /// what writes put into the remote region. Settles and verifies.
  std::string last_round(Random& random, std::vector<Expected>& there);

  const Region& region() const noexcept { return near_.region; }
  std::uint64_t broken() const noexcept { return broken_; }  ///< Transfers that were not ok, ever.

 private:
  struct Flight {
    Transfer transfer;
    std::vector<Block> blocks;
  };
  Status launch(Random& random);
  void land(const Flight& flight, const Status& end);

  Held near_;
  const std::uint64_t bytes_;
  Op op_ = Op::write;
  Peer peer_;
  RemoteRegion remote_;
  StreamOrder after_;
  std::uint64_t offset_ = 0, near_seed_ = 1, remote_seed_ = 0, broken_ = 0;
  std::vector<Flight> flights_;
  std::vector<Expected> came_;     // since the memory was filled
  std::vector<Extent> undefined_;  // what transfers that were not ok may have written
  std::string wrong_;
};

}  // namespace linkspan::test
