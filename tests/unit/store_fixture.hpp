// tests/unit/store_fixture.hpp - what the tests of stores have in common: ports, and short words.
//
// Threads: any thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/process.hpp"
#include "linkspan/store.hpp"
#include "net/tcp_socket.hpp"

namespace linkspan::test {

using namespace std::chrono_literals;  // NOLINT(google-global-names-in-headers)

/// Returns a port of 127.0.0.1 at which nobody listens. It is below 32768, because the kernel gives
/// higher ports to any process that asks, perhaps before the test binds this one.
inline std::uint16_t free_port() {
  const auto loopback = net::resolve("127.0.0.1", 0)->front();
  for (int i = 0; i < 100; ++i) {
    const auto port = static_cast<std::uint16_t>(20000 + base::random_u64() % 12768);
    if (net::listen_at(loopback.with_port(port)).ok()) return port;
  }
  ADD_FAILURE() << "127.0.0.1 has no free port from 20000 to 32767";
  return 0;
}

inline TcpStoreOptions at_port(std::uint16_t port, StoreRole role = StoreRole::connect) {
  TcpStoreOptions options;
  options.port = port;
  options.role = role;
  options.timeout = 20s;
  return options;
}

inline std::uint16_t port_of(const Store& store) {
  const std::string address = store.address();
  return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

inline std::unique_ptr<Store> open(const TcpStoreOptions& options) {
  auto store = open_tcp_store(options);
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  return store.ok() ? *std::move(store) : nullptr;
}

inline Code code_of(const Status& status) { return status.code(); }
template <class T>
Code code_of(const Result<T>& result) {
  return result.status().code();
}

}  // namespace linkspan::test
