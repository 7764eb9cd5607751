// tests/hostile/right_peer.hpp - an Engine of the attacker's: it keeps the rules of the wire, and
// what harms is what its program does with it.
//
// Threads: externally synchronised.
#pragma once

#include <optional>
#include <string>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {

struct RightPeer {
  explicit RightPeer(const std::string& address) {
    EngineOptions options = engine_options("hostile");
    options.use_gpu = false;
    engine.emplace(take(Engine::open(options)));
    peer = take(engine->connect(address));
  }
  RightPeer(const std::string& address, const MemoryOptions& memory) : RightPeer(address) {
    held = Held::make(*engine, memory);
  }

  Held held;  // outlives the Engine
  std::optional<Engine> engine;
  Peer peer;
};

}  // namespace linkspan::test
