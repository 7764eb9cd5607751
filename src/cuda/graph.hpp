// cuda/graph.hpp - puts kernels and owned data into a CUDA graph that the user captures.
//
// Off the path of a byte: at capture only. A graph may be cloned, made executable any number of
// times and launched at any time without a call of this library; so what its kernels refer to
// belongs to the graph.
// Threads: any thread.
#pragma once

#include "cuda/device_scope.hpp"

namespace linkspan::cuda {

/// Returns the graph that `stream` captures into; null while it captures none. Takes any stream of
/// the scope's context.
Result<CUgraph> captured_graph(const DeviceScope& scope, CUstream stream);

/// Lets `graph` own `data`: the driver calls `destroy(data)` once the graph, its clones and
/// executables are destroyed and no launch of them runs (fact:
/// Capture.AUserObjectEndsAfterTheLastExecutableAndItsLaunches). It calls on a thread of its own,
/// which may make no call of the driver nor block. On error `destroy` is called too.
Status give_to_graph(const DeviceScope& scope, CUgraph graph, void* data, CUhostFn destroy);

/// Launches a kernel in a user's stream, which captures it as a node, or runs it. `parameters` are
/// read during the call.
Status launch_in(const DeviceScope& scope, CUstream stream, CUfunction function, unsigned ctas,
                 unsigned threads, void** parameters);

}  // namespace linkspan::cuda
