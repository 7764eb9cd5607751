// control/connection_table.hpp - the connections of the Control thread: each Session, what the
// event loop waits for on its behalf, and the limits for those that come. Off the path of a byte.
//
// Threads: the Control thread, but for write_when_ready().
// Invariants: an exception while one peer is served disconnects that peer and no other.
#pragma once

#include <asio/io_context.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "control/data_connection_opener.hpp"
#include "control/pending_connects.hpp"
#include "control/pending_handshakes.hpp"
#include "control/process_sessions.hpp"
#include "control/session.hpp"

namespace linkspan::control {

class ConnectionTable final : public SessionWriter {
 public:
  /// All arguments outlive the table.
  ConnectionTable(asio::io_context& io, const Identity& us, SessionEvents& events,
                  const base::Log& log, PendingConnects& connects);
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;
  ~ConnectionTable();

  /// Begins the handshake over a socket, which may last for `handshake`. `result` is decided once
  /// it has ended; shared with connect(). Null: an incoming connection.
  void adopt(base::Fd socket, Duration handshake, std::shared_ptr<ConnectResult> result);
  void open_data_connection(std::uint64_t session, std::string transport);
  void fail(std::uint64_t session, const Status& why);  ///< Calls Session::fail().
  void send_goodbye(std::uint64_t session);
  void send_goodbye();  ///< To all. Adopts no more sockets.
  /// Disconnects the peers that were served without memory. Returns false if memory is still
  /// exhausted.
  bool drop_broken();
  /// Sends what the sockets accept. Returns false if frames are left.
  bool flush();
  void drop();   ///< Calls Session::drop() for all.
  void clear();  ///< Destroys all entries. The thread was joined.
  void write_when_ready(std::uint64_t session) override;  ///< Any thread.

 private:
  struct ConnectionEntry;
  ConnectionEntry* find(std::uint64_t id);
  Status make_room(bool incoming, const std::string& source);
  void reject(base::Fd socket, const Status& why);
  template <class What>
  void serve(std::uint64_t id, const What& what);
  void bound_unproven();
  void read_next(ConnectionEntry& entry);
  void adopt_data_connection(ConnectionEntry& entry);
  void write_more(std::uint64_t id);
  void watch_process(ConnectionEntry& entry);
  bool update(std::uint64_t id);
  void forget(std::uint64_t id);

  asio::io_context& io_;
  const Identity& us_;
  SessionEvents& events_;
  const base::Log& log_;
  PendingConnects& connects_;
  DataConnectionOpener opener_{io_, us_};
  std::map<std::uint64_t, std::unique_ptr<ConnectionEntry>> entries_;
  ProcessSessions processes_{us_.limits.of_process, us_.limits.left_by_process};
  PendingHandshakes pending_{us_.limits.handshakes, us_.limits.handshakes_of_address};
  std::uint64_t last_id_ = 0;
  bool ending_ = false, any_broken_ = false;
};

}  // namespace linkspan::control
