// engine/transfers/transfer.hpp - the state behind a Transfer: waiting, queued, posted, quiet.
//
// On the path of a byte: made by the submission, kept by the PeerScheduler until the end.
// waiting on a stream: a user's stream has to reach the mark first, and no stream of ours can wait
// for it. queued: batches are left to post, in the peer's queue. posted: all batches are with an
// Endpoint. quiet: each batch has completed and nothing will touch the memory again.
// Threads: under the peer's mutex, except `quiet`, which any thread reads.
// Invariants: `end` is set before `quiet` and immutable afterwards.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/recycled.hpp"
#include "engine/messages/message_state.hpp"
#include "engine/transfers/completion_queue.hpp"
#include "engine/transfers/router.hpp"
#include "engine/transfers/stream_order.hpp"
#include "linkspan/transfer.hpp"
#include "memory/registry.hpp"

namespace linkspan::engine {

/// A peer's region with one Mapping for each transport that reaches it.
/// Threads: immutable after construction; destroyed without the peer's mutex.
struct ImportedRegion {
  std::uint64_t peer = 0;  ///< Peer::id()
  std::uint64_t incarnation = 0, serial = 0;
  std::string name;
  MemoryKind kind = MemoryKind::host;
  std::uint64_t bytes = 0;
  Permissions peers;
  /// In the order of the transports; null where the peer sent no key of that transport.
  std::vector<std::unique_ptr<transport::Mapping>> mappings;
};

/// The two regions, the direction and the transport of a submission.
struct TransferEndpoints {
  std::uint64_t peer = 0;
  Op op = Op::write;
  std::size_t transport = 0;                          // index of the transport that carries it
  std::shared_ptr<const memory::Registration> local;  // also the registry's
  std::shared_ptr<ImportedRegion> remote;             // also the user's RemoteRegion
};

/// A pair of regions of a transfer that has several, beside the first.
struct PlannedPair : TransferEndpoints {
  std::shared_ptr<const Plan> plan;            // also of other pairs that are alike
  const transport::KeptPages* kept = nullptr;  // of TransferBatches::prepared; may be null
};

/// What was prepared of a shape, once for all pairs that have it.
struct PreparedShape {
  std::vector<std::uint32_t> lists;  // the user's page lists, local then remote
  std::optional<Pages> pages;        // refer to `lists`; only if the shape is Pages
  // What a transport made of `pages`, by its index; null where it gains nothing.
  std::map<std::size_t, std::unique_ptr<transport::KeptPages>> kept;
};

/// A pair of regions that was prepared. `local` is null: it would keep the pin of a deregistered
/// region.
struct PreparedPair : PlannedPair {
  std::weak_ptr<const memory::Registration> region;
  transport::BatchSummary size;
  PreparedShape* shape = nullptr;  // of the PreparedState
};

/// A submission that was checked once and is posted any number of times.
/// Threads: immutable after construction; destroyed without the peer's mutex.
struct PreparedState {
  std::deque<PreparedShape> shapes;
  std::vector<PreparedPair> pairs;  // at least one
  transport::BatchSummary size;     // of all pairs
};

/// The batches of a transfer: its plan, and how much of it is posted.
struct TransferBatches {
  Plan own;
  std::shared_ptr<const Plan> shared;          // used instead of `own`; also of other pairs
  const transport::KeptPages* kept = nullptr;  // of `prepared`, for the first pair
  std::shared_ptr<PreparedState> prepared;     // what is posted of it, until quiet; also handles'
  std::vector<PlannedPair> more;  // the pairs of regions after the first, in the user's order
  std::size_t count = 0;          // of the plans of all parts
  std::size_t posted = 0, in_flight = 0;
  std::size_t part = 0, posted_of_part = 0;  // 0: the first pair of regions
  transport::TransferHints hints;
  transport::PathTaken path_taken;  // by the last batch, or by the copy of a two-sided transfer

  const Plan& plan() const noexcept { return shared != nullptr ? *shared : own; }
  bool all_posted() const noexcept { return posted == count; }
};

/// The notification that follows the data.
struct TransferNotification {
  std::vector<std::byte> bytes;
  bool in_batch = false;  // the batch carries it

  bool to_send() const noexcept { return !in_batch && !bytes.empty(); }
};

/// How a transfer is made to end.
struct TransferEnding {
  base::Time deadline{};
  bool canceled = false, expired = false;
  bool finishing = false;  // only its notification is left to send
  Status first_error;      // becomes TransferState::end

  bool is_asked() const noexcept { return expired || canceled; }
  void fail(const Status& why) {
    if (first_error.ok()) first_error = why;
  }
  /// Returns the status that the user sees: canceled or timed_out if the transfer was asked to end
  /// and did not complete, with the low-level text appended. `disconnected` is kept because it
  /// concerns the whole peer.
  Status user_status(const Status& status) const;
};

/// Made by base::make_recycled().
struct TransferState : TransferEndpoints {
  /// A batch that is not posted yet.
  struct NextBatch {
    const TransferEndpoints& between;
    const Plan& plan;
    std::size_t index;  // in the plan
    const transport::KeptPages* kept;
  };

  /// Adds a pair of regions; the first one becomes the transfer's own. Returns where it is.
  const TransferEndpoints& add(PlannedPair pair);

  /// Requires that not all batches are posted.
  NextBatch next_batch() const noexcept;
  /// Counts the batch of next_batch() as posted and in flight, with the only batches of the
  /// `joined` pairs after its own.
  void count_posted(std::size_t joined) noexcept;
  /// Calls `act(TransferEndpoints&)` for each pair of regions.
  template <class Act>
  void for_each_pair(Act act) {
    act(*this);
    for (PlannedPair& part : batches.more) act(part);
  }
  /// Acquires all local regions. Returns false, and acquires none, if one was deregistered.
  [[nodiscard]] bool acquire_local();
  void release_local();

  std::uint64_t id = 0;
  std::uint64_t bytes =
      0;  // submitted; of a receive its capacity, and when quiet the bytes received
  base::Time submitted{};
  // Set for a two-sided transfer. Its plan stays empty: the copy is another transfer.
  std::unique_ptr<MessageState> message;
  TransferState* whole = nullptr;  // set for such a copy: the two-sided transfer, which outlives it
  TransferBatches batches;
  TransferNotification notification;
  TransferStreams streams;
  TransferEnding ending;
  CompletionEntry completion;
  Status end;
  std::atomic<bool> quiet{false};
};

/// Returns the status of one pair of regions of a transfer, with the pair's index in its text.
Status status_of_pair(std::size_t index, const Status& status);

/// Returns the hints for the transport that are in the options.
transport::TransferHints hints_of(const TransferOptions& options);

/// Returns whether TransferOptions::require allows `path`, of a transport with these
/// Capabilities::leaves_host.
bool satisfies(std::string_view path, bool leaves_host, std::string_view required);

}  // namespace linkspan::engine
