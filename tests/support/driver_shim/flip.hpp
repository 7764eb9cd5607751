// tests/support/driver_shim/flip.hpp - makes copies between device memories wrong by one byte.
//
// For tests of verifiers. If LINKSPAN_SHIM_FLIP is set, it flips one bit of the first byte after
// such a copy, by the driver's own calls in the same stream.
// Threads: any thread.
#pragma once

#include "cuda/driver_abi.hpp"

namespace linkspan::cuda {

/// Returns `function`, or its replacement: the entry `symbol` as `look_up` found it.
void* flipping(GetProcAddress look_up, const char* symbol, void* function);

}  // namespace linkspan::cuda
