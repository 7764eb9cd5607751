#include "transport/local/endpoint.hpp"

#include <algorithm>
#include <cstring>

#include "base/schema/local_generated.h"
#include "copy/chooser.hpp"
#include "copy/cma.hpp"
#include "transport/batch.hpp"

namespace linkspan::transport::local {
namespace {

using Where = Route::Where;

/// Pieces of one wave to a copier: of copies, what is behind them can still be canceled; of the
/// kernel, what fits one list however they are cut.
constexpr std::size_t kWaveCopies = 128, kWaveKernel = 8192;

}  // namespace

LocalEndpoint::LocalEndpoint(LocalTransport& transport, const Address& peer, Channel& channel,
                             unsigned lane, base::Deadline)
    : transport_(transport),
      peer_(peer),
      channel_(channel),
      lane_(lane),
      proof_{.address = peer.proof_address, .bytes = peer.proof},
      cross_process_(may_copy_across()) {}

LocalEndpoint::~LocalEndpoint() { transport_.remove(*this); }

/// This is the Control thread: it touches no memory of the peer's, which may never answer.
Status LocalEndpoint::may_copy_across() const {
  const PeerProcess process = channel_.process();
  if (peer_.process == base::this_process())
    return {Code::unsupported, Scope::request, "it is this process"};
  if (process.pid <= 0)
    return {Code::unsupported, Scope::request, "the peer is in another pid namespace"};
  // As root the kernel would let us, and what the peer names may by then be a program of more
  // rights.
  if (!process.same_user) return {Code::unsupported, Scope::request, "the peer is another user's"};
  return copy::may_copy_across(process.pid);
}

Status LocalEndpoint::cross_process() const {
  if (proof_.state != copy::ProcessProof::State::wrong) return cross_process_;
  return {Code::unsupported, Scope::request, "another process has the peer's number here"};
}

Status LocalEndpoint::ready() const {
  if (closed_) return {Code::canceled, Scope::peer, "the endpoint is closed"};
  if (gone_) return {Code::disconnected, Scope::peer, "peer " + peer_name() + " is gone"};
  return {};
}

Status LocalEndpoint::post(const Batch& batch) {
  if (Status status = ready(); !status.ok()) return status;
  const auto& memory = static_cast<const LocalMapping&>(*batch.remote).memory();
  if (memory->key().id.incarnation != peer_.incarnation)
    return {Code::invalid_argument, Scope::request, "the remote region is another peer's"};
  const Permissions permits = memory->key().peers;
  if (!(batch.op == Op::write ? permits.write : permits.read))
    return {Code::permission_denied, Scope::request,
            std::string("the peer does not permit to ") +
                (batch.op == Op::write ? "write to" : "read from") + " this region"};
  auto asked = batch.checked ? Result<Checked>(taken(batch.shape))
                             : checked(batch.shape, batch.local->bytes(), batch.remote->bytes(),
                                       transport_.capabilities());
  if (!asked.ok()) return asked.status();
  if (batch.wishes.checksum)
    return {Code::unsupported, Scope::request, "what is copied inside a host has no checksum"};
  asked->size.wishes = batch.wishes;
  asked->size.indices_gpu = batch.indices_gpu;
  if (!memory->alive())
    return {Code::unreachable, Scope::request, "the peer has deregistered the region"};
  if (ours_ >= transport_.capabilities().max_inflight) return Status::no_resource();
  const auto local = transport_.published(batch.local->facts().id.serial);
  if (local == nullptr || local->region != batch.local)  // another Engine's serials are others
    return {Code::invalid_argument, Scope::request, "the local region is not registered here"};

  Slot& slot = slots_.emplace_back();
  slot.id = batch.cookie;
  slot.op = batch.op;
  slot.remote = memory;
  slot.target = local;
  slot.kept = static_cast<const PinnedPages*>(batch.kept);
  slot.first = batch.first;
  slot.ctas = batch.wishes.ctas;
  if (Status status = begin(slot, *local, *std::move(asked), batch.streams); !status.ok()) {
    slots_.pop_back();
    return status;
  }
  slot.told = batch.way;
  if (slot.told != nullptr) *slot.told = slot.way;
  ++ours_;
  return {};
}

/// Chooses the way and takes the first step on it. An error: nothing has begun. Only the kernel
/// takes pages as they are.
Status LocalEndpoint::begin(Slot& slot, const Published& local, Checked asked,
                            const StreamDependencies& streams) {
  const auto not_in_a_stream = [] {
    return Status(Code::unsupported, Scope::request, "no GPU of this process copies it");
  };
  if (asked.size.blocks == 0) {
    if (streams.after != nullptr) return not_in_a_stream();
    slot.stage = Stage::ended;
    return {};
  }
  const ImportedMemory& remote = *slot.remote;
  const RouteFacts f = facts(slot.op, local, remote, asked.size, slot.for_peer);
  const Route way = route(f);
  const bool resident = way.method == copy::Method::resident;
  const bool by_gpu =
      way.where == Where::here && (resident || way.method == copy::Method::copy_engine ||
                                   way.method == copy::Method::sm_kernel);
  slot.way = {.path = path_of(f, way), .by_peer = way.where == Where::peer};
  const bool by_index = asked.pages != nullptr && by_gpu && way.method == copy::Method::sm_kernel;
  if (asked.size.gpu_indices && !by_index)
    return {Code::unreachable, Scope::request,
            "page indices on a GPU need the copy kernel of this process, and this transfer takes " +
                std::string(slot.way.path.empty() ? "no path" : slot.way.path) +
                (f.why_no_kernel.empty() ? "" : " (" + std::string(f.why_no_kernel) + ")") +
                ": copy the indices to host memory"};
  if (streams.after != nullptr && way.where != Where::nowhere && !by_gpu) return not_in_a_stream();
  if (asked.pages != nullptr && !by_index) asked.made = blocks_of(*asked.pages);
  if (way.where == Where::peer || way.where == Where::both)
    slot.blocks.assign(asked.blocks().begin(), asked.blocks().end());
  if (way.where == Where::both) {
    cross(slot, way);
    return {};
  }
  if (way.where == Where::peer) {
    Status status = ask_peer(slot, local, remote.key().id.serial, slot.blocks);
    if (status.ok()) expect_end(slot, way.method, f.link, f.shape.bytes);
    return status;
  }
  if (way.where == Where::nowhere)  // a peer that hears `unsupported` tries another way
    return {slot.for_peer ? Code::unsupported : Code::unreachable, Scope::request,
            "no path between " + std::string(name_of(f.local)) + " memory here and " +
                std::string(name_of(f.remote)) + " memory of " + peer_name() +
                "; not mapped: " + remote.why_not_mapped() +
                (cross_process().ok() ? "" : "; no cross-process copy: " + cross_process().what())};

  slot.method = way.method;
  slot.mapped = f.mapped;
  slot.link = f.link;
  std::uint64_t there = remote.host_address();
  const bool gpu = on_gpu(f.local) || on_gpu(f.remote);
  if (gpu) {
    slot.device = own_device(local);
    if (on_gpu(f.remote)) {
      const auto view = remote.view(slot.device);
      there = view->address;
      slot.device = view->device;
    }
  }
  if (way.method == copy::Method::cross_process) there = remote.key().address;
  slot.copier = &transport_.cpu_copier();
  if (by_gpu) {
    const GpuCopiers* const copiers = transport_.gpu_copiers(slot.device);
    slot.copier = nullptr;
    if (copiers != nullptr && resident) slot.copier = copiers->resident.get();
    if (copiers != nullptr && !resident) slot.copier = copiers->usual.get();
  }
  if (slot.copier == nullptr)
    return {Code::internal, Scope::request, "no copier for a GPU that is up"};

  if (asked.size.gpu_indices && asked.size.indices_gpu != GpuUuid{} &&
      asked.size.indices_gpu != slot.device->info().uuid)
    return {Code::invalid_argument, Scope::request,
            "the page indices are in memory of another GPU than GPU " +
                std::to_string(slot.device->info().ordinal) +
                ", which copies: put them there, or into pinned memory"};
  const std::uint64_t here = local.region->facts().address;
  by_index ? place(slot, here, there, *asked.pages) : place(slot, here, there, asked.blocks());
  slot.stage = Stage::running;
  Status status = start_some(slot, streams);
  // advance() tries again, but for what has to stand behind an event that is lent for this call.
  if (status.code() != Code::no_resource || streams.after != nullptr) return status;
  if (by_index && slot.pages.to_list == 0) {  // the user's lists are lent for this call only
    slot.indices.assign(slot.pages.to_index.begin(), slot.pages.to_index.end());
    slot.indices.insert(slot.indices.end(), slot.pages.from_index.begin(),
                        slot.pages.from_index.end());
    const std::span<const std::uint32_t> kept(slot.indices);
    slot.pages.to_index = kept.first(kept.size() / 2);
    slot.pages.from_index = kept.last(kept.size() / 2);
  }
  return {};
}

/// Offsets become addresses.
void LocalEndpoint::place(Slot& slot, std::uint64_t here, std::uint64_t there,
                          std::span<const Block> blocks) {
  slot.pieces.reserve(blocks.size());
  for (const Block& b : blocks) {
    copy::Piece piece{
        .to = there + b.remote_offset, .from = here + b.local_offset, .bytes = b.bytes};
    if (slot.op == Op::read) std::swap(piece.to, piece.from);
    slot.pieces.push_back(piece);
  }
}

void LocalEndpoint::place(Slot& slot, std::uint64_t here, std::uint64_t there, const Pages& pages) {
  const std::uint64_t local_bytes = slot.target->region->bytes(),
                      remote_bytes = slot.remote->key().bytes;
  slot.pages = {.to = there + pages.remote_base,
                .from = here + pages.local_base,
                .page_bytes = pages.page_bytes,
                .to_index = pages.remote_index,
                .from_index = pages.local_index,
                .to_last = last_page(pages.remote_base, pages.page_bytes, remote_bytes),
                .from_last = last_page(pages.local_base, pages.page_bytes, local_bytes),
                .first = slot.first};
  if (pages.indices_on_gpu) {
    slot.pages.to_list = reinterpret_cast<std::uintptr_t>(pages.remote_index.data());
    slot.pages.from_list = reinterpret_cast<std::uintptr_t>(pages.local_index.data());
  }
  if (slot.kept != nullptr) {
    const std::uint64_t skipped = slot.first * sizeof(std::uint32_t);
    slot.pages.to_list = slot.kept->remote + skipped;
    slot.pages.from_list = slot.kept->local + skipped;
  }
  if (slot.op == Op::read) {
    std::swap(slot.pages.to, slot.pages.from);
    std::swap(slot.pages.to_index, slot.pages.from_index);
    std::swap(slot.pages.to_list, slot.pages.from_list);
    std::swap(slot.pages.to_last, slot.pages.from_last);
  }
}

/// The peer runs what it is asked one after the other.
void LocalEndpoint::expect_end(Slot& slot, copy::Method method, copy::Link link,
                               std::uint64_t bytes) {
  slot.looked = base::Clock::steady().now();
  slot.due = std::max(slot.looked, last_asked_due_) +
             copy::earliest_time(method, link, bytes, copy::kUsualThreads);
  last_asked_due_ = slot.due;
}

/// The next pieces that fit one order. no_resource: none was taken.
Status LocalEndpoint::start_some(Slot& slot, const StreamDependencies& streams) {
  unsigned ctas = slot.ctas;
  if (slot.method == copy::Method::pageable)  // whose copier is no GPU's
    if (const GpuCopiers* const gpu = transport_.gpu_copiers(slot.device))
      ctas = std::min(gpu->usual->ctas(), ctas);
  std::span<const copy::Piece> wave(slot.pieces.data() + slot.next, slot.pieces.size() - slot.next);
  const bool by_gpu =
      slot.method == copy::Method::copy_engine || slot.method == copy::Method::sm_kernel;
  if (by_gpu)
    wave = wave.first(
        std::min(wave.size(), slot.method == copy::Method::sm_kernel ? kWaveKernel : kWaveCopies));
  const PeerProcess process = channel_.process();
  auto ticket = slot.copier->start(
      {.method = slot.method,
       .pieces = wave,
       .pages = slot.pages,
       .queue = lane_,
       .pid = process.pid,
       .pidfd = process.pidfd,
       .proof = &proof_,
       .remote_is_source = slot.op == Op::read,
       .peer = peer_.incarnation,
       .link = slot.link,
       .device = slot.device,
       .ctas = ctas,
       .to_gpu = on_gpu(slot.op == Op::read ? slot.target->key.kind : slot.remote->key().kind),
       .guarded = touches_private_memory(slot),
       .after = streams.after,
       .stream = streams.stream,
       .release = wave.size() == slot.pieces.size() ? streams.release : nullptr,
       .actual_method = by_gpu ? &slot.method : nullptr});
  if (!ticket.ok()) return ticket.status();
  slot.ticket = *ticket;
  slot.next += wave.size();
  slot.under_way = wave.size() + slot.pages.to_index.size();
  slot.pages = {};
  return {};
}

void LocalEndpoint::stop(Slot& slot) {
  slot.canceled = true;
  if (slot.ticket != 0) slot.copier->abort(slot.ticket);
}

void LocalEndpoint::cancel(std::uint64_t cookie) {
  for (Slot& slot : slots_)
    if (!slot.for_peer && (slot.whole != nullptr ? slot.whole->id : slot.id) == cookie) stop(slot);
}

void LocalEndpoint::advance(Slot& slot) {
  if (slot.stage == Stage::opening) open_offer(slot);
  if (slot.stage == Stage::crossing) return add_legs(slot);
  if (slot.stage == Stage::turning) start_hop(slot);
  if (slot.stage == Stage::asked) look_at_tally(slot);
  if (slot.stage == Stage::asked && slot.canceled && !slot.cancel_sent) {
    flatbuffers::FlatBufferBuilder out;
    out.Finish(schema::CreateCancel(out, slot.asked));
    slot.cancel_sent = send(Message::cancel, finished(out)).ok();
  }
  while (slot.stage == Stage::running) {
    if (slot.ticket != 0) {
      auto end = slot.copier->poll(slot.ticket);
      if (!end) return;
      slot.ticket = 0;
      slot.end = *std::move(end);
      transport_.copied(slot.method, slot.under_way);
    }
    if (slot.end.ok() && (slot.next < slot.pieces.size() || !slot.pages.to_index.empty())) {
      if (slot.canceled)
        slot.end = Status(Code::canceled, Scope::request, "canceled");
      else if (Status status = start_some(slot); status.ok())
        continue;
      else if (status.code() == Code::no_resource)
        return;
      else
        slot.end = status;
    }
    slot.stage = Stage::ended;
  }
}

std::size_t LocalEndpoint::progress(CompletionSink& sink) {
  send_pending();
  std::size_t completed = 0;
  for (auto slot = slots_.begin(); slot != slots_.end();) {
    if (slot->stage != Stage::ended) advance(*slot);
    if (slot->stage == Stage::ended && turn(*slot)) advance(*slot);
    if (slot->stage != Stage::ended || !report(*slot, sink)) {
      ++slot;
      continue;
    }
    const bool leg = slot->whole != nullptr;
    --(leg ? legs_ : slot->for_peer ? for_peer_ : ours_);
    if (!leg && !slot->for_peer) ++completed;
    slot = slots_.erase(slot);
  }
  return completed;
}

PollHint LocalEndpoint::poll_hint() const {
  PollHint look;
  const base::Time now = base::Clock::steady().now();
  // Once this side leaves, its goodbye says all of that.
  if (const auto wait = serves_ ? wait_to_send() : std::nullopt)
    look = {PollHint::When::at, now + *wait};
  for (const Slot& slot : slots_) {
    if (slot.stage == Stage::crossing) {
      const PollHint crossing = look_at_crossing(slot, now);
      if (crossing.when == PollHint::When::now) return crossing;
      if (crossing.when == PollHint::When::at &&
          (look.when == PollHint::When::idle || crossing.at < look.at))
        look = {PollHint::When::at, crossing.at, look.for_peer};
      continue;
    }
    const bool asked = slot.stage == Stage::asked && !(slot.canceled && !slot.cancel_sent);
    if (asked && slot.tally_word == kNoWord) continue;  // a message will tell
    look.for_peer |= slot.for_peer;
    if (!asked && (slot.stage != Stage::running || slot.ticket == 0))
      return {.when = PollHint::When::now, .for_peer = look.for_peer};
    const base::Time due =
        asked ? copy::poll_hint(slot.due, slot.looked) : slot.copier->expected(now);
    if (look.when == PollHint::When::idle || due < look.at)
      look = {PollHint::When::at, due, look.for_peer};
  }
  return look;
}

Status LocalEndpoint::send(Message message, std::span<const std::byte> bytes,
                           std::span<base::Fd> fds) {
  return channel_.send(static_cast<std::uint16_t>(message), bytes, fds);
}

void LocalEndpoint::close() {
  closed_ = true;
  for (Slot& slot : slots_) stop(slot);
}

}  // namespace linkspan::transport::local
