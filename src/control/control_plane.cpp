#include "control/control_plane.hpp"

#include <algorithm>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <optional>
#include <system_error>
#include <utility>

#include "control/connect_targets.hpp"
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
                                           base::Deadline deadline, const std::string& expect,
                                           std::string_view secret) override {
    ExpectedPeer expected{.name = expect};
    if (!secret.empty()) {
      expected.secret = {.bytes = base::copy_secret(secret), .tls = nullptr};
      auto tls = us_.tls != nullptr ? base::TlsContext::create(secret) : us_.tls;
      if (!tls.ok()) return tls.status();
      expected.secret->tls = *std::move(tls);
    }
    ConnectTargets targets(addresses, us_.leaves_host() || expected.secret, deadline);
    for (;;) {
      targets.begin_pass();
      while (const ConnectTargets::Target* const target = targets.next()) {
        std::optional<net::TcpAddress> answered;
        // A Unix socket that does not answer leaves half of the time to the others.
        const bool halves = target->hosts.empty() && targets.has_more();
        auto session =
            try_connect(*target, halves ? base::Deadline::in(deadline.left() / 2) : deadline,
                        expected, answered);
        if (session.ok() || session.status().code() == Code::canceled) return session;
        targets.fail(session.status(), answered);
      }
      if (auto outcome = targets.outcome(deadline)) return *std::move(outcome);
      if (const Status end = connects_.await_retry(targets.has_tcp() ? kRetryTcp : kRetryConnect,
                                                   deadline, targets.last());
          !end.ok())
        return end;
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

  /// Stores in `answered` the host that a TCP connection was made to.
  Result<std::shared_ptr<Session>> try_connect(const ConnectTargets::Target& target,
                                               base::Deadline deadline, const ExpectedPeer& expect,
                                               std::optional<net::TcpAddress>& answered) {
    const SocketAddress& address = target.address;
    auto socket = address.is_tcp() ? connect_to(target.hosts, deadline)
                                   : connect_to(address.path, std::min(deadline.left(), kQueues));
    if (!socket.ok()) return socket.status();
    if (!address.is_tcp())
      socket->close_by(us_.closer->sink_of(socket->get()));
    else if (const auto host = net::peer_of(socket->get()); host.ok())
      answered = *host;
    const auto result = std::make_shared<ConnectResult>();  // shared with connections_
    result->expect = expect;
    result->expect.incarnation = address.incarnation;
    if (!address.is_tcp()) result->expect.secret.reset();
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
