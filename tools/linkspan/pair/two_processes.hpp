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
#include "tools/linkspan/measure/ceiling.hpp"
#include "tools/linkspan/pair/far_side.hpp"
#include "tools/linkspan/pair/memories.hpp"

namespace linkspan::tool {

class TwoProcesses {
 public:
  /// Connected, without memories. `gpus` outlives it. `relay_gpus` is the first process's.
  static Result<std::unique_ptr<TwoProcesses>> start(const Gpus& gpus,
                                                     std::optional<unsigned> relay_gpus = {});
  /// With `linkspan serve` as the second one, which `peer` leads to: no bare call reaches it.
  static std::unique_ptr<TwoProcesses> with(const Gpus& gpus, Engine engine, Peer peer,
                                            std::unique_ptr<FarSide> far_side);
  ~TwoProcesses();
  TwoProcesses(const TwoProcesses&) = delete;
  TwoProcesses& operator=(const TwoProcesses&) = delete;

  /// Of this process, of the second. One a Place: ask once, for the largest size.
  Status add_near(Place place, std::uint64_t bytes);
  Status add_far(Place place, std::uint64_t bytes);
  /// Both were added.
  Pair pair(Op op, Place from, Place to);

  Engine& engine() noexcept { return *engine_; }
  const Peer& peer() const noexcept { return peer_; }
  FarSide& far_side() noexcept { return *far_side_; }
  Ceilings& ceilings() noexcept { return *ceilings_; }  ///< Of a process that was started here.

 private:
  explicit TwoProcesses(const Gpus& gpus) : gpus_(gpus) {}
  Status connect(std::optional<unsigned> relay_gpus);

  const Gpus& gpus_;
  std::unique_ptr<FarSide> far_side_;
  std::optional<Engine> engine_;
  Peer peer_;
  Ceilings::Memories near_;
  std::map<std::string, Far> far_;
  std::optional<Ceilings> ceilings_;
};

}  // namespace linkspan::tool
