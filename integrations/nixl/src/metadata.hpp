// nixl/metadata.hpp - the texts that agents exchange through NIXL: where an agent listens, which
// memory it registered, and who sent a notification.
//
// Each begins with a mark and the version of this format, so that another release's is refused in
// words. They come from anyone: parsing checks all lengths.
// Off the path of a byte.
// Threads: values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "linkspan/status.hpp"

namespace linkspan::nixl {

/// How other agents reach this one. NIXL's metadata travels in the clear, so the secret is this
/// agent's alone.
struct AgentAddress {
  std::string addresses;  ///< Engine::addresses().
  std::string engine;     ///< EngineOptions::name of its Engine: unique, unlike the agent's name.
  std::string secret;
  std::string host;  ///< The boot id of its host.

  std::string serialize() const;
  /// corrupt: not of this plugin, cut or too long. unsupported: of another version.
  static Result<AgentAddress> parse(std::string_view text);
};

/// The memory of one registration of an agent.
struct MemoryAddress {
  std::string published;  ///< The name for Peer::lookup().
  std::uint64_t address = 0, bytes = 0;

  std::string serialize() const;
  /// Errors as above.
  static Result<MemoryAddress> parse(std::string_view text);
};

/// A notification, with the name of the sending agent, which an Engine's name cannot carry.
struct AgentMessage {
  std::string agent, text;

  /// invalid_argument: both have more than linkspan's 64 KiB together.
  static Result<std::vector<std::byte>> serialize(std::string_view agent, std::string_view text);
  /// Errors as above.
  static Result<AgentMessage> parse(std::span<const std::byte> bytes);
};

}  // namespace linkspan::nixl
