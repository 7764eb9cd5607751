// base/options.hpp - the settings that come from the environment, in one table, but for those of a
// transport, which are in its folder.
//
// docs/options.md and `linkspan doctor` print all tables (transport/registry.hpp). What the user
// sets on EngineOptions overrides what is read here. Threads: any thread, as far as getenv(3) goes:
// no thread calls setenv meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/environment.hpp"
#include "base/log.hpp"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::base {

struct OptionInfo {
  /// The member of Options, or what it is beside one; of a transport, the key in
  /// EngineOptions::transport. One with a space cannot be set there.
  const char* name = nullptr;
  const char* variable = nullptr;  ///< LINKSPAN_..., or a name that users of another project know.
  const char* unit = nullptr;      ///< "path", "ms" and so on.
  const char* fallback = nullptr;  ///< The default, as text for people.
  const char* what = nullptr;
  bool secret = false;  ///< Its value is never printed.
};
std::span<const OptionInfo> option_table() noexcept;

inline constexpr std::uint64_t kMaxCpuThreads = 256;  ///< Of an Engine, wherever it is set.

/// The value of an option as text, and what set it.
struct Setting {
  std::string from;   ///< A variable, or a key of EngineOptions::transport.
  std::string value;  ///< Empty: not set.

  /// Returns invalid_argument with `from`, the value and the remedy.
  Status refused(const std::string& remedy) const;
  /// Reads a whole number. Leaves `into` as it is if the option is not set.
  Status read_number(std::uint64_t min, std::uint64_t max, std::uint64_t& into) const;
};

struct Options {
  std::string socket_dir;  ///< An absolute path, not created or checked yet.
  std::string cuda_library = "libcuda.so.1";
  Level log_level = Level::warning;
  std::string warning;  ///< Names a value that was replaced by its default. Empty: none.
  std::map<std::string, std::string> transport;  ///< EngineOptions::transport
  unsigned cpu_threads = 1;
  std::optional<unsigned> copy_ctas;  ///< nullopt: as many as the GPU has SMs.
  unsigned relay_gpus = 0;
  bool calibrate = false;
  bool nvtx = false;
  std::optional<Security> security;
  std::string security_from;  ///< What set `security`: "LINKSPAN_SECURITY".
  std::string secret_file;    ///< Empty: none.
  std::string secret;         ///< Ignored beside a secret_file. Empty: none.
  std::string secret_from;    ///< What set the secret: "LINKSPAN_SECRET".
  std::size_t staging = std::size_t{128} << 20;
  Duration transfer_deadline = std::chrono::seconds(30);
  Duration connect_deadline = std::chrono::seconds(10);

  /// Returns the defaults, overridden by set variables; an empty variable counts as not set.
  /// invalid_argument: the text names the variable, its value and the remedy.
  static Result<Options> from_environment();
  /// Sets `security` if it is not set: `authenticated` with a secret, else `loopback_only`.
  /// invalid_argument: it needs a secret and there is none, or it contradicts one.
  Status resolve_security();
  /// Returns the setting of a transport's option: that in `transport`, else the environment's.
  Setting setting_of(const OptionInfo& option) const;
};

/// Returns invalid_argument with `from` and the remedy unless the secret has 16 to 4096 bytes.
Status check_secret(std::string_view secret, const std::string& from, Scope scope);
/// Returns the content of the secret file without its line end, else `secret`. permission_denied:
/// others may read the file. invalid_argument: the secret is too short or too long.
Result<std::string> read_secret(const Options& options);

}  // namespace linkspan::base
