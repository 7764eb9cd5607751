// api/c/handles.hpp - the handles of linkspan.h, and how a C call ends.
//
// Each handle contains one of the C++ API. On the path of a byte: the first step of a C call.
// Threads: any thread; the text of a failure belongs to the calling thread.
// Invariants: no exception crosses the C API. The calls that it makes throw std::bad_alloc alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "linkspan/completion_queue.hpp"
#include "linkspan/engine.hpp"
#include "linkspan/linkspan.h"

namespace linkspan::c {
using FutureOfAny =
    std::variant<Future<void>, Future<Peer>, Future<RemoteRegion>, Future<RegionSet>>;
}  // namespace linkspan::c

struct linkspan_engine {
  linkspan::Engine is;
};
struct linkspan_peer {
  linkspan::Peer is;
};
struct linkspan_region {
  linkspan::Region is;
};
struct linkspan_remote_region {
  linkspan::RemoteRegion is;
};
struct linkspan_region_set {
  linkspan::RegionSet is;
};
struct linkspan_prepared {
  linkspan::Prepared is;
};
struct linkspan_captured_transfer {
  linkspan::CapturedTransfer is;
};
struct linkspan_transfer {
  linkspan::Transfer is;
};
struct linkspan_future {
  linkspan::c::FutureOfAny is;
};
struct linkspan_completion_queue {
  linkspan::CompletionQueue is;
};
struct linkspan_notifications {
  std::vector<linkspan::Notification> is;
};
struct linkspan_explanation {
  linkspan::Explanation is;
};

namespace linkspan::c {

/// Returns the status's code and keeps the text of a failure for linkspan_last_error().
int answer(const Status& status) noexcept;

inline Status bad(std::string what) {
  return {Code::invalid_argument, Scope::request, std::move(what)};
}

/// A pointer argument that may not be null, and its name.
struct PointerArgument {
  const void* pointer;
  const char* name;
};
/// Returns OK, or invalid_argument with the name of the first null pointer.
Status given(std::initializer_list<PointerArgument> all);

/// A time argument in nanoseconds, and its name.
struct TimeArgument {
  const char* name;
  std::int64_t nanoseconds;
};
/// Converts a time argument. invalid_argument: it is below zero.
Result<Duration> duration(TimeArgument time);

int out_of_memory() noexcept;

/// Runs `call`, which returns a Status, if no needed pointer is null. Returns its code.
template <class Call>
int run(std::initializer_list<PointerArgument> needed, const Call& call) noexcept {
  try {
    Status status = given(needed);
    return answer(status.ok() ? call() : status);
  } catch (const std::exception&) {  // the library's own code throws nothing
    return out_of_memory();
  }
}
/// Does the same, and passes the time argument to `call`.
template <class Call>
int run(std::initializer_list<PointerArgument> needed, TimeArgument time,
        const Call& call) noexcept {
  return run(needed, [&]() -> Status {
    const auto limit = duration(time);
    return limit.ok() ? call(*limit) : limit.status();
  });
}

/// Runs `call`, which returns a Result, and makes a handle of its value.
template <class Handle, class Call>
int make(Handle** out, std::initializer_list<PointerArgument> needed, const Call& call) noexcept {
  if (out == nullptr) return run({{out, "the place for the handle"}}, [] { return Status(); });
  *out = nullptr;
  return run(needed, [&]() -> Status {
    std::unique_ptr<Handle> handle;  // allocated before anything starts
    if constexpr (std::is_default_constructible_v<Handle>) handle = std::make_unique<Handle>();
    auto made = call();
    if (!made.ok()) return made.status();
    if constexpr (std::is_default_constructible_v<Handle>)
      handle->is = *std::move(made);
    else
      handle.reset(new Handle{*std::move(made)});  // NOLINT(bugprone-unhandled-exception-at-new)
    *out = handle.release();
    return {};
  });
}
template <class Handle, class Call>
int make(Handle** out, std::initializer_list<PointerArgument> needed, TimeArgument time,
         const Call& call) noexcept {
  return make(out, needed, [&]() -> decltype(call(Duration())) {
    const auto limit = duration(time);
    if (!limit.ok()) return limit.status();
    return call(*limit);
  });
}

/// Copies the text that `call` makes of the handle for the caller.
template <class Handle, class Call>
int give_text(const Handle* handle, char** out, const Call& call) noexcept {
  if (out == nullptr) return run({{out, "the place for the text"}}, [] { return Status(); });
  *out = nullptr;
  int code = LINKSPAN_OK;
  const int ran = run({{handle, "the handle"}}, [&] {
    const std::string text = call(handle->is);
    *out = static_cast<char*>(std::malloc(text.size() + 1));
    if (*out != nullptr)
      std::memcpy(*out, text.c_str(), text.size() + 1);
    else
      code = out_of_memory();
    return Status();
  });
  return ran != LINKSPAN_OK ? ran : code;
}

}  // namespace linkspan::c
