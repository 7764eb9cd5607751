#include "transport/tcp/endpoint.hpp"

#include <algorithm>
#include <utility>

#include "base/no_memory.hpp"
#include "net/tcp_socket.hpp"
#include "transport/tcp/data_connection.hpp"

namespace linkspan::transport::tcp {
namespace {

using namespace std::chrono_literals;

constexpr const char* kPath = "tcp";
constexpr Duration kBatchPoll = 50us;    // batches that the threads work on
constexpr Duration kPeerPoll = 1ms;      // transfers of the peer's
constexpr Duration kServedCheck = 10ms;  // stalled transfers
constexpr Duration kDropDelay = 1s;  // from the failure of the connections to the end of the peer

}  // namespace

TcpEndpoint::TcpEndpoint(TcpTransport& transport, const TcpTransportAddress& peer, Channel& channel,
                         base::Deadline deadline)
    : transport_(transport),
      peer_(peer),
      channel_(channel),
      group_(std::make_shared<ConnectionGroup>(
          ConnectionGroupOptions{.published = &transport.published(),
                                 .channel = &channel,
                                 .incarnation = transport.options().incarnation,
                                 .chunk = std::min<std::uint64_t>(peer.chunk, kMaxChunk),
                                 .inflight = transport.capabilities().max_inflight,
                                 .max_stall = transport.options().max_stall,
                                 .connections = channel.connects() ? first_connections() : 0,
                                 .max_connections = channel.connects() ? max_connections() : 0})),
      connector_(channel, *group_, first_connections(), deadline, *transport.options().clock),
      batches_(*group_) {}

TcpEndpoint::~TcpEndpoint() {
  if (group_->has_failed()) return;
  group_->fail(base::or_no_memory(
      [] { return Status(Code::canceled, Scope::peer, "the endpoint has ended"); }));
}

Status TcpEndpoint::ready() const {
  if (closed_) return {Code::canceled, Scope::peer, "the endpoint is closed"};
  if (disconnected_)
    return {Code::disconnected, Scope::peer,
            "peer " + std::string(channel_.peer_name()) + " is gone"};
  if (group_->has_failed()) return *group_->failure();
  return connector_.is_overdue() ? connector_.timeout() : Status();
}

unsigned TcpEndpoint::max_connections() const noexcept {
  return std::min(peer_.connections, transport_.options().connections);
}

unsigned TcpEndpoint::first_connections() const noexcept {
  return std::min(max_connections(), transport_.options().first);
}

Result<Posted> TcpEndpoint::post(const Batch& batch) {
  if (Status status = ready(); !status.ok()) return status;
  auto resolved =
      wire_batch(batch, transport_.published(), peer_.incarnation, transport_.capabilities());
  if (!resolved.ok()) return resolved.status();
  if (batches_.size() >= transport_.capabilities().max_inflight) return Status::no_resource();
  Posted begun{.path = {.path = kPath, .by_peer = false}};
  const auto blocks = resolved->checked.blocks();
  const WireKey& key = resolved->remote->key();
  const std::uint64_t here = resolved->use.memory()->address;
  transport_.count(blocks.size());
  // In its own list until the group has the batch: after that nothing may throw.
  std::list<TcpInflightBatch> posted(1);
  posted.front().cookie = batch.cookie;
  posted.front().remote = resolved->remote;
  const auto begin = [&](const auto& made, FrameType type) {
    made->type = type;
    made->id = batches_.next_id();
    made->use = std::move(resolved->use);
    made->summed = batch.hints.checksum;
    made->extents.reserve(blocks.size());
    posted.front().batch = made;
  };
  if (blocks.empty()) {
    begin(std::make_shared<TcpBatch>(), FrameType::put);
    posted.front().batch->use = {};
    posted.front().batch->result.ended = true;  // nothing to move
  } else if (batch.op == linkspan::Op::write) {
    auto out = std::make_shared<Outgoing>();
    begin(out, FrameType::put);
    out->serial = key.id.serial;
    out->token = key.token;
    for (const Block& b : blocks)
      out->extents.push_back({here + b.local_offset, b.remote_offset, b.bytes});
    begun.notifies = carries_notification(batch);
    if (begun.notifies) {
      out->notification.assign(batch.notification.begin(), batch.notification.end());
      out->after = batch.notifications_before;
    }
    group_->put(std::move(out));
  } else {
    auto in = std::make_shared<Incoming>();
    begin(in, FrameType::get);
    Head question{.type = FrameType::get,
                  .id = in->id,
                  .serial = key.id.serial,
                  .token = key.token,
                  .summed = batch.hints.checksum};
    question.spans.reserve(blocks.size());
    for (const Block& b : blocks) {
      in->extents.push_back({here + b.local_offset, in->requested, b.bytes});
      in->requested += b.bytes;
      question.spans.push_back({b.remote_offset, b.bytes});
    }
    group_->get(std::move(in), std::move(question));
  }
  batches_.add(posted);
  return begun;
}

/// Returns true if the notification goes with the batch. If the peer's release does not order two
/// connections, it does not go once others were sent over the control connection.
bool TcpEndpoint::carries_notification(const Batch& batch) const {
  return !batch.notification.empty() && batch.notification.size() <= kMaxNotification &&
         (batch.notifications_before == 0 || peer_.ordered);
}

void TcpEndpoint::cancel(std::uint64_t cookie) { batches_.cancel(cookie, now()); }

/// Drops the peer kDropDelay after its connections failed; otherwise it would stay up without
/// carrying data. A peer that is shutting down is dropped earlier, once its queued messages were
/// read.
void TcpEndpoint::check_failure(base::Time now) {
  if (closed_ || disconnected_) return;
  if (!give_up_at_) give_up_at_ = now + kDropDelay;
  if (now < *give_up_at_ || *give_up_at_ == base::Time::max()) return;
  channel_.fail_peer(*group_->failure());
  give_up_at_ = base::Time::max();
}

std::size_t TcpEndpoint::progress(CompletionSink& sink) {
  const base::Time at = now();
  if (!closed_ && !disconnected_) connector_.retry(at);
  // sync() also serves a caller that learned of landed bytes elsewhere.
  if (!group_->sync()) check_failure(at);
  if (batches_.size() != 0 && connector_.is_overdue()) group_->fail(connector_.timeout());
  if (at >= check_served_at_) {
    check_served_at_ = at + kServedCheck;
    group_->end_stalled(at);
  }
  batches_.check_canceled(at, channel_.peer_name());
  return batches_.complete(sink);
}

PollHint TcpEndpoint::poll_hint() const {
  if (batches_.any_ended()) return {.when = PollHint::When::now};
  const base::Time now = this->now();
  if (batches_.size() != 0)
    return {.when = PollHint::When::at, .at = now + kBatchPoll, .patient = true};
  // The connections' threads handle further requests of the peer.
  if (group_->serves() || (disconnected_ && !group_->is_closed()))
    return {.when = PollHint::When::at, .at = now + kPeerPoll, .patient = true};
  if (closed_ || disconnected_ || leaving_) return {};
  if (give_up_at_ && *give_up_at_ != base::Time::max())
    return {.when = PollHint::When::at, .at = *give_up_at_};
  if (group_->has_failed())
    return {.when = give_up_at_ ? PollHint::When::idle : PollHint::When::now};
  const base::Time at = connector_.next_retry(now);
  if (at == base::Time::max()) return {};
  return {.when = PollHint::When::at, .at = at, .patient = true};
}

Explanation TcpEndpoint::explain(linkspan::Op, const memory::Region& local, const Mapping& remote,
                                 BatchSummary) const {
  return {.path = kPath,
          .executor = "both",
          .reason = std::to_string(connector_.connections()) + " TCP data connections" +
                    (transport_.options().tls ? " by " + tls_ : "") +
                    (local.facts().kind == MemoryKind::device ? ", memory of GPUs staged" : ""),
          .expected_gbps = 0,
          .refused = transport_.published().refused(local, remote)};
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
    connector_.on_refused(socket.status(), now());  // the connecting side has logged it
    return {};
  }
  if (connector_.connections() >= kMaxDataConnections)
    return {Code::corrupt, Scope::peer, "more data connections than there may be"};
  if (socket->tls != nullptr) tls_ = socket->tls->name();
  auto thread = transport_.threads().next();
  if (!thread.ok()) return thread.status();
  net::set_user_timeout(socket->socket, transport_.options().max_stall);
  // Shared with its thread and the group.
  auto connection = std::make_shared<DataConnection>(
      group_, *std::move(socket),
      DataConnectionOptions{.peer = peer_.incarnation,
                            .staging_streams = &transport_.staging_streams(),
                            .ctas = transport_.options().copy_ctas.value_or(~0U)},
      **thread);
  if (Status status = group_->add(connection); !status.ok()) return {};  // the connection closes
  if (Status status = base::or_no_memory([&] { return (*thread)->add(connection); });
      !status.ok()) {
    group_->on_connection_closed(*connection);
    return status;
  }
  connector_.on_connected();
  return {};
}

void TcpEndpoint::close() {
  closed_ = true;
  batches_.cancel(std::nullopt, now());
}

void TcpEndpoint::peer_terminated() {
  disconnected_ = true;
  group_->fail(Status(Code::disconnected, Scope::peer,
                      "peer " + std::string(channel_.peer_name()) + " is gone"));
}

}  // namespace linkspan::transport::tcp
