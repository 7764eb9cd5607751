// control/session_data_connections.hpp - the data connections that transports have asked for beside
// a Session, and the way that each goes.
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
#include "control/data_connection_opener.hpp"

namespace linkspan::control {

class SessionDataConnections : public std::enable_shared_from_this<SessionDataConnections> {
 public:
  /// All outlive it.
  struct Uses {
    DataConnectionOpener& opener;
    const Identity& us;
    Listener& listener;
    const base::Log& log;
  };
  SessionDataConnections(std::shared_ptr<Session> session, const Uses& uses)
      : session_(std::move(session)), uses_(uses) {}

  /// For that transport, made by open().
  void ask(std::string transport) { asked_.push_back(std::move(transport)); }
  /// What was asked for; nothing before the session is up.
  void open();

 private:
  void make(const std::string& transport, const Result<net::TcpAddress>& at,
            const std::optional<DataConnectionRoute>& way);
  std::optional<DataConnectionRoute> next_way(const net::TcpAddress& at);
  void warn_of_way(const std::string& way, const std::string& why);

  const std::shared_ptr<Session> session_;  // also the engine's peer, as its Channel
  const Uses uses_;
  std::vector<std::string> asked_;  // transports
  std::uint64_t ways_ = 0;          // that data connections have asked for
  std::set<std::string> bad_ways_;  // which were told of
};

}  // namespace linkspan::control
