// control/session_streams.hpp - the streams that transports have asked for beside a Session, and
// the way that each goes.
//
// Threads: the Control thread.
// Invariants: the Listener is told once of each that was asked for, unless this has ended by then.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "control/stream_opener.hpp"

namespace linkspan::control {

class SessionStreams : public std::enable_shared_from_this<SessionStreams> {
 public:
  /// All outlive it.
  struct Uses {
    StreamOpener& opener;
    const Identity& us;
    Listener& listener;
    const base::Log& log;
  };
  SessionStreams(std::shared_ptr<Session> session, const Uses& uses)
      : session_(std::move(session)), uses_(uses) {}

  /// For that transport, made by open().
  void ask(std::string transport) { asked_.push_back(std::move(transport)); }
  /// What was asked for; nothing before the session is up.
  void open();

 private:
  void make(const std::string& transport, const Result<net::TcpAddress>& at,
            const std::optional<StreamWay>& way);
  std::optional<StreamWay> next_way(const net::TcpAddress& at);
  void warn_of_way(const std::string& way, const std::string& why);

  const std::shared_ptr<Session> session_;  // also the engine's peer, as its Channel
  const Uses uses_;
  std::vector<std::string> asked_;  // transports
  std::uint64_t ways_ = 0;          // that streams have asked for
  std::set<std::string> bad_ways_;  // which were told of
};

}  // namespace linkspan::control
