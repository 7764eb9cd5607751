// transport/verbs/options.hpp - the options of this transport, in EngineOptions::transport or the
// environment.
//
// Threads: as base/options.hpp.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "transport/verbs/abi_types.hpp"

namespace linkspan::transport::verbs {

/// A device, or one port of it, that the user named.
struct NamedPort {
  std::string device{};
  std::optional<std::uint8_t> port{};  ///< nullopt: each port.
};

struct VerbsSettings {
  bool none = false;             ///< The transport is left out.
  bool asked = false;            ///< The user has set the devices.
  std::vector<NamedPort> ports;  ///< Empty: all devices.
  std::optional<std::uint32_t> gid_index{};
  std::uint8_t traffic_class = 0;
  std::uint8_t service_level = 0;
  std::optional<std::uint16_t> pkey{};  ///< nullopt: the first of the port's table.
  std::optional<IbvMtu> mtu{};          ///< nullopt: what both ports take.

  /// invalid_argument: names the key or variable, its value and the remedy.
  static Result<VerbsSettings> read(const base::Options& options);
  /// Returns whether the user's list, if there is one, has the port.
  bool wants(std::string_view device, std::uint8_t port) const;
};

/// Returns 1024 for kMtu1024.
constexpr unsigned bytes_of(IbvMtu mtu) noexcept { return 128u << static_cast<unsigned>(mtu); }

}  // namespace linkspan::transport::verbs
