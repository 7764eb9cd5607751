#include "transport/tcp/connection_group.hpp"

#include <algorithm>
#include <utility>

#include "transport/tcp/chunk_staging.hpp"
#include "transport/tcp/data_connection.hpp"

namespace linkspan::transport::tcp {
namespace {

constexpr std::uint64_t kSmall =
    16u << 10;  // sent by the posting thread: that takes about as long as waking another
/// Minimum size of the parts in which connections share a batch, as each costs a frame's work.
constexpr std::uint64_t kMinShare = 128u << 10, kPage = 4096;
/// The same of a GPU's memory, where each costs a copy.
constexpr std::uint64_t kMinGpuShare = 256u << 10;
/// Bytes of the last of several frames, which has the notification. Not none: a peer of an older
/// release may count a frame without data twice.
constexpr std::uint64_t kTail = 4096;

/// Makes room for one more, so that the next push_back() does not throw.
template <class Batch>
void make_room(std::vector<Batch>& batches) {
  if (batches.size() == batches.capacity()) batches.reserve(2 * batches.size() + 1);
}

bool is_small(const Outgoing& batch) {
  return batch.bytes <= kSmall && batch.use.memory()->device == nullptr &&
         batch.extents.size() <= kMaxPutSpans;
}

/// Returns how many connections may share the batch. What a peer's program may poll for its end, a
/// word of 8 bytes, stays in one frame with as much as fits; and so does a notification with memory
/// of a GPU, because it would follow in a frame, and a copy, of its own.
std::uint64_t most_shares(const Outgoing& batch) {
  const auto& memory = batch.use.memory();
  if (memory == nullptr ||
      std::ranges::any_of(batch.extents, [](const Extent& each) { return each.bytes == 8; }))
    return 1;
  if (memory->device == nullptr) return batch.bytes / kMinShare;
  return batch.notification.empty() ? batch.bytes / kMinGpuShare : 1;
}

/// Returns the bytes of the batch's next chunk, at most. 0: it waits, because a notification
/// follows data that was read without an error.
std::uint64_t next_bytes(const Outgoing& batch) {
  const std::uint64_t left = batch.bytes - batch.assigned;
  const bool several =
      batch.assigned != 0 || left > batch.frame_bytes || batch.extents.size() > kMaxPutSpans;
  if (batch.notification.empty() || !several) return batch.frame_bytes;
  if (left > kTail + sizeof(std::uint64_t)) return std::min(batch.frame_bytes, left - kTail);
  return batch.reading == 0 ? batch.frame_bytes : 0;
}

/// Fills a chunk of at most `most` bytes. Returns true if nothing of the batch is left.
bool fill_chunk(Outgoing& batch, Chunk& chunk, std::uint64_t most) {
  while (batch.next < batch.extents.size() && chunk.bytes < most &&
         chunk.extents.size() < kMaxPutSpans) {
    const Extent& extent = batch.extents[batch.next];
    // An extent of 8 bytes is not split, as a peer's program may poll it (receiver.hpp).
    if (extent.bytes == 8 && most - chunk.bytes < 8) break;
    const std::uint64_t bytes = std::min(extent.bytes - batch.within, most - chunk.bytes);
    chunk.extents.push_back({extent.here + batch.within, extent.there + batch.within, bytes});
    chunk.bytes += bytes;
    batch.within += bytes;
    if (batch.within != extent.bytes) continue;
    batch.within = 0;
    ++batch.next;
  }
  return batch.next == batch.extents.size();
}

Head make_head(const Chunk& chunk, std::uint64_t incarnation) {
  Outgoing& batch = *chunk.of;
  Head head{.type = batch.type,
            .id = batch.id,
            .incarnation = incarnation,
            .serial = batch.serial,
            .token = batch.token,
            .position = chunk.position,
            .last = chunk.last,
            .summed = batch.summed,
            .code = batch.type == FrameType::data ? batch.status.code() : Code::ok,
            .data = chunk.bytes};
  if (batch.type == FrameType::put)
    for (const Extent& extent : chunk.extents) head.spans.push_back({extent.there, extent.bytes});
  if (chunk.last && batch.status.ok()) {
    head.notification = std::move(batch.notification);
    head.after = batch.after;
  }
  return head;
}

}  // namespace

void ConnectionGroup::put(std::shared_ptr<Outgoing> batch) {
  std::shared_ptr<DataConnection> by;  // shared with the group
  batch->bytes = bytes_of(batch->extents);
  {
    const base::MutexLock lock(mutex_);
    if (failure_) return batch->result.end(*failure_);
    if (queue_.empty() && is_small(*batch)) by = connections_.find_idle();
    make_room(puts_);
    choose_frame_bytes(*batch, puts_.size() + 1);
    queue_.push_back(batch);
    puts_.push_back(std::move(batch));
    on_batch_begun();
    if (by == nullptr) wake_some();
  }
  if (by != nullptr) by->send_now();
}

void ConnectionGroup::get(std::shared_ptr<Incoming> batch, Head question) {
  std::shared_ptr<DataConnection> by;  // shared with the group
  {
    const base::MutexLock lock(mutex_);
    if (failure_) return batch->result.end(*failure_);
    make_room(gets_);
    question.incarnation = options_.incarnation;
    by = connections_.enqueue(question);
    batch->requested_on = by.get();
    gets_.push_back(std::move(batch));
    on_batch_begun();
  }
  if (by != nullptr) by->send_now();
}

void ConnectionGroup::cancel(FrameType type, std::uint64_t id) {
  const base::MutexLock lock(mutex_);
  if (type == FrameType::put) {
    Outgoing* const batch = find(puts_, id);
    if (batch == nullptr) return;
    batch->canceled = true;
    if (connections_.empty()) return cancel_unsent(*batch);
    wake_some();
    return;
  }
  Incoming* const batch = find(gets_, id);
  if (batch == nullptr || batch->canceled) return;
  if (connections_.empty()) return cancel_unsent(*batch);
  // The cancel must not overtake its request.
  const auto by = connections_.enqueue(
      {.type = FrameType::cancel, .id = id, .incarnation = options_.incarnation},
      batch->requested_on);
  batch->canceled = true;
  if (by != nullptr) by->wake();
}

/// Ends a batch that the peer does not know of, because no data connection exists yet.
void ConnectionGroup::cancel_unsent(TcpBatch& batch) {
  if (failure_) return;  // finish_batches() ends it
  batch.use = {};
  batch.result.end(Status(Code::canceled, Scope::request, "canceled"));
  std::erase_if(queue_, [&](const auto& each) { return each.get() == &batch; });
  const std::uint64_t id = batch.id;
  connections_.drop_pending(id);
  erase(puts_, id);
  erase(gets_, id);
}

Status ConnectionGroup::add(const std::shared_ptr<DataConnection>& connection) {
  const base::MutexLock lock(mutex_);
  if (failure_) return *failure_;
  connections_.add(connection);
  for (const auto& get : gets_)
    if (get->requested_on == nullptr) get->requested_on = connection.get();
  wake_some();
  return {};
}

void ConnectionGroup::fail(const Status& why) {
  const base::MutexLock lock(mutex_);
  if (failure_) return;
  // The PeerScheduler takes these codes for temporary, but a failure is final.
  const bool passes = why.code() == Code::ok || why.code() == Code::no_resource ||
                      why.code() == Code::pending || why.code() == Code::busy;
  failure_ = passes ? Status(Code::disconnected, Scope::peer, why.what()) : why;
  failed_.exchange(1, std::memory_order_acq_rel);
  connections_.wake_all();
  finish_batches();
}

std::optional<Status> ConnectionGroup::failure() const {
  const base::MutexLock lock(mutex_);
  return failure_;
}

bool ConnectionGroup::abandons() const {
  const base::MutexLock lock(mutex_);
  return failure_ && !puts_.empty();
}

std::uint64_t ConnectionGroup::traffic() const {
  const base::MutexLock lock(mutex_);
  return connections_.traffic();
}

bool ConnectionGroup::is_closed() const {
  const base::MutexLock lock(mutex_);
  return failure_ && connections_.empty();
}

bool ConnectionGroup::serves() const {
  const base::MutexLock lock(mutex_);
  return !served_.empty();
}

void ConnectionGroup::on_connection_closed(const DataConnection& connection) {
  const base::MutexLock lock(mutex_);
  connections_.remove(connection);
  finish_batches();
}

/// Ends all batches of a failed group whose connections have closed.
void ConnectionGroup::finish_batches() {
  if (!failure_ || !connections_.empty()) return;
  for (const auto& batch : puts_) batch->result.end(batch->status.ok() ? *failure_ : batch->status);
  for (const auto& batch : gets_) batch->result.end(batch->status.ok() ? *failure_ : batch->status);
  queue_.clear();
  puts_.clear();
  gets_.clear();
  served_.clear();
}

/// Sets the most data of a frame: so much that a batch beside few others keeps all connections
/// busy.
void ConnectionGroup::choose_frame_bytes(Outgoing& batch, std::size_t batches) const {
  batch.frame_bytes = options_.chunk;
  const std::uint64_t most = std::max<std::uint64_t>(1, connections_.size() / batches);
  const std::uint64_t shares = std::min(most, most_shares(batch));
  if (shares < 2 || batch.extents.size() > shares * kMaxPutSpans) return;
  const std::uint64_t share = (batch.bytes / shares / kPage + 1) * kPage;
  if (share >= options_.chunk) return;
  batch.frame_bytes = share;
  batch.shared = true;
}

/// Wakes as many connections as there are chunks.
void ConnectionGroup::wake_some() {
  if (connections_.empty()) return;
  std::size_t chunks = 0;
  for (const auto& batch : queue_) {
    std::uint64_t bytes = 0;
    for (std::size_t i = batch->next; i < batch->extents.size() && chunks < connections_.size();
         ++i)
      bytes += batch->extents[i].bytes;
    const std::size_t spans = batch->extents.size() - batch->next;
    chunks += std::max<std::size_t>({1, (bytes + batch->frame_bytes - 1) / batch->frame_bytes,
                                     (spans + kMaxPutSpans - 1) / kMaxPutSpans});
    if (chunks >= connections_.size()) break;
  }
  connections_.wake(chunks);
}

// ---- how many connections -----------------------------------------------------------------------

/// Starts the clock of the rate when a batch begins; check_rate() stops it.
void ConnectionGroup::on_batch_begun() {
  if (may_grow_ && !count_.is_busy()) count_.work(base::Clock::steady().now(), true);
}

void ConnectionGroup::check_rate() {
  if (!may_grow_) return;
  const base::MutexLock lock(mutex_);
  if (failure_) return;
  const bool idle = puts_.empty() && gets_.empty() && served_.empty();
  count_.work(base::Clock::steady().now(), !idle);
  if (!count_.is_due()) return;
  const unsigned before = count_.wanted();
  for (unsigned n =
           count_.update(connections_.traffic(), static_cast<unsigned>(connections_.size()));
       n != before; --n)
    if (!options_.channel->open_data_connection().ok()) count_.on_connection_refused();
  may_grow_ = count_.may_grow();
}

void ConnectionGroup::on_connection_refused() {
  const base::MutexLock lock(mutex_);
  count_.on_connection_refused();
  may_grow_ = count_.may_grow();
}

// ---- outgoing bytes -----------------------------------------------------------------------------

std::optional<Chunk> ConnectionGroup::next_chunk(const ChunkStaging* staging) {
  const base::MutexLock lock(mutex_);
  if (!sync()) return std::nullopt;
  for (auto each = queue_.begin(); each != queue_.end(); ++each) {
    const std::shared_ptr<Outgoing> batch = *each;
    const auto& memory = batch->use.memory();
    const bool more = !batch->canceled && memory != nullptr && batch->next < batch->extents.size();
    const cuda::Device* const device = more ? memory->device : nullptr;
    if ((device != nullptr) != (staging != nullptr)) continue;
    if (device != nullptr && !staging->room(*device, batch->shared ? batch.get() : nullptr))
      continue;
    const std::uint64_t most = more ? next_bytes(*batch) : 0;
    if (more && most == 0) continue;
    Chunk chunk{
        .of = batch, .use = {}, .device = device, .extents = {}, .position = batch->assigned};
    if (more) {
      chunk.last = fill_chunk(*batch, chunk, most);
    } else {
      chunk.last = true;
      if (batch->canceled && batch->status.ok())
        batch->status = Status(Code::canceled, Scope::request, "canceled");
    }
    if (memory != nullptr && batch->type == FrameType::data) chunk.use = RegionUse(memory);
    chunk.head = make_head(chunk, options_.incarnation);
    batch->assigned += chunk.bytes;
    ++batch->reading;
    batch->all_assigned = chunk.last;
    queue_.erase(each);
    if (!chunk.last) queue_.push_back(batch);  // other batches go first
    return chunk;
  }
  return std::nullopt;
}

void ConnectionGroup::sent(const Chunk& chunk, const Status& status) {
  const base::MutexLock lock(mutex_);
  Outgoing& batch = *chunk.of;
  if (batch.status.ok()) batch.status = status;
  --batch.reading;
  if (batch.type == FrameType::put)
    end_if_finished(batch.id);
  else if (batch.all_assigned && batch.reading == 0)
    served_.end_answer(batch.id);
}

/// Ends a put that has ended at the peer and that no connection reads here.
void ConnectionGroup::end_if_finished(std::uint64_t id) {
  Outgoing* const batch = find(puts_, id);
  if (batch == nullptr || !batch->ended_by_peer || batch->reading != 0) return;
  batch->use = {};
  batch->result.end(batch->status);
  erase(puts_, id);
}

}  // namespace linkspan::transport::tcp
