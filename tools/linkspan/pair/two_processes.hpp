// tools/linkspan/pair/two_processes.hpp - this process, a second one, an Engine in each, and
// memories.
//
// The first process asks for every transfer; the second, which is started here or serves on another
// host, owns the far memories. Demo, bench and doctor run their pairs between them.
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
  /// Connected, without memories. `gpus` outlives it. `relay_gpus` is the first process's.
  static Result<std::unique_ptr<TwoProcesses>> start(const Gpus& gpus,
                                                     std::optional<unsigned> relay_gpus = {});
  /// With `linkspan serve` as the second one, which `peer` leads to: no bare call reaches it.
  static std::unique_ptr<TwoProcesses> with(const Gpus& gpus, Engine engine, Peer peer,
                                            std::unique_ptr<RemoteTarget> remote_target);
  ~TwoProcesses();
  TwoProcesses(const TwoProcesses&) = delete;
  TwoProcesses& operator=(const TwoProcesses&) = delete;

  /// Of this process, of the second. One a Place: ask once, for the largest size.
  Status add_local(Place place, std::uint64_t bytes);
  Status add_remote(Place place, std::uint64_t bytes);
  /// Both were added.
  Pair pair(Op op, Place from, Place to);

  Engine& engine() noexcept { return *engine_; }
  const Peer& peer() const noexcept { return peer_; }
  RemoteTarget& remote_target() noexcept { return *remote_target_; }
  ReferenceCopies& reference_copies() noexcept {
    return *reference_copies_;
  }  ///< Of a process that was started here.

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
