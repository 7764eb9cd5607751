// transport/local/inflight_batch.hpp - what a LocalEndpoint keeps of a batch until its end.
//
// On the path of a byte: post() fills one in; progress() takes it from state to state. A batch is
// copied by a copier of this process (LocalCopy) or by the peer (PeerRequest); its role says whose
// it is: this side's, the peer's, or one bounce step of a batch of this side.
// Threads: under SharedCopiers::mutex; the parts with a mutex of their own also by a task.
// Invariants: its address stays until its end, for the copier writes LocalCopy::method.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/recycled.hpp"
#include "transport/batch.hpp"
#include "transport/local/bounce.hpp"
#include "transport/local/local_transport.hpp"

namespace linkspan::transport::local {

/// Means that the end of a request is reported by a message alone.
inline constexpr std::uint32_t kNoFlag = ~std::uint32_t{0};

struct LocalInflightBatch;

/// A region that the peer offered, so that this side copies to or from it on request.
struct OfferedRegion {
  base::Mutex mutex;
  bool opened LINKSPAN_GUARDED_BY(mutex) = false;
  Status status LINKSPAN_GUARDED_BY(mutex);
  std::shared_ptr<ImportedMemory> memory LINKSPAN_GUARDED_BY(mutex);

  bool failed() LINKSPAN_EXCLUDES(mutex) {  // then the peer may offer it again
    const base::MutexLock lock(mutex);
    return opened && !status.ok();
  }
};

/// Bounce memory, created by a task off the lock.
struct BounceBuffer {
  base::Mutex mutex;
  bool made LINKSPAN_GUARDED_BY(mutex) = false;
  Status status LINKSPAN_GUARDED_BY(mutex);
  std::unique_ptr<BounceMemory> memory LINKSPAN_GUARDED_BY(mutex);
};

/// The state of a batch that goes through a BounceBuffer.
struct BouncedBatch {
  Route route;
  std::shared_ptr<BounceBuffer> buffer;  // other owners: the Endpoint and the task that makes it
  BounceMemory* memory = nullptr;        // the buffer's, once it is made
  std::size_t next = 0;                  // blocks before it are in steps or done;
  std::uint64_t next_offset = 0;         // bytes of block `next` that are in steps or done
  unsigned steps = 0;                    // in flight
  bool restart = false;                  // to be routed again, from the first block
};

/// Turns offsets into the addresses that a copier gets. `here` and `there` are where the two
/// regions begin.
copy::Piece piece_of(Op op, std::uint64_t here, std::uint64_t there, const Block& block) noexcept;

/// Lists the pieces or pages that a copier of this process copies, in one or more orders.
struct LocalCopy {
  std::vector<copy::Piece, base::RecyclingAllocator<copy::Piece>> pieces;
  copy::PageList pages;                  // instead of pieces, in one order
  std::vector<copy::FurtherPages> more;  // of OwnBatch::joined
  std::vector<std::uint32_t> indices;    // copied while pages wait for room with the copier
  std::size_t next = 0;                  // pieces before it are with the copier or done
  copy::Method method = copy::Method::cpu_threads;
  copy::Link link = copy::Link::host;
  unsigned ctas = TransferHints{}.ctas;
  const cuda::Device* device = nullptr;
  copy::Copier* copier = nullptr;
  copy::Ticket ticket = 0;             // 0: the copier has nothing
  std::size_t blocks_with_copier = 0;  // in the order of `ticket`

  /// Returns true if `method` is one of a GPU with orders of many pieces.
  bool by_gpu() const noexcept;
  /// Returns true while pieces or pages are left for a further order.
  bool left() const noexcept { return next < pieces.size() || !pages.to_index.empty(); }
  /// Returns the pieces of the next order. Copies after those of an order can still be canceled.
  std::span<const copy::Piece> next_pieces() const noexcept;
  /// Records that the copier has accepted the next `count` pieces, or the pages. It may have
  /// changed `method` since next_pieces().
  void started(copy::Ticket accepted, std::size_t count);
  /// Copies page indices that are the user's, which are valid during post() only.
  void keep_indices();
  void stop() {
    if (ticket != 0) copier->abort(ticket);
  }
};

/// The second copy of a batch that goes through a pinned slot.
struct SecondCopy {
  PinnedSlots::Acquired slot;
  std::optional<LocalCopy> copy;  // nothing: it has become local_copy
  std::uint64_t id = 0;           // CallersCopy::id, while it is the kernel's
};

/// Role: a batch of this side.
struct OwnBatch {
  std::uint64_t cookie = 0;
  // The peer's regions of the further pairs that it has, borrowed as Batch::remote is.
  std::vector<const ImportedMemory*> joined;
  std::unique_ptr<BouncedBatch> bounced;
  std::unique_ptr<SecondCopy> second;  // null: it goes through no pinned slot
  bool by_caller = false;              // the caller of post() makes the copy that comes first
};

/// Role: a copy that the peer has requested.
struct CopyForPeer {
  std::uint64_t id = 0;                     // the peer's
  std::uint32_t completion_flag = kNoFlag;  // the peer's
  std::shared_ptr<OfferedRegion> offer;     // other owner: the task that opens it
};

/// Role: one step of a batch that goes through bounce memory.
struct BounceStep {
  LocalInflightBatch* parent = nullptr;  // its batch, which outlives it
  unsigned chunk = 0;                    // of the bounce memory
  bool second_phase = false;             // it runs the second of its two phases
};

/// A request to the peer to copy a batch.
struct PeerRequest {
  std::uint64_t id = 0;
  std::uint64_t offered_serial = 0;         // of our region
  std::uint32_t completion_flag = kNoFlag;  // ours
  base::Time due{}, polled{};               // earliest end, last poll
  bool cancel_sent = false;
};

enum class BatchState : std::uint8_t {
  opening,         // CopyForPeer: its offer is being opened
  bouncing,        // OwnBatch: its bounce steps run
  starting_phase,  // BounceStep: it has to start a phase
  copying,         // some pieces are with a copier or wait for room there
  requested,       // the peer executes it
  ended,           // quiet, to be reported
};

struct LocalInflightBatch {
  std::variant<OwnBatch, CopyForPeer, BounceStep> role;
  BatchState state = BatchState::copying;
  bool canceled = false;
  Op op = Op::write;
  PathTaken path;
  Mapped mapped = Mapped::nothing;
  std::shared_ptr<ImportedMemory> remote;   // other owner: Mapping or OfferedRegion
  std::shared_ptr<PublishedRegion> target;  // here; other owner: the transport, whose
                                            // retract() waits until the `uses` for peers end
  std::vector<Block> blocks;                // unless this side executes alone
  LocalCopy local_copy;
  PeerRequest request;
  Status end;

  bool for_peer() const noexcept { return std::holds_alternative<CopyForPeer>(role); }
  /// Returns the role if it is a bounce step, else null.
  BounceStep* step() noexcept { return std::get_if<BounceStep>(&role); }
  /// Returns true if the peer executes it and has been sent all there is to send.
  bool waits_for_peer() const noexcept {
    return state == BatchState::requested && (!canceled || request.cancel_sent);
  }
  /// Adds the pieces or the pages that a copier gets; `here` and `there` as for piece_of().
  void place(std::uint64_t here, std::uint64_t there, std::span<const Block> from_blocks);
  void place(std::uint64_t here, std::uint64_t there, const Pages& from_pages, const Batch& batch);
  /// Adds checked pages of a further pair: with the lists of the first pair, or as many of its own.
  void place_further(std::uint64_t here, std::uint64_t there, const Pages& pages,
                     bool own_lists = false);
  /// Adds checked pages as pieces, without a list of blocks between.
  void place_blocks(std::uint64_t here, std::uint64_t there, const Pages& pages);
  void cancel() {
    canceled = true;
    local_copy.stop();
  }
  void finish(Status status) {
    end = std::move(status);
    state = BatchState::ended;
  }
};

/// Batches in the order of their posts. One is made in a list of its own and joins the others once
/// nothing can fail: what throws before leaves none behind.
using InflightBatches = std::list<LocalInflightBatch, base::RecyclingAllocator<LocalInflightBatch>>;

}  // namespace linkspan::transport::local
