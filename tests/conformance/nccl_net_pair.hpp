// tests/conformance/nccl_net_pair.hpp - an Engine here and one there that reach each other by the
// test plugin as well.
//
// Threads: externally synchronised.
#pragma once

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {

/// Of the device type UNPACK, and the newest.
inline constexpr int kPluginVersions[] = {7, 12};

inline std::string plugin_file(const std::string& suffix) {
  return file_beside_this_program("libnccl-net-linkspan-test" + suffix + ".so");
}
inline std::string plugin_of(int version) {
  return plugin_file(version == 7 ? "" : "-v" + std::to_string(version));
}

inline TransferOptions by_plugin(Duration deadline = {}) {
  TransferOptions options;
  options.deadline = deadline;
  options.require = "nccl_net";
  return options;
}

inline EngineOptions plugin_options(int version, std::string name = "near") {
  EngineOptions options = engine_options(std::move(name));
  options.nccl_net_plugin = plugin_of(version);
  return options;
}

/// For a far end: it has the plugin, and `settings` of plugin.hpp, such as "FAIL=isend:1:3".
inline std::vector<std::string> with_plugin(int version,
                                            const std::vector<std::string>& settings = {}) {
  std::vector<std::string> environment{"LINKSPAN_NCCL_NET_PLUGIN=" + plugin_of(version)};
  for (const std::string& each : settings) environment.push_back("LINKSPAN_TEST_PLUGIN_" + each);
  return environment;
}

/// The same for comms that this process makes from now on. Nobody makes one meanwhile, and children
/// are there already.
class PluginSettings {
 public:
  PluginSettings() = default;
  PluginSettings(const PluginSettings&) = delete;
  PluginSettings& operator=(const PluginSettings&) = delete;
  ~PluginSettings() { clear(); }
  void set(const std::string& setting) {
    const std::size_t end = setting.find('=');
    names_.push_back("LINKSPAN_TEST_PLUGIN_" + setting.substr(0, end));
    ::setenv(names_.back().c_str(), setting.substr(end + 1).c_str(), 1);
  }
  void clear() {
    for (const std::string& each : names_) ::unsetenv(each.c_str());
    names_.clear();
  }

 private:
  std::vector<std::string> names_;
};

struct PluginPair {
  explicit PluginPair(int version, const std::vector<std::string>& settings_of_far = {})
      : far(with_plugin(version, settings_of_far)),
        engine(take(Engine::open(plugin_options(version)))),
        peer(take(engine.connect(far.address()))) {}

  RemoteRegion remote(const std::string& name) { return take(peer.lookup(name)); }

  FarEngine far;
  Engine engine;
  Peer peer;
};

inline Result<Transfer> move(const Peer& peer, Op op, const Region& here, const RemoteRegion& there,
                             const Block& block, const TransferOptions& options = by_plugin()) {
  const auto one = std::span(&block, 1);
  return op == Op::write ? peer.write(here, there, one, options)
                         : peer.read(here, there, one, options);
}

}  // namespace linkspan::test
