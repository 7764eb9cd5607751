#include "transport/tcp/endpoint.hpp"

#include <algorithm>
#include <utility>

#include "base/no_memory.hpp"
#include "transport/tcp/data_connection.hpp"

namespace linkspan::transport::tcp {
namespace {

using namespace std::chrono_literals;

constexpr const char* kPath = "tcp";
constexpr Duration kBatchPoll = 50us;  // batches that the threads work on
constexpr Duration kPeerPoll = 1ms;    // transfers of the peer's
constexpr Duration kTrafficCheck = 100ms;
constexpr Duration kServedCheck = 10ms;  // stalled transfers
constexpr Duration kDropDelay = 1s;  // from the failure of the connections to the end of the peer

}  // namespace

TcpEndpoint::TcpEndpoint(TcpTransport& transport, const TcpTransportAddress& peer, Channel& channel,
                         base::Deadline deadline)
    : transport_(transport),
      peer_(peer),
      channel_(channel),
      connect_by_(deadline),
      group_(std::make_shared<ConnectionGroup>(
          ConnectionGroupOptions{.published = &transport.published(),
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
    if (Status status = channel_.open_data_connection(); !status.ok()) group_->fail(status);
}

TcpEndpoint::~TcpEndpoint() {
  group_->fail(Status(Code::canceled, Scope::peer, "the endpoint has ended"));
}

Status TcpEndpoint::ready() const {
  if (closed_) return {Code::canceled, Scope::peer, "the endpoint is closed"};
  if (disconnected_)
    return {Code::disconnected, Scope::peer,
            "peer " + std::string(channel_.peer_name()) + " is gone"};
  if (group_->has_failed()) return *group_->failure();
  return connect_is_overdue() ? connect_timeout() : Status();
}

unsigned TcpEndpoint::max_connections() const noexcept {
  return std::min(peer_.connections, transport_.options().connections);
}

unsigned TcpEndpoint::first_connections() const noexcept {
  return std::min(max_connections(), transport_.options().first);
}

/// Returns true if no connection was made in time.
bool TcpEndpoint::connect_is_overdue() const { return connections_ == 0 && connect_by_.passed(); }

Status TcpEndpoint::connect_timeout() const {
  std::string what =
      "no data connection to peer " + std::string(channel_.peer_name()) + " was made in time";
  if (!refusal_.ok()) what += "; the last try: " + refusal_.what();
  return {refusal_.ok() || refusal_.code() == Code::no_resource ? Code::timed_out : refusal_.code(),
          Scope::peer, what};
}

/// Schedules another attempt if it was one of the first connections; further ones are optional.
void TcpEndpoint::refused(const Status& why) {
  group_->on_connection_refused();
  if (connections_ >= first_connections()) return;
  if (awaited_ != 0) --awaited_;
  refusal_ = why;
  // Another attempt cannot change these.
  const bool final = why.code() == Code::permission_denied || why.code() == Code::unsupported ||
                     why.code() == Code::corrupt;
  if (final && connections_ == 0 && awaited_ == 0) group_->fail(why);
  if (final || ask_again_at_ || (connections_ != 0 && asked_again_ >= kTries)) return;
  const unsigned doublings = std::min(asked_again_++, 10U);
  ask_again_at_ = now() + std::min(kFirstPause * (1U << doublings), kLastPause);
}

/// Retries refused data connections; drops a peer that has none at its deadline.
void TcpEndpoint::retry_refused(base::Time now) {
  if (closed_ || disconnected_ || group_->has_failed()) return;
  if (connections_ == 0 && drop_at_.passed()) return group_->fail(connect_timeout());
  if (!ask_again_at_ || now < *ask_again_at_) return;
  ask_again_at_.reset();
  while (connections_ + awaited_ < first_connections()) {
    ++awaited_;
    if (Status status = channel_.open_data_connection(); !status.ok()) return refused(status);
  }
}

Status TcpEndpoint::post(const Batch& batch) {
  if (Status status = ready(); !status.ok()) return status;
  auto resolved =
      wire_batch(batch, transport_.published(), peer_.incarnation, transport_.capabilities());
  if (!resolved.ok()) return resolved.status();
  if (batches_.size() >= transport_.capabilities().max_inflight) return Status::no_resource();
  // In its own list until the group has the batch: after that nothing may throw.
  std::list<TcpInflightBatch> posted(1);
  TcpInflightBatch& inflight = posted.front();
  inflight.id = ++last_id_;
  inflight.cookie = batch.cookie;
  inflight.type = batch.op == linkspan::Op::write ? FrameType::put : FrameType::get;
  inflight.remote = resolved->remote;
  if (batch.path_taken != nullptr) *batch.path_taken = {.path = kPath, .by_peer = false};
  const auto blocks = resolved->checked.blocks();
  const WireKey& key = inflight.remote->key();
  const std::uint64_t here = resolved->use.memory()->address;
  transport_.count(blocks.size());
  if (blocks.empty()) {
    inflight.result = std::make_shared<BatchResult>();
    inflight.result->ended = true;  // nothing to move
  } else if (inflight.type == FrameType::put) {
    auto out = std::make_shared<Outgoing>();
    out->id = inflight.id;
    out->use = std::move(resolved->use);
    out->serial = key.id.serial;
    out->token = key.token;
    inflight.result = {out, &out->result};
    out->summed = batch.hints.checksum;
    out->extents.reserve(blocks.size());
    for (const Block& b : blocks)
      out->extents.push_back({here + b.local_offset, b.remote_offset, b.bytes});
    const bool notifies = carries_notification(batch, out->extents);
    if (notifies) {
      out->notification.assign(batch.notification.begin(), batch.notification.end());
      out->after = batch.notifications_before;
    }
    group_->put(std::move(out));
    if (notifies) *batch.notifies = true;
  } else {
    auto in = std::make_shared<Incoming>();
    Head question{.type = FrameType::get,
                  .id = inflight.id,
                  .serial = key.id.serial,
                  .token = key.token,
                  .summed = batch.hints.checksum};
    in->type = FrameType::get;
    in->id = inflight.id;
    in->use = std::move(resolved->use);
    inflight.result = {in, &in->result};
    in->summed = batch.hints.checksum;
    in->extents.reserve(blocks.size());
    question.spans.reserve(blocks.size());
    for (const Block& b : blocks) {
      in->extents.push_back({here + b.local_offset, in->requested, b.bytes});
      in->requested += b.bytes;
      question.spans.push_back({b.remote_offset, b.bytes});
    }
    group_->get(std::move(in), std::move(question));
  }
  batches_.splice(batches_.end(), posted);
  return {};
}

/// Returns true if the notification goes with the batch: only with a batch of one frame, because of
/// several one might fail after the last. If the peer's release does not order two connections, it
/// does not go once others were sent over the control connection.
bool TcpEndpoint::carries_notification(const Batch& batch,
                                       const std::vector<Extent>& extents) const {
  if (batch.notifies == nullptr || batch.notification.empty() ||
      batch.notification.size() > kMaxNotification || extents.size() > kMaxPutSpans ||
      (batch.notifications_before != 0 && !peer_.ordered))
    return false;
  std::uint64_t left = group_->chunk();
  return std::ranges::all_of(extents, [&](const Extent& extent) {
    return extent.bytes <= left && (left -= extent.bytes, true);
  });
}

void TcpEndpoint::cancel(std::uint64_t cookie) {
  for (TcpInflightBatch& inflight : batches_)
    if (inflight.cookie == cookie) cancel(inflight);
}

void TcpEndpoint::cancel(TcpInflightBatch& inflight) {
  if (!inflight.canceled) inflight.canceled = now();
  group_->cancel(inflight.type, inflight.id);
}

/// Fails the group if a canceled batch does not end in time. Traffic alone proves nothing about
/// this batch: the peer may send other bytes, or one of several connections may be blocked. Closing
/// the connections fences what they still hold.
void TcpEndpoint::check_canceled(base::Time now) {
  if (now < check_traffic_at_) return;
  const bool fresh = now - check_traffic_at_ > kSilence;  // also after a long time without a check
  check_traffic_at_ = now + kTrafficCheck;
  const std::uint64_t before = std::exchange(traffic_, group_->traffic());
  if (fresh || traffic_ != before) silent_since_ = now;
  const std::string peer = "peer " + std::string(channel_.peer_name());
  if (now - silent_since_ > kSilence)
    group_->fail(Status(Code::disconnected, Scope::peer, peer + " has not answered for 5 s"));
  for (TcpInflightBatch& inflight : batches_) {
    if (!inflight.canceled) continue;
    // This process was suspended: an unread answer may be here.
    if (fresh) inflight.canceled = std::max(*inflight.canceled, now - kCancelEnds + kSilence);
    if (now - *inflight.canceled > kCancelEnds)
      group_->fail(Status(Code::disconnected, Scope::peer,
                          peer + " has not ended a canceled transfer for 10 s, though bytes came "
                                 "or went: connect to it again"));
  }
}

/// Drops the peer kDropDelay after its connections failed; otherwise it would stay up without
/// carrying data. A peer that is shutting down is dropped earlier, once its queued messages were
/// read.
void TcpEndpoint::check_failure(base::Time now) {
  if (closed_ || disconnected_) return;
  if (!give_up_at_) give_up_at_ = now + kDropDelay;
  if (now < *give_up_at_ || *give_up_at_ == base::Time::max()) return;
  give_up_at_ = base::Time::max();
  channel_.fail_peer(*group_->failure());
}

std::size_t TcpEndpoint::progress(CompletionSink& sink) {
  // sync() also serves a caller that learned of landed bytes elsewhere.
  retry_refused(now());
  if (!group_->sync()) check_failure(now());
  if (!batches_.empty() && connect_is_overdue()) group_->fail(connect_timeout());
  if (const base::Time at = now(); at >= check_served_at_) {
    check_served_at_ = at + kServedCheck;
    group_->end_stalled(at);
  }
  if (std::ranges::any_of(
          batches_, [](const TcpInflightBatch& inflight) { return inflight.canceled.has_value(); }))
    check_canceled(now());
  else
    check_traffic_at_ = {};
  std::size_t completed = 0;
  for (auto inflight = batches_.begin(); inflight != batches_.end();) {
    if (!inflight->result->ended.load(std::memory_order_acquire)) {
      ++inflight;
      continue;
    }
    const Status& end = inflight->result->status;
    if (end.code() == Code::unreachable) inflight->remote->mark_dead();
    sink.complete({inflight->cookie, end});
    inflight = batches_.erase(inflight);
    ++completed;
  }
  return completed;
}

PollHint TcpEndpoint::poll_hint() const {
  for (const TcpInflightBatch& inflight : batches_)
    if (inflight.result->ended.load(std::memory_order_acquire))
      return {.when = PollHint::When::now};
  const base::Time now = this->now();
  if (!batches_.empty())
    return {.when = PollHint::When::at, .at = now + kBatchPoll, .patient = true};
  // The connections' threads handle further requests of the peer.
  if (group_->serves() || (disconnected_ && !group_->is_closed()))
    return {.when = PollHint::When::at, .at = now + kPeerPoll, .patient = true};
  if (closed_ || disconnected_ || leaving_) return {};
  if (give_up_at_ && *give_up_at_ != base::Time::max())
    return {.when = PollHint::When::at, .at = *give_up_at_};
  if (group_->has_failed())
    return {.when = give_up_at_ ? PollHint::When::idle : PollHint::When::now};
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
    refused(socket.status());  // the connecting side has logged it
    return {};
  }
  if (connections_ >= kMaxDataConnections)
    return {Code::corrupt, Scope::peer, "more data connections than there may be"};
  if (socket->tls != nullptr) tls_ = socket->tls->name();
  auto thread = transport_.threads().next();
  if (!thread.ok()) return thread.status();
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
  ++connections_;
  if (awaited_ != 0) --awaited_;
  return {};
}

void TcpEndpoint::close() {
  closed_ = true;
  for (TcpInflightBatch& inflight : batches_) cancel(inflight);
}

void TcpEndpoint::peer_terminated() {
  disconnected_ = true;
  group_->fail(Status(Code::disconnected, Scope::peer,
                      "peer " + std::string(channel_.peer_name()) + " is gone"));
}

}  // namespace linkspan::transport::tcp
