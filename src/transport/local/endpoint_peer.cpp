// What the two ends do for each other: copies that only the peer can run, and regions that end.
#include "base/schema/local_generated.h"
#include "memory/validate_allocation.hpp"
#include "transport/batch.hpp"
#include "transport/local/endpoint.hpp"

namespace linkspan::transport::local {

Status LocalEndpoint::ask_peer(Slot& slot, const Published& local, std::uint64_t remote_serial,
                               std::span<const Block> blocks) {
  const std::uint64_t serial = local.key.id.serial;
  if (!offered_.contains(serial)) {
    const memory::PublishedKey key = transport_.key_of(local);
    // Of chunks a driver call for each, once for a region and a peer; none waits for what is in
    // flight (fact: Chunks.SharingBesideAHeldStream).
    auto fds = memory::fds_for_peer(key);
    if (!fds.ok()) return fds.status();
    flatbuffers::FlatBufferBuilder out;
    const auto bytes =
        out.CreateVector(reinterpret_cast<const std::uint8_t*>(key.bytes.data()), key.bytes.size());
    out.Finish(schema::CreateOffer(out, bytes));
    if (Status status = send(Message::offer, finished(out), *fds); !status.ok()) return status;
    offered_.insert(serial);
  }
  if (Status status = share_tally(); !status.ok()) return status;
  const auto word = completion_flags_->take();
  flatbuffers::FlatBufferBuilder out;
  std::vector<schema::WireBlock> wire;
  wire.reserve(blocks.size());
  for (const Block& b : blocks) wire.emplace_back(b.local_offset, b.remote_offset, b.bytes);
  const auto list = out.CreateVectorOfStructs(wire);
  slot.asked = ++last_asked_;
  out.Finish(schema::CreateExecute(out, slot.asked, slot.op == Op::write, serial, remote_serial,
                                   list, word.value_or(kNoWord)));
  if (Status status = send(Message::execute, finished(out)); !status.ok()) {
    if (word) completion_flags_->release(*word);
    return status;
  }
  slot.tally_word = word.value_or(kNoWord);
  slot.offered = serial;
  slot.stage = Stage::asked;
  return {};
}

Status LocalEndpoint::share_tally() {
  if (completion_flags_ != nullptr) return {};
  auto tally = CompletionFlags::create();
  if (!tally.ok()) return tally.status();
  auto fd = (*tally)->fd().duplicate();
  if (!fd.ok()) return fd.status();
  if (Status status = send(Message::tally, {}, std::span(&*fd, 1)); !status.ok()) return status;
  completion_flags_ = *std::move(tally);
  return {};
}

void LocalEndpoint::look_at_tally(Slot& slot) {
  slot.looked = base::Clock::steady().now();
  if (slot.tally_word != kNoWord && completion_flags_->ended_well(slot.tally_word))
    slot.stage = Stage::ended;
}

void LocalEndpoint::release_word(Slot& slot) {
  if (slot.tally_word != kNoWord)
    completion_flags_->release(std::exchange(slot.tally_word, kNoWord));
}

/// For the peer: once its key is open, the copy begins as one of our own would.
void LocalEndpoint::open_offer(Slot& slot) {
  {
    const base::MutexLock lock(slot.offer->mutex);
    if (!slot.offer->opened) return;
    slot.end = slot.offer->status;
    slot.remote = slot.offer->memory;
  }
  if (slot.end.ok() && slot.canceled) slot.end = Status(Code::canceled, Scope::request, "canceled");
  if (slot.end.ok() && !slot.remote->alive())
    slot.end = Status(Code::unreachable, Scope::request, "the region was deregistered");
  // Of host memory only: a copy to what was freed would end this process.
  const memory::Region::Facts& own = slot.target->region->facts();
  if (slot.end.ok() && own.kind != MemoryKind::device && !memory::is_mapped(own.address, own.bytes))
    slot.end = memory::freed_early();
  if (slot.end.ok()) {
    Capabilities limits = transport_.capabilities();
    limits.max_batch_blocks = limits.max_batch_pages;  // a peer's pages come as blocks
    const std::span<const Block> list(slot.blocks);
    auto asked = checked(list, slot.target->key.bytes, slot.remote->key().bytes, limits);
    Status status = asked.ok() ? begin(slot, *slot.target, *std::move(asked), {}) : asked.status();
    if (status.ok()) return;
    if (status.code() == Code::no_resource) {
      slot.pieces.clear();
      return;
    }
    slot.end = status;
  }
  slot.stage = Stage::ended;
}

/// True: it was told and can go.
bool LocalEndpoint::report(Slot& slot, CompletionSink& sink) {
  if (!slot.for_peer) {
    release_word(slot);
    if (slot.told != nullptr && slot.mapped != Mapped::nothing)
      slot.told->path = path_here(slot.mapped, slot.method);
    if (slot.whole != nullptr)
      land(slot);
    else
      sink.complete({slot.id, std::move(slot.end)});
    return true;
  }
  if (!gone_) {
    // Once: the peer uses the word again for another copy.
    const std::uint32_t word = std::exchange(slot.tally_word, kNoWord);
    if (slot.end.ok() && peers_completion_flags_ != nullptr)
      peers_completion_flags_->report_end(word);
    flatbuffers::FlatBufferBuilder out;
    const auto what = out.CreateString(slot.end.what().substr(0, 512));
    out.Finish(
        schema::CreateExecuted(out, slot.id, static_cast<std::uint8_t>(slot.end.code()), what));
    if (send(Message::executed, finished(out)).code() == Code::no_resource) return false;
  }
  --slot.target->uses;
  return true;
}

bool LocalEndpoint::tell_retract(std::uint64_t serial, bool at_once) {
  const base::MutexLock lock(retract_mutex_);
  if (deaf_) return false;
  to_retract_.emplace_back(serial, at_once);
  any_to_send_ = true;
  return true;
}

void LocalEndpoint::closed_here(std::uint64_t serial) {
  const base::MutexLock lock(retract_mutex_);
  if (dying_.erase(serial) == 0) return;
  to_answer_.push_back(serial);
  any_to_send_ = true;
}

bool LocalEndpoint::send_retract(std::uint64_t serial, bool at_once) {
  offered_.erase(serial);
  unopened_.erase(serial);
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateRetract(out, serial, at_once));
  return send(Message::retract, finished(out)).code() != Code::no_resource;
}

bool LocalEndpoint::send_retracted(std::uint64_t serial) {
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateRetracted(out, serial));
  return send(Message::retracted, finished(out)).code() != Code::no_resource;
}

/// How long not to look for what send_pending() sends. The peer waits to hear that we have closed a
/// region, and a user who drops it calls nothing else; a full channel takes its time.
std::optional<Duration> LocalEndpoint::wait_to_send() const {
  const base::MutexLock lock(retract_mutex_);
  if (!to_answer_.empty()) return std::chrono::milliseconds(10);
  if (!dying_.empty()) return std::chrono::milliseconds(1);
  return std::nullopt;
}

/// Until the channel has no more room: one try a look, however much waits.
void LocalEndpoint::send_pending() {
  std::erase_if(leaving_, [this](std::uint64_t serial) {
    return transport_.let_go({.incarnation = peer_.incarnation, .buffer = 0, .serial = serial});
  });
  if (!any_to_send_.load(std::memory_order_relaxed)) return;
  std::deque<std::pair<std::uint64_t, bool>> retract;
  std::deque<std::uint64_t> answer;
  {
    const base::MutexLock lock(retract_mutex_);
    any_to_send_ = false;
    retract.swap(to_retract_);
    answer.swap(to_answer_);
  }
  while (!retract.empty() && send_retract(retract.front().first, retract.front().second))
    retract.pop_front();
  while (!answer.empty() && send_retracted(answer.front())) answer.pop_front();
  if (retract.empty() && answer.empty()) return;
  const base::MutexLock lock(retract_mutex_);  // what came meanwhile goes behind it
  retract.insert(retract.end(), to_retract_.begin(), to_retract_.end());
  answer.insert(answer.end(), to_answer_.begin(), to_answer_.end());
  to_retract_.swap(retract);
  to_answer_.swap(answer);
  any_to_send_ = true;
}

void LocalEndpoint::peer_gone() {
  gone_ = true;
  {
    const base::MutexLock lock(retract_mutex_);
    deaf_ = true;
    to_retract_.clear();
    dying_.clear();
    to_answer_.clear();
  }
  transport_.acknowledged(*this, 0);
  leaving_.clear();
  for (Slot& slot : slots_) {
    if (slot.stage == Stage::asked) {
      slot.end = Status(Code::disconnected, Scope::peer, "peer " + peer_name() + " is gone");
      slot.stage = Stage::ended;
    } else if (slot.for_peer) {
      stop(slot);
    }
  }
  offers_.clear();
}

}  // namespace linkspan::transport::local
