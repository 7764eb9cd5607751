// control/session.hpp - one connection to one peer: its handshake, its frames, its life and death.
//
// Off the path of a byte: keys and fds, requests to execute, notifications. What arrives goes to
// the SessionEvents, which the engine implements; a Session knows no TransferScheduler.
// Threads: send() and the facts, any thread; all else on the Control thread. A SessionEvents is
// called on the Control thread with no lock held. Who has a secret knows a peer over TCP by its
// proof of the same one, and seals what it says from then on (control/session_keys.hpp), or says
// all of it by TLS; who has none takes whoever comes. A peer over TCP is remote, whatever host it
// is on: its kernel names no process, no fd comes or goes, and notifications travel as frames.
// Invariants: the SessionEvents hears up() at most once, then lost() and gone() once each, in that
// order and nothing after; gone() only when nothing of the peer will touch memory again: its
// process has ended and its socket is closed, or it said goodbye. A remote one maps nothing of ours
// and reaches it only through the wires of transports, each of which fences itself
// (Endpoint::peer_gone()): so once it is lost it is gone. Who says goodbye touches the other's
// memory no more and waits to hear the same, which the other's Session says when the last who
// copies drops it.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd_channel.hpp"
#include "base/fd_closer.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/process.hpp"
#include "control/handshake.hpp"
#include "control/interfaces.hpp"
#include "control/introspection_socket.hpp"
#include "control/notification_ring.hpp"
#include "control/session_keys.hpp"

namespace linkspan::control {

class Session;

/// A region that a peer asked for by name.
struct ExportedRegion {
  std::vector<std::byte> descriptor;
  std::vector<base::Fd> fds;
};

class SessionEvents {
 public:
  /// Of the transports that reach a peer of this host, or a remote one.
  virtual std::vector<TransportAddress> transport_addresses(bool remote) = 0;
  /// The peer's hello is good: make its endpoints. An error refuses the peer.
  virtual Status on_established(const std::shared_ptr<Session>& session) = 0;
  virtual void on_up(Session& session) = 0;            ///< Both sides are ready.
  virtual void on_disconnected(Session& session) = 0;  ///< Nothing more can be sent to it.
  virtual void on_terminated(Session& session) = 0;    ///< Also when it never came up().
  virtual void on_transport_message(Session& session, TransportMessage message,
                                    std::span<base::Fd> fds) = 0;
  /// A connection for that transport alone, made by either side; or why ours could not be made.
  virtual void on_data_connection(Session& session, const std::string& transport,
                                  Result<base::AuthenticatedSocket> socket) = 0;
  /// A region that it asks for by name: the only one, or of the set the one with that serial.
  virtual Result<ExportedRegion> on_import_request(Session& session, std::string_view name,
                                                   std::uint64_t serial) = 0;
  /// The set that it asks for; answered by FrameOp::set or error.
  virtual void on_set_request(Session& session, std::uint64_t request, AskSet ask) = 0;
  virtual void on_set_reply(Session& session, std::uint64_t request, memory::PublishedSet set) = 0;
  /// A region that it was offered in a two-sided exchange.
  virtual Result<ExportedRegion> on_offer_import_request(Session& session,
                                                         std::uint64_t serial) = 0;
  /// One of the ops of control/exchange.hpp. An error drops the peer.
  virtual Status on_message_frame(Session& session, base::Frame& frame) = 0;
  virtual void on_import_reply(Session& session, std::uint64_t request,
                               Result<ExportedRegion> answer) = 0;
  /// A notification that came over the socket, from a peer without a ring.
  virtual void on_notification(Session& session, std::vector<std::byte> payload) = 0;
  /// Its ring of notifications is full, or we asked for the bell.
  virtual void on_collect_request(Session& session) = 0;
  /// An operator's tool, which is no peer.
  virtual Result<std::string> handle_query(IntrospectionOp op) = 0;

 protected:
  ~SessionEvents() = default;
};

/// Of a frame that comes before its sender has shown who it is.
inline constexpr std::size_t kMaxUnprovenFrame = std::size_t{64} << 10;

/// What peers may take of an Engine before it answers `no_resource`. docs/security.md has them all.
struct Limits {
  std::size_t peers = 4096;  ///< Connections, until their ends are known.
  /// Of these, begun by others and not ready: by Unix sockets, by TCP of strangers, and of each
  /// address of which a peer is connected.
  std::size_t handshakes = 256;
  std::size_t handshakes_of_address = 64;  ///< Of one address of strangers.
  /// Sessions of one process of this host, whatever Engines it opens.
  std::size_t of_process = 512;
  /// The same that were lost while the process lives, each of which is kept until it ends.
  std::size_t left_by_process = 64;
  /// Connections to Unix sockets that are taken in a second, and at once after a quiet while. A
  /// process could make ten thousand in a second, and the Control thread as busy as a core lets it.
  unsigned local_a_second = 2000, local_burst = 512;
  std::size_t unproven = std::size_t{4}
                         << 20;  ///< Bytes kept for those of others that are not established.
  Duration handshake = std::chrono::seconds(10);  ///< Then one that others began is closed.
  Duration silence = std::chrono::seconds(10);    ///< Of a remote peer's host; then it is lost.
  Duration ending = std::chrono::seconds(5);      ///< Of the Control thread, at most.
};

struct Identity {
  std::string engine;
  std::uint64_t incarnation = 0;
  std::string socket_dir{};  ///< For the operator's socket. Empty: there is none.
  bool any_uid = false;      ///< Peers of other users are let in.
  bool insecure = false;     ///< TCP leaves the host without a secret.
  std::string secret{};      ///< That peers over TCP have to know. Empty: none.
  std::vector<Interface>
      interfaces{};  ///< That carry data connections. Empty: what the kernel chooses.
  std::shared_ptr<const base::TlsContext> tls{};  ///< Over TCP; also its connections'. None: plain.
  Limits limits{};
  /// Closes what came from other processes. Also the Engine's, which ends it last.
  std::shared_ptr<base::FdCloser> closer = std::make_shared<base::FdCloser>();
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(std::uint64_t id, bool initiated, base::Fd socket, const Identity& us,
          SessionEvents& events, const base::Log& log);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Queues and sends what the socket takes; the Control thread sends the rest. no_resource: too
  /// much is queued. disconnected: the peer is lost.
  Status send(FrameOp op, std::uint64_t id, std::span<const std::byte> payload,
              std::span<base::Fd> fds = {}) LINKSPAN_EXCLUDES(mutex_);

  // Externally synchronised, from established() on:
  /// For the peer's Engine::notifications(). no_resource: it has not looked for long.
  Status notify(std::span<const std::byte> message) LINKSPAN_EXCLUDES(mutex_);
  /// The next one of the peer's. None: there is none, or it wrote nonsense, which is logged once.
  std::optional<std::vector<std::byte>> next_notification();
  /// False: a notification waits. True: the next one will come to SessionEvents::collect() or
  /// notified().
  bool request_doorbell() { return !incoming_ || incoming_->request_doorbell(); }

  std::uint64_t id() const noexcept { return id_; }       ///< Unique in this Engine, from 1.
  bool initiated() const noexcept { return initiated_; }  ///< We connected to it.
  bool is_remote() const noexcept { return remote_; }
  // Known from established() on.
  const Hello& hello() const noexcept { return hello_; }
  std::uint64_t incarnation() const noexcept { return incarnation_; }
  std::int64_t pid() const noexcept { return pid_; }            ///< 0: a remote one's.
  int pidfd() const noexcept { return pidfd_.get(); }           ///< -1: the same.
  bool same_user() const noexcept { return same_user_; }        ///< A remote one's is not known.
  const std::string& place() const noexcept { return place_; }  ///< "pid 4711", "at 10.0.0.7:4711"
  bool is_this_process() const noexcept;
  bool is_on_loopback() const noexcept { return loopback_; }  ///< By TCP, on this host.
  std::span<const std::byte, 32> key() const noexcept { return key_; }
  std::string describe() const;  ///< "engine (peer 3, pid 4711)"

  // The Control thread's.
  /// Before start(): a peer of another name is refused, once it has proved what it says. Empty:
  /// any.
  void expect(std::string name) { expected_ = std::move(name); }
  Status start();
  void on_readable();
  void on_process_end();
  void fail(const Status& why);  ///< Tells the peer why, then is lost and gone.
  void
  send_goodbye();  ///< Requires: nothing of ours touches its memory. What it asks is not heard.
  void drop();     ///< The Engine is ending: no more is heard, nothing more is told.
  bool wants_write() LINKSPAN_EXCLUDES(mutex_);
  Status flush() LINKSPAN_EXCLUDES(mutex_);                 ///< As FdChannel::flush().
  bool has_buffered() LINKSPAN_EXCLUDES(mutex_);            ///< As FdChannel::has_buffered().
  bool has_received() LINKSPAN_EXCLUDES(mutex_);            ///< As FdChannel::has_received().
  std::size_t allocated_bytes() LINKSPAN_EXCLUDES(mutex_);  ///< As FdChannel::allocated_bytes().
  int socket() const noexcept { return socket_; }           ///< A loan, for waiting.
  bool is_up() const noexcept { return stage_ == Stage::up; }
  bool is_established() const noexcept { return stage_ >= Stage::established; }  ///< Or more.
  bool is_disconnected() const noexcept { return disconnected_; }
  bool is_terminated() const noexcept { return terminated_; }
  /// It is none: who has connected wants a data connection beside another Session.
  const std::optional<DataConnectionHello>& data_connection() const noexcept {
    return data_connection_;
  }
  /// Of such a one. It ends with it.
  base::AuthenticatedSocket release_socket(std::optional<base::MacKeys> keys)
      LINKSPAN_EXCLUDES(mutex_);
  /// The words of another data connection beside this, which is established, and its seals.
  struct DataConnectionOffer {
    DataConnectionHello hello;
    std::optional<base::MacKeys> seals;
  };
  Result<DataConnectionOffer> offer_data_connection(std::string transport);
  /// Whether whoever says that may have one, each once. permission_denied: not of this session.
  Result<std::optional<base::MacKeys>> admit(const DataConnectionHello& hello);
  const Status& failure() const noexcept { return failure_; }  ///< Why it is lost.

 private:
  enum class Stage : std::uint8_t { greeting, proving, established, up };

  Status read_peer_credentials();
  Status handle(base::Frame& frame);
  Status on_hello(base::Frame& frame);
  Status on_proof(const base::Frame& frame);
  Status send_proof() LINKSPAN_EXCLUDES(mutex_);
  Status establish();
  Side side() const noexcept { return initiated_ ? Side::connector : Side::acceptor; }
  bool requires_auth() const noexcept { return remote_ && !us_.secret.empty(); }
  bool appends_mac() const noexcept {
    return requires_auth() && us_.tls == nullptr;
  }  // TLS does it else
  Status secure() LINKSPAN_EXCLUDES(mutex_);
  Status on_import(const base::Frame& frame);
  Status queue(FrameOp op, std::uint64_t id, std::span<const std::byte> payload,
               std::span<base::Fd> fds) LINKSPAN_EXCLUDES(mutex_);
  void answer_error(std::uint64_t id, const Status& status);
  void disconnect(const Status& why);
  void report_end();

  const std::uint64_t id_;
  const bool initiated_, remote_;
  const Identity& us_;
  SessionEvents& events_;
  const base::Log& log_;
  const int socket_;
  base::Mutex mutex_;
  base::FdChannel channel_ LINKSPAN_GUARDED_BY(mutex_);
  std::atomic<bool> disconnected_{false};

  Stage stage_ = Stage::greeting;
  bool goodbye_sent_ = false, goodbye_received_ = false, process_ended_ = false,
       terminated_ = false, dropped_ = false, disconnect_reported_ = false;
  Status failure_;
  std::optional<DataConnectionHello> data_connection_;
  Hello hello_;
  std::string expected_;
  std::uint64_t incarnation_ = 0;
  std::string place_ = "not known yet";
  std::int64_t pid_ = 0;
  bool same_user_ = false, loopback_ = false;
  base::Fd pidfd_;
  std::vector<std::byte> our_hello_;
  base::MacKey key_{};
  std::uint64_t data_connections_offered_ = 0;
  std::set<std::uint64_t> data_connections_admitted_;    // by number
  std::optional<NotificationRing> incoming_, outgoing_;  // none: over the socket
  bool collecting_ = false;                              // the peer was asked to
};

}  // namespace linkspan::control
