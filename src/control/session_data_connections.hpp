// control/session_data_connections.hpp - the data connections that transports have asked for beside
// a Session, and the route that each goes.
//
// Threads: the Control thread.
// Invariants: the SessionEvents is on_made once of each that was asked for, unless this has ended
// by then.
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
    SessionEvents& events;
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
            const std::optional<DataConnectionRoute>& route);
  std::optional<DataConnectionRoute> next_route(const net::TcpAddress& at);
  void warn_of_route(const std::string& route, const std::string& why);

  const std::shared_ptr<Session> session_;  // also the engine's peer, as its Channel
  const Uses uses_;
  std::vector<std::string> asked_;      // transports
  std::uint64_t routes_requested_ = 0;  // that data connections have asked for
  std::set<std::string> bad_routes_;    // which were on_made of
};

}  // namespace linkspan::control
