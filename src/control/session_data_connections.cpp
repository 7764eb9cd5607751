#include "control/session_data_connections.hpp"

#include <utility>

namespace linkspan::control {

void SessionDataConnections::open() {
  if (!session_->is_up() || session_->is_lost()) return;
  const auto at = net::peer_of(session_->socket());
  for (const std::string& transport : std::exchange(asked_, {}))
    make(transport, at, at.ok() ? next_way(*at) : std::nullopt);
}

/// By none of the ways that the user has named: to `at`, where the peer was met.
void SessionDataConnections::make(const std::string& transport, const Result<net::TcpAddress>& at,
                                  const std::optional<DataConnectionRoute>& way) {
  const auto offer = session_->offer_data_connection(transport);
  const auto told = [this, lives = weak_from_this(), transport, at, way,
                     seals = offer.ok() ? offer->seals
                                        : std::nullopt](Result<base::SealedSocket> made) {
    const auto self = lives.lock();
    if (self == nullptr) return;
    const base::Log& log = uses_.log;
    if (!made.ok() && way && !session_->is_lost()) {
      warn_of_way(way->to_string(), made.status().to_string());
      return make(transport, at, std::nullopt);
    }
    if (!made.ok())
      log.write_repeated(base::Repeated::peer, base::Level::warning, [&] {
        return "a data connection to " + session_->describe() +
               " could not be made: " + made.status().to_string();
      });
    if (!made.ok()) return uses_.listener.data_connection(*session_, transport, made.status());
    if (way)
      log.write_repeated(base::Repeated::life, base::Level::info, [&] {
        return "a data connection to " + session_->describe() + " goes by " + way->to_string();
      });
    made->keys = seals;
    uses_.listener.data_connection(*session_, transport, std::move(made));
  };
  if (!at.ok() || !offer.ok()) return told(at.ok() ? offer.status() : at.status());
  uses_.opener.open(way.value_or(DataConnectionRoute{.to = *at}), offer->hello,
                    uses_.us.limits.handshake, told);
}

/// Of the interfaces that both sides have named. None: they have not, or it does not leave here.
std::optional<DataConnectionRoute> SessionDataConnections::next_way(const net::TcpAddress& at) {
  const auto& ours = uses_.us.interfaces;
  if (ours.empty() || is_local(at).ok()) return std::nullopt;
  const std::uint64_t k = ways_++;
  const auto& theirs = session_->hello().addresses;
  auto way = choose_way(ours, theirs, k, at.port());
  if (!way)
    theirs.empty()
        ? warn_of_way("the interfaces of LINKSPAN_TCP_INTERFACES", "that side has named none")
        : warn_of_way(ours[k % ours.size()].name, "that side has told of no address of its family");
  return way;
}

/// Once for each.
void SessionDataConnections::warn_of_way(const std::string& way, const std::string& why) {
  if (!bad_ways_.insert(way).second) return;
  uses_.log.write_repeated(base::Repeated::peer, base::Level::warning, [&] {
    return "no data connection to " + session_->describe() + " goes by " + way +
           ", but where the peer was met: " + why;
  });
}

}  // namespace linkspan::control
