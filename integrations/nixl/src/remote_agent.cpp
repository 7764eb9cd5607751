#include "integrations/nixl/src/remote_agent.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "base/process.hpp"

namespace linkspan::nixl {
namespace {

// A call to a dead or stopped peer occupies one of the Engine's threads for its whole time-out,
// which also counts while it waits for one. So the calls are short, and repeated.
constexpr Duration kCall = std::chrono::seconds(2);
constexpr Duration kPause = std::chrono::seconds(2);     // after an attempt that was refused
constexpr Duration kRefused = std::chrono::seconds(10);  // until an agent that refuses is lost,
constexpr Duration kSilent = std::chrono::seconds(30);   // and one that may not have been asked
constexpr Duration kClose = std::chrono::seconds(10);
constexpr Duration kMessage = std::chrono::seconds(30);
constexpr Duration kFullRing = std::chrono::milliseconds(5);  // until a peer's ring is tried again
constexpr std::size_t kMaxWaiting = 4096;

bool is_this_host(const std::string& boot_id) {
  const auto mine = base::this_process().boot_id;
  return boot_id.size() == mine.size() &&
         std::memcmp(boot_id.data(), mine.data(), mine.size()) == 0;
}

/// Differs from call to call. Calls of one time-out would end together, and those that got a thread
/// once would get it again.
Duration time_out() {
  constexpr auto kHalf = static_cast<std::uint64_t>(kCall.count() / 2);
  return kCall / 2 + Duration(static_cast<Duration::rep>(base::random_u64() % kHalf));
}

Status pending(const char* what) { return {Code::pending, Scope::request, what}; }

}  // namespace

RemoteAgent::RemoteAgent(const Services& services, std::string name, AgentAddress address)
    : services_(services),
      name_(std::move(name)),
      address_(std::move(address)),
      is_on_this_host_(is_this_host(address_.host)) {}

void RemoteAgent::connect() {
  base::MutexLock lock(mutex_);
  if (began_ || !end_.ok()) return;
  began_ = base::Clock::steady().now();
  start_task();
  (void)try_connect();
}

Result<Peer> RemoteAgent::peer() {
  base::MutexLock lock(mutex_);
  return find_peer();
}

bool RemoteAgent::is_usable() {
  base::MutexLock lock(mutex_);
  const auto peer = find_peer();
  return peer.ok() || peer.status().code() == Code::pending;
}

Result<Peer> RemoteAgent::find_peer() {
  if (!end_.ok()) return end_;
  if (!peer_.valid())
    if (Status met = try_connect(); !met.ok()) return met;
  if (peer_.state() == PeerState::up) return peer_;
  end_ =
      Status(Code::disconnected, Scope::peer,
             "agent \"" + name_ + "\" is disconnected: load its metadata again once it is there");
  return end_;
}

/// Starts an attempt if none goes on, and takes the peer if it has succeeded.
Status RemoteAgent::try_connect() {
  const base::Time now = base::Clock::steady().now();
  if (!connecting_ && began_ && now >= next_attempt_) {
    connecting_ = services_.engine.connect_async(
        address_.addresses,
        {.timeout = time_out(), .expect = address_.engine, .secret = address_.secret});
    if (!connecting_->done()) services_.tasks.watch(*connecting_);
  }
  if (!connecting_ || !connecting_->done()) return pending("the agent is not connected yet");
  auto met = connecting_->wait({});
  connecting_.reset();
  if (met.ok()) {
    peer_ = *std::move(met);
    return {};
  }
  const Code code = met.status().code();
  const bool silent = code == Code::timed_out || code == Code::no_resource;
  if ((silent && now < *began_ + kSilent) ||
      (code == Code::unreachable && now < *began_ + kRefused)) {
    next_attempt_ = code == Code::timed_out ? now : now + kPause;  // perhaps it was not begun
    return pending("the agent is not connected yet");
  }
  end_ = Status(Code::disconnected, Scope::peer,
                "agent \"" + name_ + "\" cannot be reached: " + met.status().to_string());
  services_.log.write(base::Level::warning, end_.what());
  return end_;
}

void RemoteAgent::start_task() {
  if (has_task_) return;
  services_.tasks.add([self = shared_from_this()] { return self->step(); });
  has_task_ = true;
}

std::optional<base::Time> RemoteAgent::step() {
  base::MutexLock lock(mutex_);
  const base::Time now = base::Clock::steady().now();
  auto peer = find_peer();
  if (!peer.ok() && peer.status().code() == Code::pending)
    return connecting_ ? now + kCall : next_attempt_;
  if (!peer.ok()) {
    drop_messages(peer.status());
  } else {
    for (; !outbox_.empty(); outbox_.pop_front()) {
      Status sent = peer->notify(outbox_.front().bytes);
      if (sent.code() == Code::no_resource && now < outbox_.front().until) return now + kFullRing;
      if (!sent.ok())
        services_.log.write(base::Level::warning, "a notification for agent \"" + name_ +
                                                      "\" is dropped: " + sent.to_string());
    }
  }
  has_task_ = false;
  return std::nullopt;
}

void RemoteAgent::drop_messages(const Status& why) {
  if (!outbox_.empty())
    services_.log.write(base::Level::warning, std::to_string(outbox_.size()) +
                                                  " notifications are dropped: " + why.to_string());
  outbox_.clear();
}

Status RemoteAgent::notify(std::vector<std::byte> message) {
  connect();
  base::MutexLock lock(mutex_);
  auto peer = find_peer();
  if (!peer.ok() && peer.status().code() != Code::pending) return peer.status();
  if (peer.ok() && outbox_.empty()) {
    Status sent = peer->notify(message);
    if (sent.code() != Code::no_resource) return sent;
  }
  if (outbox_.size() >= kMaxWaiting)
    return {Code::no_resource, Scope::request,
            std::to_string(kMaxWaiting) + " notifications wait for agent \"" + name_ +
                "\": it has to call get_new_notifs()"};
  outbox_.push_back({std::move(message), base::Clock::steady().now() + kMessage});
  start_task();
  return {};
}

void RemoteAgent::close() {
  base::MutexLock lock(mutex_);
  if (connecting_) {
    connecting_->cancel();  // too late if it has ended: then the peer is still to be taken
    if (auto met = connecting_->wait({}); met.ok()) peer_ = *std::move(met);
    connecting_.reset();
  }
  if (end_.ok())
    end_ = Status(Code::disconnected, Scope::peer, "agent \"" + name_ + "\" was removed");
  if (!peer_.valid()) return;
  // The call ends the transfers; whether the peer has let go is asked again until it has.
  if (peer_.close({}).code() != Code::pending) return;
  services_.tasks.add(
      [peer = peer_, deadline = base::Deadline::in(kClose)]() -> std::optional<base::Time> {
        if (peer.close({}).code() != Code::pending || deadline.passed()) return std::nullopt;
        return base::Clock::steady().now() + kFullRing;
      });
}

void RemoteAgent::check_path(const Peer& peer, Op op, const Region& local,
                             const RemoteRegion& remote, std::uint64_t blocks,
                             std::uint64_t bytes) {
  if (!is_on_this_host_) return;  // the network is the best path
  const auto bit = 1u << (static_cast<unsigned>(local.kind()) * kMemoryKinds +
                          static_cast<unsigned>(remote.kind()));
  {
    base::MutexLock lock(mutex_);
    if ((checked_paths_ & bit) != 0) return;
    checked_paths_ |= bit;
  }
  auto taken = peer.explain(op, local, remote, blocks, bytes);
  if (!taken.ok()) return;
  constexpr std::string_view kSlow[] = {"tcp", "nccl_net", "bounce"};
  if (std::ranges::none_of(kSlow, [&](auto name) { return taken->path.starts_with(name); })) return;
  std::string text = "agent \"" + name_ + "\" is on this host, but transfers between " +
                     std::string(name_of(local.kind())) + " memory here and " +
                     std::string(name_of(remote.kind())) + " memory there take " + taken->path +
                     ": " + taken->reason;
  for (const PathRefusal& refusal : taken->refused)
    text += "; not " + refusal.path + ": " + refusal.reason;
  text += "; it is reached at " + address_.addresses +
          ", and NVLink and shared memory need its Unix socket: the same user, and a socket folder "
          "that both see (LINKSPAN_SOCKET_DIR)";
  services_.log.write(base::Level::warning, text);
}

Result<RemoteRegion> RemoteMemory::region() {
  base::MutexLock lock(mutex_);
  if (region_.valid()) return region_;
  for (;;) {
    if (!import_) {
      auto peer = agent_->peer();
      if (!peer.ok()) return peer.status();
      import_ = peer->lookup_async(address_.published, time_out());
      if (!import_->done()) services_.tasks.watch(*import_);
    }
    if (!import_->done()) return pending("the memory is not imported yet");
    auto imported = import_->wait({});
    import_.reset();  // after an error the next transfer tries again
    if (imported.ok()) region_ = *imported;
    if (imported.status().code() != Code::timed_out) return imported;
  }
}

}  // namespace linkspan::nixl
