// transport/nccl_net/plugin.hpp - finds, loads and initialises a network plugin of NCCL's.
//
// A plugin is its vendor's code in this process: it may set environment variables, start threads or
// end the process (docs/tcpx.md). It is initialised once for all Engines, and its library stays
// loaded. From version 11 on its context ends with its last user; older versions have no end.
// Threads: any thread; a Plugin is immutable after load().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "linkspan/status.hpp"
#include "transport/nccl_net/net.hpp"

namespace linkspan::transport::nccl_net {

/// Lists where TCPX is searched, in order.
inline constexpr const char* kTcpxPlaces[] = {"/usr/local/tcpx/lib64/libnccl-net-tcpx.so",
                                              "/usr/local/tcpx/lib64/libnccl-net.so"};

/// Returns the files that a list such as NCCL_NET_PLUGIN's names: names, paths and suffixes
/// separated by commas; x is also libnccl-net-x.so. Each is passed to dlopen(). "none" alone names
/// none.
std::vector<std::string> files_of(const std::string& list);

/// Describes a library that can be loaded; it is not initialised.
struct Found {
  std::string file;
  int version = 0;  ///< Version of its newest table.
};
/// Finds the library that load() would use. Errors as Plugin::load(). Runs the library's
/// constructors, as dlopen() does.
Result<Found> find_plugin(const std::vector<std::string>& files);

class Plugin {
 public:
  /// Loads the first of `files` that has a table of a known version, and uses the newest.
  /// not_found: no file loads; the text has the reason for each. unsupported: a file loads and has
  /// no known table. Other errors: its init() failed. `log` gets the plugin's lines and versions.
  /// It is copied for the process, because the ABI's logger has no context argument, and replaces
  /// the one of an earlier call.
  static Result<std::shared_ptr<Plugin>> load(const std::vector<std::string>& files,
                                              const base::Log& log);
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;
  ~Plugin();

  const std::string& file() const noexcept { return file_; }
  int version() const noexcept { return net_->version(); }
  std::string name() const { return net_->name(); }
  const std::vector<Properties>& devices() const noexcept { return devices_; }
  Net& net() const noexcept { return *net_; }

  /// Returns how many requests a comm of that device takes at once.
  int max_requests(int device) const noexcept;

  /// Converts `result` of the plugin's function `function` to a Status.
  Status status(int result, const char* function, Where at = {}) const;

 private:
  Plugin(std::string file, std::unique_ptr<Net> net)
      : file_(std::move(file)), net_(std::move(net)) {}
  Status start();

  const std::string file_;
  const std::unique_ptr<Net> net_;
  std::vector<Properties> devices_;
  bool started_ = false;
};

/// Returns a text such as "Ethernet v8".
std::string name_of(const Plugin& plugin);

/// Returns a name such as "ncclSystemError", or the number if there is none.
std::string name_of_result(int result);

}  // namespace linkspan::transport::nccl_net
