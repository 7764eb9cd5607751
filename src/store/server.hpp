// store/server.hpp - the server of a store: one Table and any number of connections, each in its
// own dialect.
//
// Threads: any thread. Requests are executed on one thread, which start() starts and the destructor
// joins. It blocks in epoll only.
// Invariants: a connection that exceeds a limit ends, and no other one does. What connections
// allocate (requests, answers, waits) is counted and bounded for all together. A connection may be
// slow: each byte is progress. A pushed value wakes one waiter, and the next one if that one does
// not pop it.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "store/protocol.hpp"

namespace linkspan::store {

class Server {
 public:
  using Log = std::function<void(std::string_view)>;

  /// Starts the server. `listening` is non-blocking. `log` receives why a connection was closed,
  /// once a second, and how many more were; a separate thread calls it, and it may block.
  static Result<std::unique_ptr<Server>> start(base::Fd listening, const Limits& limits, Log log);
  virtual ~Server() = default;  ///< Closes all connections.

  /// Waits until all connections that made a request have ended. timed_out: the text has how many
  /// are left.
  virtual Status drain(base::Deadline deadline) = 0;
};

}  // namespace linkspan::store
