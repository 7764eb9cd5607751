#include "transport/tcp/endpoint.hpp"

#include <algorithm>
#include <utility>

#include "transport/tcp/data_connection.hpp"

namespace linkspan::transport::tcp {
namespace {

using namespace std::chrono_literals;

constexpr const char* kPath = "tcp";
constexpr Duration kLook = 50us;      // at batches that the threads work on
constexpr Duration kLookAgain = 1ms;  // at what is the peer's
constexpr Duration kLookAtTraffic = 100ms;
constexpr Duration kLookAtServed = 10ms;  // at what stands still
constexpr Duration kLastWords =
    1s;  // of a peer's control connection, when its connections have ended

}  // namespace

TcpEndpoint::TcpEndpoint(TcpTransport& transport, const Address& peer, Channel& channel,
                         base::Deadline deadline)
    : transport_(transport),
      peer_(peer),
      channel_(channel),
      connect_by_(deadline),
      wire_(std::make_shared<Wire>(
          WireOptions{.published = &transport.published(),
                      .channel = &channel,
                      .incarnation = transport.options().incarnation,
                      .peer = peer.incarnation,
                      .chunk = std::min<std::uint64_t>(peer.chunk, kMaxChunk),
                      .inflight = transport.capabilities().max_inflight,
                      .connections = channel.connects() ? first_connections() : 0,
                      .max_connections = channel.connects() ? max_connections() : 0})),
      drop_at_(base::Deadline::after(
          *transport.options().clock,
          channel.connects() ? deadline.left() : deadline.left() + kDropsLater)) {
  if (!channel_.connects()) return;
  awaited_ = first_connections();
  for (unsigned i = 0; i < awaited_; ++i)
    if (Status status = channel_.open_data_connection(); !status.ok()) wire_->fail(status);
}

TcpEndpoint::~TcpEndpoint() {
  wire_->fail(Status(Code::canceled, Scope::peer, "the endpoint has ended"));
}

Status TcpEndpoint::ready() const {
  if (closed_) return {Code::canceled, Scope::peer, "the endpoint is closed"};
  if (gone_)
    return {Code::disconnected, Scope::peer,
            "peer " + std::string(channel_.peer_name()) + " is gone"};
  if (wire_->has_failed()) return *wire_->failure();
  return is_late() ? late() : Status();
}

unsigned TcpEndpoint::max_connections() const noexcept {
  return std::min(peer_.connections, transport_.options().connections);
}

unsigned TcpEndpoint::first_connections() const noexcept {
  return std::min(max_connections(), transport_.options().first);
}

/// No connection has come in time.
bool TcpEndpoint::is_late() const { return connections_ == 0 && connect_by_.passed(); }

Status TcpEndpoint::late() const {
  std::string what =
      "no data connection to peer " + std::string(channel_.peer_name()) + " was made in time";
  if (!refusal_.ok()) what += "; the last try: " + refusal_.what();
  return {refusal_.ok() || refusal_.code() == Code::no_resource ? Code::timed_out : refusal_.code(),
          Scope::peer, what};
}

/// One of the first is asked for again; one that was to be more is not missed.
void TcpEndpoint::refused(const Status& why) {
  wire_->not_made();
  if (connections_ >= first_connections()) return;
  if (awaited_ != 0) --awaited_;
  refusal_ = why;
  // A later try changes nothing about these.
  const bool final = why.code() == Code::permission_denied || why.code() == Code::unsupported ||
                     why.code() == Code::corrupt;
  if (final && connections_ == 0 && awaited_ == 0) wire_->fail(why);
  if (final || ask_again_at_ || (connections_ != 0 && asked_again_ >= kTries)) return;
  const unsigned doublings = std::min(asked_again_++, 10U);
  ask_again_at_ = now() + std::min(kFirstPause * (1U << doublings), kLastPause);
}

/// Data connections that were refused are asked for again; a peer without any is dropped.
void TcpEndpoint::look_at_missing(base::Time now) {
  if (closed_ || gone_ || wire_->has_failed()) return;
  if (connections_ == 0 && drop_at_.passed()) return wire_->fail(late());
  if (!ask_again_at_ || now < *ask_again_at_) return;
  ask_again_at_.reset();
  while (connections_ + awaited_ < first_connections()) {
    ++awaited_;
    if (Status status = channel_.open_data_connection(); !status.ok()) return refused(status);
  }
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
            .ticket = {}};
  if (batch.path_taken != nullptr) *batch.path_taken = {.path = kPath, .by_peer = false};
  const auto blocks = asked->checked.blocks();
  const WireKey& key = slot.remote->key();
  const std::uint64_t here = asked->use.memory()->address;
  transport_.count(blocks.size());
  if (blocks.empty()) {
    slot.ticket = std::make_shared<Ticket>();
    slot.ticket->ended = true;  // there is nothing to move
  } else if (slot.op == Op::put) {
    auto out = std::make_shared<Outgoing>();
    out->id = slot.id;
    out->use = std::move(asked->use);
    out->serial = key.id.serial;
    out->token = key.token;
    slot.ticket = {out, &out->ticket};
    out->summed = batch.hints.checksum;
    out->pieces.reserve(blocks.size());
    for (const Block& b : blocks)
      out->pieces.push_back({here + b.local_offset, b.remote_offset, b.bytes});
    if (takes_along(batch, out->pieces)) {
      out->notification.assign(batch.notification.begin(), batch.notification.end());
      out->after = batch.notifications_before;
      *batch.notifies = true;
    }
    wire_->put(std::move(out));
  } else {
    auto in = std::make_shared<Incoming>();
    Head question{.op = Op::get,
                  .id = slot.id,
                  .serial = key.id.serial,
                  .token = key.token,
                  .summed = batch.hints.checksum};
    in->op = Op::get;
    in->id = slot.id;
    in->use = std::move(asked->use);
    slot.ticket = {in, &in->ticket};
    in->summed = batch.hints.checksum;
    in->pieces.reserve(blocks.size());
    question.spans.reserve(blocks.size());
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

/// A notification goes with a batch of one frame: of several, one might fail behind the last. Where
/// the peer's release keeps no order of two connections, it goes with no batch once others have
/// gone over the control connection.
bool TcpEndpoint::takes_along(const Batch& batch, const std::vector<Piece>& pieces) const {
  if (batch.notifies == nullptr || batch.notification.empty() ||
      batch.notification.size() > kMaxNotification || pieces.size() > kMaxPutSpans ||
      (batch.notifications_before != 0 && !peer_.ordered))
    return false;
  std::uint64_t left = wire_->chunk();
  return std::ranges::all_of(pieces, [&](const Piece& piece) {
    return piece.bytes <= left && (left -= piece.bytes, true);
  });
}

void TcpEndpoint::cancel(std::uint64_t cookie) {
  for (Slot& slot : ours_)
    if (slot.cookie == cookie) stop(slot);
}

void TcpEndpoint::stop(Slot& slot) {
  if (!slot.canceled) slot.canceled = now();
  wire_->cancel(slot.op, slot.id);
}

/// Else a batch would end when its peer likes: other bytes that it sends, one frame a second, or a
/// data connection of several that something on the way holds back, say nothing about this batch.
/// What the data connections still hold is fenced by their end.
void TcpEndpoint::look_at_canceled(base::Time now) {
  if (now < look_at_traffic_) return;
  const bool fresh = now - look_at_traffic_ > kSilence;  // or nothing has looked for long
  look_at_traffic_ = now + kLookAtTraffic;
  const std::uint64_t before = std::exchange(traffic_, wire_->traffic());
  if (fresh || traffic_ != before) silent_since_ = now;
  const std::string peer = "peer " + std::string(channel_.peer_name());
  if (now - silent_since_ > kSilence)
    wire_->fail(Status(Code::disconnected, Scope::peer, peer + " has not answered for 5 s"));
  for (Slot& slot : ours_) {
    if (!slot.canceled) continue;
    // This process stood still: an answer may be here that nothing has read.
    if (fresh) slot.canceled = std::max(*slot.canceled, now - kCancelEnds + kSilence);
    if (now - *slot.canceled > kCancelEnds)
      wire_->fail(Status(Code::disconnected, Scope::peer,
                         peer + " has not ended a canceled transfer for 10 s, though bytes came "
                                "or went: connect to it again"));
  }
}

/// Else it would be up for ever and carry nothing. One that leaves is gone by itself before that,
/// when all that it has said was heard.
void TcpEndpoint::look_at_failure(base::Time now) {
  if (closed_ || gone_) return;
  if (!give_up_at_) give_up_at_ = now + kLastWords;
  if (now < *give_up_at_ || *give_up_at_ == base::Time::max()) return;
  give_up_at_ = base::Time::max();
  channel_.fail_peer(*wire_->failure());
}

std::size_t TcpEndpoint::progress(CompletionSink& sink) {
  // Also whoever has been told elsewhere that bytes have landed here sees them behind this.
  look_at_missing(now());
  if (!wire_->sync()) look_at_failure(now());
  if (!ours_.empty() && is_late()) wire_->fail(late());
  if (const base::Time at = now(); at >= look_at_served_) {
    look_at_served_ = at + kLookAtServed;
    wire_->end_still(at);
  }
  if (std::ranges::any_of(ours_, [](const Slot& slot) { return slot.canceled.has_value(); }))
    look_at_canceled(now());
  else
    look_at_traffic_ = {};
  std::size_t completed = 0;
  for (auto slot = ours_.begin(); slot != ours_.end();) {
    if (!slot->ticket->ended.load(std::memory_order_acquire)) {
      ++slot;
      continue;
    }
    const Status& end = slot->ticket->status;
    if (end.code() == Code::unreachable) slot->remote->mark_dead();
    sink.complete({slot->cookie, end});
    slot = ours_.erase(slot);
    ++completed;
  }
  return completed;
}

PollHint TcpEndpoint::poll_hint() const {
  for (const Slot& slot : ours_)
    if (slot.ticket->ended.load(std::memory_order_acquire)) return {.when = PollHint::When::now};
  const base::Time now = this->now();
  if (!ours_.empty()) return {.when = PollHint::When::at, .at = now + kLook, .patient = true};
  // What a peer asks for more it asks by its connections, whose threads look.
  if (wire_->serves() || (gone_ && !wire_->over()))
    return {.when = PollHint::When::at, .at = now + kLookAgain, .patient = true};
  if (closed_ || gone_ || leaving_) return {};
  if (give_up_at_ && *give_up_at_ != base::Time::max())
    return {.when = PollHint::When::at, .at = *give_up_at_};
  if (wire_->has_failed()) return {};
  base::Time at = connections_ == 0 ? now + drop_at_.left() : base::Time::max();
  if (ask_again_at_) at = std::min(at, *ask_again_at_);
  if (at == base::Time::max()) return {};
  return {.when = PollHint::When::at, .at = at, .patient = true};
}

Explanation TcpEndpoint::explain(linkspan::Op, const memory::Region& local, const Mapping&,
                                 BatchSummary) const {
  return {.path = kPath,
          .executor = "both",
          .reason = std::to_string(connections_) + " TCP data connections" +
                    (transport_.options().tls ? " by " + tls_ : "") +
                    (local.facts().kind == MemoryKind::device ? ", memory of GPUs staged" : ""),
          .expected_gbps = 0,
          .refused = {}};
}

std::string TcpEndpoint::describe_paths() const {
  return "up to " + std::to_string(max_connections()) + " TCP data connections" +
         (transport_.options().tls ? " by TLS" : "");
}

Status TcpEndpoint::on_message(std::uint16_t op, std::span<const std::byte>, std::span<base::Fd>) {
  return {Code::unsupported, Scope::request, "tcp has no op " + std::to_string(op)};
}

Status TcpEndpoint::on_data_connection(Result<base::AuthenticatedSocket> socket) {
  if (!socket.ok()) {
    refused(socket.status());  // the side that tries has logged it
    return {};
  }
  if (connections_ >= kMaxDataConnections)
    return {Code::corrupt, Scope::peer, "more data connections than there may be"};
  if (socket->tls != nullptr) tls_ = socket->tls->name();
  auto thread = transport_.threads().next();
  if (!thread.ok()) return thread.status();
  // Shared: with its thread and the wire.
  auto connection = std::make_shared<DataConnection>(
      wire_, *std::move(socket),
      DataConnectionOptions{.peer = peer_.incarnation,
                            .lanes = &transport_.lanes(),
                            .ctas = transport_.options().copy_ctas.value_or(~0U)},
      **thread);
  if (Status status = wire_->add(connection); !status.ok()) return {};  // closes it
  if (Status status = (*thread)->add(connection); !status.ok()) {
    wire_->ended(*connection);
    return status;
  }
  ++connections_;
  if (awaited_ != 0) --awaited_;
  return {};
}

void TcpEndpoint::close() {
  closed_ = true;
  for (Slot& slot : ours_) stop(slot);
}

void TcpEndpoint::peer_terminated() {
  gone_ = true;
  wire_->fail(Status(Code::disconnected, Scope::peer,
                     "peer " + std::string(channel_.peer_name()) + " is gone"));
}

}  // namespace linkspan::transport::tcp
