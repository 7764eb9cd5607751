// bench/bare/graph_entries.hpp - entries of the driver that capture and launch a CUDA graph, as
// PyTorch does beside us. Bare code and tests call them.
//
// The library begins no capture, so these are no part of its table (cuda/driver_abi.hpp).
// tests/abi/driver_abi_check.cpp holds them against cuda.h too.
// Threads: any thread.
#pragma once

#include "cuda/driver_abi.hpp"

namespace linkspan::cuda {
struct OpaqueGraphExec;
using CUgraphExec = OpaqueGraphExec*;
}  // namespace linkspan::cuda

// X(name, version, parameters), as in cuda/driver_abi.hpp.
#define LINKSPAN_GRAPH_ENTRIES(X)                                             \
  X(cuStreamBeginCapture, 10010, (CUstream stream, CUstreamCaptureMode mode)) \
  X(cuStreamEndCapture, 10000, (CUstream stream, CUgraph * graph))            \
  X(cuGraphInstantiateWithFlags, 11040,                                       \
    (CUgraphExec * executable, CUgraph graph, unsigned long long flags))      \
  X(cuGraphLaunch, 10000, (CUgraphExec executable, CUstream stream))          \
  X(cuGraphExecDestroy, 10000, (CUgraphExec executable))                      \
  X(cuGraphDestroy, 10000, (CUgraph graph))

namespace linkspan::cuda {

struct GraphEntries {
#define LINKSPAN_MEMBER(name, version, parameters) CUresult(*name) parameters = nullptr;
  LINKSPAN_GRAPH_ENTRIES(LINKSPAN_MEMBER)
#undef LINKSPAN_MEMBER

  /// Finds each by `entry(name, version)`. The members are null if the driver has none.
  template <class Entry>
  static GraphEntries find(const Entry& entry) {
    GraphEntries found;
#define LINKSPAN_ASK(name, version, parameters) \
  found.name = reinterpret_cast<decltype(found.name)>(entry(#name, version));
    LINKSPAN_GRAPH_ENTRIES(LINKSPAN_ASK)
#undef LINKSPAN_ASK
    return found;
  }
  explicit operator bool() const noexcept { return cuGraphDestroy != nullptr; }
};

}  // namespace linkspan::cuda
