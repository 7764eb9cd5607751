// tests/hosts/hosts.hpp - an Engine on the near host, one in a process on the far host at the other
// end of a cable, and a third in a process on the near host, which does not use the cable.
//
// Threads: externally synchronised.
#pragma once

#include <stdlib.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/network.hpp"

namespace linkspan::test {

/// Returns the security of the Engines here, which go beyond loopback: by a secret of the
/// environment if there is one.
inline Security security() {
  return ::getenv("LINKSPAN_SECRET") != nullptr ? Security::authenticated : Security::insecure;
}

/// Starts an Engine there. `address` is where an earlier one listened.
inline FarEngine engine_at(const Network& network, Host host,
                           std::vector<std::string> environment = {},
                           const std::string& address = "") {
  environment.push_back(kListenAt + (address.empty() ? Network::listen_at(host) : address));
  environment.push_back("LINKSPAN_SECURITY=" + std::string(name_of(security())));
  return network.at(host, [&] { return FarEngine(environment); });
}

struct Hosts {
  explicit Hosts(std::unique_ptr<Network> joined, EngineOptions options = engine_options("near"),
                 const std::vector<std::string>& far_environment = {})
      : network(std::move(joined)),
        far(engine_at(*network, Host::far, far_environment)),
        third(engine_at(*network, Host::near)),
        engine(network->at(Host::near, [&options] {
          options.security = security();
          return take(Engine::open(options));
        })) {}

  Peer connect(const std::string& address) {
    return network->at(Host::near, [&] { return take(engine.connect(address)); });
  }

  std::unique_ptr<Network> network;
  FarEngine far, third;
  Engine engine;
};

/// Three streams to a peer. Memory outlives the Engine that it is registered with: tests put what
/// they hold here first.
class OnHosts : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("LINKSPAN_TCP_STREAMS", "3", 1); }  // of all ends
  static void TearDownTestSuite() { ::unsetenv("LINKSPAN_TCP_STREAMS"); }
  /// Skips where there are no network namespaces.
  void join(Cable cable, EngineOptions options = engine_options("near")) {
    auto made = Network::create(cable);
    if (made.status().code() == Code::unsupported) GTEST_SKIP() << made.status().to_string();
    hosts_ = std::make_unique<Hosts>(take(std::move(made)), std::move(options));
  }
  void TearDown() override { hosts_.reset(); }
  Network& network() { return *hosts_->network; }
  FarEngine& far() { return hosts_->far; }
  FarEngine& third() { return hosts_->third; }
  Engine& engine() { return hosts_->engine; }

  std::vector<Held> held_;
  std::unique_ptr<Hosts> hosts_;
};

}  // namespace linkspan::test
