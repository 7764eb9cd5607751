// tools/linkspan/pair/remote_target.hpp - who answers for the far memories of a pair: a second
// process, or a `linkspan serve` of another host.
//
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

  /// What it answered, or the Status that it answered. With lost(): it has ended, and how
  /// (disconnected), or it did not answer (timed_out).
  Result<std::string> call(std::string_view request, Duration timeout) {
    if (Status s = send(request); !s.ok()) return s;
    return receive(timeout);
  }
  /// The two halves of ask(), for what both do at a time.
  virtual Status send(std::string_view request) = 0;
  virtual Result<std::string> receive(Duration timeout) = 0;
  virtual bool unusable() const noexcept = 0;  ///< Ask nothing more.

 protected:
  RemoteTarget() = default;
};

}  // namespace linkspan::tool
