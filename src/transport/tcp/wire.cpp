#include "transport/tcp/wire.hpp"

#include <algorithm>
#include <utility>

#include "copy/staging.hpp"
#include "transport/tcp/stream.hpp"

namespace linkspan::transport::tcp {
namespace {

constexpr std::uint64_t kSmall = 16u << 10;  // who posts it sends it: about as long as to wake one

Status corrupt(const char* what) { return {Code::corrupt, Scope::peer, what}; }

/// Null: none of that number.
template <class Batch>
Batch* find(const std::vector<std::shared_ptr<Batch>>& all, std::uint64_t id) {
  const auto found = std::ranges::find(all, id, &Batch::id);
  return found != all.end() ? found->get() : nullptr;
}

template <class Batch>
void erase(std::vector<std::shared_ptr<Batch>>& all, std::uint64_t id) {
  std::erase_if(all, [&](const auto& batch) { return batch->id == id; });
}

/// What a peer may do with a region, by its token. Else the use is of none.
Status permits(const Use& use, const Token& token, Op op) {
  if (use.memory() == nullptr || !same(use.memory()->key.token, token))
    return {Code::unreachable, Scope::request, "the region is not registered here"};
  const Permissions may = use.memory()->key.peers;
  if (!(op == Op::put ? may.write : may.read))
    return {Code::permission_denied, Scope::request, "not permitted on this region"};
  return {};
}

Status fits(const Published& memory, const std::vector<Span>& spans) {
  for (const Span& span : spans)
    if (!memory::fits(span.offset, span.bytes, memory.key.bytes))
      return {Code::invalid_argument, Scope::request, "a block leaves the region"};
  return {};
}

bool is_small(const Outgoing& batch) {
  std::uint64_t bytes = 0;
  for (const Piece& piece : batch.pieces)
    if ((bytes += piece.bytes) > kSmall) return false;
  return batch.use.memory()->device == nullptr && batch.pieces.size() <= kMostPutSpans;
}

}  // namespace

Status wrong_sum(Op op) {
  const char* const what =
      op == Op::put ? "a write came by TCP with another CRC32C than it was sent with: what is at "
                      "its destination is not to be used"
      : op == Op::data ? "a read came by TCP with another CRC32C than it was sent with: what is at "
                         "its destination is not to be used"
                       : "the request of a read came by TCP with another CRC32C than it was sent "
                         "with: nothing was read";
  return {Code::corrupt, Scope::request, what};
}

void Wire::end(Ticket& ticket, const Status& status) {
  ticket.status = status;
  ticket.ended.store(true, std::memory_order_release);
}

void Wire::put(std::shared_ptr<Outgoing> batch) {
  std::shared_ptr<Stream> by;  // also the wire's
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
  std::shared_ptr<Stream> by;  // also the wire's
  {
    const base::MutexLock lock(mutex_);
    if (failure_) return end(batch->ticket, *failure_);
    gets_.push_back(std::move(batch));
    question.incarnation = options_.incarnation;
    begun();
    by = say(question);
  }
  if (by != nullptr) by->send_now();
}

/// Null: all have something to send.
std::shared_ptr<Stream> Wire::idle() const {
  const auto found = std::ranges::find_if(streams_, &Stream::is_idle);
  return found != streams_.end() ? *found : nullptr;
}

/// The stream that has it now and is to send it; null: none has come.
std::shared_ptr<Stream> Wire::say(const Head& head) {
  if (streams_.empty()) {
    unsaid_.push_back(encode(head));
    return nullptr;
  }
  std::shared_ptr<Stream> by = idle();
  if (by == nullptr) by = streams_[next_stream_++ % streams_.size()];
  by->say(encode(head));
  return by;
}

void Wire::cancel(Op op, std::uint64_t id) {
  const base::MutexLock lock(mutex_);
  if (op == Op::put) {
    Outgoing* const batch = find(puts_, id);
    if (batch == nullptr) return;
    batch->canceled = true;
    wake_some();
    return;
  }
  Incoming* const batch = find(gets_, id);
  if (batch == nullptr || std::exchange(batch->canceled, true)) return;
  if (const auto by = say({.op = Op::cancel, .id = id, .incarnation = options_.incarnation}))
    by->wake();
}

Status Wire::add(std::shared_ptr<Stream> stream) {
  const base::MutexLock lock(mutex_);
  if (failure_) return *failure_;
  for (auto& frame : std::exchange(unsaid_, {})) stream->say(std::move(frame));
  streams_.push_back(std::move(stream));
  wake_some();
  return {};
}

void Wire::fail(const Status& why) {
  const base::MutexLock lock(mutex_);
  if (failure_) return;
  failure_ = why;
  failed_.store(true, std::memory_order_release);
  abandons_ = !puts_.empty();
  for (const auto& stream : streams_) stream->wake();
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
  for (const auto& stream : streams_) bytes += stream->traffic();
  return bytes;
}

bool Wire::over() const {
  const base::MutexLock lock(mutex_);
  return failure_ && streams_.empty();
}

bool Wire::serves() const {
  const base::MutexLock lock(mutex_);
  return !theirs_.empty() || !answers_.empty();
}

void Wire::ended(const Stream& stream) {
  const base::MutexLock lock(mutex_);
  std::erase_if(streams_, [&](const auto& each) { return each.get() == &stream; });
  settle();
}

/// The batches of a wire that is over end with it.
void Wire::settle() {
  if (!failure_ || !streams_.empty()) return;
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

/// As many streams as there is work for, those first that do nothing; always the same of these,
/// so that in turns of small ones a thread finds the next before it sleeps.
void Wire::wake_some() {
  if (streams_.empty()) return;
  std::size_t chunks = 0;
  for (const auto& batch : queue_) {
    std::uint64_t bytes = 0;
    for (std::size_t i = batch->next; i < batch->pieces.size() && chunks < streams_.size(); ++i)
      bytes += batch->pieces[i].bytes;
    chunks += 1 + bytes / options_.chunk;
    if (chunks >= streams_.size()) break;
  }
  for (const bool idle : {true, false})
    for (std::size_t i = 0; i < streams_.size() && chunks != 0; ++i) {
      if (streams_[i]->is_idle() != idle) continue;
      streams_[i]->wake();
      --chunks;
    }
}

// ---- how many streams -----------------------------------------------------------------------

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
  for (unsigned n = count_.look(moved(), static_cast<unsigned>(streams_.size())); n != before; --n)
    if (!options_.channel->open_stream().ok()) count_.could_not_be_made();
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
    Chunk chunk{.of = batch, .pieces = {}, .position = batch->taken};
    if (more) {
      chunk.last = cut(*batch, chunk);
    } else {
      chunk.last = true;
      if (batch->canceled && batch->status.ok())
        batch->status = Status(Code::canceled, Scope::request, "canceled");
    }
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
         chunk.pieces.size() < kMostPutSpans) {
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
  if (chunk.last && !chunk.pieces.empty()) head.notification = std::move(batch.notification);
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

/// A put that has ended there, and that no stream reads for here.
void Wire::end_if_over(std::uint64_t id) {
  Outgoing* const batch = find(puts_, id);
  if (batch == nullptr || !batch->heard || batch->reading != 0) return;
  batch->use = {};
  end(batch->ticket, batch->status);
  erase(puts_, id);
}

// ---- bytes that come ----------------------------------------------------------------------------

Result<Landing> Wire::land(Head& head) {
  const base::MutexLock lock(mutex_);
  Landing landing{.of = {}, .pieces = {}, .bytes = head.data};
  if (head.op == Op::put) {
    auto batch = put_of(head);
    if (!batch.ok()) return batch.status();
    landing.of = *std::move(batch);
    if (const auto& memory = landing.of->use.memory(); memory != nullptr) {
      landing.device = memory->device;
      for (const Span& span : head.spans)
        landing.pieces.push_back({memory->address + span.offset, 0, span.bytes});
    }
  } else {
    const auto found = std::ranges::find(gets_, head.id, &Incoming::id);
    if (found == gets_.end()) return corrupt("data that nobody asked for");
    landing.of = *found;
    if (!memory::fits(head.position, head.data, landing.of->asked))
      return corrupt("data beyond what was asked for");
    if (landing.of->summed && !head.summed)
      return corrupt("data without the sum that was asked for");
    landing.device = landing.of->use.memory()->device;
    std::uint64_t at = head.position, left = head.data;
    auto piece = std::ranges::upper_bound(landing.of->pieces, at, {}, &Piece::there);
    for (--piece; left != 0; ++piece) {
      const std::uint64_t skip = at - piece->there, bytes = std::min(left, piece->bytes - skip);
      landing.pieces.push_back({piece->here + skip, 0, bytes});
      at += bytes;
      left -= bytes;
    }
    if (head.code != Code::ok && landing.of->status.ok())
      landing.of->status = head.code == Code::corrupt ? wrong_sum(Op::get)
                                                      : Status(head.code, Scope::request,
                                                               "the peer could not read all of it");
    if (head.code != Code::ok) landing.pieces.clear();
  }
  Incoming& batch = *landing.of;
  if (head.last && batch.total) return corrupt("two last frames of one batch");
  if (head.last) {
    batch.total = head.position + head.data;
    batch.notification = std::move(head.notification);
  }
  batch.announced += head.data;
  if (head.data > ~std::uint64_t{0} - head.position ||
      (batch.total && batch.announced > *batch.total))
    return corrupt("more data than its batch has");
  return landing;
}

/// The put that a frame belongs to; from its first frame on.
Result<std::shared_ptr<Incoming>> Wire::put_of(const Head& head) {
  auto found = std::ranges::find(theirs_, head.id, &Incoming::id);
  if (found == theirs_.end()) {
    if (theirs_.size() >= options_.inflight) return corrupt("more puts than may be in flight");
    auto batch = std::make_shared<Incoming>();
    batch->id = head.id;
    batch->serial = head.serial;
    batch->use = options_.published->use(head.serial);
    found = theirs_.insert(theirs_.end(), std::move(batch));
    begun();
  }
  Incoming& batch = **found;
  if (batch.serial != head.serial) return corrupt("a put to two regions");
  if (batch.refused) return *found;
  Status status = permits(batch.use, head.token, Op::put);
  if (status.ok()) status = fits(*batch.use.memory(), head.spans);
  if (status.ok()) return *found;
  if (batch.announced != 0) return corrupt("a put whose later frames are not permitted");
  batch.refused = true;
  batch.status = status;
  batch.use = {};
  return *found;
}

std::optional<Answer> Wire::landed(Incoming& batch, std::uint64_t bytes, const Status& status) {
  const base::MutexLock lock(mutex_);
  batch.arrived += bytes;
  if (batch.status.ok()) batch.status = status;
  if (!batch.total || batch.arrived != *batch.total) return std::nullopt;
  if (batch.op == Op::put) {
    const bool notifies = batch.status.ok() && !batch.notification.empty() && !failure_;
    if (notifies) options_.channel->notified(std::move(batch.notification));
    Head head{.op = Op::ended,
              .id = batch.id,
              .incarnation = options_.incarnation,
              .code = batch.status.code(),
              .text = batch.status.what()};
    erase(theirs_, batch.id);
    return Answer{.head = std::move(head), .waits = notifies};
  }
  if (batch.status.ok() && batch.arrived != batch.asked)
    batch.status = Status(batch.canceled ? Code::canceled : Code::corrupt, Scope::request,
                          "the peer sent less than was asked for");
  batch.use = {};
  end(batch.ticket, batch.status);
  erase(gets_, batch.id);
  return std::nullopt;
}

// ---- the other ops ------------------------------------------------------------------------------

Status Wire::heard(const Head& head) {
  const base::MutexLock lock(mutex_);
  if (head.op == Op::get) return asked(head);
  if (head.op == Op::cancel) {
    // What is sent already needs no cancel.
    if (Outgoing* const answer = find(answers_, head.id)) {
      answer->canceled = true;
      wake_some();
    }
    return {};
  }
  Outgoing* const found = find(puts_, head.id);
  if (found == nullptr) return corrupt("what has ended was not begun");
  Outgoing& batch = *found;
  if (!batch.all_taken) return corrupt("a put has ended before it was sent");
  if (batch.status.ok() && head.code != Code::ok)
    batch.status = Status(head.code, Scope::request, "by the peer: " + head.text);
  batch.heard = true;
  end_if_over(head.id);
  return {};
}

Status Wire::asked(const Head& head) {
  if (answers_.size() >= options_.inflight) return corrupt("more gets than may be in flight");
  auto batch = std::make_shared<Outgoing>();
  batch->op = Op::data;
  batch->id = head.id;
  batch->summed = head.summed;
  batch->use = options_.published->use(head.serial);
  if (head.sum != head.sum_of_head) batch->status = wrong_sum(Op::get);
  if (batch->status.ok()) batch->status = permits(batch->use, head.token, Op::get);
  if (batch->status.ok()) batch->status = fits(*batch->use.memory(), head.spans);
  if (batch->status.ok())
    for (const Span& span : head.spans)
      batch->pieces.push_back({batch->use.memory()->address + span.offset, 0, span.bytes});
  else
    batch->use = {};
  if (find(answers_, head.id) != nullptr) return corrupt("two gets of one number");
  answers_.push_back(batch);
  queue_.push_back(std::move(batch));
  begun();
  wake_some();
  return {};
}

}  // namespace linkspan::transport::tcp
