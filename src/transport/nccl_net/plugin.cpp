#include "transport/nccl_net/plugin.hpp"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "base/mutex.hpp"

namespace linkspan::transport::nccl_net {
namespace {

constexpr int kUnpackRequests = 16;
constexpr std::size_t kUnpackBytes = std::size_t{4} << 20;
constexpr int kMaxDevices = 1024;

/// Holds the process's plugins and their log.
struct Loaded {
  base::Mutex mutex;
  std::map<void*, std::weak_ptr<Plugin>> plugins LINKSPAN_GUARDED_BY(mutex);  // by their libraries
  std::vector<std::shared_ptr<Plugin>> endless
      LINKSPAN_GUARDED_BY(mutex);  // versions without an end; shared with their users
  base::Mutex log_mutex;
  std::optional<base::Log> log LINKSPAN_GUARDED_BY(log_mutex);
};
Loaded& loaded() {
  static auto* const all = new Loaded;  // leaked: plugins' threads may log until the process ends
  return *all;
}

base::Level level_of(int level) {
  switch (level) {
    case abi::kWarn:
    case abi::kAbort:
      return base::Level::warning;
    case abi::kVersion:
    case abi::kInfo:
      return base::Level::info;
    default:
      return base::Level::debug;
  }
}

/// Logs a plugin's line: warnings at that level, the rest as info or debug.
void log_of_plugin(int level, unsigned long, const char* file, int line, const char* format, ...) {
  const std::optional<base::Log> log = [] {
    const base::MutexLock lock(loaded().log_mutex);
    return loaded().log;
  }();
  if (format == nullptr || !log || !log->enabled(level_of(level))) return;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (length < 0) return;
  log->write(level_of(level), "nccl net plugin: " + std::string(text) + " (" +
                                  (file == nullptr ? "" : file) + ":" + std::to_string(line) + ")");
}

struct Opened {
  std::string file;
  void* library = nullptr;  // a reference that the caller owns
  std::unique_ptr<Net> net{};
};

/// Opens the first usable file. Errors as Plugin::load().
Result<Opened> open_first(const std::vector<std::string>& files) {
  if (files.empty())
    return Status(Code::not_found, Scope::process, "no network plugin is asked for");
  std::string reasons;
  for (const std::string& file : files) {
    Opened opened{.file = file, .library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)};
    if (opened.library == nullptr) {
      const char* const why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): as in cuda/library.cpp
      reasons += "\n  " + (why == nullptr ? file : std::string(why));
      continue;
    }
    for (int version = abi::kNewest; version >= abi::kOldest && opened.net == nullptr; --version)
      opened.net = make_net(
          version, ::dlsym(opened.library, ("ncclNetPlugin_v" + std::to_string(version)).c_str()));
    if (opened.net != nullptr) return opened;
    ::dlclose(opened.library);
    return Status(Code::unsupported, Scope::process,
                  file + " has no whole ncclNetPlugin_v" + std::to_string(abi::kOldest) + " to _v" +
                      std::to_string(abi::kNewest) +
                      ": it is no network plugin of NCCL's, or of a version that linkspan does "
                      "not know");
  }
  return Status(Code::not_found, Scope::process,
                "no network plugin could be loaded; name one by --plugin, LINKSPAN_NCCL_NET_PLUGIN "
                "or NCCL_NET_PLUGIN:" +
                    reasons);
}

}  // namespace

std::string name_of(const Plugin& plugin) {
  return plugin.name() + " v" + std::to_string(plugin.version());
}

std::string name_of_result(int result) {
  constexpr const char* kNames[] = {
      "ncclSuccess",         "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
      "ncclInvalidArgument", "ncclInvalidUsage",       "ncclRemoteError", "ncclInProgress"};
  if (result >= 0 && result < static_cast<int>(std::size(kNames))) return kNames[result];
  return "result " + std::to_string(result);
}

std::vector<std::string> files_of(const std::string& list) {
  std::vector<std::string> files;
  if (list == "none") return files;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    if (const std::string name = list.substr(at, end - at); !name.empty()) {
      files.push_back(name);
      if (name.find('/') == std::string::npos) files.push_back("libnccl-net-" + name + ".so");
    }
    at = end + 1;
  }
  return files;
}

Result<Found> find_plugin(const std::vector<std::string>& files) {
  auto opened = open_first(files);
  if (!opened.ok()) return opened.status();
  Found found{opened->file, opened->net->version()};
  ::dlclose(opened->library);
  return found;
}

Result<std::shared_ptr<Plugin>> Plugin::load(const std::vector<std::string>& files,
                                             const base::Log& log) {
  Loaded& all = loaded();
  const base::MutexLock lock(all.mutex);
  auto opened = open_first(files);
  if (!opened.ok()) return opened.status();
  {
    const base::MutexLock with_log(all.log_mutex);
    all.log = log;  // an earlier one may be of an Engine that has ended
  }
  // A plugin in use has its own reference, which is never returned.
  if (auto known = all.plugins[opened->library].lock()) {
    ::dlclose(opened->library);
    return known;
  }
  std::shared_ptr<Plugin> plugin(new Plugin(opened->file, std::move(opened->net)));
  if (Status status = plugin->start(); !status.ok()) return status;
  if (log.enabled(base::Level::info))
    log.write(base::Level::info, "nccl net plugin " + plugin->file() + ": " + plugin->name() +
                                     ", v" + std::to_string(plugin->version()) + ", " +
                                     std::to_string(plugin->devices_.size()) + " devices");
  all.plugins[opened->library] = plugin;
  if (plugin->version() < 11) all.endless.push_back(plugin);
  return plugin;
}

Plugin::~Plugin() {
  if (started_) (void)net_->finalize();
}

Status Plugin::start() {
  if (Status s = status(net_->init(log_of_plugin), "init"); !s.ok()) return s;
  started_ = true;
  int count = 0;
  if (Status s = status(net_->devices(count), "devices"); !s.ok()) return s;
  if (count < 0 || count > kMaxDevices)
    return {Code::corrupt, Scope::transport,
            file_ + " says that it has " + std::to_string(count) + " devices"};
  for (int i = 0; i < count; ++i) {
    Properties properties;
    if (Status s = status(net_->properties(i, properties), "getProperties"); !s.ok()) return s;
    if (properties.device_type == abi::kDeviceUnpack)
      properties.max_bytes = std::min(properties.max_bytes, kUnpackBytes);
    devices_.push_back(std::move(properties));
  }
  return {};
}

int Plugin::max_requests(int device) const noexcept {
  const bool unpacks = devices_[static_cast<std::size_t>(device)].device_type == abi::kDeviceUnpack;
  return unpacks ? std::min(kUnpackRequests, net_->max_requests()) : net_->max_requests();
}

Status Plugin::status(int result, const char* function, Where at) const {
  if (result == abi::kSuccess) return {};
  Code code = Code::internal;
  switch (result) {
    case abi::kUnhandledCuda:
      code = Code::cuda;
      break;
    case abi::kSystem:
      code = Code::system;
      break;
    case abi::kInvalidArgument:
    case abi::kInvalidUsage:
      code = Code::invalid_argument;
      break;
    case abi::kRemote:
      code = Code::disconnected;
      break;
    default:  // ncclInProgress too: network plugins do not return it
      break;
  }
  return {code, Scope::transport,
          name() + " (v" + std::to_string(version()) + "): " + function + " answered " +
              name_of_result(result) + " (" + std::to_string(result) + ")",
          at};
}

}  // namespace linkspan::transport::nccl_net
