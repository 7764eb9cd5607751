// tests/conformance/wire_pair.hpp - an Engine here and one there that reach each other by a wire:
// TCP, or beside what else they have the test plugin or simulated network cards.
//
// Threads: externally synchronised.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/fake_cuda/controls.hpp"

namespace linkspan::test {

/// Numbers of wires: TCP, RDMA, or a version of the plugin. 7 has the device type UNPACK, 12 is the
/// newest. kStaged takes host memory only, so GPU memory is staged.
inline constexpr int kTcp = 0, kStaged = 13, kVerbs = 14;
inline constexpr int kPluginVersions[] = {7, 12}, kWires[] = {kTcp, 7, 12, kStaged, kVerbs};
/// Returns its transport.
inline const char* path_of(int wire) {
  return wire == kTcp ? "tcp" : wire == kVerbs ? "verbs" : "nccl_net";
}
/// Returns a wire that a WirePair of this one lacks.
inline int other_than(int wire) { return wire == kTcp || wire == kVerbs ? 12 : kTcp; }
inline std::string name_of_wire(int wire) {
  if (wire == kVerbs) return "verbs";
  if (wire == kStaged) return "staged";
  return wire == kTcp ? "tcp" : "v" + std::to_string(wire);
}

inline std::string plugin_file(const std::string& suffix) {
  return file_beside_this_program("libnccl-net-linkspan-test" + suffix + ".so");
}
inline std::string plugin_of(int version) {
  if (version == kStaged) return plugin_file("-host");
  return plugin_file(version == 7 ? "" : "-v" + std::to_string(version));
}

inline TransferOptions by_wire(int wire, Duration deadline = {}) {
  TransferOptions options;
  options.deadline = deadline;
  options.require = path_of(wire);
  return options;
}

/// Returns why memory of these kinds is not moved by the wire here: a kind is missing, or simulated
/// network cards do not reach the GPU, as they reach none but simulated ones.
inline Status kinds_by(int wire, std::initializer_list<Kind> kinds) {
  if (Status status = kinds_here(kinds); !status.ok()) return status;
  const bool gpu =
      std::ranges::any_of(kinds, [](const Kind& k) { return k.kind == MemoryKind::device; });
  if (wire != kVerbs || !gpu || FakeCuda::find()) return {};
  return {Code::unsupported, Scope::process, "needs the simulated driver"};
}

/// Returns the library of simulated network cards, or the one that LINKSPAN_VERBS_LIBRARY names
/// (tests/rdma_vm).
inline std::string verbs_library() {
  const char* const set = std::getenv("LINKSPAN_VERBS_LIBRARY");
  return set != nullptr ? set : file_beside_this_program("libfake_verbs.so");
}

inline EngineOptions wire_options(int wire, std::string name = "near") {
  EngineOptions options = engine_options(std::move(name));
  if (wire == kVerbs) {
    ::setenv("LINKSPAN_VERBS_LIBRARY", verbs_library().c_str(), 1);
    options.transport["verbs.devices"] = "auto";
  } else if (wire != kTcp) {
    options.transport["nccl_net.plugin"] = plugin_of(wire);
  }
  return options;
}

/// Returns the address where the near end listens for far ones over the wire.
inline std::string listen_at(int wire) {
  return wire == kTcp || wire == kVerbs ? "tcp:127.0.0.1:0" : "";
}

/// Returns the environment of a far end with the wire. A plugin gets `settings` of plugin.hpp, such
/// as "FAIL=isend:1:3"; simulated network cards get DELAY_US.
inline std::vector<std::string> with_wire(int wire, const std::vector<std::string>& settings = {}) {
  if (wire == kTcp) return {kListenAt + listen_at(kTcp), "LINKSPAN_TCP_STREAMS=3"};
  if (wire == kVerbs) {
    std::vector<std::string> environment{kListenAt + listen_at(wire), "LINKSPAN_VERBS_DEVICES=auto",
                                         "LINKSPAN_VERBS_LIBRARY=" + verbs_library()};
    for (const std::string& each : settings)
      if (each.starts_with("DELAY_US="))
        environment.push_back("FAKE_VERBS_LATE_US=" + each.substr(each.find('=') + 1));
    return environment;
  }
  std::vector<std::string> environment{"LINKSPAN_NCCL_NET_PLUGIN=" + plugin_of(wire)};
  for (const std::string& each : settings) environment.push_back("LINKSPAN_TEST_PLUGIN_" + each);
  return environment;
}

/// Does the same for comms that this process makes from now on. No thread may make one meanwhile,
/// and children must exist already.
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

struct WirePair : Pair {
  explicit WirePair(int wire, const std::vector<std::string>& settings_of_far = {})
      : Pair(with_wire(wire, settings_of_far), kEngineHelper, wire_options(wire)) {}
};

inline Result<Transfer> move(const Peer& peer, Op op, const Region& here, const RemoteRegion& there,
                             const Block& block, const TransferOptions& options) {
  const auto one = std::span(&block, 1);
  return op == Op::write ? peer.write(here, there, one, options)
                         : peer.read(here, there, one, options);
}

}  // namespace linkspan::test
