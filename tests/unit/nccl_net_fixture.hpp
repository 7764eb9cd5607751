// tests/unit/nccl_net_fixture.hpp - the test plugin in its versions, and two comms of it in one
// process.
//
// The modules lie beside this program. A module is loaded once in a process, and its lines go where
// the first load said: all tests here share one list of lines.
// Threads: the list: any thread; the rest: externally synchronised.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "tests/support/pattern.hpp"
#include "tests/support/process.hpp"
#include "tests/support/take.hpp"
#include "transport/nccl_net/comm.hpp"

namespace linkspan::transport::nccl_net {

using test::must;
using test::take;

/// Collects the plugins' log lines, each with its level before it.
class Lines {
 public:
  static Lines& all() {
    static auto* const lines = new Lines;  // plugins may write until the process has ended
    return *lines;
  }
  base::Log log() {
    return {base::Level::debug, [this](base::Level level, std::string_view text) {
              const std::lock_guard lock(mutex_);
              text_ += std::string(base::name_of(level)) + " " + std::string(text) + "\n";
            }};
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    text_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

/// Returns the file of version 4 to 12; 0: the module without a table.
inline std::string plugin_file(int version) {
  const std::string suffix = version == 0   ? "-none"
                             : version == 7 ? ""
                                            : "-v" + std::to_string(version);
  return test::file_beside_this_program("libnccl-net-linkspan-test" + suffix + ".so");
}

/// Both ends of a connection. The Listener may be destroyed.
struct Pair {
  std::unique_ptr<SendComm> send;
  std::unique_ptr<ReceiveComm> receive;
};

using Bytes = std::vector<std::byte>;

/// Calls `step` until it answers true; throws when that takes too long.
inline void until(const std::function<bool()>& step) {
  const auto deadline = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(20));
  while (!step()) {
    if (deadline.passed()) throw std::runtime_error("20 s have passed. " + Lines::all().text());
    std::this_thread::yield();
  }
}

inline Bytes pattern_of(std::size_t bytes, std::uint64_t seed) {
  Bytes made(bytes);
  test::put_pattern(made, seed, 0);
  return made;
}

/// Helpers for tests of plugins with any fixture.
class PluginTools {
 public:
  PluginTools(const PluginTools&) = delete;
  PluginTools& operator=(const PluginTools&) = delete;

 protected:
  PluginTools() { Lines::all().clear(); }
  ~PluginTools() {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
  }

  /// Sets a variable for what begins from now on (tests/support/nccl_net_plugin/plugin.hpp).
  void set(const std::string& name, const std::string& value) {
    set_.push_back("LINKSPAN_TEST_PLUGIN_" + name);
    ASSERT_EQ(::setenv(set_.back().c_str(), value.c_str(), 1), 0);
  }

  static Result<std::shared_ptr<Plugin>> load(int version) {
    return Plugin::load({plugin_file(version)}, Lines::all().log());
  }
  static bool said(const std::string& text) {
    return Lines::all().text().find(text) != std::string::npos;
  }

  static Pair connect(const std::shared_ptr<Plugin>& plugin) {
    const auto listener = take(Listener::open(plugin, 0));
    return connect(*listener, plugin);
  }
  static Pair connect(Listener& listener, const std::shared_ptr<Plugin>& from) {
    const auto pending_connect = take(PendingConnect::open(from, 0, listener.handle()));
    Pair pair;
    until([&] {
      if (!pair.send) pair.send = take(pending_connect->connect());
      if (!pair.receive) pair.receive = take(listener.accept());
      return pair.send && pair.receive;
    });
    return pair;
  }

  /// Returns the oldest request of `comm` when it is done.
  static Done done(Comm& comm) {
    std::optional<Done> found;
    until([&] { return (found = take(comm.test())).has_value(); });
    return *found;
  }
  /// Returns the status with which `comm` ends.
  static Status end_of(Comm& comm) {
    Status status;
    until([&] { return !(status = comm.test().status()).ok(); });
    return status;
  }

 private:
  std::vector<std::string> set_;
};

class NcclNet : public ::testing::Test, protected PluginTools {};

/// For each version that is known.
class NcclNetVersions : public NcclNet, public ::testing::WithParamInterface<int> {
 protected:
  static std::shared_ptr<Plugin> plugin() { return take(load(GetParam())); }
};

inline std::string name_of_version(const ::testing::TestParamInfo<int>& info) {
  return "v" + std::to_string(info.param);
}

}  // namespace linkspan::transport::nccl_net
