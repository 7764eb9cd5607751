// engine/handle_access.hpp - how the engine makes and opens public handles.
//
// Off the path of a byte.
// Threads: pure functions.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "linkspan/engine.hpp"

namespace linkspan::engine {

class EngineImpl;

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

  // Wrap what a service returns into the user's handle.
  static Region wrap(std::shared_ptr<const memory::Registration> registration) {
    return Region(std::move(registration));
  }
  static RemoteRegion wrap(std::shared_ptr<EngineImpl> impl,
                           std::shared_ptr<ImportedRegion> region) {
    return {std::move(impl), std::move(region)};
  }
  static Transfer wrap(std::shared_ptr<EngineImpl> impl, std::shared_ptr<TransferState> state) {
    return {std::move(impl), std::move(state)};
  }
  static Prepared wrap(std::shared_ptr<EngineImpl> impl, std::shared_ptr<PreparedState> state) {
    return {std::move(impl), std::move(state)};
  }
  static Window wrap(std::shared_ptr<EngineImpl> impl, std::shared_ptr<WindowState> state) {
    return {std::move(impl), std::move(state)};
  }
  static Peer peer(std::shared_ptr<EngineImpl> impl, std::uint64_t id, std::string name) {
    return {std::move(impl), id, std::move(name)};
  }
};

}  // namespace linkspan::engine
