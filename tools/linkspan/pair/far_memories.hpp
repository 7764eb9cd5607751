// tools/linkspan/pair/far_memories.hpp - the far memories of a pair, and what is asked of them: by
// the parent of a second process (far_end.hpp), or by a peer of another host that `linkspan serve`
// knows nothing of.
//
// A stranger gets no address and no handle, names no file, and what it asks for is bounded.
// Threads: externally synchronised.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>

#include "linkspan/engine.hpp"
#include "tools/linkspan/pair/answering.hpp"
#include "tools/linkspan/pair/memories.hpp"

namespace linkspan::tool {

class FarMemories {
 public:
  /// Asked by the parent, or by the peer `stranger`. The Engine and the GPUs outlive it.
  FarMemories(Engine& engine, const Gpus& gpus, Peer stranger = {})
      : engine_(engine),
        gpus_(gpus),
        stranger_(stranger.valid()),
        answering_(engine, memories_, std::move(stranger)) {}
  FarMemories(const FarMemories&) = delete;
  FarMemories& operator=(const FarMemories&) = delete;
  ~FarMemories() = default;  ///< Requires: closed, or the Engine is; or left.

  /// hello, memory, fill, check, arrived, meet and echo of far_end.hpp; of the parent also ping and
  /// pong.
  Result<std::string> handle(const std::string& request);
  /// Deregisters all. False: somebody still uses what is left.
  bool close(Duration timeout);
  /// The Engine could not be closed: all stays with the process, which ends soon.
  void leave();

 private:
  Result<std::string> add(Place place, std::uint64_t bytes);
  Status arrived(Memory& memory, std::istream& words) const;

  Engine& engine_;
  const Gpus& gpus_;
  const bool stranger_;
  Answering::Memories memories_;
  Answering answering_;
};

}  // namespace linkspan::tool
