// tools/linkspan/pair/target_memories.hpp - the far memories of a pair, and what is asked of them:
// by the parent of a second process (helper_process.hpp), or by a peer of another host that
// `linkspan serve` knows nothing of.
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
#include "tools/linkspan/pair/echo_responder.hpp"
#include "tools/linkspan/pair/memories.hpp"

namespace linkspan::tool {

class TargetMemories {
 public:
  /// Asked by the parent, or by the peer `stranger`. The Engine and the GPUs outlive it.
  TargetMemories(Engine& engine, const Gpus& gpus, Peer untrusted_peer = {})
      : engine_(engine),
        gpus_(gpus),
        is_untrusted_(untrusted_peer.valid()),
        echo_responder_(engine, memories_, std::move(untrusted_peer)) {}
  TargetMemories(const TargetMemories&) = delete;
  TargetMemories& operator=(const TargetMemories&) = delete;
  ~TargetMemories() = default;  ///< Requires: closed, or the Engine is; or left.

  /// hello, memory, fill, check, arrived, meet and echo of helper_process.hpp; of the parent also
  /// ping and pong.
  Result<std::string> handle(const std::string& request);
  /// Deregisters all. False: somebody still uses what is left.
  bool close(Duration timeout);
  /// The Engine could not be closed: all stays with the process, which ends soon.
  void leak();

 private:
  Result<std::string> add(Place place, std::uint64_t bytes);
  Status arrived(Memory& memory, std::istream& fields) const;

  Engine& engine_;
  const Gpus& gpus_;
  const bool is_untrusted_;
  EchoResponder::Memories memories_;
  EchoResponder echo_responder_;
};

}  // namespace linkspan::tool
