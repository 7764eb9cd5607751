// nixl/backend_answer.hpp - how each call of a backend ends.
//
// Threads: any thread.
#pragma once

#include <exception>
#include <string>

#include "integrations/nixl/src/answer.hpp"
#include "integrations/nixl/src/backend.hpp"

namespace linkspan::nixl {

/// Runs a call's body, and logs its error unless the body's place in the code did: those of scope
/// peer, which RemoteAgent reports once.
template <class Body>
abi::Answer LinkspanBackend::answer(const char* call, Body body) const noexcept {
  try {
    if (fork_.forked()) {
      base::Log(base::Level::error, base::stderr_sink())
          .write(base::Level::error, std::string(call) + " in a forked child: make a new agent");
      return abi::Answer::backend_error;
    }
    const Status end = body();
    if (!end.ok() && end.code() != Code::pending && end.scope() == Scope::request)
      parts_->log.write(base::Level::warning, std::string(call) + ": " + end.to_string());
    return answer_of(end.code());
  } catch (const std::exception&) {  // no memory, which a log line would need as well
    return abi::Answer::backend_error;
  }
}

}  // namespace linkspan::nixl
