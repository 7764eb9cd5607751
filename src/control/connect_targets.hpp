// control/connect_targets.hpp - the addresses of one connect(): what is tried next, and why an
// address is tried no more.
//
// A pass tries each target once. Unix sockets come first; the TCP addresses of one Engine are one
// target, whose hosts are tried together. What is refused is dropped: a target, or of several hosts
// the one that answered.
// Threads: externally synchronised.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "control/socket_address.hpp"

namespace linkspan::control {

class ConnectTargets {
 public:
  struct Target {
    SocketAddress address;                 ///< By TCP: the first of several of one Engine.
    std::vector<net::TcpAddress> hosts{};  ///< Empty: a Unix socket.
  };

  /// Resolves host names until `deadline`. An address that cannot be resolved counts as refused.
  ConnectTargets(std::span<const SocketAddress> addresses, bool leaves_host,
                 base::Deadline deadline);

  void begin_pass() noexcept { at_ = 0; }
  /// Returns what to try, or null at the end of the pass.
  const Target* next() const noexcept { return at_ < targets_.size() ? &targets_[at_] : nullptr; }
  /// Returns true if other targets are left when next() fails.
  bool has_more() const noexcept { return targets_.size() > at_ + 1; }
  /// Records that next() failed, and `answered`, if that is known, has refused or closed.
  void fail(Status status, const std::optional<net::TcpAddress>& answered);
  /// Returns how connect() ends after a pass, or nullopt if there is something to retry.
  std::optional<Status> outcome(base::Deadline deadline) const;
  const Status& last() const noexcept { return last_; }  ///< Why the last attempt failed.
  bool has_tcp() const noexcept;

 private:
  void refuse(const std::string& address, const Status& status);

  std::vector<Target> targets_;
  std::size_t at_ = 0;
  const bool several_;  // more than one address was given
  Status last_, full_;  // full_: the last no_resource
  Status refusal_;      // the first
  std::string refused_;
};

}  // namespace linkspan::control
