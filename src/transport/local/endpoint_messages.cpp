// What the peer says to a LocalEndpoint: hostile bytes until they are verified.
#include <unistd.h>

#include "base/schema/local_generated.h"
#include "base/untrusted_input.hpp"
#include "transport/local/endpoint.hpp"

namespace linkspan::transport::local {
namespace {

constexpr std::size_t kMaxMessageWords = 512, kMaxKeyFds = 2;

Status corrupt_message(const char* what) { return {Code::corrupt, Scope::peer, what}; }

}  // namespace

Status LocalEndpoint::on_message(std::uint16_t op, std::span<const std::byte> bytes,
                                 std::span<base::Fd> fds) {
  switch (static_cast<Message>(op)) {
    case Message::offer:
      return on_offer(bytes, fds);
    case Message::execute:
      return on_execute(bytes);
    case Message::executed:
      return on_executed(bytes);
    case Message::cancel:
      return on_cancel(bytes);
    case Message::retract:
      return on_retract(bytes);
    case Message::retracted:
      return on_retracted(bytes);
    case Message::tally:
      return on_tally(fds);
  }
  return {Code::unsupported, Scope::request, "the local transport has no op " + std::to_string(op)};
}

Status LocalEndpoint::on_offer(std::span<const std::byte> bytes, std::span<base::Fd> fds) {
  const auto* wire = verified<schema::Offer>(bytes);
  if (wire == nullptr) return corrupt_message("malformed offer");
  if (offers_.size() >= kLeaseSlots)
    return corrupt_message("more offers than a peer can have regions");
  const auto* data = reinterpret_cast<const std::byte*>(wire->key()->data());
  std::vector<std::byte> key(data, data + wire->key()->size());
  auto decoded = decode_key(key);
  if (!decoded.ok()) return decoded.status();
  if (decoded->id.incarnation != peer_.incarnation)
    return corrupt_message("an offer of another peer's key");
  if (fds.size() > kMaxKeyFds) return corrupt_message("an offer with fds that no key has");
  if (const auto before = offers_.find(decoded->id.serial);
      before != offers_.end() && !before->second->failed())
    return {};  // an execution of ours failed for want of something, and the peer begins anew
  if (*opening_ >= kMaxOpening)
    return corrupt_message("more offers than requests to execute on them");

  auto offer = std::make_shared<Offer>();
  offers_[decoded->id.serial] = offer;
  if (fds.empty()) {  // there was no room for them; whoever asks us to execute offers again
    const base::MutexLock lock(offer->mutex);
    offer->opened = true;
    offer->status = Status(Code::system, Scope::process,
                           "the offered key's file descriptors found no room (RLIMIT_NOFILE)");
    return {};
  }
  // Shared, for a std::function must be copyable and Fds are not.
  auto loose = std::make_shared<std::vector<base::Fd>>();
  for (base::Fd& fd : fds) loose->push_back(std::move(fd));
  ++*opening_;
  transport_.off_the_lock([this_transport = &transport_, offer, key = std::move(key), loose,
                           opening = opening_, from = peer_.incarnation,
                           pid = channel_.process().pid] {
    const auto deadline = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(10));
    auto memory =
        this_transport->import_memory({key, *loose, from, pid == ::getpid(), pid}, deadline);
    --*opening;
    const base::MutexLock lock(offer->mutex);
    offer->opened = true;
    offer->status = memory.status();
    if (memory.ok()) offer->memory = *std::move(memory);
  });
  return {};
}

Status LocalEndpoint::on_execute(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Execute>(bytes);
  if (wire == nullptr) return corrupt_message("malformed request to execute");
  if (for_peer_ >= transport_.capabilities().max_inflight + kMaxLegs)
    return corrupt_message("more requests to execute than may be in flight");
  if (wire->blocks()->size() > transport_.capabilities().max_batch_pages)
    return corrupt_message("too many blocks in a request to execute");
  Slot slot;
  slot.id = wire->id();
  slot.for_peer = true;
  slot.tally_word = wire->tally_word();
  // Their write is our read: we pull from their region into ours.
  slot.op = wire->write() ? Op::read : Op::write;
  slot.stage = Stage::opening;
  slot.target = transport_.published(wire->receiver_serial());
  Status refusal;
  if (slot.target == nullptr) {
    refusal = Status(Code::unreachable, Scope::request, "the region is not registered here");
    slot.target = std::make_shared<Published>();  // has a count, and nothing else is looked at
  } else if (const Permissions may = slot.target->key.peers;
             !(wire->write() ? may.write : may.read)) {
    refusal = Status(Code::permission_denied, Scope::request, "not permitted on this region");
  }
  if (const auto offer = offers_.find(wire->sender_serial()); offer != offers_.end())
    slot.offer = offer->second;
  else if (refusal.ok())
    refusal = Status(Code::unreachable, Scope::request, "your region was not offered before");
  for (const schema::WireBlock* b : *wire->blocks())
    slot.blocks.push_back({.local_offset = b->remote_offset(),
                           .remote_offset = b->local_offset(),
                           .bytes = b->bytes()});
  if (!serves_)
    refusal = Status(Code::disconnected, Scope::peer, "this connection is being closed");
  if (!refusal.ok()) {
    slot.end = refusal;
    slot.stage = Stage::ended;
  }
  ++slot.target->uses;
  ++for_peer_;
  slots_.push_back(std::move(slot));
  return {};
}

Status LocalEndpoint::on_executed(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Executed>(bytes);
  if (wire == nullptr) return corrupt_message("malformed answer of an execution");
  for (Slot& slot : slots_) {
    if (slot.for_peer || slot.asked != wire->id() || slot.stage != Stage::asked) continue;
    const auto end = base::final_code(wire->code());
    if (!end) return corrupt_message("an execution ended with an unknown code");
    const Code code = *end;
    if (code == Code::system) offered_.erase(slot.offered);  // what failed there may go next time
    if (code != Code::ok)
      slot.end = Status(code, Scope::request,
                        "by the peer: " + schema::text_of(*wire->what(), kMaxMessageWords));
    slot.stage = Stage::ended;
    if (code == Code::unsupported && slot.whole == nullptr) {
      const Status why = std::exchange(slot.end, {});
      unopened_[slot.target->key.id.serial] = why.what();
      cross_another_way(slot, why);
    }
    return {};
  }
  return {};  // the tally has told already
}

Status LocalEndpoint::on_cancel(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Cancel>(bytes);
  if (wire == nullptr) return corrupt_message("malformed cancel");
  for (Slot& slot : slots_)
    if (slot.for_peer && slot.id == wire->id()) stop(slot);
  return {};  // what has ended meanwhile needs no cancel
}

Status LocalEndpoint::on_retract(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Retract>(bytes);
  if (wire == nullptr) return corrupt_message("malformed retract");
  const std::uint64_t serial = wire->serial();
  const memory::RegionId id{.incarnation = peer_.incarnation, .buffer = 0, .serial = serial};
  offers_.erase(serial);
  {
    const base::MutexLock lock(retract_mutex_);
    if (dying_.size() + to_answer_.size() >= kLeaseSlots)
      return corrupt_message("more retracts than a peer can have regions");
    // Entered before the look: what closes after that look is told of here.
    dying_.insert(serial);
  }
  if (!transport_.maps(id))
    closed_here(serial);
  else if (wire->at_once() && !transport_.let_go(id))
    leaving_.insert(serial);
  return {};
}

Status LocalEndpoint::on_retracted(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Retracted>(bytes);
  if (wire == nullptr || wire->serial() == 0) return corrupt_message("malformed retracted");
  transport_.acknowledged(*this, wire->serial());
  return {};
}

Status LocalEndpoint::on_tally(std::span<base::Fd> fds) {
  if (fds.empty())  // the ends are told by messages then
    return {Code::system, Scope::process, "the page of ends found no room (RLIMIT_NOFILE)"};
  if (fds.size() != 1 || peers_completion_flags_ != nullptr)
    return corrupt_message("a second tally, or no page");
  auto view = CompletionFlagsView::open(fds[0]);
  if (!view.ok()) return view.status();
  peers_completion_flags_ = *std::move(view);
  return {};
}

}  // namespace linkspan::transport::local
