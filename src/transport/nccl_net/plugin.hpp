// transport/nccl_net/plugin.hpp - a network plugin of NCCL's, found, loaded and initialised.
//
// A plugin is code of its vendor in this process: it may set environment variables, start threads
// or end the process (docs/tcpx.md). It is initialised once, however many Engines use it, and its
// library stays. From version 11 on its context ends with its last user; older ones have no end.
// Threads: any thread; a Plugin is immutable after load().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "linkspan/status.hpp"
#include "transport/nccl_net/net.hpp"

namespace linkspan::transport::nccl_net {

/// Where TCPX is, in the order in which it is looked for.
inline constexpr const char* kTcpxPlaces[] = {"/usr/local/tcpx/lib64/libnccl-net-tcpx.so",
                                              "/usr/local/tcpx/lib64/libnccl-net.so"};

/// What a list such as NCCL_NET_PLUGIN's means: names, paths and suffixes, by comma; x is also
/// libnccl-net-x.so. Each is tried as dlopen() takes it. "none" alone means none.
std::vector<std::string> files_of(const std::string& list);

/// A library that can be loaded, not initialised: what a look may cost.
struct Found {
  std::string file;
  int version = 0;  ///< Of its newest table.
};
/// Errors as Plugin::load(). Runs the library's constructors, as dlopen() does.
Result<Found> find_plugin(const std::vector<std::string>& files);

class Plugin {
 public:
  /// The first of `files` that loads and has a table of a version that is known, the newest of its
  /// tables. not_found: none loads; the text has each file with its reason. unsupported: one loads
  /// and has no table that is known. Any other: its init() failed.
  /// `log`: the plugin's own lines, and the versions. Copied: it is the process's from then on, as
  /// the ABI's logger has no argument for us; the first that loads a plugin decides.
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

  /// Requests that a comm of that device takes at once.
  int max_requests(int device) const noexcept;

  /// `result` of the plugin's function of that name as a Status; success is ok.
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

/// "Ethernet v8".
std::string name_of(const Plugin& plugin);

/// "ncclSystemError" and so on; the number, where it has no name.
std::string name_of_result(int result);

}  // namespace linkspan::transport::nccl_net
