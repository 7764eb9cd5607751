// store/server.hpp - the server of a store: one Table, any number of connections, each in
// its own dialect.
//
// Threads: any thread; what clients ask is done on the one thread that start() starts and the
// destructor joins. It blocks in epoll only.
// Invariants: a limit that one connection passes ends that connection and nothing else; what a
// connection allocates (requests and answers, waits) is counted, and bounded for all together. A
// connection may be slow: each byte is progress. A value that is pushed wakes one waiter, and the
// next one if that one does not pop it.
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

  /// `listening` is non-blocking. `log`: why a connection was closed, once a second, and how many
  /// more were. Called by a thread of its own, which may stand still there.
  static Result<std::unique_ptr<Server>> start(base::Fd listening, const Limits& limits, Log log);
  virtual ~Server() = default;  ///< Closes all connections.

  /// Until no connection is left of those that have asked anything. timed_out: how many are.
  virtual Status drain(base::Deadline deadline) = 0;
};

}  // namespace linkspan::store
