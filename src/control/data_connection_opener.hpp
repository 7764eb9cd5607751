// control/data_connection_opener.hpp - opens connections for a single transport beside a Session.
//
// Threads: the Control thread.
// Invariants: `then` is called once for each open(), unless close() comes first.
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
#include "control/session.hpp"
#include "net/interfaces.hpp"

namespace linkspan::control {

class DataConnectionOpener {
 public:
  using Then = std::function<void(Result<base::AuthenticatedSocket>)>;

  /// `us` outlives the opener.
  DataConnectionOpener(asio::io_context& io, const Identity& us);
  DataConnectionOpener(const DataConnectionOpener&) = delete;
  DataConnectionOpener& operator=(const DataConnectionOpener&) = delete;
  ~DataConnectionOpener();

  using Tls = std::shared_ptr<const base::TlsContext>;

  /// Passes the socket to `then` once the other side has accepted it: with TLS unless `tls` is
  /// null, without MAC keys. Errors: unreachable, timed_out, or the answer of the peer. A route by
  /// a named interface fails after 3 s, because there is another route. If the other side has no
  /// room, retries within `limit`, then fails as `unreachable`.
  void open(const net::DataConnectionRoute& route, const DataConnectionHello& hello, Tls tls,
            Duration limit, Then then);
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
