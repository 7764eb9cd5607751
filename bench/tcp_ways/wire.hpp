// bench/tcp_ways/wire.hpp - what the connections of bench_tcp_ways go over: loopback, or two
// network namespaces that a veth pair joins.
//
// Threads: any thread.
// Invariants: the namespaces end with the last socket that was made in them, and the Wire.
#pragma once

#include "base/fd.hpp"

namespace linkspan::bench {

/// Blocking sockets, whose calls end after kLimit.
struct Pair {
  base::Fd from, to;
};

class Wire {
 public:
  static Wire loopback() { return {}; }
  /// unsupported: this process may make no network namespaces, or the kernel no veth.
  static Result<Wire> veth();

  Result<Pair> connect() const;

 private:
  Wire() = default;
  const char* address_ = "127.0.0.1";
  base::Fd near_, far_;  // none: where this process is
};

}  // namespace linkspan::bench
