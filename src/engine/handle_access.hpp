// engine/handle_access.hpp - how the engine makes and opens public handles.
//
// Off the path of a byte.
// Threads: pure functions.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "linkspan/engine.hpp"

namespace linkspan::engine {

class EngineImpl;
class FutureState;

struct HandleAccess {
  static const std::shared_ptr<EngineImpl>& impl(const Engine& engine) noexcept {
    return engine.impl_;
  }
  static const EngineImpl* owner(const RemoteRegion& region) noexcept { return region.impl_.get(); }
  static const std::shared_ptr<ImportedRegion>& imported(const RemoteRegion& region) noexcept {
    return region.imported_;
  }
  static const std::shared_ptr<const memory::Registration>& registration(
      const Region& region) noexcept {
    return region.registration_;
  }

  /// Makes the user's handle of what a service returned.
  template <class Handle, class State>
  static Result<Handle> wrap(const std::shared_ptr<EngineImpl>& impl,
                             Result<std::shared_ptr<State>> state) {
    if (!state.ok()) return state.status();
    if constexpr (std::is_same_v<Handle, Region>)
      return Region(*std::move(state));
    else
      return Handle(impl, *std::move(state));
  }
  static std::vector<RemoteRegion> regions(const std::shared_ptr<EngineImpl>& impl,
                                           std::vector<std::shared_ptr<ImportedRegion>> imported) {
    std::vector<RemoteRegion> regions;
    regions.reserve(imported.size());
    for (auto& each : imported) regions.push_back(RemoteRegion(impl, std::move(each)));
    return regions;
  }
  template <class T>
  static Future<T> future(std::shared_ptr<FutureState> state) {
    return Future<T>(std::move(state));
  }
  static Peer peer(std::shared_ptr<EngineImpl> impl, std::uint64_t id, std::string name) {
    return {std::move(impl), id, std::move(name)};
  }
};

}  // namespace linkspan::engine
