#include "control/control_plane.hpp"

#include <unistd.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/interrupt.hpp"
#include "base/named_thread.hpp"
#include "base/no_memory.hpp"
#include "control/introspection_server.hpp"
#include "control/pending_handshakes.hpp"
#include "control/session_data_connections.hpp"
#include "control/socket_address.hpp"
#include "net/acceptor.hpp"
#include "net/descriptor_watch.hpp"
#include "net/staggered_connect.hpp"

namespace linkspan::control {
namespace {

using asio::posix::stream_descriptor;

constexpr auto kRetryConnect = std::chrono::milliseconds(5), kRetryTcp = 10 * kRetryConnect;
/// How long a connect waits in the queue of a Unix socket before it checks whether the Engine
/// closes.
constexpr Duration kQueues = std::chrono::milliseconds(50);
/// Pause before fds are sent again for which the kernel had no room.
constexpr auto kPauseWhenFull = std::chrono::milliseconds(20);
/// Age from which a handshake may be closed to make room for another one.
constexpr auto kSlow = std::chrono::seconds(1);

/// The result that connect() waits for.
struct ConnectResult {
  bool decided = false;
  bool abandoned = false;  // connect() does not wait any more
  Status status;
  std::string expect;                // the peer's name; empty: any
  std::shared_ptr<Session> session;  // shared with the ConnectionEntry
};

/// One Session and what the event loop waits for on its behalf. Control thread only.
struct ConnectionEntry {
  ConnectionEntry(asio::io_context& io, std::shared_ptr<Session> s,
                  const SessionDataConnections::Uses& uses)
      : session(std::move(s)),
        socket(io),
        pidfd(io),
        handshake(io),
        full(io),
        data_connections(std::make_shared<SessionDataConnections>(session, uses)) {}
  ~ConnectionEntry() {
    if (socket.is_open()) (void)socket.release();
    if (pidfd.is_open()) (void)pidfd.release();
  }
  ConnectionEntry(const ConnectionEntry&) = delete;
  ConnectionEntry& operator=(const ConnectionEntry&) = delete;

  std::shared_ptr<Session> session;  // shared with the engine's peer, as its Channel
  stream_descriptor socket, pidfd;   // borrowed from the Session, for waiting
  asio::steady_timer handshake, full;
  std::string source;  // its address, of a remote one
  const base::Time since = base::Clock::steady().now();
  bool known = false;                    // counted as a peer of that address
  bool counted = false, left = false;    // in OfProcess
  bool writing = false, broken = false;  // an operation for it has thrown
  // Shared, because a pending open holds a weak reference.
  std::shared_ptr<SessionDataConnections> data_connections;
  std::shared_ptr<ConnectResult> result;  // shared with connect(); null: an incoming connection
};

class AsioControlPlane final : public ControlPlane, public SessionWriter {
 public:
  AsioControlPlane(const Identity& us, SessionEvents& events, const base::Log& log)
      : us_(us), events_(events), log_(log) {}
  AsioControlPlane(const AsioControlPlane&) = delete;
  AsioControlPlane& operator=(const AsioControlPlane&) = delete;
  ~AsioControlPlane() override { (void)close(base::Deadline::in(std::chrono::seconds(1))); }

  void start() {
    unix_.limit_rate(us_.limits.local_a_second, us_.limits.local_burst);
    // Not an error: the Engine works without introspection.
    if (Status status = us_.socket_dir.empty()
                            ? Status()
                            : introspection_.open(us_.socket_dir, us_.incarnation);
        !status.ok() && log_.enabled(base::Level::info))
      log_.write(base::Level::info, "`linkspan ps` cannot ask this Engine: " + status.what());
    keep_running_.emplace(io_.get_executor());
    thread_ = base::named_thread<"ls-control">([this] { run(); });
  }

  Result<SocketAddress> listen(const SocketAddress& address) override {
    auto listening = listen_at(address, leaves_host(), net::addresses_of(us_.interfaces));
    if (!listening.ok()) return listening.status();
    const SocketAddress at = listening->at;
    std::string all = at.to_string();
    for (const base::Fd& each : listening->beside)
      if (const auto more = net::address_of(each); more.ok()) all += " and " + more->to_string();
    if (!listening->beside.empty() && log_.enabled(base::Level::info))
      log_.write(base::Level::info, "data connections are taken at " + all);
    if (listening->beyond_loopback && us_.secret.empty() && log_.enabled(base::Level::warning))
      log_.write(base::Level::warning,
                 all +
                     " is open to everybody who reaches it, as `insecure` says: whoever connects "
                     "is a peer, and nothing shows who he is");
    asio::post(io_, [this, path = at.path, socket = std::move(listening->socket),
                     beside = std::move(listening->beside)]() mutable {
      if (ending_) {
        if (!path.empty()) ::unlink(path.c_str());
        return;
      }
      if (!path.empty()) return accept_at(unix_, std::move(socket), path);
      beside.push_back(std::move(socket));
      while (tcp_.size() < beside.size()) tcp_.emplace_back(io_, accept_tcp_);
      for (std::size_t i = 0; i < tcp_.size(); ++i) {
        if (i < beside.size())
          accept_at(tcp_[i], std::move(beside[i]));
        else
          tcp_[i].stop();
      }
    });
    return at;
  }

  using ControlPlane::connect;
  Result<std::shared_ptr<Session>> connect(const SocketAddress& address, base::Deadline deadline,
                                           const std::string& expect) override
      LINKSPAN_EXCLUDES(mutex_) {
    std::vector<net::TcpAddress> hosts;
    if (address.is_tcp()) {
      auto found = resolve(address, leaves_host());
      if (!found.ok()) return found.status();
      hosts = *std::move(found);
    }
    Status full;  // the last no_resource answer
    for (;;) {
      auto session = try_connect(address, hosts, deadline, expect);
      const Code code = session.status().code();
      if (code == Code::timed_out && !full.ok()) return full;
      full = code == Code::no_resource ? session.status() : Status();
      // `disconnected`: closed without a reply, by a listener that is shutting down or by a proxy
      // without a backend. Worth a retry.
      if (code == Code::not_found || code == Code::unreachable || code == Code::no_resource ||
          code == Code::disconnected) {
        const base::MutexLock lock(mutex_);
        if (closing_) return Status(Code::canceled, Scope::process, "the Engine is closing");
        if (deadline.passed())
          return Status(code == Code::no_resource ? code : Code::unreachable, Scope::peer,
                        session.status().what());
        const auto pause =
            std::min<Duration>(address.is_tcp() ? kRetryTcp : kRetryConnect, deadline.left());
        if (base::wait_or_interrupted(changed_, mutex_, base::Deadline::in(pause)))
          return base::interrupted();
        continue;
      }
      return session;
    }
  }

  void write_when_ready(std::uint64_t session) override {
    asio::post(io_, [this, session] { write_more(session); });
  }

  Status open_data_connection(const std::shared_ptr<Session>& session,
                              std::string transport) override {
    if (!session->is_remote() || !session->initiated())
      return {Code::unsupported, Scope::peer,
              "data connections are made by who has connected, by TCP"};
    asio::post(io_, [this, id = session->id(), transport = std::move(transport)]() mutable {
      ConnectionEntry* const entry = find(id);
      if (entry == nullptr || ending_) return;
      entry->data_connections->ask(std::move(transport));
      entry->data_connections->open();
    });
    return {};
  }

  void drop(const std::shared_ptr<Session>& session, const Status& why) override {
    asio::post(io_, [this, id = session->id(), why] {
      serve(id, [&](ConnectionEntry& entry) {
        entry.session->fail(why);
        update(id);
      });
    });
  }

  void stay_awake(Duration time) override {
    const base::Time now = base::Clock::steady().now();
    if (awake_until_.exchange(now + time) < now) asio::post(io_, [] {});
  }

  void send_goodbye() override LINKSPAN_EXCLUDES(mutex_) {
    {
      const base::MutexLock lock(mutex_);
      if (std::exchange(closing_, true)) return;
    }
    changed_.notify_all();
    asio::post(io_, [this] {
      ending_ = true;
      introspection_.close();
      opener_.close();
      unix_.stop();
      for (net::Acceptor& each : tcp_) each.stop();
      for (auto& [id, entry] : connections_) entry->session->send_goodbye();
    });
  }

  void send_goodbye(std::uint64_t id) override {
    asio::post(io_, [this, id] {
      ConnectionEntry* const entry = find(id);
      if (entry != nullptr) entry->session->send_goodbye();
    });
  }

  Status end(base::Deadline deadline) override LINKSPAN_EXCLUDES(mutex_, joining_) {
    send_goodbye();
    const auto first = [&] {
      const base::MutexLock lock(mutex_);
      return !std::exchange(closed_, true);
    }();
    if (first) asio::post(io_, [this, deadline] { poll_end(deadline); });
    if (!await_end(deadline, true))
      asio::post(io_, [this] { poll_end(base::Deadline::in(Duration::zero())); });
    if (!await_end(base::Deadline::in(us_.limits.ending), false))
      return {Code::timed_out, Scope::process,
              "the Control thread stands still in a call of the driver or the kernel: close again"};
    const base::MutexLock one(joining_);
    if (!thread_.joinable()) return {};
    thread_.join();
    connections_.clear();
    introspection_.close();
    opener_.close();
    return {};
  }

 private:
  /// Returns false at the deadline, or where the caller was interrupted.
  bool await_end(base::Deadline deadline, bool interruptible) LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    while (!ended_ && !deadline.passed()) {
      if (!interruptible)
        changed_.wait(mutex_, deadline);
      else if (base::wait_or_interrupted(changed_, mutex_, deadline))
        break;
    }
    return ended_;
  }

  void accept_at(net::Acceptor& acceptor, base::Fd socket, std::string path = {}) {
    if (const Status status = acceptor.listen(std::move(socket), std::move(path)); !status.ok())
      log_.write(base::Level::error, "nobody is accepted: " + status.to_string());
  }

  bool leaves_host() const noexcept { return us_.insecure || !us_.secret.empty(); }

  Result<std::shared_ptr<Session>> try_connect(const SocketAddress& address,
                                               const std::vector<net::TcpAddress>& hosts,
                                               base::Deadline deadline, const std::string& expect)
      LINKSPAN_EXCLUDES(mutex_) {
    auto socket = address.is_tcp() ? connect_to(hosts, deadline)
                                   : connect_to(address.path, std::min(deadline.left(), kQueues));
    if (!socket.ok()) return socket.status();
    if (address.is_tcp())
      net::prepare(*socket, us_.limits.silence);
    else
      socket->close_by(us_.closer->sink_of(socket->get()));
    const auto result = std::make_shared<ConnectResult>();
    result->expect = expect;
    asio::post(io_, [this, result, deadline, ours = *std::move(socket)]() mutable {
      adopt(std::move(ours), deadline.left(), result);
    });
    const base::MutexLock lock(mutex_);
    bool interrupted = false;
    while (!result->decided) {
      result->abandoned = deadline.passed() || closing_ || interrupted;
      if (interrupted) return base::interrupted();
      if (deadline.passed())
        return Status(Code::timed_out, Scope::peer,
                      "no answer to the handshake at " + address.to_string());
      if (closing_) return Status(Code::canceled, Scope::process, "the Engine is closing");
      interrupted = base::wait_or_interrupted(changed_, mutex_, deadline);
    }
    if (!result->status.ok()) return result->status;
    return result->session;
  }

  Status room_for(const std::shared_ptr<ConnectResult>& result, const std::string& source) {
    if (connections_.size() >= us_.limits.peers)
      return {Code::no_resource, Scope::peer,
              std::to_string(us_.limits.peers) +
                  " connections are open here, which is all that it takes: try again"};
    if (result == nullptr) return make_room(source);
    return {};
  }

  /// Refuses a process with too many sessions, or too many disconnected ones. A disconnected
  /// session is kept until its process ends, because the process may still access our memory.
  Status room_for_process(ConnectionEntry& entry) {
    const Session& session = *entry.session;
    if (session.is_remote()) return {};
    OfProcess& of = processes_[session.pid()];
    entry.counted = true;
    ++of.all;
    const std::string pid = "pid " + std::to_string(session.pid());
    if (of.left >= us_.limits.left_by_process)
      return {Code::no_resource, Scope::peer,
              pid + " has left " + std::to_string(of.left) +
                  " sessions without a goodbye, which are kept here until it ends: no more of it"};
    if (of.all > us_.limits.of_process)
      return {Code::no_resource, Scope::peer,
              pid + " has " + std::to_string(us_.limits.of_process) +
                  " sessions here, which is all that one process may have"};
    return {};
  }

  /// Closes the oldest silent or slow handshake to make room for an incoming connection. Returns
  /// no_resource if there is none.
  Status make_room(const std::string& source) {
    const auto eviction_candidates = pending_.eviction_candidates(source);
    if (!eviction_candidates) return {};
    const std::string all =
        std::to_string(eviction_candidates->size()) + " handshakes are under way here";
    const base::Time now = base::Clock::steady().now();
    const auto oldest = [&](const auto& may_go) -> ConnectionEntry* {
      for (const std::uint64_t id : *eviction_candidates)
        if (ConnectionEntry* const entry = find(id); entry != nullptr && may_go(*entry))
          return entry;
      return nullptr;
    };
    ConnectionEntry* goes =
        oldest([](ConnectionEntry& each) { return !each.session->has_received(); });
    if (goes == nullptr)
      goes = oldest([&](ConnectionEntry& each) { return now - each.since > kSlow; });
    if (goes == nullptr)
      return {Code::no_resource, Scope::peer, all + ", which is all that it takes: try again"};
    goes->session->fail(
        Status(Code::no_resource, Scope::peer, all + ", and this one made room: try again"));
    update(goes->session->id());
    return {};
  }

  /// Sends `why` as far as the socket accepts it, and closes.
  void reject(base::Fd socket, const Status& why, const std::shared_ptr<ConnectResult>& result)
      LINKSPAN_EXCLUDES(mutex_) {
    base::FdChannel channel(std::move(socket));
    (void)channel.queue({.length = 0,
                         .op = static_cast<std::uint16_t>(FrameOp::error),
                         .id = 0,
                         .incarnation = us_.incarnation},
                        encode_error(why), {});
    (void)channel.flush();
    if (result != nullptr) decide(result, why);
  }

  /// Returns false if connect() does not wait any more.
  bool decide(const std::shared_ptr<ConnectResult>& result, const Status& status,
              std::shared_ptr<Session> session = nullptr) LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    if (result->abandoned) return false;
    result->decided = true;
    result->status = status;
    result->session = std::move(session);
    changed_.notify_all();
    return true;
  }

  void adopt(base::Fd socket, Duration handshake, std::shared_ptr<ConnectResult> result) {
    if (ending_) {  // closes it
      if (result != nullptr)
        decide(result, Status(Code::canceled, Scope::process, "the Engine is closing"));
      return;
    }
    std::string source;
    if (!base::is_unix_socket(socket.get())) {
      const auto from = net::peer_of(socket.get());
      source = from.ok() ? PendingHandshakes::source_of(*from) : "?";
    }
    if (const Status room = room_for(result, source); !room.ok())
      return reject(std::move(socket), room, result);
    const std::uint64_t id = ++last_id_;
    auto session = std::make_shared<Session>(id, result != nullptr, std::move(socket), us_, events_,
                                             *this, log_);
    connections_.emplace(id, std::make_unique<ConnectionEntry>(io_, session, data_connections_));
    serve(id, [&](ConnectionEntry& entry) {
      entry.result = std::move(result);
      entry.source = source;
      if (entry.result == nullptr) pending_.add(id, source);
      if (entry.result != nullptr) session->expect(entry.result->expect);
      Status started = net::watch(entry.socket, session->socket());
      if (started.ok()) started = session->start();
      if (started.ok() && entry.result == nullptr) started = room_for_process(entry);
      if (!started.ok()) session->fail(started);
      entry.handshake.expires_after(handshake);
      entry.handshake.async_wait([this, id](const asio::error_code& error) {
        if (error) return;
        serve(id, [&](ConnectionEntry& late) {
          if (late.session->is_up()) return;
          late.session->fail(Status(Code::timed_out, Scope::peer, "the handshake took too long"));
          update(id);
        });
      });
      if (update(id)) read_next(entry);
    });
  }

  /// Runs an operation for one peer. If it throws (memory is exhausted), only this peer is
  /// disconnected.
  template <class What>
  void serve(std::uint64_t id, const What& what) {
    ConnectionEntry* const entry = find(id);
    if (entry == nullptr) return;
    try {
      what(*entry);
    } catch (const std::exception&) {
      if (ConnectionEntry* const broken = find(id); broken != nullptr)
        broken->broken = any_broken_ = true;
    }
  }

  void drop_broken() {
    any_broken_ = false;
    for (auto next = connections_.begin(); next != connections_.end();) {
      const auto& [id, entry] = *next++;
      if (!entry->broken) continue;
      serve(id, [this, id = id](ConnectionEntry& broken) {
        broken.session->fail(no_memory_);
        broken.broken = false;  // lost, at least
        update(id);
      });
    }
  }

  /// Bounds the memory of incoming connections that are not established to PeerLimits::unproven
  /// together: closes the largest one.
  void bound_unproven() {
    std::size_t total = 0, most = 0;
    Session* largest = nullptr;
    for (const auto& [id, entry] : connections_) {
      Session& session = *entry->session;
      if (session.initiated() || session.is_established() || session.is_disconnected()) continue;
      const std::size_t bytes = session.allocated_bytes();
      total += bytes;
      if (bytes <= most) continue;
      most = bytes;
      largest = &session;
    }
    if (total <= us_.limits.unproven) return;
    const std::uint64_t id = largest->id();
    largest->fail(Status(Code::no_resource, Scope::peer,
                         std::to_string(total) +
                             " bytes are kept here for connections that have not "
                             "shown who they are, " +
                             std::to_string(us_.limits.unproven) + " at most: try again"));
    asio::post(io_, [this, id] {
      if (find(id) != nullptr) update(id);
    });
  }

  void read_next(ConnectionEntry& entry) {
    const auto read = [this, id = entry.session->id()](const asio::error_code& error) {
      if (error) return;
      serve(id, [&](ConnectionEntry& ready) {
        ready.session->on_readable();
        if (ready.session->data_connection()) return adopt_data_connection(ready);
        watch_process(ready);
        bound_unproven();
        if (!update(id) || ready.session->is_disconnected()) return;
        read_next(ready);
        write_more(id);  // what TLS did not send before it had heard the peer
      });
    };
    if (entry.session->has_buffered())
      asio::post(io_, [read] { read({}); });
    else
      entry.socket.async_wait(stream_descriptor::wait_read, read);
  }

  /// Passes a data connection to the session that expects it, or closes it.
  void adopt_data_connection(ConnectionEntry& entry) {
    Session& from = *entry.session;
    Result<std::optional<base::MacKeys>> seals =
        Status(Code::permission_denied, Scope::peer, "a data connection of a session that is none");
    std::shared_ptr<Session> session;
    for (const auto& [id, each] : connections_) {
      if (!each->session->is_remote() || each->session->initiated() ||
          each->session->is_disconnected() || each->session->incarnation() != from.incarnation())
        continue;
      session = each->session;
      seals = session->admit(*from.data_connection());
      if (seals.ok()) break;
    }
    if (seals.ok()) {
      (void)entry.socket.release();
      events_.on_data_connection(*session, from.data_connection()->transport,
                                 from.release_socket(*seals));
    } else {
      from.fail(seals.status());
    }
    forget(from.id());
  }

  void write_more(std::uint64_t id) {
    ConnectionEntry* entry = find(id);
    if (entry == nullptr || entry->writing || entry->session->is_disconnected()) return;
    const Status flushed = entry->session->flush();
    if (!entry->session->wants_write()) return;
    entry->writing = true;
    const auto again = [this, id](const asio::error_code& error) {
      serve(id, [&](ConnectionEntry& ready) {
        ready.writing = false;
        if (!error) write_more(id);
      });
    };
    if (flushed.code() != Code::no_resource)
      return entry->socket.async_wait(stream_descriptor::wait_write, again);
    // The socket has room, but the kernel has none for more fds in flight.
    entry->full.expires_after(kPauseWhenFull);
    entry->full.async_wait(again);
  }

  void watch_process(ConnectionEntry& entry) {
    if (entry.pidfd.is_open() || entry.session->pidfd() < 0) return;
    if (const Status status = net::watch(entry.pidfd, entry.session->pidfd()); !status.ok())
      return entry.session->fail(status);
    entry.pidfd.async_wait(stream_descriptor::wait_read,
                           [this, id = entry.session->id()](const asio::error_code& error) {
                             if (error) return;
                             serve(id, [&](ConnectionEntry& ended) {
                               ended.session->on_process_end();
                               update(id);
                             });
                           });
  }

  /// Updates the entry after any event: reports to connect() and removes a terminated session.
  /// Returns false if it was removed.
  bool update(std::uint64_t id) LINKSPAN_EXCLUDES(mutex_) {
    ConnectionEntry& entry = *connections_.at(id);
    const bool lost = entry.session->is_disconnected();
    entry.data_connections->open();
    const bool known = !entry.source.empty() && entry.session->is_established() && !lost;
    if (entry.known != known)
      known ? pending_.add_peer(entry.source) : pending_.remove_peer(entry.source);
    entry.known = known;
    if (entry.session->is_up() || lost) {
      pending_.remove(id);
      entry.handshake.cancel();
      if (const auto result = std::exchange(entry.result, nullptr); result != nullptr) {
        if (lost)
          decide(result, entry.session->failure());
        else if (!decide(result, {}, entry.session))  // connect() has answered without it
          entry.session->fail(Status(Code::timed_out, Scope::peer, "the handshake took too long"));
      }
    }
    if (!entry.session->is_terminated()) {
      if (lost && entry.counted && !std::exchange(entry.left, true))
        ++processes_[entry.session->pid()].left;
      return true;
    }
    forget(id);
    return false;
  }

  void forget(std::uint64_t id) {
    pending_.remove(id);
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    if (const ConnectionEntry& entry = *found->second; entry.counted) {
      const auto of = processes_.find(entry.session->pid());
      of->second.left -= entry.left ? 1 : 0;
      if (--of->second.all == 0) processes_.erase(of);
    }
    connections_.erase(found);
  }

  void run() LINKSPAN_EXCLUDES(mutex_) {
    while (!io_.stopped()) {
      try {
        if (accepts_again_) accept_again();
        if (any_broken_) drop_broken();
        if (any_broken_)
          io_.run_one_for(base::kWithoutMemory);
        else if (base::Clock::steady().now() >= awake_until_.load())
          run_one();
        else if (io_.poll() == 0)
          std::this_thread::yield();
      } catch (const std::exception&) {
        // No established peer is affected: the operation is dropped.
        accepts_again_ = true;
      }
    }
    log_.write_all_counted();
    const base::MutexLock lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  void accept_again() {
    io_.run_one_for(base::kWithoutMemory);
    unix_.resume();
    for (net::Acceptor& each : tcp_) each.resume();
    introspection_.resume();
    accepts_again_ = false;
  }

  /// Runs one handler. Waits at most until suppressed lines are due in the log.
  void run_one() {
    if (const auto next = log_.write_counted())
      io_.run_one_until(*next);
    else
      io_.run_one();
  }

  /// Polls until all queued frames are sent, or the deadline.
  void poll_end(base::Deadline deadline) {
    bool unsent = false;
    for (auto& [id, entry] : connections_) {
      if (!entry->session->is_disconnected()) (void)entry->session->flush();
      unsent |= !entry->session->is_disconnected() && entry->session->wants_write();
    }
    if (unsent && !deadline.passed()) {
      linger_.expires_after(std::chrono::milliseconds(1));
      linger_.async_wait([this, deadline](const asio::error_code&) { poll_end(deadline); });
      return;
    }
    for (auto& [id, entry] : connections_) entry->session->drop();
    keep_running_.reset();
    io_.stop();
  }

  ConnectionEntry* find(std::uint64_t id) {
    const auto found = connections_.find(id);
    return found == connections_.end() ? nullptr : found->second.get();
  }

  const Identity& us_;
  SessionEvents& events_;
  const base::Log& log_;

  asio::io_context io_{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> keep_running_;
  // Used by the Control thread only, until it is joined:
  net::Acceptor unix_{
      io_, [this](base::Fd socket) { adopt(std::move(socket), us_.limits.handshake, nullptr); },
      us_.closer.get()};
  const std::function<void(base::Fd)> accept_tcp_ = [this](base::Fd socket) {
    net::prepare(socket, us_.limits.silence);
    adopt(std::move(socket), us_.limits.handshake, nullptr);
  };
  std::deque<net::Acceptor> tcp_;  // by address; stopped ones stay, because handlers refer to them
  IntrospectionServer introspection_{
      io_, *us_.closer, [this](IntrospectionOp op) { return events_.handle_query(op); }};
  DataConnectionOpener opener_{io_, us_};
  const SessionDataConnections::Uses data_connections_{opener_, us_, events_, log_};
  std::map<std::uint64_t, std::unique_ptr<ConnectionEntry>> connections_;
  struct OfProcess {
    std::size_t all = 0, left = 0;  // its sessions; of these, disconnected while it lives
  };
  std::map<std::int64_t, OfProcess> processes_;  // of this host, by pid
  PendingHandshakes pending_{us_.limits.handshakes, us_.limits.handshakes_of_address};
  std::uint64_t last_id_ = 0;
  bool ending_ = false, any_broken_ = false, accepts_again_ = false;
  const Status no_memory_{Code::no_resource, Scope::peer,
                          "this process could not serve the peer, for want of memory"};
  asio::steady_timer linger_{io_};

  std::atomic<base::Time> awake_until_{};
  base::Mutex mutex_;  // for connect() and close()
  base::Condition changed_;
  bool closing_ LINKSPAN_GUARDED_BY(mutex_) = false, closed_ LINKSPAN_GUARDED_BY(mutex_) = false;
  bool ended_ LINKSPAN_GUARDED_BY(mutex_) = false;  // run() is about to return
  base::Mutex joining_;                             // by one thread
  std::jthread thread_;                             // last: it uses all of the above
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
