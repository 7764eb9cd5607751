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
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/recycled.hpp"
#include "engine/diagnostics/profiler_range.hpp"
#include "engine/messages/message_state.hpp"
#include "engine/transfers/completion_queue.hpp"
#include "engine/transfers/region_pairs.hpp"
#include "engine/transfers/router.hpp"
#include "engine/transfers/stream_order.hpp"
#include "linkspan/transfer.hpp"
#include "memory/registry.hpp"

namespace linkspan::engine {

/// Refers to the plan by which a transfer copies between two regions.
struct PairPlan {
  const Plan* plan = nullptr;                  // of TransferBatches; also of other pairs
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
struct PreparedPair : TransferEndpoints {
  std::weak_ptr<const memory::Registration> region;
  PairPlan copied;  // of the PreparedState
  transport::BatchSummary size;
  PreparedShape* shape = nullptr;  // of the PreparedState
};

/// A submission that was checked once and is posted any number of times.
/// Threads: immutable after construction; destroyed without the peer's mutex.
struct PreparedState {
  std::deque<PreparedShape> shapes;
  std::deque<Plan> plans;
  std::vector<PreparedPair> pairs;  // at least one
  transport::BatchSummary size;     // of all pairs

  /// Returns whether all pairs have one shape, and are copied by one plan.
  bool uniform() const noexcept { return plans.size() == 1; }
};

/// A batch of the plan of a pair of regions.
struct BatchPosition {
  std::size_t pair = 0, batch = 0;
};

/// The rest of a batch whose transport has failed, to be posted to another one.
struct MovedBatch {
  std::size_t pair = 0, transport = 0;  // the regions, and what carries it now
  Plan plan;
  std::size_t posted = 0;
};

struct TransferFailover {
  bool allowed = true;          // TransferOptions::failover, where it applies
  std::list<MovedBatch> moved;  // are posted before the others; counted by TransferBatches::count
};

/// The batches of a transfer: its plan, and how much of it is posted.
struct TransferBatches {
  Plan own;                       // of all pairs of regions, unless `common` or `by_pair` is set
  PairPlan common;                // of all pairs; of `prepared`
  std::vector<PairPlan> by_pair;  // in the order of the pairs
  std::vector<Plan> others;       // what `by_pair` refers to, unless that is `prepared`; see add()
  std::shared_ptr<PreparedState> prepared;  // what is posted of it, until quiet; also handles'
  std::size_t count = 0;                    // of the plans of all pairs
  std::size_t posted = 0, in_flight = 0;
  BatchPosition next;  // to be posted
  TransferFailover failover;
  transport::TransferHints hints;
  transport::PathTaken path_taken;  // by the last batch, or by the copy of a two-sided transfer

  PairPlan of_pair(std::size_t index) const noexcept {
    if (!by_pair.empty()) return by_pair[index];
    return common.plan != nullptr ? common : PairPlan{.plan = &own};
  }
  void count_all(std::size_t pairs) noexcept {
    count = by_pair.empty() ? pairs * of_pair(0).plan->batches : 0;
    for (const PairPlan& each : by_pair) count += each.plan->batches;
  }
  bool all_posted() const noexcept { return posted == count; }
  /// Adds one of at most `most` plans for `by_pair`. None moves when another is added.
  const Plan& add(Plan&& plan, std::size_t most) {
    others.reserve(most);
    return others.emplace_back(std::move(plan));
  }
  /// Copies the page lists that are the user's.
  void keep() {
    own.keep();
    for (Plan& each : others) each.keep();
  }
};

/// The notification that follows the data.
struct TransferNotification {
  std::vector<std::byte> bytes;
  bool in_batch = false;  // the batch carries it

  bool to_send() const noexcept { return !in_batch && !bytes.empty(); }
};

/// Lets the user's threads copy the only batch of a transfer. Constant once the transfer is
/// submitted.
struct CopyByUser {
  bool allowed = false;                     // no other transfer waits for the submitting thread
  transport::Endpoint* endpoint = nullptr;  // null: nothing
  transport::CallersCopy copy;

  bool for_submitter() const noexcept { return endpoint != nullptr && copy.now; }
  bool for_waiter() const noexcept { return endpoint != nullptr && !copy.now; }
  /// Returns whether there was anything to copy.
  bool make() const { return endpoint->copy_as_caller(copy); }
};

/// When a transfer began, and how it is made to end.
struct TransferEnding {
  base::Time submitted{}, deadline{};
  ProfilerRange range;
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
struct TransferState : TransferPairs {
  /// A batch that is not posted yet.
  struct NextBatch {
    const TransferEndpoints& between;
    std::size_t pair, transport;
    const Plan& plan;
    std::size_t index;  // in the plan
    const transport::KeptPages* kept;
  };

  /// Requires that not all batches are posted.
  NextBatch next_batch() const noexcept;
  /// Counts the batch of next_batch() as posted and in flight, with the only batches of the
  /// `joined` pairs after its own.
  void count_posted(std::size_t joined) noexcept;

  std::uint64_t id = 0;
  std::uint64_t bytes =
      0;  // submitted; of a receive its capacity, and when quiet the bytes received
  // Set for a two-sided transfer. Its plan stays empty: the copy is another transfer.
  std::unique_ptr<MessageState> message;
  TransferState* whole = nullptr;  // set for such a copy: the two-sided transfer, which outlives it
  TransferBatches batches;
  CopyByUser by_user;
  TransferNotification notification;
  TransferStreams streams;
  TransferEnding ending;
  CompletionEntry completion;
  Status end;
  std::atomic<bool> quiet{false};
};

/// The pairs behind that of a transfer's next batch. They wait as long as the transfer is not
/// changed.
class PairsAfterNext final : public transport::WaitingPairs {
 public:
  explicit PairsAfterNext(const TransferState& transfer)
      : transfer_(transfer),
        first_(transfer.batches.next.pair + 1),
        count_(transfer.next_batch().plan.batches == 1 ? transfer.all_pairs().size() - first_ : 0) {
  }

  std::size_t alike(std::size_t most) const override;
  const Pages* pages(std::size_t index) const override;
  transport::BatchPair at(std::size_t index) const override {
    return transfer_.pairs->for_batch(first_ + index);
  }
  Place place() const override { return {transfer_.pairs->number(), first_}; }

 private:
  bool goes_with_next(std::size_t index) const;
  bool is_alike(std::size_t index) const;

  const TransferState& transfer_;
  const std::size_t first_, count_;
};

/// Returns the status of one pair of regions of a transfer, with the pair's index in its text.
Status status_of_pair(std::size_t index, const Status& status);

/// Returns the hints for the transport that are in the options.
transport::TransferHints hints_of(const TransferOptions& options);

/// Returns whether TransferOptions::require allows `path`, of a transport with these
/// Capabilities::leaves_host.
bool satisfies(std::string_view path, bool leaves_host, std::string_view required);

}  // namespace linkspan::engine
