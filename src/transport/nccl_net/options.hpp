// transport/nccl_net/options.hpp - the options of this transport, in EngineOptions::transport or
// the environment.
//
// Threads: as base/options.hpp.
#pragma once

#include <optional>
#include <string_view>

#include "base/options.hpp"

namespace linkspan::transport::nccl_net {

/// How data moves from a network plugin's bounce pool to its destination (tcpx/unpack.hpp).
enum class Unpack : std::uint8_t { d2d, host, kernel };

/// "d2d" and so on, as options spell it.
constexpr const char* name_of(Unpack method) noexcept {
  constexpr const char* kNames[] = {"d2d", "host", "kernel"};
  return kNames[static_cast<unsigned>(method)];
}
inline constexpr const char* kUnpackRemedy = "set d2d, host or kernel";
/// Parses the spelling that name_of() produces; returns nullopt for anything else.
std::optional<Unpack> parse_unpack(std::string_view text) noexcept;

struct NcclNetSettings {
  std::string plugin;              ///< Names and paths, separated by commas. Empty: none.
  std::optional<Unpack> unpack{};  ///< nullopt: the unpacker chooses.

  /// invalid_argument: names the key or variable, its value and the remedy.
  static Result<NcclNetSettings> read(const base::Options& options);
};

}  // namespace linkspan::transport::nccl_net
