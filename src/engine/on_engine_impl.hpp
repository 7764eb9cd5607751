// engine/on_engine_impl.hpp - how a public handle reaches its EngineImpl.
//
// On the path of a byte: the first step of each call.
// Threads: any thread.
// Invariants: nothing of an EngineImpl is touched in a forked child.
#pragma once

#include <memory>
#include <type_traits>

#include "engine/engine_impl.hpp"
#include "engine/handle_access.hpp"

namespace linkspan::engine {

/// Returns invalid_argument with the text `what`, or R{} if R cannot carry an error.
template <class R>
R refusal(const char* what) {
  if constexpr (std::is_constructible_v<R, Status>)
    return R(Status(Code::invalid_argument, Scope::process, what));
  else
    return R{};
}

/// Calls `act` with the EngineImpl and returns its result; returns a refusal if there is none or if
/// it was opened before a fork.
template <class Act>
auto on(const std::shared_ptr<EngineImpl>& impl, Act act) -> decltype(act(*impl)) {
  using R = decltype(act(*impl));
  if (impl == nullptr) return refusal<R>("the handle names no Engine and no peer");
  if (impl->forked())
    return refusal<R>(
        "this process was forked from the one that opened the Engine: open one here, after a spawn "
        "or exec if GPUs are used");
  return act(*impl);
}

/// Calls `act` with the services and makes the user's handle of the state that it returns; errors
/// as on().
template <class Handle, class Act>
Result<Handle> handle_of(const std::shared_ptr<EngineImpl>& impl, Act act) {
  return on(impl,
            [&](EngineImpl& its) { return HandleAccess::wrap<Handle>(impl, act(its.services())); });
}

}  // namespace linkspan::engine
