// bench/tcp_ping.hpp - 8 bytes and a notification there and back by TCP, beside a bare socket; and
// the ends that all of bench_tcp_transfer measures between.
//
// Threads: any; ping() makes its own.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "base/fd.hpp"
#include "linkspan/engine.hpp"

namespace linkspan::bench {

using Json = nlohmann::ordered_json;

inline constexpr Duration kLimit = std::chrono::seconds(120);

struct Pair {
  base::Fd one, other;
};
/// Blocking sockets over loopback.
Result<Pair> connected_pair();

struct Ends {
  Engine near, far;
  Peer peer;  ///< The far one.
};
Result<Ends> connect();

/// Two Engines, memory of the near one, and memory of the far one as the near one reaches it.
struct Route {
  Ends ends;
  Region here, there;
  RemoteRegion remote;
};
Result<Route> connect(void* from, void* to, std::uint64_t bytes);
/// Requires TCP.
TransferOptions by_tcp();

inline constexpr const char* kPingId = "notify.8B.half_rtt.p50";
/// The row of that name.
Result<Json> ping(unsigned rounds);

}  // namespace linkspan::bench
