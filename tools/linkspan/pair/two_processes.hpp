// tools/linkspan/pair/two_processes.hpp - this process and a second one, an Engine in each, and
// their memories.
//
// This process submits every transfer. The second owns the remote memories; it is a helper process,
// or `linkspan serve` on another host. Demo, bench and doctor run their pairs between the two.
// Threads: externally synchronised.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "linkspan/engine.hpp"
#include "tools/linkspan/measure/reference_copies.hpp"
#include "tools/linkspan/pair/memories.hpp"
#include "tools/linkspan/pair/remote_target.hpp"

namespace linkspan::tool {

class TwoProcesses {
 public:
  /// Starts a helper process and connects; no memories yet. `gpus` outlives it. `relay_gpus` is
  /// EngineOptions::relay_gpus of this process.
  static Result<std::unique_ptr<TwoProcesses>> start(const Gpus& gpus,
                                                     std::optional<unsigned> relay_gpus = {});
  /// Uses `linkspan serve`, connected as `peer`, as the second process. Bare calls cannot reach it.
  static std::unique_ptr<TwoProcesses> with(const Gpus& gpus, Engine engine, Peer peer,
                                            std::unique_ptr<RemoteTarget> remote_target);
  ~TwoProcesses();
  TwoProcesses(const TwoProcesses&) = delete;
  TwoProcesses& operator=(const TwoProcesses&) = delete;

  /// Allocates memory of this process, or of the second. Call once for each Place, with the largest
  /// size.
  Status add_local(Place place, std::uint64_t bytes);
  Status add_remote(Place place, std::uint64_t bytes);
  /// Returns the pair of two places that were added.
  Pair pair(Op op, Place from, Place to);

  Engine& engine() noexcept { return *engine_; }
  const Peer& peer() const noexcept { return peer_; }
  RemoteTarget& remote_target() noexcept { return *remote_target_; }
  ReferenceCopies& reference_copies() noexcept {
    return *reference_copies_;
  }  ///< Requires a helper process.

 private:
  explicit TwoProcesses(const Gpus& gpus) : gpus_(gpus) {}
  Status connect(std::optional<unsigned> relay_gpus);

  const Gpus& gpus_;
  std::unique_ptr<RemoteTarget> remote_target_;
  std::optional<Engine> engine_;
  Peer peer_;
  ReferenceCopies::Memories local_;
  std::map<std::string, RemoteMemory> remote_;
  std::optional<ReferenceCopies> reference_copies_;
};

}  // namespace linkspan::tool
