// base/options.hpp - every setting that comes from the environment, in one table.
//
// The only place of the library that reads the environment. docs/options.md and `linkspan doctor`
// print the table. What the user sets on EngineOptions wins over what is read here.
// Threads: any thread, as far as getenv(3) goes: nobody calls setenv meanwhile.
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

/// How what a network plugin has left in a bounce pool reaches its place
/// (transport/nccl_net/tcpx/unpack.hpp).
enum class Unpack : std::uint8_t { d2d, host, kernel };

/// "d2d" and so on, as options spell it.
constexpr const char* name_of(Unpack method) noexcept {
  constexpr const char* kNames[] = {"d2d", "host", "kernel"};
  return kNames[static_cast<unsigned>(method)];
}
inline constexpr const char* kUnpackRemedy = "set d2d, host or kernel";
/// As name_of() spells it; none: it is none of them.
std::optional<Unpack> parse_unpack(std::string_view text) noexcept;

struct OptionInfo {
  const char* name = nullptr;      ///< The member of Options, or what it is beside one.
  const char* variable = nullptr;  ///< LINKSPAN_..., but for those that users of others know.
  const char* unit = nullptr;      ///< "path", "ms" and so on.
  const char* fallback = nullptr;  ///< What holds when it is not set, for people.
  const char* what = nullptr;
  bool secret = false;  ///< What it is set to is shown to nobody.
};
std::span<const OptionInfo> option_table() noexcept;

struct Options {
  std::string socket_dir;  ///< An absolute path. Not yet made or checked.
  std::string cuda_library = "libcuda.so.1";
  Level log_level = Level::warning;
  std::string warning;          ///< Of a value that was replaced by its fallback. Empty: none.
  std::string nccl_net_plugin;  ///< Names and paths by comma. Empty: none was named.
  std::string nccl_net_plugin_of_nccl;  ///< As NCCL is told; Engines do not look there.
  unsigned cpu_threads = 1;
  unsigned tcp_streams = 1;
  std::string tcp_interfaces;         ///< Names by comma. Empty: what the kernel chooses.
  std::optional<unsigned> copy_ctas;  ///< None: as many as the GPU has SMs.
  unsigned relay_gpus = 0;
  bool calibrate = false;
  bool insecure = false;
  bool tls = false;
  std::string secret_file;       ///< Empty: none.
  std::string secret;            ///< From the environment. Empty: none.
  std::optional<Unpack> unpack;  ///< None: who unpacks chooses.
  std::size_t staging = std::size_t{128} << 20;
  Duration transfer_deadline = std::chrono::seconds(30);
  Duration connect_deadline = std::chrono::seconds(10);

  /// The fallbacks, overridden by what is set; an empty variable counts as not set.
  /// invalid_argument: names the variable, its value and the remedy.
  static Result<Options> from_environment();
};

/// What the file has, without the line end, or of none the secret of the environment; empty: there
/// is none. permission_denied: others may read the file. invalid_argument: too short to be one.
Result<std::string> read_secret(const Options& options);

}  // namespace linkspan::base
