// tests/support/graph_entries.hpp - entries of the driver that only tests call: capturing a CUDA
// graph, as PyTorch does beside us.
//
// The library begins no capture, so these are no part of its table (cuda/driver_abi.hpp).
// tests/abi/driver_abi_check.cpp holds them against cuda.h too.
// Threads: any thread.
#pragma once

#include "tests/support/driver_entries.hpp"

namespace linkspan::cuda {
struct OpaqueGraphExec;
using CUgraphExec = OpaqueGraphExec*;
inline constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_UNJOINED{904};
inline constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD{908};
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

  /// Finds the entries. The members are null if the driver has none.
  static GraphEntries find() {
    GraphEntries found;
#define LINKSPAN_ASK(name, version, parameters) \
  found.name = reinterpret_cast<decltype(found.name)>(driver_entry(#name, version));
    LINKSPAN_GRAPH_ENTRIES(LINKSPAN_ASK)
#undef LINKSPAN_ASK
    return found;
  }
  explicit operator bool() const noexcept { return cuGraphDestroy != nullptr; }
};

}  // namespace linkspan::cuda
