#include "control/session_data_connections.hpp"

#include <utility>

namespace linkspan::control {

void SessionDataConnections::open() {
  if (!session_->is_up() || session_->is_disconnected()) return;
  const auto at = net::peer_of(session_->socket().fd());
  for (const std::string& transport : std::exchange(asked_, {}))
    make(transport, at, at.ok() ? next_route(*at) : std::nullopt);
}

/// Opens one. Without a route: to `at`, where the session is connected.
void SessionDataConnections::make(const std::string& transport, const Result<net::TcpAddress>& at,
                                  const std::optional<net::DataConnectionRoute>& route) {
  const auto offer = session_->authenticator().offer(transport);
  const auto on_made = [this, lives = weak_from_this(), transport, at, route,
                        seals = offer.ok() ? offer->seals
                                           : std::nullopt](Result<base::AuthenticatedSocket> made) {
    const auto self = lives.lock();
    if (self == nullptr) return;
    const base::Log& log = uses_.log;
    if (!made.ok() && route && !session_->is_disconnected()) {
      warn_of_route(route->to_string(), made.status().to_string());
      return make(transport, at, std::nullopt);
    }
    if (!made.ok())
      log.write_repeated(base::Repeated::peer, base::Level::warning, [&] {
        return "a data connection to " + session_->describe() +
               " could not be made: " + made.status().to_string();
      });
    if (!made.ok()) return uses_.events.on_data_connection(*session_, transport, made.status());
    if (route)
      log.write_repeated(base::Repeated::life, base::Level::info, [&] {
        return "a data connection to " + session_->describe() + " goes by " + route->to_string();
      });
    made->keys = seals;
    uses_.events.on_data_connection(*session_, transport, std::move(made));
  };
  if (!at.ok() || !offer.ok()) return on_made(at.ok() ? offer.status() : at.status());
  uses_.opener.open(route.value_or(net::DataConnectionRoute{.to = *at}), offer->hello,
                    session_->tls(), uses_.us.limits.handshake, on_made);
}

/// Returns the next route between named interfaces. nullopt: a side named none, or the peer is on
/// this host.
std::optional<net::DataConnectionRoute> SessionDataConnections::next_route(
    const net::TcpAddress& at) {
  const auto& ours = uses_.us.interfaces;
  if (ours.empty() || is_local(at).ok()) return std::nullopt;
  const std::uint64_t k = routes_requested_++;
  const auto& theirs = session_->hello().addresses;
  auto route = net::choose_route(ours, theirs, k, at.port());
  if (!route)
    theirs.empty()
        ? warn_of_route("the interfaces of LINKSPAN_TCP_INTERFACES", "that side has named none")
        : warn_of_route(ours[k % ours.size()].name,
                        "that side has told of no address of its family");
  return route;
}

/// Logs each route once.
void SessionDataConnections::warn_of_route(const std::string& route, const std::string& why) {
  if (!bad_routes_.insert(route).second) return;
  uses_.log.write_repeated(base::Repeated::peer, base::Level::warning, [&] {
    return "no data connection to " + session_->describe() + " goes by " + route +
           ", but where the peer was met: " + why;
  });
}

}  // namespace linkspan::control
