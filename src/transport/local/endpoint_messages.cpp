// LocalEndpoint: the peer's messages, which are hostile bytes until they are verified.
#include <unistd.h>

#include "base/no_memory.hpp"
#include "base/schema/local_generated.h"
#include "base/untrusted_input.hpp"
#include "transport/batch.hpp"
#include "transport/local/endpoint.hpp"

namespace linkspan::transport::local {
namespace {

constexpr std::size_t kMaxMessageText = 512, kMaxKeyFds = 2;

Status corrupt_message(const char* what) { return {Code::corrupt, Scope::peer, what}; }

/// Returns the blocks or pages of a request, unchecked, as this side sees them.
Result<std::vector<Block>> requested_blocks(const schema::Execute& wire,
                                            const Capabilities& limits) {
  std::vector<Block> blocks;
  if (const auto* const pages = wire.pages()) {
    const auto ours = std::span(pages->remote_index()->data(), pages->remote_index()->size());
    const auto theirs = std::span(pages->local_index()->data(), pages->local_index()->size());
    if (ours.size() != theirs.size() || ours.size() > limits.max_batch_pages)
      return corrupt_message("too many pages in a request to execute, or lists of two lengths");
    return blocks_of(Pages{.page_bytes = pages->page_bytes(),
                           .local_base = pages->remote_base(),
                           .remote_base = pages->local_base(),
                           .local_index = ours,
                           .remote_index = theirs});
  }
  if (wire.blocks() == nullptr) return corrupt_message("a request to execute nothing");
  if (wire.blocks()->size() > limits.max_batch_pages)
    return corrupt_message("too many blocks in a request to execute");
  blocks.reserve(wire.blocks()->size());
  for (const schema::WireBlock* b : *wire.blocks())
    blocks.push_back({.local_offset = b->remote_offset(),
                      .remote_offset = b->local_offset(),
                      .bytes = b->bytes()});
  return blocks;
}

}  // namespace

Status LocalEndpoint::on_message(std::uint16_t op, std::span<const std::byte> bytes,
                                 std::span<base::Fd> fds) {
  const base::MutexLock lock(transport_.copiers.mutex);
  switch (static_cast<LocalMessage>(op)) {
    case LocalMessage::offer:
      return on_offer(bytes, fds);
    case LocalMessage::execute:
      return on_execute(bytes);
    case LocalMessage::executed:
      return on_executed(bytes);
    case LocalMessage::cancel:
      return on_cancel(bytes);
    case LocalMessage::retract:
      return on_retract(bytes);
    case LocalMessage::retracted:
      return on_retracted(bytes);
    case LocalMessage::completion_flags:
      return on_completion_flags(fds);
  }
  return {Code::unsupported, Scope::request, "the local transport has no op " + std::to_string(op)};
}

Status LocalEndpoint::on_offer(std::span<const std::byte> bytes, std::span<base::Fd> fds) {
  const auto* wire = verified<schema::Offer>(bytes);
  if (wire == nullptr) return corrupt_message("malformed offer");
  if (offers_.size() >= kLivenessEntries)
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
    return {};  // a copy here lacked a resource, and the peer starts over
  if (*opening_ >= kMaxOpening)
    return corrupt_message("more offers than requests to execute on them");

  auto offer = std::make_shared<OfferedRegion>();
  if (fds.empty()) {  // RLIMIT_NOFILE; the peer offers again with its next request
    offers_[decoded->id.serial] = offer;
    const base::MutexLock lock(offer->mutex);
    offer->opened = true;
    offer->status = Status(Code::system, Scope::process,
                           "the offered key's file descriptors found no room (RLIMIT_NOFILE)");
    return {};
  }
  // Shared, because a std::function must be copyable and Fds are not.
  auto received_fds = std::make_shared<std::vector<base::Fd>>();
  for (base::Fd& fd : fds) received_fds->push_back(std::move(fd));
  std::function<void()> open = [this_transport = &transport_, offer, key = std::move(key),
                                received_fds, opening = opening_, from = peer_.incarnation,
                                pid = channel_.process().pid] {
    const auto deadline = base::Deadline::in(std::chrono::seconds(10));
    auto memory = base::or_no_memory([&] {
      return this_transport->import_memory({key, *received_fds, from, pid == ::getpid(), pid},
                                           deadline);
    });
    --*opening;
    const base::MutexLock lock(offer->mutex);
    offer->opened = true;
    offer->status = memory.status();
    if (memory.ok()) offer->memory = *std::move(memory);
  };
  offers_[decoded->id.serial] = offer;  // which will be opened
  ++*opening_;
  transport_.off_the_lock(std::move(open));
  return {};
}

Status LocalEndpoint::on_execute(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Execute>(bytes);
  if (wire == nullptr) return corrupt_message("malformed request to execute");
  if (for_peer_ >= transport_.capabilities().max_inflight + kMaxBounceSteps)
    return corrupt_message("more requests to execute than may be in flight");
  auto blocks = requested_blocks(*wire, transport_.capabilities());
  if (!blocks.ok()) return blocks.status();
  LocalInflightBatch inflight;
  CopyForPeer& role = inflight.role.emplace<CopyForPeer>();
  role.id = wire->id();
  role.completion_flag = wire->tally_word();
  // The peer's write is a read here, from its region into ours.
  inflight.op = wire->write() ? Op::read : Op::write;
  inflight.state = BatchState::opening;
  inflight.target = transport_.published(wire->receiver_serial());
  Status refusal;
  if (inflight.target == nullptr) {
    refusal = Status(Code::unreachable, Scope::request, "the region is not registered here");
    inflight.target = std::make_shared<PublishedRegion>();  // only its `uses` are touched
  } else if (const Permissions may = inflight.target->key.peers;
             !(wire->write() ? may.write : may.read)) {
    refusal = Status(Code::permission_denied, Scope::request, "not permitted on this region");
  }
  if (const auto offer = offers_.find(wire->sender_serial()); offer != offers_.end())
    role.offer = offer->second;
  else if (refusal.ok())
    refusal = Status(Code::unreachable, Scope::request, "your region was not offered before");
  inflight.blocks = *std::move(blocks);
  if (!serves_)
    refusal = Status(Code::disconnected, Scope::peer, "this connection is being closed");
  if (!refusal.ok()) inflight.finish(refusal);
  inflight_.push_back(std::move(inflight));
  ++inflight_.back().target->uses;
  ++for_peer_;
  return {};
}

Status LocalEndpoint::on_executed(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Executed>(bytes);
  if (wire == nullptr) return corrupt_message("malformed answer of an execution");
  for (LocalInflightBatch& inflight : inflight_) {
    if (inflight.state != BatchState::requested || inflight.request.id != wire->id()) continue;
    const auto end = base::final_code(wire->code());
    if (!end) return corrupt_message("an execution ended with an unknown code");
    const Code code = *end;
    if (code == Code::system)
      offered_.erase(inflight.request.offered_serial);  // it may work next time
    if (code != Code::ok)
      inflight.end = Status(code, Scope::request,
                            "by the peer: " + schema::text_of(*wire->what(), kMaxMessageText));
    inflight.state = BatchState::ended;
    if (code == Code::unsupported && inflight.step() == nullptr) {
      const Status why = std::exchange(inflight.end, {});
      unopened_[inflight.target->key.id.serial] = why.what();
      reroute_bounce(inflight, why);
    }
    return {};
  }
  return {};  // the completion flag has reported it already
}

Status LocalEndpoint::on_cancel(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Cancel>(bytes);
  if (wire == nullptr) return corrupt_message("malformed cancel");
  for (LocalInflightBatch& inflight : inflight_)
    if (const auto* role = std::get_if<CopyForPeer>(&inflight.role);
        role != nullptr && role->id == wire->id())
      inflight.cancel();
  return {};  // a batch that has ended needs no cancel
}

Status LocalEndpoint::on_retract(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Retract>(bytes);
  if (wire == nullptr) return corrupt_message("malformed retract");
  const std::uint64_t serial = wire->serial();
  const memory::RegionId id{.incarnation = peer_.incarnation, .buffer = 0, .serial = serial};
  offers_.erase(serial);
  {
    const base::MutexLock lock(retract_mutex_);
    if (retracted_by_peer_.size() + retracted_replies_.size() >= kLivenessEntries)
      return corrupt_message("more retracts than a peer can have regions");
    // Entered before maps() is asked, so that a later unmap is reported.
    retracted_by_peer_.insert(serial);
  }
  if (!transport_.maps(id))
    unmapped_here(serial);
  else if (wire->at_once() && !transport_.unmap(id))
    unmap_pending_.insert(serial);
  return {};
}

Status LocalEndpoint::on_retracted(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Retracted>(bytes);
  if (wire == nullptr || wire->serial() == 0) return corrupt_message("malformed retracted");
  transport_.acknowledged(*this, wire->serial());
  return {};
}

Status LocalEndpoint::on_completion_flags(std::span<base::Fd> fds) {
  if (fds.empty())  // the ends are then reported by messages alone
    return {Code::system, Scope::process, "the page of ends found no room (RLIMIT_NOFILE)"};
  if (fds.size() != 1 || peers_completion_flags_ != nullptr)
    return corrupt_message("a second page of completion flags, or no page");
  auto view = CompletionFlagsView::open(fds[0]);
  if (!view.ok()) return view.status();
  peers_completion_flags_ = *std::move(view);
  return {};
}

}  // namespace linkspan::transport::local
