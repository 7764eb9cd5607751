// Two-sided messages of an EngineImpl: the user's calls, the peer's frames, imports without the
// lock.
#include <algorithm>
#include <utility>

#include "engine/engine_impl.hpp"

namespace linkspan::engine {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxRequire = 256;
/// Answers that a peer does not read.
constexpr std::size_t kMaxUnsent = 65536;

}  // namespace

Result<Transfer> EngineImpl::send_or_receive(std::uint64_t peer, const MessageKind& kind,
                                             const void* data, std::uint64_t bytes,
                                             const TransferOptions& options) {
  const auto refuse = [](Code code, const char* what) {
    return Status(code, Scope::request, what);
  };
  if (closed_) return refuse(Code::canceled, "the Engine is closed");
  if (!options.notification.empty())
    return refuse(Code::invalid_argument,
                  "a notification of a two-sided message: the peer's receive is its notification");
  if (options.checksum)
    return refuse(Code::unsupported,
                  "a checksum of a two-sided message: only writes and reads have one");
  if (options.require.size() > kMaxRequire)
    return refuse(Code::invalid_argument, "a required path of over 256 characters");

  auto transfer =
      std::make_shared<TransferState>();  // also the TransferScheduler's until it is quiet
  transfer->peer = peer;
  transfer->bytes = bytes;
  transfer->message = std::make_unique<MessageState>();
  MessageState& x = *transfer->message;
  x.sends = kind.sends;
  x.space = kind.space;
  x.tag = kind.tag;
  x.observer = kind.observer;
  x.require = options.require;
  if (bytes != 0) {
    const auto session = session_of(peer);
    const bool by_wire = session != nullptr && session->is_remote() &&
                         std::ranges::any_of(transports_, [](const auto& t) {
                           return t->capabilities().leaves_host;
                         });
    auto memory = unregistered_->acquire_buffer(data, bytes, kind.sends, by_wire);
    if (!memory.ok()) return memory.status();
    x.memory = *std::move(memory);
    x.kind = x.memory.kind();
    if (x.kind == MemoryKind::device) streams_->make_ready();
  }
  auto streams = streams_->resolve(options.after, options.release, x.memory.gpu());
  if (!streams.ok()) {
    (void)x.memory.release();
    return streams.status();
  }
  transfer->stream = streams->after;
  transfer->mark = std::move(streams->mark);
  transfer->deferral = std::move(streams->deferral);
  transfer->submitted = base::Clock::steady().now();
  const Duration deadline =
      options.deadline > Duration::zero() ? options.deadline : options_.transfer_deadline;
  transfer->deadline =
      transfer->submitted + std::min(deadline, Duration(base::Time::max() - transfer->submitted));
  if (Status status = begin_message(transfer); !status.ok()) {
    (void)x.memory.release();
    return status;
  }
  progress_thread_->wake();
  if (streams->release.device != nullptr) block_user_stream(*transfer, *streams);
  return Transfer(shared_from_this(), std::move(transfer));
}

Status EngineImpl::begin_message(const std::shared_ptr<TransferState>& transfer) {
  MessageState& x = *transfer->message;
  OfferFrame frame;
  // A key of this message alone travels with it: it is not worth a question and its answer.
  control::ExportedRegion key;
  const auto session = session_of(transfer->peer);
  if (session == nullptr)
    return {Code::disconnected, Scope::peer, "peer " + std::to_string(transfer->peer) + " is gone"};
  const bool sends = x.sends, lends = session->is_remote() && x.kind == MemoryKind::device;
  if (x.memory.one_shot() && (sends || lends)) {
    auto made = engine::export_region(transports_, x.memory.registration()->region(),
                                      *x.memory.keys(), {}, session->is_remote());
    if (!made.ok()) return made.status();
    key = *std::move(made);
    if (!sends) x.descriptor = std::move(key.descriptor);
  }
  if (sends) {
    control::MessageOffer offer{.space = x.space,
                                .tag = x.tag,
                                .bytes = transfer->bytes,
                                .kind = x.kind,
                                .serial = x.memory.serial(),
                                .offset = x.memory.offset(),
                                .require = x.require,
                                .descriptor = {}};
    frame.bare = control::encode(offer);
    if (!key.descriptor.empty()) {
      offer.descriptor = std::move(key.descriptor);
      frame.fds = std::move(key.fds);
      frame.payload = control::encode(offer);
    } else {
      frame.payload = frame.bare;
    }
  }
  if (x.observer != nullptr) {
    const bool gpu = x.kind == MemoryKind::device;
    x.observer->begun(log_, transfer->peer, transfer->bytes,
                      gpu ? topology_->find(x.memory.gpu())->ordinal : -1, x);
  }
  const base::MutexLock lock(scheduler_.mutex);
  return scheduler_.submit(transfer, std::move(frame));
}

Status EngineImpl::finish(const Result<Transfer>& transfer) {
  if (!transfer.ok()) return transfer.status();
  while (!transfer->done()) (void)transfer->wait(1s);
  return transfer->status();
}

Status EngineImpl::on_message_frame(control::Session& session, base::Frame& frame) {
  const std::uint64_t peer = session.id(), id = frame.header.id;
  const auto with_lock = [&](const auto& act) {
    Status status;
    {
      const base::MutexLock lock(scheduler_.mutex);
      const PeerRecord* record = scheduler_.find_peer(peer);
      if (record != nullptr) {
        status = act(scheduler_.rendezvous());
        if (record->unsent.size() > kMaxUnsent)
          status = Status(Code::corrupt, Scope::peer, "the peer does not read its answers");
      }
      advance();
    }
    progress_thread_->wake();
    return status;
  };
  /// Imports by the key that came with a message; returns null if none did.
  const auto import_key = [&](std::vector<std::byte>& descriptor) {
    Result<std::shared_ptr<ImportedRegion>> region{std::shared_ptr<ImportedRegion>()};
    if (descriptor.empty()) return region;
    control::ExportedRegion key{std::move(descriptor), std::move(frame.fds)};
    const PeerIdentity life(session);
    return counted(life, import(life, key, after(options_.connect_deadline)));
  };
  switch (static_cast<control::FrameOp>(frame.header.op)) {
    case control::FrameOp::offer: {
      auto offer = control::decode_offer(frame.payload);
      if (!offer.ok()) return offer.status();
      if (frame.fds_lost) offer->descriptor.clear();  // asked for again when it is needed
      const auto region = import_key(offer->descriptor);
      if (region.status().code() == Code::corrupt) return region.status();
      return with_lock([&](Rendezvous& all) { return all.on_offer(peer, id, *offer, region); });
    }
    case control::FrameOp::accept: {
      auto accept = control::decode_accept(frame.payload);
      if (!accept.ok()) return accept.status();
      const auto region = import_key(accept->descriptor);
      if (region.status().code() == Code::corrupt) return region.status();
      return with_lock([&](Rendezvous& all) { return all.on_accept(peer, id, *accept, region); });
    }
    case control::FrameOp::finished: {
      const auto finished = control::decode_finished(frame.payload);
      if (!finished.ok()) return finished.status();
      return with_lock([&](Rendezvous& all) { return all.on_finished(peer, id, *finished); });
    }
    default: {
      const auto by_sender = control::decode_withdraw(frame.payload);
      if (!by_sender.ok()) return by_sender.status();
      return with_lock([&](Rendezvous& all) {
        all.on_withdraw(peer, id, *by_sender);
        return Status();
      });
    }
  }
}

Result<control::ExportedRegion> EngineImpl::on_offer_import_request(control::Session& session,
                                                                    std::uint64_t serial) {
  std::shared_ptr<const memory::Registration> registration;
  std::shared_ptr<const Keys> keys;
  {
    const base::MutexLock lock(scheduler_.mutex);
    if (const TemporaryRegistration* temporary =
            scheduler_.rendezvous().offered(session.id(), serial)) {
      registration = temporary->registration();
      keys = temporary->keys();
    }
  }
  if (registration != nullptr && keys == nullptr) keys = keys_of(serial);
  if (keys == nullptr)
    return Status(Code::not_found, Scope::request, "no such region was offered to you");
  auto sent =
      engine::export_region(transports_, registration->region(), *keys, {}, session.is_remote());
  if (sent.ok()) {
    const base::MutexLock lock(scheduler_.mutex);
    scheduler_.count_export(session.id(), 0);
  }
  return sent;
}

void EngineImpl::finish_import_by_serial(const PeerIdentity& peer, std::uint64_t request,
                                         Result<control::ExportedRegion>& answer) {
  const std::uint64_t serial = request & ~Rendezvous::kBySerial;
  {
    const base::MutexLock lock(events_mutex_);
    by_serial_.erase({peer.id, serial});  // it may ask, and be answered, once more
  }
  {
    const base::MutexLock lock(scheduler_.mutex);
    if (!scheduler_.rendezvous().awaits(peer.id, serial)) return;
  }
  Result<std::shared_ptr<ImportedRegion>> region = answer.status();
  if (answer.ok()) region = counted(peer, import(peer, *answer, after(options_.connect_deadline)));
  {
    const base::MutexLock lock(scheduler_.mutex);
    scheduler_.rendezvous().on_imported(peer.id, serial, region);
    advance();
  }
  progress_thread_->wake();
}

}  // namespace linkspan::engine
