// engine/on_engine_impl.hpp - how a public handle reaches its EngineImpl.
//
// Threads: any thread.
#pragma once

#include <memory>
#include <type_traits>

#include "engine/engine_impl.hpp"

namespace linkspan::engine {

/// Returns `what` as an error; of a call that answers none, what it answers of nothing.
template <class R>
R refusal(const char* what) {
  if constexpr (std::is_constructible_v<R, Status>)
    return R(Status(Code::invalid_argument, Scope::process, what));
  else
    return R{};
}

/// Returns what `act` returns of the EngineImpl; a refusal where there is none, or only its
/// parent's.
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

}  // namespace linkspan::engine
