// store/store_client.hpp - a client's connection to a server of the store.
//
// Threads: externally synchronised.
#pragma once

#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "linkspan/store.hpp"
#include "net/tcp_socket.hpp"
#include "store/protocol.hpp"

namespace linkspan::store {

/// One connection. It cannot be used any more after a failure within an answer.
class StoreClient {
 public:
  StoreClient(base::Fd socket, Dialect dialect) : socket_(std::move(socket)), dialect_(dialect) {}

  Dialect dialect() const noexcept { return dialect_; }
  const base::Fd& socket() const noexcept { return socket_; }
  /// Whether the last receive() has not received its whole answer.
  bool midway() const noexcept { return midway_; }

  Status send(const Request& request, base::Deadline deadline);
  Result<Message> receive(Op op, std::size_t keys, const Limits& limits, base::Deadline deadline);

 private:
  base::Fd socket_;
  Dialect dialect_;
  Buffer input_;
  bool midway_ = false;
};

/// Connects to a server and sends a first request in the dialect that the server understands.
/// unreachable: no process listens there. disconnected: the server has no room, for example.
Result<StoreClient> meet(const std::vector<net::TcpAddress>& addresses, StoreDialect wish,
                         const Limits& limits, base::Deadline deadline);

}  // namespace linkspan::store
