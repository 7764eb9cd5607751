// transport/verbs/verbs_batch.hpp - a batch in flight, as ranges of blocks that are to be sent.
//
// On the path of a byte: post() fills it, RequestQueues take requests from it, its end is reported
// when no request is left.
// Threads: under its peer's mutex.
// Invariants: each byte is in `unsent`, in a request that is outstanding, or has arrived. Requests
// that fail with their queue pair return to `unsent`, because a write or read may be repeated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "transport/verbs/memory_keys.hpp"
#include "transport/wire_region.hpp"

namespace linkspan::transport::verbs {

/// A block by its addresses.
struct BlockAddresses {
  std::uint64_t here = 0, there = 0, bytes = 0;
};

/// A byte of a list of blocks.
struct BlockPosition {
  std::size_t block = 0;
  std::uint64_t offset = 0;  ///< Below the block's bytes.
  friend bool operator==(const BlockPosition&, const BlockPosition&) = default;
};

struct BlockRange {
  BlockPosition begin, end;  ///< Without its end.
};

/// Returns what one request moves from `at` on, and advances `at` beyond it. Requires a position
/// before the end of the list.
inline BlockAddresses take_request(const std::vector<BlockAddresses>& blocks, BlockPosition& at,
                                   std::uint64_t max_bytes) noexcept {
  const BlockAddresses& block = blocks[at.block];
  const std::uint64_t bytes = std::min(block.bytes - at.offset, max_bytes);
  const BlockAddresses out{block.here + at.offset, block.there + at.offset, bytes};
  at.offset += bytes;
  if (at.offset == block.bytes) at = {at.block + 1, 0};
  return out;
}

/// Access to a region of the peer's.
struct RemoteAccess {
  bool granted = false;
  bool revoked = false;  ///< The peer wants it back.
  bool refused = false;
  bool flush = false;  ///< Memory of a GPU, which its owner has to flush after writes.
  std::uint64_t address = 0;
  std::vector<std::uint64_t> rkeys;  ///< By the peer's devices; kNoKey: it has none.
  std::uint32_t batches = 0;         ///< That have it.

  bool has(std::size_t device) const noexcept {
    return device < rkeys.size() && rkeys[device] < kNoKey;
  }
};

/// The memory of both sides, which a batch keeps while it is in flight.
struct BatchMemory {
  RegionUse use;
  std::shared_ptr<const MemoryKeys> keys{};  ///< Shared with the transport.
  const WireMapping* remote = nullptr;
  RemoteAccess* access = nullptr;  ///< Null: the batch has no bytes.
  bool flushes_here = false;       ///< For a read: into memory of a GPU that needs a flush.

  /// Empties it. The keys end before the use that keeps the memory.
  void release() noexcept {
    keys = nullptr;
    use = RegionUse();
    remote = nullptr;
    access = nullptr;
    flushes_here = false;
  }
};

struct VerbsBatch {
  enum class Flush : std::uint8_t { undecided, asked, done };

  std::uint64_t cookie = 0;
  Op op = Op::write;
  BatchMemory memory;
  std::uint64_t bytes = 0;
  std::vector<BlockAddresses> blocks;  // `there` is an offset in the peer's region
  std::vector<BlockRange> unsent;
  std::uint32_t outstanding = 0;  // runs of requests, in all RequestQueues
  std::optional<base::Time> canceled_at{};
  Status end;  // why it fails
  Flush flush = Flush::undecided;
  std::uint64_t flush_id = 0;

  /// Returns whether nothing more of it is sent.
  bool stopped() const noexcept { return canceled_at.has_value() || !end.ok(); }
  /// Returns whether no request of it touches memory any more.
  bool moved() const noexcept { return outstanding == 0 && (unsent.empty() || stopped()); }
  bool over() const noexcept { return moved() && flush == Flush::done; }
  bool wants_to_send() const noexcept {
    return !unsent.empty() && !stopped() && memory.access != nullptr && memory.access->granted;
  }
  /// Returns whether a GPU may not see yet what was moved.
  bool needs_flush() const noexcept {
    return op == Op::read ? memory.flushes_here : memory.access != nullptr && memory.access->flush;
  }
  /// Ends it with an error once what is outstanding has ended.
  void fail(const Status& why) noexcept {
    if (end.ok()) end = why;
  }
};

/// Returns what is left of a batch without outstanding requests, as offsets in both regions.
inline std::vector<Block> unfinished_of(const VerbsBatch& batch) {
  std::vector<Block> left;
  const std::uint64_t here = batch.memory.use.memory()->address;
  for (const BlockRange& range : batch.unsent)
    for (BlockPosition at = range.begin; at != range.end;) {
      const std::uint64_t most =
          at.block == range.end.block ? range.end.offset - at.offset : batch.blocks[at.block].bytes;
      const BlockAddresses each = take_request(batch.blocks, at, most);
      left.push_back({each.here - here, each.there, each.bytes});
    }
  return left;
}

}  // namespace linkspan::transport::verbs
