// tools/linkspan/pair/target_memories.hpp - owns the remote memories of a pair and executes
// requests on them: of the parent of a helper process, or of an untrusted peer of `linkspan serve`.
//
// An untrusted peer gets no address and no handle, cannot name a file, and its requests are
// bounded.
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
  /// Serves the parent, or `untrusted_peer` if that is valid. The Engine and the GPUs outlive this
  /// object.
  TargetMemories(Engine& engine, const Gpus& gpus, Peer untrusted_peer = {})
      : engine_(engine),
        gpus_(gpus),
        is_untrusted_(untrusted_peer.valid()),
        echo_responder_(engine, memories_, std::move(untrusted_peer)) {}
  TargetMemories(const TargetMemories&) = delete;
  TargetMemories& operator=(const TargetMemories&) = delete;
  ~TargetMemories() = default;  ///< Requires close(), leak(), or a closed Engine.

  /// Executes the requests hello, memory, fill, check, arrived, meet and echo of
  /// helper_process.hpp; ping and pong too for the parent.
  Result<std::string> handle(const std::string& request);
  /// Deregisters all memories. Returns false if some are still in use.
  bool close(Duration timeout);
  /// Leaves all memories allocated until the process ends, for an Engine that could not be closed.
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
