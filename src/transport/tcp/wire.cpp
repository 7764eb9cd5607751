#include "transport/tcp/wire.hpp"

#include <algorithm>
#include <utility>

#include "copy/staging.hpp"
#include "transport/tcp/data_connection.hpp"

namespace linkspan::transport::tcp {
namespace {

constexpr std::uint64_t kSmall = 16u << 10;  // who posts it sends it: about as long as to wake one

bool is_small(const Outgoing& batch) {
  std::uint64_t bytes = 0;
  for (const Piece& piece : batch.pieces)
    if ((bytes += piece.bytes) > kSmall) return false;
  return batch.use.memory()->device == nullptr && batch.pieces.size() <= kMaxPutSpans;
}

}  // namespace

void Wire::end(Ticket& ticket, const Status& status) {
  ticket.status = status;
  ticket.ended.store(true, std::memory_order_release);
}

void Wire::put(std::shared_ptr<Outgoing> batch) {
  std::shared_ptr<DataConnection> by;  // also the wire's
  {
    const base::MutexLock lock(mutex_);
    if (failure_) return end(batch->ticket, *failure_);
    if (queue_.empty() && is_small(*batch)) by = idle();
    queue_.push_back(batch);
    puts_.push_back(std::move(batch));
    begun();
    if (by == nullptr) wake_some();
  }
  if (by != nullptr) by->send_now();
}

void Wire::get(std::shared_ptr<Incoming> batch, Head question) {
  std::shared_ptr<DataConnection> by;  // also the wire's
  {
    const base::MutexLock lock(mutex_);
    if (failure_) return end(batch->ticket, *failure_);
    gets_.push_back(std::move(batch));
    question.incarnation = options_.incarnation;
    begun();
    by = say(question);
    gets_.back()->asked_by = by.get();
  }
  if (by != nullptr) by->send_now();
}

/// Null: all have something to send.
std::shared_ptr<DataConnection> Wire::idle() const {
  const auto found = std::ranges::find_if(connections_, &DataConnection::is_idle);
  return found != connections_.end() ? *found : nullptr;
}

/// The connection that has it now and is to send it: `behind` if that is still here, else any;
/// null: none has come.
std::shared_ptr<DataConnection> Wire::say(const Head& head, const DataConnection* behind) {
  if (connections_.empty()) {
    unsaid_.push_back({head.id, encode(head)});
    return nullptr;
  }
  const auto before =
      std::ranges::find(connections_, behind, &std::shared_ptr<DataConnection>::get);
  std::shared_ptr<DataConnection> by = before != connections_.end() ? *before : idle();
  if (by == nullptr) by = connections_[next_data_connection_++ % connections_.size()];
  by->say(encode(head));
  return by;
}

void Wire::cancel(Op op, std::uint64_t id) {
  const base::MutexLock lock(mutex_);
  if (op == Op::put) {
    Outgoing* const batch = find(puts_, id);
    if (batch == nullptr) return;
    batch->canceled = true;
    if (connections_.empty()) return forget(id);
    wake_some();
    return;
  }
  Incoming* const batch = find(gets_, id);
  if (batch == nullptr || std::exchange(batch->canceled, true)) return;
  if (connections_.empty()) return forget(id);
  // Not before its question.
  if (const auto by =
          say({.op = Op::cancel, .id = id, .incarnation = options_.incarnation}, batch->asked_by))
    by->wake();
}

/// A batch of ours of which the peer has not heard, for no data connection has come.
void Wire::forget(std::uint64_t id) {
  if (failure_) return;  // settle() ends it
  const Status canceled(Code::canceled, Scope::request, "canceled");
  for (const auto& put : puts_)
    if (put->id == id) put->use = {}, end(put->ticket, canceled);
  for (const auto& get : gets_)
    if (get->id == id) get->use = {}, end(get->ticket, canceled);
  std::erase_if(queue_, [&](const auto& each) { return each->op == Op::put && each->id == id; });
  std::erase_if(unsaid_, [&](const auto& each) { return each.id == id; });
  erase(puts_, id);
  erase(gets_, id);
}

Status Wire::add(std::shared_ptr<DataConnection> connection) {
  const base::MutexLock lock(mutex_);
  if (failure_) return *failure_;
  for (auto& question : std::exchange(unsaid_, {})) connection->say(std::move(question.frame));
  for (const auto& get : gets_)
    if (get->asked_by == nullptr) get->asked_by = connection.get();
  connections_.push_back(std::move(connection));
  wake_some();
  return {};
}

void Wire::fail(const Status& why) {
  const base::MutexLock lock(mutex_);
  if (failure_) return;
  // For the TransferScheduler these mean "later", and a failure is for good, whoever named it so.
  const bool passes = why.code() == Code::ok || why.code() == Code::no_resource ||
                      why.code() == Code::pending || why.code() == Code::busy;
  failure_ = passes ? Status(Code::disconnected, Scope::peer, why.what()) : why;
  failed_.store(true, std::memory_order_release);
  abandons_ = !puts_.empty();
  for (const auto& connection : connections_) connection->wake();
  settle();
}

std::optional<Status> Wire::failure() const {
  const base::MutexLock lock(mutex_);
  return failure_;
}

bool Wire::abandons() const {
  const base::MutexLock lock(mutex_);
  return abandons_;
}

std::uint64_t Wire::traffic() const {
  const base::MutexLock lock(mutex_);
  return moved();
}

std::uint64_t Wire::moved() const {
  std::uint64_t bytes = 0;
  for (const auto& connection : connections_) bytes += connection->traffic();
  return bytes;
}

bool Wire::over() const {
  const base::MutexLock lock(mutex_);
  return failure_ && connections_.empty();
}

bool Wire::serves() const {
  const base::MutexLock lock(mutex_);
  return !theirs_.empty() || !answers_.empty();
}

void Wire::ended(const DataConnection& connection) {
  const base::MutexLock lock(mutex_);
  std::erase_if(connections_, [&](const auto& each) { return each.get() == &connection; });
  settle();
}

/// The batches of a wire that is over end with it.
void Wire::settle() {
  if (!failure_ || !connections_.empty()) return;
  for (const auto& batch : puts_)
    end(batch->ticket, batch->status.ok() ? *failure_ : batch->status);
  for (const auto& batch : gets_)
    end(batch->ticket, batch->status.ok() ? *failure_ : batch->status);
  queue_.clear();
  puts_.clear();
  answers_.clear();
  gets_.clear();
  theirs_.clear();
}

/// As many connections as there is work for, those first that do nothing; always the same of these,
/// so that in turns of small ones a thread finds the next before it sleeps.
void Wire::wake_some() {
  if (connections_.empty()) return;
  std::size_t chunks = 0;
  for (const auto& batch : queue_) {
    std::uint64_t bytes = 0;
    for (std::size_t i = batch->next; i < batch->pieces.size() && chunks < connections_.size(); ++i)
      bytes += batch->pieces[i].bytes;
    chunks += 1 + bytes / options_.chunk;
    if (chunks >= connections_.size()) break;
  }
  for (const bool idle : {true, false})
    for (std::size_t i = 0; i < connections_.size() && chunks != 0; ++i) {
      if (connections_[i]->is_idle() != idle) continue;
      connections_[i]->wake();
      --chunks;
    }
}

// ---- how many connections -----------------------------------------------------------------------

/// A batch; where its end is seen, look_at_rate() follows.
void Wire::begun() {
  if (may_grow_) count_.work(base::Clock::steady().now(), true);
}

void Wire::look_at_rate() {
  if (!may_grow_) return;
  const base::MutexLock lock(mutex_);
  if (failure_) return;
  const bool idle = puts_.empty() && gets_.empty() && theirs_.empty() && answers_.empty();
  count_.work(base::Clock::steady().now(), !idle);
  if (!count_.is_due()) return;
  const unsigned before = count_.wanted();
  for (unsigned n = count_.look(moved(), static_cast<unsigned>(connections_.size())); n != before;
       --n)
    if (!options_.channel->open_data_connection().ok()) count_.could_not_be_made();
  may_grow_ = count_.may_grow();
}

void Wire::not_made() {
  const base::MutexLock lock(mutex_);
  count_.could_not_be_made();
  may_grow_ = count_.may_grow();
}

// ---- bytes that go ------------------------------------------------------------------------------

std::optional<Chunk> Wire::take(const copy::Staging* staging) {
  const base::MutexLock lock(mutex_);
  if (failure_) return std::nullopt;
  for (auto each = queue_.begin(); each != queue_.end(); ++each) {
    const std::shared_ptr<Outgoing> batch = *each;
    const auto& memory = batch->use.memory();
    const bool more = !batch->canceled && memory != nullptr && batch->next < batch->pieces.size();
    const cuda::Device* const device = more ? memory->device : nullptr;
    if ((device != nullptr) != (staging != nullptr)) continue;
    if (device != nullptr && !staging->room(*device)) continue;
    Chunk chunk{.of = batch, .use = {}, .pieces = {}, .position = batch->taken};
    if (more) {
      chunk.last = cut(*batch, chunk);
    } else {
      chunk.last = true;
      if (batch->canceled && batch->status.ok())
        batch->status = Status(Code::canceled, Scope::request, "canceled");
    }
    if (memory != nullptr && batch->op == Op::data) chunk.use = RegionUse(memory);
    chunk.head = head_of(chunk);
    batch->taken += chunk.bytes;
    ++batch->reading;
    batch->all_taken = chunk.last;
    queue_.erase(each);
    if (!chunk.last) queue_.push_back(batch);  // others have their turn
    return chunk;
  }
  return std::nullopt;
}

/// True: nothing of it is left.
bool Wire::cut(Outgoing& batch, Chunk& chunk) const {
  while (batch.next < batch.pieces.size() && chunk.bytes < options_.chunk &&
         chunk.pieces.size() < kMaxPutSpans) {
    const Piece& piece = batch.pieces[batch.next];
    // A word is not cut: it may be polled there (receiver.hpp).
    if (piece.bytes == 8 && options_.chunk - chunk.bytes < 8) break;
    const std::uint64_t bytes = std::min(piece.bytes - batch.within, options_.chunk - chunk.bytes);
    chunk.pieces.push_back({piece.here + batch.within, piece.there + batch.within, bytes});
    chunk.bytes += bytes;
    batch.within += bytes;
    if (batch.within != piece.bytes) continue;
    batch.within = 0;
    ++batch.next;
  }
  return batch.next == batch.pieces.size();
}

Head Wire::head_of(const Chunk& chunk) const {
  Outgoing& batch = *chunk.of;
  Head head{.op = batch.op,
            .id = batch.id,
            .incarnation = options_.incarnation,
            .serial = batch.serial,
            .token = batch.token,
            .position = chunk.position,
            .last = chunk.last,
            .summed = batch.summed,
            .code = batch.op == Op::data ? batch.status.code() : Code::ok,
            .data = chunk.bytes};
  if (batch.op == Op::put)
    for (const Piece& piece : chunk.pieces) head.spans.push_back({piece.there, piece.bytes});
  if (chunk.last && !chunk.pieces.empty()) {
    head.notification = std::move(batch.notification);
    head.after = batch.after;
  }
  return head;
}

void Wire::sent(const Chunk& chunk, const Status& status) {
  const base::MutexLock lock(mutex_);
  Outgoing& batch = *chunk.of;
  if (batch.status.ok()) batch.status = status;
  --batch.reading;
  if (batch.op == Op::put)
    end_if_over(batch.id);
  else if (batch.all_taken && batch.reading == 0)
    erase(answers_, batch.id);
}

/// A put that has ended there, and that no connection reads for here.
void Wire::end_if_over(std::uint64_t id) {
  Outgoing* const batch = find(puts_, id);
  if (batch == nullptr || !batch->heard || batch->reading != 0) return;
  batch->use = {};
  end(batch->ticket, batch->status);
  erase(puts_, id);
}

}  // namespace linkspan::transport::tcp
