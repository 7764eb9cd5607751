#include "engine/messages/message_service.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace linkspan::engine {
namespace {

constexpr std::size_t kMaxRequire = 256;

}  // namespace

Result<std::shared_ptr<TransferState>> MessageService::submit(std::uint64_t peer,
                                                              const MessageKind& kind,
                                                              const void* data, std::uint64_t bytes,
                                                              const TransferOptions& options) {
  const auto refuse = [](Code code, const char* what) {
    return Status(code, Scope::request, what);
  };
  if (!options.notification.empty())
    return refuse(Code::invalid_argument,
                  "a notification of a two-sided message: the peer's receive is its notification");
  if (options.checksum)
    return refuse(Code::unsupported,
                  "a checksum of a two-sided message: only writes and reads have one");
  if (options.require.size() > kMaxRequire)
    return refuse(Code::invalid_argument, "a required path of over 256 characters");

  auto transfer =
      base::make_recycled<TransferState>();  // also the PeerScheduler's until it is quiet
  transfer->peer = peer;
  transfer->bytes = bytes;
  transfer->message = std::make_unique<MessageState>();
  MessageState& x = *transfer->message;
  static_cast<MessageKind&>(x) = kind;
  x.require = options.require;
  if (bytes != 0) {
    const auto session = peers_.session_of(peer);
    const bool by_wire = session != nullptr && session->is_remote() &&
                         std::ranges::any_of(context_.transports, [](const auto& t) {
                           return t->capabilities().leaves_host;
                         });
    auto memory = buffers_.acquire_buffer(data, bytes, kind.sends, by_wire);
    if (!memory.ok()) return memory.status();
    x.memory = *std::move(memory);
    x.kind = x.memory.kind();
    if (x.kind == MemoryKind::device) streams_.make_ready();
  }
  auto streams = streams_.resolve(options.after, options.release, x.memory.gpu());
  if (!streams.ok()) {
    (void)x.memory.release();
    return streams.status();
  }
  transfer->streams.adopt(*streams);
  transfer->ending.submitted = base::Clock::steady().now();
  transfer->ending.deadline = submission_.deadline_of(options, transfer->ending.submitted);
  if (context_.options.nvtx) transfer->ending.range.begin(kind.sends ? "send" : "receive", bytes);
  if (Status status = begin(transfer); !status.ok()) {
    (void)x.memory.release();
    return status;
  }
  context_.progress->wake();
  if (streams->release.device != nullptr) submission_.release_stream(*transfer, *streams);
  return transfer;
}

Status MessageService::begin(const std::shared_ptr<TransferState>& transfer) {
  MessageState& x = *transfer->message;
  OfferFrame frame;
  // A key that serves this message alone is sent with it, which saves a request and a reply.
  control::ExportedRegion key;
  const auto session = peers_.session_of(transfer->peer);
  if (session == nullptr) return peers_.absent(transfer->peer);
  const bool sends = x.sends, lends = session->is_remote() && x.kind == MemoryKind::device;
  if (x.memory.one_shot() && (sends || lends)) {
    auto made = engine::export_region(context_.transports, x.memory.registration()->region(),
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
    x.observer->begun(context_.log, transfer->peer, transfer->bytes,
                      gpu ? context_.topology->find(x.memory.gpu())->ordinal : -1, x);
  }
  const auto peer = peers_.find(transfer->peer);
  return peer == nullptr ? peers_.absent(transfer->peer) : peer->submit(transfer, std::move(frame));
}

Status MessageService::on_frame(control::Session& session, base::Frame& frame) {
  const std::uint64_t id = frame.header.id;
  const auto scheduler = peers_.find(session.id());
  if (scheduler == nullptr) return {};
  const auto with_lock = [&](const auto& act) {
    Status status = scheduler->on_message_frame(act);
    context_.progress->wake();
    return status;
  };
  /// Imports by the key that came with a message; returns null if none did.
  const auto import_key = [&](std::vector<std::byte>& descriptor) -> ImportService::Imported {
    if (descriptor.empty()) return std::shared_ptr<ImportedRegion>();
    return imports_.import_offered(session, {std::move(descriptor), std::move(frame.fds)});
  };
  switch (static_cast<control::FrameOp>(frame.header.op)) {
    case control::FrameOp::offer: {
      auto offer = control::decode_offer(frame.payload);
      if (!offer.ok()) return offer.status();
      if (frame.fds_lost) offer->descriptor.clear();  // asked for again when it is needed
      const auto region = import_key(offer->descriptor);
      if (region.status().code() == Code::corrupt) return region.status();
      return with_lock([&](Rendezvous& all) { return all.on_offer(id, *offer, region); });
    }
    case control::FrameOp::accept: {
      auto accept = control::decode_accept(frame.payload);
      if (!accept.ok()) return accept.status();
      const auto region = import_key(accept->descriptor);
      if (region.status().code() == Code::corrupt) return region.status();
      return with_lock([&](Rendezvous& all) { return all.on_accept(id, *accept, region); });
    }
    case control::FrameOp::finished: {
      const auto finished = control::decode_finished(frame.payload);
      if (!finished.ok()) return finished.status();
      return with_lock([&](Rendezvous& all) { return all.on_finished(id, *finished); });
    }
    default: {
      const auto by_sender = control::decode_withdraw(frame.payload);
      if (!by_sender.ok()) return by_sender.status();
      return with_lock([&](Rendezvous& all) {
        all.on_withdraw(id, *by_sender);
        return Status();
      });
    }
  }
}

}  // namespace linkspan::engine
