// engine/diagnostics/diagnostics.hpp - what an Engine tells operators: dump() and metrics().
//
// Off the path of a byte. Each peer's mutex is taken once for each of its lines.
// Threads: any thread.
#pragma once

#include <atomic>
#include <string>

#include "control/control_plane.hpp"
#include "engine/captures/capture_service.hpp"
#include "engine/notifications/inbox.hpp"
#include "engine/peers/peer_manager.hpp"
#include "engine/transfers/region_pairs.hpp"
#include "engine/windows/window_service.hpp"

namespace linkspan::engine {

class Diagnostics {
 public:
  /// Names the parts of the Engine that Diagnostics describe. They outlive it.
  struct DiagnosticSources {
    const EngineContext& context;
    const PeerTable& peers;
    const PeerManager& manager;
    const Inbox& inbox;
    WindowService& windows;
    RegionPairsCache& pairs;
    CaptureService& captures;
    const std::atomic<bool>& closed;
  };
  explicit Diagnostics(const DiagnosticSources& uses) : uses_(uses) {}

  /// Describes the Engine, its peers, transfers, regions, windows and captured posts; at most
  /// Listing::kMax of each.
  std::string dump() const;
  /// Returns the text exposition format of Prometheus.
  std::string metrics() const;
  /// Answers a query of `linkspan ps` and `linkspan top`.
  Result<std::string> answer(control::IntrospectionOp op) const;

 private:
  std::string transfers(base::Time now) const;

  const DiagnosticSources uses_;
  const base::Time opened_ = base::Clock::steady().now();
};

}  // namespace linkspan::engine
