#include "control/control_plane.hpp"

#include <algorithm>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <system_error>
#include <utility>

#include "control/connection_table.hpp"
#include "control/control_thread.hpp"
#include "control/introspection_server.hpp"
#include "control/listeners.hpp"
#include "control/pending_connects.hpp"
#include "net/staggered_connect.hpp"

namespace linkspan::control {
namespace {

constexpr auto kRetryConnect = std::chrono::milliseconds(5), kRetryTcp = 10 * kRetryConnect;
/// How long a connect waits in the queue of a Unix socket before it checks whether the Engine
/// closes.
constexpr Duration kQueues = std::chrono::milliseconds(50);

/// What connect() tries at once.
struct ConnectTarget {
  SocketAddress address;                 // by TCP: the first of several of one Engine
  std::vector<net::TcpAddress> hosts{};  // empty: a Unix socket
};

/// Returns the targets of connect(), Unix sockets first. Addresses that cannot be resolved are left
/// out; if none is left, returns the last one's error.
Result<std::vector<ConnectTarget>> targets_of(std::span<const SocketAddress> addresses,
                                              bool leaves_host) {
  std::vector<ConnectTarget> targets;
  Status unresolved;
  for (const SocketAddress& each : addresses)
    if (!each.is_tcp()) targets.push_back({each});
  for (const SocketAddress& each : addresses) {
    if (!each.is_tcp()) continue;
    auto hosts = resolve(each, leaves_host);
    if (!hosts.ok()) {
      unresolved = hosts.status();
      continue;
    }
    const auto same = std::ranges::find_if(targets, [&](const ConnectTarget& known) {
      return known.address.is_tcp() && known.address.incarnation == each.incarnation;
    });
    if (same == targets.end())
      targets.push_back({each, *std::move(hosts)});
    else
      same->hosts.insert(same->hosts.end(), hosts->begin(), hosts->end());
  }
  if (targets.empty()) return unresolved;
  return targets;
}

class AsioControlPlane final : public ControlPlane {
 public:
  AsioControlPlane(const Identity& us, SessionEvents& events, const base::Log& log)
      : us_(us),
        log_(log),
        thread_(log),
        connections_(thread_.io(), us, events, log, connects_),
        listeners_(thread_.io(), us, log,
                   [this](base::Fd socket) {
                     connections_.adopt(std::move(socket), us_.limits.handshake, nullptr);
                   }),
        introspection_(thread_.io(), *us.closer,
                       [&events](IntrospectionOp op) { return events.handle_query(op); }) {}
  AsioControlPlane(const AsioControlPlane&) = delete;
  AsioControlPlane& operator=(const AsioControlPlane&) = delete;
  ~AsioControlPlane() override {
    (void)close(base::Deadline::in(std::chrono::seconds(1)));
    thread_.join();  // it has timed out
  }

  void start() {
    // Not an error: the Engine works without introspection.
    if (Status status = us_.socket_dir.empty()
                            ? Status()
                            : introspection_.open(us_.socket_dir, us_.incarnation);
        !status.ok() && log_.enabled(base::Level::info))
      log_.write(base::Level::info, "`linkspan ps` cannot ask this Engine: " + status.what());
    thread_.start(
        [this] {
          listeners_.resume();
          introspection_.resume();
        },
        [this] { return connections_.drop_broken(); });
  }

  Result<SocketAddress> listen(const SocketAddress& address) override {
    return listeners_.listen(address);
  }

  using ControlPlane::connect;
  Result<std::shared_ptr<Session>> connect(std::span<const SocketAddress> addresses,
                                           base::Deadline deadline,
                                           const std::string& expect) override {
    auto targets = targets_of(addresses, us_.leaves_host());
    if (!targets.ok()) return targets.status();
    Status full;  // the last no_resource answer
    std::string refused;
    for (;;) {
      Status last;
      const Duration pause = targets->front().hosts.empty() ? kRetryConnect : kRetryTcp;
      for (auto target = targets->begin(); target != targets->end();) {
        auto session = try_connect(*target, deadline, expect);
        const Code code = session.status().code();
        if (code == Code::ok || code == Code::canceled) return session;
        if (code == Code::timed_out && !full.ok()) return full;
        full = code == Code::no_resource ? session.status() : Status();
        last = session.status();
        // `disconnected`: closed without a reply, by a listener that is shutting down or by a proxy
        // without a backend. Worth a retry.
        if (code == Code::not_found || code == Code::unreachable || code == Code::no_resource ||
            code == Code::disconnected) {
          ++target;
          continue;
        }
        if (targets->size() == 1 && refused.empty()) return session;
        refused += "; " + target->address.to_string() + ": " + last.what();
        target = targets->erase(target);
      }
      if (targets->empty())
        return Status(last.code(), last.scope(), "refused at each address" + refused);
      if (!refused.empty()) last = Status(last.code(), last.scope(), last.what() + refused);
      if (const Status end = connects_.await_retry(pause, deadline, last); !end.ok()) return end;
    }
  }

  Status open_data_connection(const std::shared_ptr<Session>& session,
                              std::string transport) override {
    if (!session->is_remote() || !session->initiated())
      return {Code::unsupported, Scope::peer,
              "data connections are made by who has connected, by TCP"};
    post([this, id = session->id(), transport = std::move(transport)]() mutable {
      connections_.open_data_connection(id, std::move(transport));
    });
    return {};
  }

  void drop(const std::shared_ptr<Session>& session, const Status& why) override {
    post([this, id = session->id(), why] { connections_.fail(id, why); });
  }

  void stay_awake(Duration time) override { thread_.stay_awake(time); }

  void send_goodbye() override {
    if (!connects_.close()) return;
    post([this] {
      introspection_.close();
      listeners_.stop();
      connections_.send_goodbye();
    });
  }

  void send_goodbye(std::uint64_t id) override {
    post([this, id] { connections_.send_goodbye(id); });
  }

  Status end(base::Deadline deadline) override LINKSPAN_EXCLUDES(joining_) {
    send_goodbye();
    if (!ending_.exchange(true)) post([this, deadline] { poll_end(deadline); });
    if (!thread_.await_end(deadline, true))
      post([this] { poll_end(base::Deadline::in(Duration::zero())); });
    if (!thread_.await_end(base::Deadline::in(us_.limits.ending), false))
      return {Code::timed_out, Scope::process,
              "the Control thread stands still in a call of the driver or the kernel: close again"};
    const base::MutexLock one(joining_);
    if (!thread_.join()) return {};
    connections_.clear();
    introspection_.close();
    return {};
  }

 private:
  template <class Task>
  void post(Task task) {
    asio::post(thread_.io(), std::move(task));
  }

  Result<std::shared_ptr<Session>> try_connect(const ConnectTarget& target, base::Deadline deadline,
                                               const std::string& expect) {
    const SocketAddress& address = target.address;
    auto socket = address.is_tcp() ? connect_to(target.hosts, deadline)
                                   : connect_to(address.path, std::min(deadline.left(), kQueues));
    if (!socket.ok()) return socket.status();
    if (!address.is_tcp()) socket->close_by(us_.closer->sink_of(socket->get()));
    const auto result = std::make_shared<ConnectResult>();  // shared with connections_
    result->expect = {.name = expect, .incarnation = address.incarnation};
    post([this, result, deadline, ours = *std::move(socket)]() mutable {
      connections_.adopt(std::move(ours), deadline.left(), result);
    });
    return connects_.await(*result, deadline, address.to_string());
  }

  /// Polls until all queued frames are sent, or the deadline.
  void poll_end(base::Deadline deadline) {
    if (!connections_.flush() && !deadline.passed()) {
      linger_.expires_after(std::chrono::milliseconds(1));
      linger_.async_wait([this, deadline](const asio::error_code&) { poll_end(deadline); });
      return;
    }
    connections_.drop();
    thread_.stop();
  }

  const Identity& us_;
  const base::Log& log_;
  PendingConnects connects_;
  ControlThread thread_;
  // Used by the Control thread only, until it is joined:
  ConnectionTable connections_;
  Listeners listeners_;
  IntrospectionServer introspection_;
  asio::steady_timer linger_{thread_.io()};

  std::atomic<bool> ending_{false};  // end() was called
  base::Mutex joining_;              // by one thread
};

}  // namespace

Result<std::unique_ptr<ControlPlane>> ControlPlane::open(const Identity& us, SessionEvents& events,
                                                         const base::Log& log) {
  try {
    auto control = std::make_unique<AsioControlPlane>(us, events, log);
    control->start();
    return std::unique_ptr<ControlPlane>(std::move(control));
  } catch (const std::system_error& error) {  // of Asio, of the thread
    return Status(Code::system, Scope::process, std::string("no event loop: ") + error.what());
  }
}

}  // namespace linkspan::control
