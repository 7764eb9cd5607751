// memory/validate_allocation.hpp - whether registered memory is what it was: its user may have
// freed it without a word.
//
// Asked where memory is handed to a peer, or is about to be touched for one; never for each copy.
// What is freed after the answer is not seen.
// Threads: any thread.
#pragma once

#include <cstdint>

#include "cuda/topology.hpp"
#include "linkspan/status.hpp"

namespace linkspan::memory {

/// Whether all pages of the range are mapped, for host memory. Costs a system call, however many
/// bytes; memory that was mapped anew at the address cannot be told from the old.
bool is_mapped(std::uint64_t address, std::uint64_t bytes) noexcept;

/// What a peer hears of memory that has gone.
Status freed_early();

/// Of an allocation or a chunk of GPU memory, by CUDA's buffer id when it was registered. OK, or
/// freed_early(). Costs a call of the driver.
Status validate_allocation(const cuda::Topology& topology, std::uint64_t address,
                           std::uint64_t buffer);

}  // namespace linkspan::memory
