// nixl/answer.hpp - linkspan's Code as NIXL's answer.
//
// Threads: any thread.
#pragma once

#include "integrations/nixl/src/abi.hpp"
#include "linkspan/status.hpp"

namespace linkspan::nixl {

/// Returns NIXL's number for the code. NIXL has none for a time-out: that is `canceled`.
constexpr abi::Answer answer_of(Code code) noexcept {
  switch (code) {
    case Code::ok:
      return abi::Answer::success;
    case Code::pending:
      return abi::Answer::in_progress;
    case Code::invalid_argument:
      return abi::Answer::invalid_argument;
    case Code::unsupported:
      return abi::Answer::unsupported;
    case Code::not_found:
      return abi::Answer::not_found;
    case Code::permission_denied:
      return abi::Answer::not_allowed;
    case Code::disconnected:
      return abi::Answer::remote_disconnect;
    case Code::timed_out:
    case Code::canceled:
      return abi::Answer::canceled;
    default:
      return abi::Answer::backend_error;
  }
}

}  // namespace linkspan::nixl
