// engine/on_engine_impl.hpp - how a public handle reaches its EngineImpl.
//
// On the path of a byte: the first step of each call.
// Threads: any thread.
// Invariants: nothing of an EngineImpl is touched in a forked child.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

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

/// Starts a call of that kind, in which `act` returns what the waiting call returns. What on()
/// refuses is the result of a Future that is done.
template <class T, class Act>
Future<T> start_call(const std::shared_ptr<EngineImpl>& impl, CallQueue AsyncCalls::*kind,
                     const std::string& target, Duration timeout, Act act) {
  auto run = [act = std::move(act)](FutureState& state, Duration left) {
    auto outcome = act(left);
    if constexpr (std::is_void_v<T>) {
      state.finish(outcome);
    } else if (!outcome.ok()) {
      state.finish(outcome.status());
    } else {
      const auto value = std::make_shared<const T>(*std::move(outcome));  // also the state's
      const bool wanted = state.finish({}, value);
      if constexpr (std::is_same_v<T, Peer>)  // nobody knows it
        if (!wanted) (void)value->close(Duration::zero());
    }
  };
  auto begun = on(impl, [&](EngineImpl& its) -> Result<std::shared_ptr<FutureState>> {
    return (its.calls().*kind).start(target, timeout, std::move(run));
  });
  if (begun.ok()) return HandleAccess::future<T>(*std::move(begun));
  auto refused = std::make_shared<FutureState>();  // the Future's
  refused->finish(begun.status());
  return HandleAccess::future<T>(std::move(refused));
}

/// Calls `act` with the services and makes the user's handle of the state that it returns; errors
/// as on().
template <class Handle, class Act>
Result<Handle> handle_of(const std::shared_ptr<EngineImpl>& impl, Act act) {
  return on(impl,
            [&](EngineImpl& its) { return HandleAccess::wrap<Handle>(impl, act(its.services())); });
}

}  // namespace linkspan::engine
