// memory/validate_allocation.hpp - checks that registered memory still exists: its user may have
// freed it without deregistering.
//
// Called where memory is exported to a peer or is about to be accessed for one, never for each
// copy. A free after the check is not seen. Off the path of a byte.
// Threads: any thread.
// Invariants: the functions have no state.
#pragma once

#include <cstdint>

#include "cuda/topology.hpp"
#include "linkspan/status.hpp"

namespace linkspan::memory {

/// Returns whether all pages of a range of host memory are mapped. Costs one system call for any
/// size. Cannot distinguish memory that was mapped again at the same address.
bool is_mapped(std::uint64_t address, std::uint64_t bytes) noexcept;

/// Returns the error that a peer gets for memory that was freed.
Status freed_early();

/// Checks an allocation or a chunk of GPU memory by CUDA's buffer id at its registration. Returns
/// OK or freed_early(). Costs a driver call.
Status validate_allocation(const cuda::Topology& topology, std::uint64_t address,
                           std::uint64_t buffer);

}  // namespace linkspan::memory
