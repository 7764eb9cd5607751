#include "transport/tcp/endpoint.hpp"

#include <algorithm>
#include <utility>

#include "transport/tcp/stream.hpp"

namespace linkspan::transport::tcp {
namespace {

using namespace std::chrono_literals;

constexpr const char* kPath = "tcp";
constexpr Duration kLook = 20us;      // at batches that the threads work on
constexpr Duration kLookAgain = 1ms;  // at what is the peer's

}  // namespace

TcpEndpoint::TcpEndpoint(TcpTransport& transport, const Address& peer, Channel& channel,
                         base::Deadline deadline)
    : transport_(transport),
      peer_(peer),
      channel_(channel),
      connect_by_(deadline),
      wire_(std::make_shared<Wire>(
          WireOptions{.published = &transport.published(),
                      .incarnation = transport.options().incarnation,
                      .peer = peer.incarnation,
                      .chunk = std::min<std::uint64_t>(peer.chunk, kMostChunk),
                      .inflight = transport.capabilities().max_inflight})) {
  if (!channel_.connects()) return;
  awaited_ = std::min(peer.streams, transport.options().streams);
  for (unsigned i = 0; i < awaited_; ++i)
    if (Status status = channel_.open_stream(); !status.ok()) wire_->fail(status);
}

TcpEndpoint::~TcpEndpoint() {
  wire_->fail(Status(Code::canceled, Scope::peer, "the endpoint has ended"));
}

Status TcpEndpoint::ready() const {
  if (closed_) return {Code::canceled, Scope::peer, "the endpoint is closed"};
  if (gone_)
    return {Code::disconnected, Scope::peer,
            "peer " + std::string(channel_.peer_name()) + " is gone"};
  if (const auto failed = wire_->failure()) return *failed;
  return is_late() ? late() : Status();
}

/// No stream has come in time.
bool TcpEndpoint::is_late() const { return streams_ == 0 && connect_by_.passed(); }

Status TcpEndpoint::late() const {
  return {Code::timed_out, Scope::peer,
          "no stream to peer " + std::string(channel_.peer_name()) + " was made in time"};
}

Status TcpEndpoint::post(const Batch& batch) {
  if (Status status = ready(); !status.ok()) return status;
  auto asked =
      wire_batch(batch, transport_.published(), peer_.incarnation, transport_.capabilities());
  if (!asked.ok()) return asked.status();
  if (ours_.size() >= transport_.capabilities().max_inflight) return Status::no_resource();
  Slot slot{.id = ++last_id_,
            .cookie = batch.cookie,
            .op = batch.op == linkspan::Op::write ? Op::put : Op::get,
            .remote = asked->remote,
            .ticket = std::make_shared<Ticket>()};
  if (batch.way != nullptr) *batch.way = {.path = kPath, .by_peer = false};
  const auto blocks = asked->checked.blocks();
  const WireKey& key = slot.remote->key();
  const std::uint64_t here = asked->use.memory()->address;
  transport_.count(blocks.size());
  if (blocks.empty()) {
    slot.ticket->ended = true;  // there is nothing to move
  } else if (slot.op == Op::put) {
    auto out = std::make_shared<Outgoing>();
    out->id = slot.id;
    out->use = std::move(asked->use);
    out->serial = key.id.serial;
    out->token = key.token;
    out->ticket = slot.ticket;
    for (const Block& b : blocks)
      out->pieces.push_back({here + b.local_offset, b.remote_offset, b.bytes});
    wire_->put(std::move(out));
  } else {
    auto in = std::make_shared<Incoming>();
    Head question{.op = Op::get, .id = slot.id, .serial = key.id.serial, .token = key.token};
    in->op = Op::get;
    in->id = slot.id;
    in->use = std::move(asked->use);
    in->ticket = slot.ticket;
    for (const Block& b : blocks) {
      in->pieces.push_back({here + b.local_offset, in->asked, b.bytes});
      in->asked += b.bytes;
      question.spans.push_back({b.remote_offset, b.bytes});
    }
    wire_->get(std::move(in), std::move(question));
  }
  ours_.push_back(std::move(slot));
  return {};
}

void TcpEndpoint::cancel(std::uint64_t cookie) {
  for (const Slot& slot : ours_)
    if (slot.cookie == cookie) wire_->cancel(slot.op, slot.id);
}

std::size_t TcpEndpoint::progress(CompletionSink& sink) {
  // Also whoever has been told elsewhere that bytes have landed here sees them behind this.
  wire_->sync();
  if (!ours_.empty() && is_late()) wire_->fail(late());
  std::size_t completed = 0;
  for (auto slot = ours_.begin(); slot != ours_.end();) {
    if (!slot->ticket->ended.load(std::memory_order_acquire)) {
      ++slot;
      continue;
    }
    const Status& end = slot->ticket->status;
    if (end.code() == Code::unreachable) slot->remote->die();
    sink.complete({slot->cookie, end});
    slot = ours_.erase(slot);
    ++completed;
  }
  return completed;
}

NextLook TcpEndpoint::next_look() const {
  const base::Time now = base::Clock::steady().now();
  const bool serves = wire_->serves();
  for (const Slot& slot : ours_)
    if (slot.ticket->ended.load(std::memory_order_acquire))
      return {.when = NextLook::When::now, .for_peer = serves};
  if (!ours_.empty()) return {.when = NextLook::When::at, .at = now + kLook, .for_peer = serves};
  if (serves || (gone_ && !wire_->over()))
    return {.when = NextLook::When::at, .at = now + kLookAgain, .for_peer = serves};
  return {};
}

Explanation TcpEndpoint::explain(linkspan::Op, const memory::Region& local, const Mapping&,
                                 Shape) const {
  return {.path = kPath,
          .executor = "both",
          .reason = std::to_string(streams_) + " TCP streams" +
                    (local.facts().kind == MemoryKind::device ? ", memory of GPUs staged" : ""),
          .expected_gbps = 0,
          .refused = {}};
}

std::string TcpEndpoint::outlook() const {
  return "up to " + std::to_string(std::min(peer_.streams, transport_.options().streams)) +
         " TCP streams";
}

Status TcpEndpoint::on_message(std::uint16_t op, std::span<const std::byte>, std::span<base::Fd>) {
  return {Code::unsupported, Scope::request, "tcp has no op " + std::to_string(op)};
}

Status TcpEndpoint::on_stream(Result<base::Fd> socket) {
  if (!socket.ok()) {
    // Fewer will do.
    if (--awaited_ == 0 && streams_ == 0) wire_->fail(socket.status());
    return {};
  }
  if (streams_ >= kMostStreams)
    return {Code::corrupt, Scope::peer, "more streams than there may be"};
  auto thread = transport_.threads().next();
  if (!thread.ok()) return thread.status();
  // Shared: with its thread and the wire.
  auto stream =
      std::make_shared<Stream>(wire_, *std::move(socket),
                               StreamOptions{.peer = peer_.incarnation,
                                             .lanes = &transport_.lanes(),
                                             .ctas = transport_.options().copy_ctas.value_or(~0U)},
                               **thread);
  if (Status status = wire_->add(stream); !status.ok()) return {};  // closes it
  if (Status status = (*thread)->add(stream); !status.ok()) {
    wire_->ended(*stream);
    return status;
  }
  ++streams_;
  return {};
}

void TcpEndpoint::close() {
  closed_ = true;
  for (const Slot& slot : ours_) wire_->cancel(slot.op, slot.id);
}

void TcpEndpoint::peer_gone() {
  gone_ = true;
  wire_->fail(Status(Code::disconnected, Scope::peer,
                     "peer " + std::string(channel_.peer_name()) + " is gone"));
}

}  // namespace linkspan::transport::tcp
