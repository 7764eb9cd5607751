// Peers of an EngineImpl: connecting, notifications, and the end of peers.
#include <algorithm>
#include <thread>
#include <utility>

#include "base/interrupt.hpp"
#include "base/socket_dir.hpp"
#include "control/socket_address.hpp"
#include "engine/engine_impl.hpp"

namespace linkspan::engine {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kNotificationCost = 64;  // minimum cost of a notification
constexpr unsigned kPollsPerYield = 8;         // for each time that others may have the impl
constexpr Duration kPeerSpin = 50us;           // shorter waits poll without sleeping

/// Ends the session of a peer that broke the rules; any other failure is a line in the log.
void fail_or_log(control::Session& session, const Status& status, const base::Log& log) {
  if (status.code() == Code::corrupt)
    session.fail(status);
  else if (!status.ok())
    log.write_repeated(base::Repeated::peer, base::Level::warning,
                       [&] { return session.describe() + ": " + status.to_string(); });
}

}  // namespace

Status EngineImpl::listen(std::string_view address) {
  const std::string made_up = std::to_string(identity_.incarnation);
  const auto at = control::parse_address(address.empty() ? made_up : address, options_.socket_dir);
  if (!at.ok()) return at.status();
  if (at->path.starts_with(options_.socket_dir + "/"))
    if (Status status = control::secure_folder(options_.socket_dir,
                                               base::setting_of_socket_dir(options_.socket_dir));
        !status.ok())
      return status;
  const auto bound = control_->listen(*at);
  if (!bound.ok()) return bound.status();
  const base::MutexLock lock(events_mutex_);
  address_ = bound->to_string();
  return {};
}

std::string EngineImpl::address() const {
  const base::MutexLock lock(events_mutex_);
  return address_;
}

Result<Peer> EngineImpl::connect(std::string_view address, const ConnectOptions& options) {
  const auto at = control::parse_address(address, options_.socket_dir);
  if (!at.ok()) return at.status();
  if (at->is_tcp() && at->port == 0)
    return Status(
        Code::invalid_argument, Scope::request,
        at->to_string() + ": nobody is at port 0; Engine::address() there names the port");
  auto session = control_->connect(*at, after(options.timeout), options.expect);
  if (!session.ok()) return session.status();
  return Peer(shared_from_this(), (*session)->id(), (*session)->hello().engine);
}

Result<Peer> EngineImpl::accept(Duration timeout) {
  const base::Deadline deadline = after(timeout);
  const base::MutexLock lock(events_mutex_);
  while (accepted_.empty()) {
    if (closed_) return Status(Code::canceled, Scope::process, "the Engine is closed");
    if (deadline.passed()) return Status(Code::timed_out, Scope::request, "no peer has connected");
    if (base::wait_or_interrupted(event_, events_mutex_, deadline)) return base::interrupted();
  }
  auto [id, name] = std::move(accepted_.front());
  accepted_.pop_front();
  return Peer(shared_from_this(), id, std::move(name));
}

std::vector<control::TransportAddress> EngineImpl::transport_addresses(bool remote) {
  std::vector<control::TransportAddress> all;
  for (const auto& transport : transports_)
    if (reaches(*transport, remote))
      all.push_back({std::string(transport->name()), transport->address()});
  return all;
}

Status EngineImpl::on_established(const std::shared_ptr<control::Session>& session) {
  auto record = std::make_unique<PeerRecord>();
  record->session = session;
  record->channels.resize(transports_.size());
  record->endpoints.resize(transports_.size());
  for (std::size_t i = 0; i < transports_.size(); ++i) {
    for (const control::TransportAddress& each : session->hello().transports) {
      if (each.name != transports_[i]->name() || !reaches(*transports_[i], session->is_remote()))
        continue;
      record->channels[i] = std::make_unique<SessionChannel>(
          session, each.name, *control_,
          [this](const control::Session& from, std::vector<std::byte> payload,
                 std::uint64_t after) { deliver_in_order(from, std::move(payload), after); });
      auto endpoint = transports_[i]->connect(each.bytes, *record->channels[i],
                                              after(options_.connect_deadline));
      if (!endpoint.ok()) return endpoint.status();
      record->endpoints[i] = *std::move(endpoint);
    }
  }
  const base::MutexLock lock(scheduler_.mutex);
  scheduler_.add_peer(session->id(), std::move(record));
  return {};
}

void EngineImpl::on_up(control::Session& session) {
  log_.write_repeated(base::Repeated::life, base::Level::info, [&] { return greeting(session); });
  if (session.initiated() && session.is_on_loopback() && !reported_loopback_.exchange(true) &&
      log_.enabled(base::Level::warning))
    log_.write(base::Level::warning,
               session.describe() +
                   " is on this host but was met by TCP: its memory is not mapped, transfers take "
                   "TCP and not NVLink or shared memory. Connect to its unix: address for those; "
                   "require \"local\" refuses what goes by a network");
  const base::MutexLock lock(events_mutex_);
  if (!session.initiated()) accepted_.emplace_back(session.id(), session.hello().engine);
  ++event_count_;  // the wake-up of this peer's ring is not armed yet
  event_.notify_all();
}

void EngineImpl::on_disconnected(control::Session& session) {
  log_.write_repeated(base::Repeated::life, base::Level::info, [&] {
    return "lost " + session.describe() + ": " + session.failure().what();
  });
  {
    const base::MutexLock lock(scheduler_.mutex);
    scheduler_.on_peer_lost(session.id());
    advance();
  }
  progress_thread_->wake();
  end_windows(session.id(), not_connected(session.id()));
  forget_set_waits(session.id());
  end_lookups(session.id(), {Code::disconnected, Scope::peer, session.failure().what()});
}

void EngineImpl::end_lookups(std::uint64_t peer, const Status& why) {
  const base::MutexLock lock(events_mutex_);
  for (auto& [id, lookup] : lookups_)
    if (lookup->peer == peer && !lookup->answer) lookup->answer = why;
  event_.notify_all();
}

void EngineImpl::on_terminated(control::Session& session) {
  drain_ring(session, true);
  {
    const base::MutexLock lock(events_mutex_);
    if (accepted_.size() > kMaxUnaccepted)
      std::erase_if(accepted_, [&](const auto& each) { return each.first == session.id(); });
  }
  {
    const base::MutexLock lock(scheduler_.mutex);
    scheduler_.on_peer_gone(session.id());
    advance();
    quiet_.notify_all();  // close() may wait for it
  }
  progress_thread_->wake();
  // Its data connections have failed and bring no more.
  const base::MutexLock lock(events_mutex_);
  deliver_early(session, early_[session.id()], ~std::uint64_t{0});
  early_.erase(session.id());
}

void EngineImpl::on_transport_message(control::Session& session, control::TransportMessage message,
                                      std::span<base::Fd> fds) {
  Status status(Code::unsupported, Scope::request, "no transport \"" + message.transport + "\"");
  std::vector<std::shared_ptr<void>>
      dead;  // imports whose owner waits for our confirmation that they are closed
  {
    const base::MutexLock lock(scheduler_.mutex);
    PeerRecord* peer = scheduler_.find_peer(session.id());
    for (std::size_t i = 0; peer != nullptr && i < transports_.size(); ++i)
      if (transports_[i]->name() == message.transport && peer->endpoints[i] != nullptr)
        status = peer->endpoints[i]->on_message(message.op, message.bytes, fds);
    dead = scheduler_.rendezvous().sweep(session.id());
    advance();
  }
  dead.clear();
  progress_thread_->wake();
  fail_or_log(session, status, log_);
}

void EngineImpl::on_data_connection(control::Session& session, const std::string& transport,
                                    Result<base::AuthenticatedSocket> socket) {
  Status status(Code::unsupported, Scope::request, "no streams of \"" + transport + "\" here");
  {
    const base::MutexLock lock(scheduler_.mutex);
    PeerRecord* peer = scheduler_.find_peer(session.id());
    const auto mine =
        std::ranges::find(transports_, transport, [](const auto& each) { return each->name(); });
    if (peer != nullptr && mine != transports_.end()) {
      const auto at = static_cast<std::size_t>(mine - transports_.begin());
      if (auto* const taker =
              dynamic_cast<transport::DataConnectionSink*>(peer->endpoints[at].get()))
        status = taker->on_data_connection(std::move(socket));
    }
    advance();
  }
  progress_thread_->wake();
  fail_or_log(session, status, log_);
}

void EngineImpl::on_notification(control::Session& session, std::vector<std::byte> payload) {
  if (payload.size() > kMaxNotification) {
    session.fail(Status(Code::corrupt, Scope::peer, "a notification beyond 64 KiB"));
    return;
  }
  {
    const base::MutexLock lock(scheduler_.mutex);
    if (PeerRecord* peer = scheduler_.find_peer(session.id()))
      ++peer->counters.notifications_received;
  }
  const base::MutexLock lock(events_mutex_);
  deliver(session, std::move(payload));
  EarlyNotifications& early = early_[session.id()];
  ++early.received;
  deliver_early(session, early, early.received);
}

/// Hands a notification that came with a write to the user, once the first `after` of the control
/// connection have come.
void EngineImpl::deliver_in_order(const control::Session& from, std::vector<std::byte> payload,
                                  std::uint64_t after) {
  const base::MutexLock lock(events_mutex_);
  ++inbox_usage_[from.id()].uncounted;
  EarlyNotifications& early = early_[from.id()];
  if (after <= early.received) return deliver(from, std::move(payload));
  const std::size_t cost = std::max(payload.size(), kNotificationCost);
  // The others are on their way: only a peer that lies, or whose control connection stands still
  // for long, reaches the bound. It loses the order and no notification.
  if (early.bytes + cost > kMaxEarlyBytes) deliver_early(from, early, ~std::uint64_t{0});
  early.bytes += cost;
  early.waiting.push_back({after, std::move(payload)});
}

/// Delivers those that wait for at most the first `received` notifications of the control
/// connection.
void EngineImpl::deliver_early(const control::Session& from, EarlyNotifications& early,
                               std::uint64_t received) {
  const auto late = std::stable_partition(early.waiting.begin(), early.waiting.end(),
                                          [&](const auto& each) { return each.after <= received; });
  for (auto each = early.waiting.begin(); each != late; ++each) {
    early.bytes -= std::max(each->payload.size(), kNotificationCost);
    deliver(from, std::move(each->payload));
  }
  early.waiting.erase(early.waiting.begin(), late);
}

void EngineImpl::on_collect_request(control::Session& session) {
  drain_ring(session, false);
  // The wake-up may be for notifications that were drained already, and has used up the armed one.
  const base::MutexLock lock(events_mutex_);
  ++event_count_;
  event_.notify_all();
}

/// Drains the peer's ring. Notifications without room here stay there, except at the end of a peer.
void EngineImpl::drain_ring(control::Session& session, bool last) {
  const base::MutexLock in_order(drain_mutex_);
  while (true) {
    if (!last) {
      const base::MutexLock lock(events_mutex_);
      if (!has_room(inbox_usage_[session.id()], kMaxNotification)) return;
    }
    std::optional<std::vector<std::byte>> next;
    {
      const base::MutexLock lock(scheduler_.mutex);
      next = session.next_notification();
      PeerRecord* const peer = next ? scheduler_.find_peer(session.id()) : nullptr;
      if (peer != nullptr) ++peer->counters.notifications_received;
    }
    if (!next) return;
    const base::MutexLock lock(events_mutex_);
    deliver(session, *std::move(next));
  }
}

bool EngineImpl::has_room(const InboxUsage& waiting, std::size_t bytes) const {
  return waiting.count < kMaxWaitingNotifications && waiting.bytes + bytes <= kMaxWaitingBytes &&
         inbox_bytes_ + bytes <= kMaxWaitingBytesOfAll;
}

void EngineImpl::deliver(const control::Session& session, std::vector<std::byte> payload) {
  InboxUsage& waiting = inbox_usage_[session.id()];
  const std::size_t cost = std::max(payload.size(), kNotificationCost);
  if (has_room(waiting, cost)) {
    ++waiting.count;
    waiting.bytes += cost;
    inbox_bytes_ += cost;
    notifications_.push_back({session.id(), std::move(payload)});
    ++event_count_;
    event_.notify_all();
  } else if (waiting.dropped++ == 0) {
    log_.write_repeated(base::Repeated::peer, base::Level::error, [&] {
      return "notifications of " + session.describe() +
             " are dropped: " + std::to_string(waiting.count) +
             " wait, call Engine::notifications()";
    });
  }
}

Status EngineImpl::notify(std::uint64_t peer, std::span<const std::byte> message) {
  if (message.size() > kMaxNotification)
    return {Code::invalid_argument, Scope::request,
            "a message of " + std::to_string(message.size()) + " bytes; at most " +
                std::to_string(kMaxNotification)};
  const base::MutexLock lock(scheduler_.mutex);
  if (Status status = scheduler_.may_begin(peer); !status.ok()) return status;
  PeerRecord* const record = scheduler_.find_peer(peer);
  Status status = record->notify(message);
  if (status.ok()) ++record->counters.notifications_sent;
  return status;
}

std::vector<Notification> EngineImpl::notifications() {
  const base::MutexLock in_order(drain_mutex_);
  std::vector<Notification> all;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> uncounted;  // peers, and how many
  {
    const base::MutexLock lock(events_mutex_);
    std::erase_if(inbox_usage_,
                  [](const auto& each) { return each.second.count + each.second.uncounted == 0; });
    for (auto& [id, of_peer] : inbox_usage_) {
      if (of_peer.uncounted != 0) uncounted.emplace_back(id, of_peer.uncounted);
      of_peer = {};  // stays for the next ones
    }
    inbox_bytes_ = 0;
    all = std::exchange(notifications_, {});
  }
  const base::MutexLock lock(scheduler_.mutex);
  for (const auto& [id, count] : uncounted)
    if (PeerRecord* const peer = scheduler_.find_peer(id))
      peer->counters.notifications_received += count;
  scheduler_.drain_notifications(all);
  return all;
}

std::vector<Notification> EngineImpl::notifications(Duration timeout) {
  const base::Deadline deadline = after(timeout);
  while (true) {
    const std::uint64_t seen = event_count_;
    std::vector<Notification> all = notifications();
    if (!all.empty() || deadline.passed()) return all;
    bool silent = false;
    {
      const base::MutexLock lock(scheduler_.mutex);
      silent = scheduler_.request_wake_ups();
    }
    const base::Deadline spin = after(silent ? kPeerSpin : Duration::zero());
    for (unsigned polls = 1; event_count_ == seen && !spin.passed(); ++polls)
      if (polls % kPollsPerYield == 0) std::this_thread::yield();
    const base::MutexLock lock(events_mutex_);
    if (closed_) return all;
    if (silent && event_count_ == seen &&
        base::wait_or_interrupted(event_, events_mutex_, deadline))
      return all;
  }
}

PeerState EngineImpl::state(std::uint64_t peer) {
  if (closed_) return PeerState::gone;
  const base::MutexLock lock(scheduler_.mutex);
  const PeerRecord* record = scheduler_.find_peer(peer);
  if (record == nullptr) return PeerState::gone;
  return record->closing && record->state == PeerState::up ? PeerState::lost : record->state;
}

}  // namespace linkspan::engine
