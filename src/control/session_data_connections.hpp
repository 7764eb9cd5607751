// control/session_data_connections.hpp - the data connections that transports requested beside a
// Session, and the route of each.
//
// Threads: the Control thread.
// Invariants: SessionEvents::on_data_connection() is called once for each request, unless this
// object was destroyed before.
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
  /// All outlive this object.
  struct Uses {
    DataConnectionOpener& opener;
    const Identity& us;
    SessionEvents& events;
    const base::Log& log;
  };
  SessionDataConnections(std::shared_ptr<Session> session, const Uses& uses)
      : session_(std::move(session)), uses_(uses) {}

  /// Queues a request of a transport for open().
  void ask(std::string transport) { asked_.push_back(std::move(transport)); }
  /// Opens what was requested; does nothing before the session is up.
  void open();

 private:
  void make(const std::string& transport, const Result<net::TcpAddress>& at,
            const std::optional<net::DataConnectionRoute>& route);
  std::optional<net::DataConnectionRoute> next_route(const net::TcpAddress& at);
  void warn_of_route(const std::string& route, const std::string& why);

  const std::shared_ptr<Session> session_;  // shared with the engine's peer, as its Channel
  const Uses uses_;
  std::vector<std::string> asked_;      // transports
  std::uint64_t routes_requested_ = 0;  // for which data connections asked
  std::set<std::string> bad_routes_;    // already logged
};

}  // namespace linkspan::control
