// tools/linkspan/pair/far_side.hpp - who answers for the far memories of a pair: a second process,
// or a `linkspan serve` of another host.
//
// Threads: externally synchronised.
#pragma once

#include <string>
#include <string_view>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::tool {

class FarSide {
 public:
  virtual ~FarSide() = default;
  FarSide(const FarSide&) = delete;
  FarSide& operator=(const FarSide&) = delete;

  /// What it answered, or the Status that it answered. With lost(): it has ended, and how
  /// (disconnected), or it did not answer (timed_out).
  Result<std::string> ask(std::string_view request, Duration timeout) {
    if (Status s = tell(request); !s.ok()) return s;
    return answer(timeout);
  }
  /// The two halves of ask(), for what both do at a time.
  virtual Status tell(std::string_view request) = 0;
  virtual Result<std::string> answer(Duration timeout) = 0;
  virtual bool lost() const noexcept = 0;  ///< Ask nothing more.

 protected:
  FarSide() = default;
};

}  // namespace linkspan::tool
