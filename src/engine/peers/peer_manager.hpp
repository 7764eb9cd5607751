// engine/peers/peer_manager.hpp - how peers are met and left: listening, connecting, Endpoints, and
// the end of a peer.
//
// Off the path of a byte.
// Threads: any thread; functions named on_...() the Control thread.
// Invariants: a peer is in the PeerTable from on_established() until it is gone and nothing of it
// is in flight.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/options.hpp"
#include "control/control_plane.hpp"
#include "control/socket_address.hpp"
#include "engine/notifications/inbox.hpp"
#include "engine/peers/peer_table.hpp"
#include "engine/progress/progress_thread.hpp"

namespace linkspan::engine {

class PeerManager {
 public:
  /// Bounds the peers that wait for accept(). Beyond it those that are gone are forgotten.
  static constexpr std::size_t kMaxUnaccepted = 4096;
  static constexpr Duration kAwake = std::chrono::microseconds(100);

  /// A peer that was connected or accepted.
  struct MetPeer {
    std::uint64_t id = 0;
    std::string name;
  };
  /// Names the parts of the Engine that a PeerManager calls. They outlive it.
  struct PeerServices {
    const base::Options& options;
    const control::Identity& identity;
    const Transports& transports;
    PeerTable& peers;
    Inbox& inbox;
    ProgressThread& progress;
    const base::Log& log;
  };
  explicit PeerManager(const PeerServices& uses) : uses_(uses) {}
  /// Sets the control plane, which calls on_established() from then on.
  void set_control(control::ControlPlane& control) noexcept { control_ = &control; }
  /// Makes the Control thread poll for kAwake, because a peer is likely to send a frame.
  void expect_frames() { control_->stay_awake(kAwake); }

  Status listen(std::string_view address) LINKSPAN_EXCLUDES(mutex_);
  std::string address() const LINKSPAN_EXCLUDES(mutex_);    ///< Empty: it does not listen.
  std::string addresses() const LINKSPAN_EXCLUDES(mutex_);  ///< As Engine::addresses().
  Result<MetPeer> connect(std::string_view address, const ConnectOptions& options);
  /// Returns the peer that an earlier call met at the same address, while it is up; else connects.
  /// Of several threads one connects and the others wait for it.
  Result<MetPeer> connect_shared(const std::string& address, base::Deadline deadline)
      LINKSPAN_EXCLUDES(mutex_);
  const std::string& engine_name() const noexcept { return uses_.identity.engine; }
  Result<MetPeer> accept(Duration timeout) LINKSPAN_EXCLUDES(mutex_);
  void close() LINKSPAN_EXCLUDES(mutex_);  ///< Ends all waits of accept().

  std::vector<control::TransportAddress> transport_addresses(bool remote) const;
  /// Makes the peer's Endpoints.
  Status on_established(const std::shared_ptr<control::Session>& session);
  void on_up(const std::shared_ptr<control::Session>& session) LINKSPAN_EXCLUDES(mutex_);
  void on_disconnected(control::Session& session);
  void on_terminated(control::Session& session) LINKSPAN_EXCLUDES(mutex_);
  void on_transport_message(control::Session& session, const control::TransportMessage& message,
                            std::span<base::Fd> fds);
  void on_data_connection(control::Session& session, const std::string& transport,
                          Result<base::AuthenticatedSocket> socket);

 private:
  Result<std::optional<MetPeer>> find_shared(const std::string& address, base::Deadline deadline)
      LINKSPAN_EXCLUDES(mutex_);
  void forget_shared(std::uint64_t peer) LINKSPAN_EXCLUDES(mutex_);
  bool is_up(std::uint64_t peer) const LINKSPAN_EXCLUDES(mutex_);
  void fail_or_log(control::Session& session, const Status& status) const;

  const PeerServices uses_;
  control::ControlPlane* control_ = nullptr;
  std::atomic<bool> reported_loopback_{false};
  mutable base::Mutex mutex_;
  base::Condition event_;
  std::deque<MetPeer> accepted_ LINKSPAN_GUARDED_BY(mutex_);  // not returned by accept() yet
  control::SocketAddress unix_ LINKSPAN_GUARDED_BY(mutex_), tcp_ LINKSPAN_GUARDED_BY(mutex_);
  std::string address_ LINKSPAN_GUARDED_BY(mutex_);  // the last of the two
  // Peers of connect_shared(), by address. Empty: a thread is connecting.
  std::map<std::string, std::optional<MetPeer>> shared_ LINKSPAN_GUARDED_BY(mutex_);
  bool closed_ LINKSPAN_GUARDED_BY(mutex_) = false;
};

}  // namespace linkspan::engine
