#include "base/options.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "base/fd.hpp"
#include "base/socket_dir.hpp"

namespace linkspan::base {
namespace {

constexpr const char* kSecurityNames = "loopback_only, insecure, authenticated or encrypted";

constexpr OptionInfo kTable[] = {
    {"socket_dir", "LINKSPAN_SOCKET_DIR", "absolute path",
     "$XDG_RUNTIME_DIR/linkspan, else /tmp/linkspan-UID",
     "Folder of the Unix sockets by which processes of this host find each other."},
    {"cuda_library", "LINKSPAN_CUDA_LIBRARY", "file", "libcuda.so.1",
     "The CUDA driver that is loaded at the first use of a GPU."},
    {"log_level", "LINKSPAN_LOG_LEVEL", "DEBUG, INFO, WARNING, ERROR or OFF", "WARNING",
     "The least level that is logged."},
    {"log_level (seed)", "UCCL_P2P_LOG_LEVEL", "DEBUG, INFO, WARNING, WARN or ERROR", "WARNING",
     "The same for programs that set it for send_ipc and recv_ipc; LINKSPAN_LOG_LEVEL wins. "
     "Another value is warned of and counts as WARNING."},
    {"cpu_threads", "LINKSPAN_CPU_THREADS", "1 to 256", "the smaller of 16 and the CPU's cores",
     "Threads that copy between host memories, and between GPUs and pageable memory; they start on "
     "demand."},
    {"copy_ctas", "LINKSPAN_COPY_CTAS", "0 to 65535", "as many as the GPU has SMs",
     "CTAs of 512 threads that one copy by a kernel takes at most; 0: copy engines only."},
    {"relay_gpus", "LINKSPAN_RELAY_GPUS", "0 to 15", "0",
     "Other visible GPUs whose PCIe links and 32 MiB of whose memory each GPU borrows for large "
     "copies from pinned host memory. For GPUs whose links are idle."},
    {"calibrate", "LINKSPAN_CALIBRATE", "0 or 1", "0",
     "Whether an Engine measures the copiers of its GPUs at their first use, some milliseconds for "
     "each link, and chooses by that; else by what two H200 have reached."},
    {"security", "LINKSPAN_SECURITY", kSecurityNames,
     "authenticated with a secret, else loopback_only",
     "How TCP is protected (docs/security.md). loopback_only: it does not leave the host. "
     "insecure: it does, and nothing shows who is at the other end. authenticated: both sides "
     "prove that they know the secret. encrypted: TLS 1.3 with a key of the secret as well, on "
     "both sides or none. The last two need a secret, the others contradict one."},
    {"secret_file", "LINKSPAN_SECRET_FILE", "file", "none",
     "What peers over TCP have to know as well: 16 to 4096 bytes that nobody guesses, in a file "
     "that "
     "nobody else may read (docs/security.md)."},
    {"secret", "LINKSPAN_SECRET", "text", "none",
     "The same, where a file is not to be had; LINKSPAN_SECRET_FILE wins.", true},
    {"staging", "LINKSPAN_STAGING_MIB", "MiB", "128",
     "Pinned memory of an Engine through which copies between GPUs and pageable memory go, at "
     "most; 64 KiB a thread at least. Pinned with the first such copies."},
    {"transfer_deadline", "LINKSPAN_TRANSFER_DEADLINE_MS", "ms", "30000",
     "After which a transfer that names no deadline ends as timed_out."},
    {"connect_deadline", "LINKSPAN_CONNECT_DEADLINE_MS", "ms", "10000",
     "After which a connect or import that names no deadline ends as timed_out."},
    {"metrics (address)", "LINKSPAN_METRICS", "port or address:port", "none",
     "Where an Engine serves its counters by HTTP, as /metrics for Prometheus: loopback, if only a "
     "port is given. If the port is taken, the Engine logs that and works without it."},
    {"metrics (rank)", "LINKSPAN_METRICS_RANK", "0 to 65535", "0",
     "What is added to that port: the rank of each process of a host."},
    {"nvtx", "LINKSPAN_NVTX", "0 or 1", "0",
     "Whether profilers such as Nsight Systems show each transfer as a range (NVTX)."},
};

constexpr std::uint64_t kMaxCtas = 65535, kMaxRelayGpus = 15;
constexpr std::uint64_t kMaxStagingMib = std::uint64_t{1} << 20;
constexpr std::size_t kMinSecret = 16, kMaxSecret = 4096;
constexpr std::uint64_t kMaxMilliseconds = std::uint64_t{7} * 24 * 3600 * 1000;

/// Returns null for an empty variable too, because `LINKSPAN_X= program` is how a shell unsets one.
const char* set_value(const char* variable) noexcept {
  const char* value = environment(variable);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

Status bad(const char* variable, const char* value, const std::string& remedy, Where at = {}) {
  return {Code::invalid_argument, Scope::process,
          std::string(variable) + "=\"" + value + "\": " + remedy, at};
}

Setting setting_of(const char* variable) {
  const char* const value = set_value(variable);
  return {variable, value == nullptr ? "" : value};
}

Status read_number(const char* variable, std::uint64_t min, std::uint64_t max,
                   std::uint64_t& into) {
  return setting_of(variable).read_number(min, max, into);
}

Status read_flag(const char* variable, bool& into) {
  std::uint64_t number = into ? 1 : 0;
  Status status = read_number(variable, 0, 1, number);
  into = number != 0;
  return status;
}

Status read_security(Options& into) {
  const Setting set = setting_of("LINKSPAN_SECURITY");
  if (set.value.empty()) return {};
  into.security = parse_security(set.value);
  into.security_from = set.from;
  return into.security ? Status() : set.refused(std::string("set ") + kSecurityNames);
}

/// Refuses a variable that LINKSPAN_SECURITY replaces. Ignored, it would leave TCP less protected
/// than it says.
Status refuse_former(const char* variable, const char* replacement) {
  const Setting set = setting_of(variable);
  if (set.value.empty()) return {};
  if (set.value == "0") replacement = "loopback_only in its place, or authenticated with a secret";
  return set.refused(std::string("set LINKSPAN_SECURITY=") + replacement);
}

Status read_duration(const char* variable, Duration& into) {
  auto ms = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(into).count());
  Status status = read_number(variable, 1, kMaxMilliseconds, ms);
  if (status.ok()) into = std::chrono::milliseconds(ms);
  return status;
}

Status read_socket_dir(std::string& into) {
  if (const char* set = set_value("LINKSPAN_SOCKET_DIR"); set != nullptr) {
    if (*set != '/') return bad("LINKSPAN_SOCKET_DIR", set, "set an absolute path");
    into = set;
  } else if (const char* runtime = set_value("XDG_RUNTIME_DIR");
             runtime != nullptr && *runtime == '/') {
    into = std::string(runtime) + "/linkspan";
  } else {
    into = "/tmp/linkspan-" + std::to_string(::getuid());
  }
  return {};
}

}  // namespace

std::span<const OptionInfo> option_table() noexcept { return kTable; }

Status Setting::refused(const std::string& remedy) const {
  return bad(from.c_str(), value.c_str(), remedy);
}

Status Setting::read_number(std::uint64_t min, std::uint64_t max, std::uint64_t& into) const {
  if (value.empty()) return {};
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < min || number > max)
    return refused("set a whole number from " + std::to_string(min) + " to " + std::to_string(max));
  into = number;
  return {};
}

Setting Options::setting_of(const OptionInfo& option) const {
  if (const auto set = transport.find(option.name); set != transport.end() && !set->second.empty())
    return {set->first, set->second};
  return base::setting_of(option.variable);
}

Result<Options> Options::from_environment() {
  Options options;
  if (Status s = read_socket_dir(options.socket_dir); !s.ok()) return s;
  if (const char* set = set_value("LINKSPAN_CUDA_LIBRARY")) options.cuda_library = set;
  if (const char* set = set_value("LINKSPAN_LOG_LEVEL")) {
    const std::optional<Level> level = parse_level(set);
    if (!level) return bad("LINKSPAN_LOG_LEVEL", set, "set DEBUG, INFO, WARNING, ERROR or OFF");
    options.log_level = *level;
  } else if (const char* seed = set_value("UCCL_P2P_LOG_LEVEL")) {
    const std::optional<Level> level = parse_level(seed);
    options.log_level = level.value_or(Level::warning);
    if (!level)
      options.warning =
          bad("UCCL_P2P_LOG_LEVEL", seed, "set DEBUG, INFO, WARNING or ERROR; it counts as WARNING")
              .what();
  }
  // hardware_concurrency() is 0 where it is not known.
  std::uint64_t threads = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  if (Status s = read_number("LINKSPAN_CPU_THREADS", 1, kMaxCpuThreads, threads); !s.ok()) return s;
  options.cpu_threads = static_cast<unsigned>(threads);
  if (set_value("LINKSPAN_COPY_CTAS") != nullptr) {
    std::uint64_t ctas = 0;
    if (Status s = read_number("LINKSPAN_COPY_CTAS", 0, kMaxCtas, ctas); !s.ok()) return s;
    options.copy_ctas = static_cast<unsigned>(ctas);
  }
  std::uint64_t relay_gpus = options.relay_gpus;
  if (Status s = read_number("LINKSPAN_RELAY_GPUS", 0, kMaxRelayGpus, relay_gpus); !s.ok())
    return s;
  options.relay_gpus = static_cast<unsigned>(relay_gpus);
  if (Status s = read_flag("LINKSPAN_CALIBRATE", options.calibrate); !s.ok()) return s;
  if (Status s = read_flag("LINKSPAN_NVTX", options.nvtx); !s.ok()) return s;
  if (Status s = read_security(options); !s.ok()) return s;
  if (Status s = refuse_former("LINKSPAN_TLS", "encrypted in its place"); !s.ok()) return s;
  if (Status s = refuse_former("LINKSPAN_INSECURE",
                               "insecure in its place, or authenticated with a secret");
      !s.ok())
    return s;
  if (const char* set = set_value("LINKSPAN_SECRET")) {
    options.secret = set;
    options.secret_from = "LINKSPAN_SECRET";
  }
  if (const char* set = set_value("LINKSPAN_SECRET_FILE")) {
    options.secret_file = set;
    options.secret_from = "LINKSPAN_SECRET_FILE";
  }
  std::uint64_t staging = options.staging >> 20;
  if (Status s = read_number("LINKSPAN_STAGING_MIB", 1, kMaxStagingMib, staging); !s.ok()) return s;
  options.staging = staging << 20;
  if (Status s = read_duration("LINKSPAN_TRANSFER_DEADLINE_MS", options.transfer_deadline); !s.ok())
    return s;
  if (Status s = read_duration("LINKSPAN_CONNECT_DEADLINE_MS", options.connect_deadline); !s.ok())
    return s;
  return options;
}

Status Options::resolve_security() {
  const bool has_secret = !secret.empty() || !secret_file.empty();
  if (!security) security = has_secret ? Security::authenticated : Security::loopback_only;
  if (has_secret == (*security >= Security::authenticated)) return {};
  const Setting set{security_from, std::string(name_of(*security))};
  if (has_secret)
    return set.refused("contradicts the secret of " + secret_from +
                       ": set authenticated or encrypted, or remove the secret");
  return set.refused(
      "needs a secret, and there is none: give both sides the same by LINKSPAN_SECRET_FILE, "
      "EngineOptions::secret_file or EngineOptions::secret");
}

std::string setting_of_socket_dir(const std::string& folder) {
  const auto names = [&folder](const char* variable, const char* below) {
    const char* const set = set_value(variable);
    return set != nullptr && folder == std::string(set) + below
               ? std::string(variable) + "=\"" + set + "\""
               : std::string();
  };
  if (auto ours = names("LINKSPAN_SOCKET_DIR", ""); !ours.empty()) return ours;
  return names("XDG_RUNTIME_DIR", "/linkspan");
}

Status check_secret(std::string_view secret, const std::string& from, Scope scope) {
  if (secret.size() >= kMinSecret && secret.size() <= kMaxSecret) return {};
  return {Code::invalid_argument, scope,
          from + " has " + (secret.size() > kMaxSecret ? "more than " : "") +
              std::to_string(std::min(secret.size(), kMaxSecret)) +
              " bytes: make one of 16 to 4096 by `head -c 32 /dev/urandom | base64`"};
}

Result<std::string> read_secret(const Options& options) {
  std::string secret = options.secret, where = options.secret_from;
  if (!options.secret_file.empty()) {
    where = "secret file " + options.secret_file;
    const auto file = Fd::from(where.c_str(), ::open(options.secret_file.c_str(),
                                                     O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!file.ok() && errno == ENOENT)
      return Status(Code::not_found, Scope::process, where + " is not there");
    if (!file.ok()) return file.status();
    struct stat facts {};
    if (::fstat(file->get(), &facts) != 0) return Fd::from(where.c_str(), -1).status();
    if (!S_ISREG(facts.st_mode))
      return Status(Code::invalid_argument, Scope::process,
                    where + " is no regular file: write the secret into one");
    if (facts.st_uid != ::geteuid())
      return Status(Code::permission_denied, Scope::process,
                    where + " belongs to uid " + std::to_string(facts.st_uid) +
                        ", who may change it: chown " + std::to_string(::geteuid()) + " " +
                        options.secret_file + ", or copy it");
    if ((facts.st_mode & 077) != 0)
      return Status(Code::permission_denied, Scope::process,
                    where + " may be read by others: chmod 600 " + options.secret_file);
    secret.resize(kMaxSecret + 2);  // and a line end
    const ssize_t got = ::pread(file->get(), secret.data(), secret.size(), 0);
    if (got < 0) return Fd::from(where.c_str(), -1).status();
    secret.resize(static_cast<std::size_t>(got));
    while (secret.ends_with('\n') || secret.ends_with('\r')) secret.pop_back();
  } else if (secret.empty()) {
    return secret;
  }
  if (Status status = check_secret(secret, where, Scope::process); !status.ok()) return status;
  return secret;
}

}  // namespace linkspan::base
