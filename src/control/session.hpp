// control/session.hpp - one connection to one peer: its handshake, its frames and its end.
//
// Off the path of a byte: it carries keys and fds, requests to execute, and notifications. What
// arrives goes to SessionEvents, which the engine implements.
// A side with a secret accepts a peer over TCP only with a proof of the same secret, and from then
// on authenticates each frame (control/session_keys.hpp) or uses TLS. A side without a secret
// accepts any peer.
// A peer over TCP is remote, whatever host it is on: its kernel names no process, no fd travels,
// and notifications are frames.
// Threads: send() and the facts, any thread; all else on the Control thread. SessionEvents is
// called on the Control thread with no lock held.
// Invariants: on_up() is called at most once, then on_disconnected() and on_terminated() once each,
// in that order, and nothing after. on_terminated() is called only when nothing of the peer will
// touch memory again: its process has ended and its socket is closed, or it said goodbye. A remote
// peer maps none of our memory, and each transport fences its own connections
// (Endpoint::peer_terminated()), so it terminates as soon as it is disconnected. A side that said
// goodbye touches the other's memory no more and waits for the other's goodbye, which the Session
// sends when the last copy on that memory releases it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd_channel.hpp"
#include "base/fd_closer.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "control/handshake.hpp"
#include "control/introspection_socket.hpp"
#include "control/notification_ring.hpp"
#include "control/session_authenticator.hpp"
#include "control/session_end.hpp"
#include "control/session_socket.hpp"
#include "net/interfaces.hpp"

namespace linkspan::control {

class Session;

/// The descriptor and fds of a region that a peer imports.
struct ExportedRegion {
  std::vector<std::byte> descriptor;
  std::vector<base::Fd> fds;
};

class SessionEvents {
 public:
  /// Returns the addresses of the transports that reach a local or a remote peer.
  virtual std::vector<TransportAddress> transport_addresses(bool remote) = 0;
  /// Creates the peer's endpoints. Called once its hello was verified. An error refuses the peer.
  virtual Status on_established(const std::shared_ptr<Session>& session) = 0;
  virtual void on_up(Session& session) = 0;            ///< Both sides are ready.
  virtual void on_disconnected(Session& session) = 0;  ///< Nothing more can be sent to it.
  virtual void on_terminated(Session& session) = 0;    ///< Also if on_up() was never called.
  virtual void on_transport_message(Session& session, TransportMessage message,
                                    std::span<base::Fd> fds) = 0;
  /// Receives a connection for one transport, opened by either side, or why ours failed.
  virtual void on_data_connection(Session& session, const std::string& transport,
                                  Result<base::AuthenticatedSocket> socket) = 0;
  /// Returns the region published as `name`; of a set, the region with that serial.
  virtual Result<ExportedRegion> on_import_request(Session& session, std::string_view name,
                                                   std::uint64_t serial) = 0;
  /// Looks up a set. The answer is a FrameOp::set or error frame.
  virtual void on_set_request(Session& session, std::uint64_t request, AskSet ask) = 0;
  virtual void on_set_reply(Session& session, std::uint64_t request, memory::PublishedSet set) = 0;
  /// Returns a region that was offered to the peer in a two-sided message.
  virtual Result<ExportedRegion> on_offer_import_request(Session& session,
                                                         std::uint64_t serial) = 0;
  /// Handles a frame of control/exchange.hpp. An error drops the peer.
  virtual Status on_message_frame(Session& session, base::Frame& frame) = 0;
  virtual void on_import_reply(Session& session, std::uint64_t request,
                               Result<ExportedRegion> answer) = 0;
  /// Receives a notification that came as a frame, from a peer without a ring.
  virtual void on_notification(Session& session, std::vector<std::byte> payload) = 0;
  /// Drains the ring of notifications: it is full, or we requested the doorbell.
  virtual void on_collect_request(Session& session) = 0;
  /// Answers a query of the operator's tool.
  virtual Result<std::string> handle_query(IntrospectionOp op) = 0;

 protected:
  ~SessionEvents() = default;
};

/// Maximum payload of a frame before its sender is authenticated.
inline constexpr std::size_t kMaxUnprovenFrame = std::size_t{64} << 10;

/// Bounds what peers may use of an Engine before it answers `no_resource` (docs/security.md).
struct PeerLimits {
  std::size_t peers = 4096;  ///< Connections, until they are terminated.
  /// Incoming connections that are not ready: one bound for Unix sockets, one for TCP addresses
  /// without a peer, one for each address with a peer.
  std::size_t handshakes = 256;
  std::size_t handshakes_of_address = 64;  ///< From one address without a peer.
  /// Sessions of one process of this host, over all its Engines.
  std::size_t of_process = 512;
  /// Disconnected sessions of one live process. Each is kept until the process ends.
  std::size_t left_by_process = 64;
  /// Unix connections accepted in a second, and in a burst. One process can open ten thousand in a
  /// second and would keep the Control thread busy.
  unsigned local_a_second = 2000, local_burst = 512;
  std::size_t unproven = std::size_t{4}
                         << 20;  ///< Bytes kept for incoming connections that are not established.
  Duration handshake = std::chrono::seconds(10);  ///< An incoming one is closed after it.
  Duration silence = std::chrono::seconds(10);  ///< After it a silent remote peer is disconnected.
  Duration ending = std::chrono::seconds(5);    ///< Bound of the Control thread at its end.
};

struct Identity {
  std::string engine;
  std::uint64_t incarnation = 0;
  std::string socket_dir{};  ///< Folder of the introspection socket. Empty: no socket.
  bool any_uid = false;      ///< Accepts peers of other users.
  Security security = Security::loopback_only;  ///< Of TCP.
  std::string secret{};                         ///< Shared secret of TCP peers. Empty: none.
  std::vector<net::Interface>
      interfaces{};  ///< Interfaces for data connections. Empty: the kernel chooses.
  std::shared_ptr<const base::TlsContext>
      tls{};  ///< For TCP; shared with its connections. Null: plain.
  PeerLimits limits{};
  /// Closes fds that came from other processes. Shared with the Engine, which ends it last.
  std::shared_ptr<base::FdCloser> closer = std::make_shared<base::FdCloser>();

  /// Returns true if TCP may go beyond loopback.
  bool leaves_host() const noexcept { return security != Security::loopback_only; }
};

/// The secret of one connection by TCP, in the place of the Engine's.
struct ConnectionSecret {
  /// Shared with connect() and its other attempts. Null once the session's key is derived.
  std::shared_ptr<const std::string> bytes;
  std::shared_ptr<const base::TlsContext> tls;  ///< Shared with its connections. Null: plain.
};

/// Names who alone is accepted at the other end of a connect().
struct ExpectedPeer {
  std::string name{};                        ///< Empty: any.
  std::uint64_t incarnation = 0;             ///< 0: any.
  std::optional<ConnectionSecret> secret{};  ///< What it knows by TCP. nullopt: the Engine's.
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  /// `expected` is checked after the peer's proof.
  Session(std::uint64_t id, bool initiated, base::Fd socket, const Identity& us,
          SessionEvents& events, SessionWriter& writer, const base::Log& log,
          ExpectedPeer expected = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Queues a frame and sends what the socket accepts; SessionWriter sends the rest. A send() that
  /// throws has queued nothing.
  /// no_resource: too much is queued. disconnected: the Session is disconnected.
  Status send(FrameOp op, std::uint64_t id, std::span<const std::byte> payload,
              std::span<base::Fd> fds = {});

  // Externally synchronised, from on_established() on:
  /// Sends a notification. no_resource: the ring is full because the peer does not read.
  Status notify(std::span<const std::byte> message);
  /// Returns the next notification of the peer, or nullopt. A malformed ring is logged once and
  /// then ignored.
  std::optional<std::vector<std::byte>> next_notification();
  /// Returns false if a notification waits. Else the next one calls
  /// SessionEvents::on_collect_request() or on_notification().
  bool request_doorbell() { return rings_.request_doorbell(); }

  std::uint64_t id() const noexcept { return id_; }  ///< Unique in this Engine, from 1.
  bool initiated() const noexcept {
    return authenticator_.side() == Side::connector;
  }  ///< We connected to it.
  bool is_remote() const noexcept { return socket_.is_remote(); }
  // Known from on_established() on.
  const Hello& hello() const noexcept { return peer_.hello; }
  std::uint64_t incarnation() const noexcept { return peer_.incarnation; }
  std::int64_t pid() const noexcept { return peer_.pid; }      ///< 0: a remote one's.
  int pidfd() const noexcept { return peer_.pidfd.get(); }     ///< -1: the same.
  bool same_user() const noexcept { return peer_.same_user; }  ///< A remote one's is not known.
  const std::string& place() const noexcept {
    return peer_.place;
  }  ///< "pid 4711", "at 10.0.0.7:4711"
  bool is_this_process() const noexcept;
  bool is_on_loopback() const noexcept { return peer_.loopback; }  ///< By TCP, on this host.
  std::span<const std::byte, 32> key() const noexcept { return authenticator_.key(); }
  std::string describe() const;  ///< "engine (peer 3, pid 4711)"

  // Control thread only:
  Status start();
  void on_readable();
  void on_process_end();
  void fail(const Status& why);  ///< Sends `why` to the peer, then disconnects.
  void
  send_goodbye();  ///< Requires that no copy of ours uses its memory. Later requests are ignored.
  void drop();     ///< Stops reading and all events, because the Engine ends.
  SessionSocket& socket() noexcept { return socket_; }  ///< Any thread.
  SessionAuthenticator& authenticator() noexcept { return authenticator_; }
  /// Returns the TLS of this connection by TCP and of its data connections. Null: plain.
  const std::shared_ptr<const base::TlsContext>& tls() const noexcept {
    return expected_.secret ? expected_.secret->tls : us_.tls;
  }
  bool is_up() const noexcept { return stage_ == SessionStage::up; }
  bool is_established() const noexcept {
    return stage_ >= SessionStage::established;
  }  ///< Or more.
  bool is_disconnected() const noexcept { return end_.is_disconnected(); }
  bool is_terminated() const noexcept { return end_.is_terminated(); }
  /// Set if this connection is not a session but a data connection that belongs to another Session.
  const std::optional<DataConnectionHello>& data_connection() const noexcept {
    return data_connection_;
  }
  /// Moves the socket out of a connection for which data_connection() is set. The object is
  /// unusable afterwards.
  base::AuthenticatedSocket release_socket(std::optional<base::MacKeys> keys);
  const Status& failure() const noexcept { return end_.failure(); }  ///< Why it is disconnected.

 private:
  enum class SessionStage : std::uint8_t { greeting, proving, established, up };

  /// Describes the peer, from start() and its hello.
  struct PeerFacts {
    Hello hello;
    std::uint64_t incarnation = 0;
    std::int64_t pid = 0;
    base::Fd pidfd;
    std::string place = "not known yet";
    bool same_user = false, loopback = false;
  };

  Status read_peer_credentials();
  Status handle(base::Frame& frame);
  Status on_hello(base::Frame& frame);
  Status on_proof(const base::Frame& frame);
  Status send_proof();
  Status establish();
  bool requires_auth() const noexcept {
    return is_remote() && (expected_.secret || !us_.secret.empty());
  }
  Status with_secret(const Status& why) const;
  Status secure();
  Status on_import(const base::Frame& frame);
  Status closed() const;
  void answer_error(std::uint64_t id, const Status& status);
  void disconnect(const Status& why);
  void limit_payload(std::size_t bytes);

  const std::uint64_t id_;
  const Identity& us_;
  SessionEvents& events_;
  const base::Log& log_;
  SessionSocket socket_;
  ExpectedPeer expected_;
  SessionAuthenticator authenticator_;
  SessionStage stage_ = SessionStage::greeting;
  SessionEnd end_;
  std::optional<DataConnectionHello> data_connection_;
  PeerFacts peer_;
  NotificationRings rings_;
};

}  // namespace linkspan::control
