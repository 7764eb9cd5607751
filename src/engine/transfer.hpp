// engine/transfer.hpp - the state machine behind a Transfer: queued, posted, quiet.
//
// held: a stream of the user's has to come by first, and no GPU of ours copies, whose stream could
// wait for it. queued: batches are left to post, in the peer's queue. posted: all are with an
// Endpoint. quiet: each has completed and nothing will touch the memory again; only then is there a
// status.
// Threads: under the scheduler's lock, but for `quiet`, which any thread reads; `end` is immutable
// once it is set.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/message_state.hpp"
#include "engine/router.hpp"
#include "engine/stream_order.hpp"
#include "linkspan/transfer.hpp"
#include "memory/registry.hpp"

namespace linkspan::engine {

class CompletionQueueState;

/// A peer's region with one Mapping per transport that reaches it.
/// Threads: immutable after construction; destroyed off the lock.
struct ImportedRegion {
  std::uint64_t peer = 0;  ///< Peer::id()
  std::uint64_t incarnation = 0;
  std::string name;
  MemoryKind kind = MemoryKind::host;
  std::uint64_t bytes = 0;
  Permissions peers;
  /// By the transports' order; null where that transport brought no key.
  std::vector<std::unique_ptr<transport::Mapping>> mappings;
};

/// What a submission goes between.
struct TransferEndpoints {
  std::uint64_t peer = 0;
  Op op = Op::write;
  std::size_t transport = 0;                          // index of the one that carries it
  std::shared_ptr<const memory::Registration> local;  // also the registry's
  std::shared_ptr<ImportedRegion> remote;             // also the user's RemoteRegion
};

/// A submission that was checked and is made again and again: of no transfer, or of many.
/// Threads: immutable after construction; destroyed off the lock.
struct PreparedState : TransferEndpoints {
  memory::RegionId region;  // in place of `local`, which would hold the pin of one that has ended
  transport::Shape size;
  std::vector<std::uint32_t> lists;  // the user's, one behind the other,
  Pages pages;                       // if he gave pages; the plan's, if they stay pages
  bool has_pages = false;
  Plan plan;
  std::unique_ptr<transport::KeptPages> kept;  // of the plan's pages; null: nothing is gained by it
};

struct TransferState : TransferEndpoints {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;  // submitted; of a receive its room until it is quiet, then what came
  // Of a two-sided transfer, whose own plan stays empty; its copy is a transfer of its own.
  std::unique_ptr<MessageState> message;
  TransferState* whole = nullptr;  // of such a copy: the two-sided transfer, which outlives it
  Plan own;
  std::shared_ptr<PreparedState> prepared;  // instead, until it is quiet; also handles'
  std::size_t batches = 0;                  // of its plan
  std::vector<std::byte> notification;
  bool notifies = false;  // its batch has taken that along
  base::Time submitted{}, deadline{};

  UserStream stream;                      // to run after
  std::optional<cuda::PooledEvent> mark;  // where it stood; until all is posted
  std::optional<cuda::PooledEvent>
      release_event;  // in our stream, for the one that goes on after it
  std::shared_ptr<StreamBlocker>
      blocker;  // or what holds it; also block_user_stream()'s, for a while
  cuda::DeferredDestroyer::DeferralGuard deferral;  // with either stream

  std::size_t posted = 0;           // batches of the plan
  std::size_t in_flight = 0;        // batches
  transport::PathTaken path_taken;  // of its last batch, or of the copy of a two-sided one
  Status first_error;               // what it will end with
  Status end;
  transport::TransferHints hints;
  bool wants_release = false;  // by `behind`, as long as that can be
  bool finishing = false;      // only its notification is left to send
  bool canceled = false, expired = false;
  bool added = false;                           // to a CompletionQueue, once and for all
  std::uint64_t cookie = 0;                     // for it
  std::shared_ptr<CompletionQueueState> queue;  // until it is quiet; also handles'
  std::atomic<bool> quiet{false};

  const Plan& plan() const noexcept {
    const PreparedState* shared = prepared.get();
    return shared != nullptr ? shared->plan : own;
  }
  bool all_posted() const noexcept { return posted == batches; }
};

/// What of them a transport hears.
transport::TransferHints hints_of(const TransferOptions& options);

/// As TransferOptions::require says.
bool satisfies(std::string_view path, std::string_view required);

/// What was asked to end and did not complete has ended for that reason, whatever else went wrong
/// on its way; but a lost peer is more than the transfer.
Status user_status(const TransferState& transfer, const Status& status);

}  // namespace linkspan::engine
