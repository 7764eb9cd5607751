// base/options.hpp - every setting that comes from the environment, in one table.
//
// docs/options.md and `linkspan doctor` print the table. What the user sets on EngineOptions
// overrides what is read here.
// Threads: any thread, as far as getenv(3) goes: no thread calls setenv meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/environment.hpp"
#include "base/log.hpp"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::base {

/// How data moves from a network plugin's bounce pool to its destination
/// (transport/nccl_net/tcpx/unpack.hpp).
enum class Unpack : std::uint8_t { d2d, host, kernel };

/// "d2d" and so on, as options spell it.
constexpr const char* name_of(Unpack method) noexcept {
  constexpr const char* kNames[] = {"d2d", "host", "kernel"};
  return kNames[static_cast<unsigned>(method)];
}
inline constexpr const char* kUnpackRemedy = "set d2d, host or kernel";
/// Parses the spelling that name_of() produces; returns nullopt for anything else.
std::optional<Unpack> parse_unpack(std::string_view text) noexcept;

struct OptionInfo {
  const char* name = nullptr;      ///< The member of Options, or what it is beside one.
  const char* variable = nullptr;  ///< LINKSPAN_..., or a name that users of another project know.
  const char* unit = nullptr;      ///< "path", "ms" and so on.
  const char* fallback = nullptr;  ///< The default, as text for people.
  const char* what = nullptr;
  bool secret = false;  ///< Its value is never printed.
};
std::span<const OptionInfo> option_table() noexcept;

struct Options {
  std::string socket_dir;  ///< An absolute path, not created or checked yet.
  std::string cuda_library = "libcuda.so.1";
  Level log_level = Level::warning;
  std::string warning;          ///< Names a value that was replaced by its default. Empty: none.
  std::string nccl_net_plugin;  ///< Names and paths, separated by commas. Empty: none.
  std::string nccl_net_plugin_of_nccl;  ///< The setting of NCCL, which Engines ignore.
  unsigned cpu_threads = 1;
  unsigned tcp_streams = 1;
  std::string tcp_interfaces;         ///< Names, separated by commas. Empty: the kernel chooses.
  std::optional<unsigned> copy_ctas;  ///< nullopt: as many as the GPU has SMs.
  unsigned relay_gpus = 0;
  bool calibrate = false;
  bool insecure = false;
  bool tls = false;
  std::string secret_file;       ///< Empty: none.
  std::string secret;            ///< From the environment. Empty: none.
  std::optional<Unpack> unpack;  ///< nullopt: the unpacker chooses.
  std::size_t staging = std::size_t{128} << 20;
  Duration transfer_deadline = std::chrono::seconds(30);
  Duration connect_deadline = std::chrono::seconds(10);

  /// Returns the defaults, overridden by set variables; an empty variable counts as not set.
  /// invalid_argument: the text names the variable, its value and the remedy.
  static Result<Options> from_environment();
};

/// Returns the content of the secret file without its line end, else the secret of the environment,
/// else an empty string. permission_denied: others may read the file. invalid_argument: the secret
/// is too short.
Result<std::string> read_secret(const Options& options);

}  // namespace linkspan::base
