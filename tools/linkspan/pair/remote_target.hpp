// tools/linkspan/pair/remote_target.hpp - the side that owns the remote memories of a pair: a
// helper process, or `linkspan serve` on another host.
//
// Requests and replies are the texts that helper_process.hpp lists.
// Threads: externally synchronised.
#pragma once

#include <string>
#include <string_view>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::tool {

class RemoteTarget {
 public:
  virtual ~RemoteTarget() = default;
  RemoteTarget(const RemoteTarget&) = delete;
  RemoteTarget& operator=(const RemoteTarget&) = delete;

  /// Sends a request and returns the reply, or the error that the target replied. If unusable() is
  /// set afterwards, the target has ended (disconnected; the text says how) or did not reply
  /// (timed_out).
  Result<std::string> call(std::string_view request, Duration timeout) {
    if (Status s = send(request); !s.ok()) return s;
    return receive(timeout);
  }
  /// Sends a request without waiting for its reply; receive() returns the reply.
  virtual Status send(std::string_view request) = 0;
  virtual Result<std::string> receive(Duration timeout) = 0;
  virtual bool unusable() const noexcept = 0;  ///< No further request is possible.

 protected:
  RemoteTarget() = default;
};

}  // namespace linkspan::tool
