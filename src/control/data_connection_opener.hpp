// control/data_connection_opener.hpp - connections for transports alone, made beside a Session.
//
// Threads: the Control thread.
// Invariants: `then` is called once for each, unless close() comes first.
#pragma once

#include <asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "control/handshake.hpp"
#include "control/interfaces.hpp"
#include "control/session.hpp"

namespace linkspan::control {

class DataConnectionOpener {
 public:
  using Then = std::function<void(Result<base::AuthenticatedSocket>)>;

  /// `us` outlives it.
  DataConnectionOpener(asio::io_context& io, const Identity& us);
  DataConnectionOpener(const DataConnectionOpener&) = delete;
  DataConnectionOpener& operator=(const DataConnectionOpener&) = delete;
  ~DataConnectionOpener();

  /// The socket, once the other side has taken it, by TLS if we have it, and without keys.
  /// unreachable, timed_out, or what it answers; by an interface that was named unreachable or
  /// timed_out after 3 s, for there is another route. Where the other side has no room for it now
  /// it is tried again within `limit`, then `unreachable`.
  void open(const DataConnectionRoute& route, const DataConnectionHello& hello, Duration limit,
            Then then);
  void close();

 private:
  struct Opening;
  void begin(std::uint64_t id);
  bool again(std::uint64_t id);
  void end_after(std::uint64_t id, Duration time, std::string why);
  void send_hello(std::uint64_t id);
  void receive_reply(std::uint64_t id);
  void end(std::uint64_t id, Result<base::AuthenticatedSocket> with);

  asio::io_context& io_;
  const Identity& us_;
  std::map<std::uint64_t, std::unique_ptr<Opening>> openings_;
  std::uint64_t last_id_ = 0;
};

}  // namespace linkspan::control
