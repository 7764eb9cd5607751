// tests/support/fake_cuda/host_code.hpp - how a test runs its own kernels, compiled for the host,
// on the simulated driver's streams: each module has a function of this name.
#pragma once

#include <cstdint>

namespace linkspan::cuda::fake {

inline constexpr const char* kHostCode = "linkspan_test_host_code";

/// Returns where this CPU finds what a kernel of `device` finds at `address`; null if a kernel
/// would fault.
using Reach = void* (*)(const void* device, std::uint64_t address);

/// Parameters of the function: one of these, and its `argument`. Runs in the stream's thread.
using HostCode = void (*)(Reach reach, const void* device, void* argument);

}  // namespace linkspan::cuda::fake
