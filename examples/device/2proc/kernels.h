// Declares what simple_write.cpp launches; the kernels are in kernels.cu.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "linkspan/device/window.cuh"

namespace simple_write {

enum Signal : std::uint32_t { kData, kAck, kSignals };

/// Reports a kernel's end to the host.
struct Report {
  linkspan::device::Outcome outcome;
  std::uint32_t rounds;  ///< Complete ones.
};

/// A series of rounds: the initiator puts `bytes` bytes and raises kData, the target answers by
/// kAck. Both know how many rounds there were before.
struct Rounds {
  linkspan::device::Window window;
  const unsigned char* data;  ///< The initiator's source.
  std::uint64_t bytes, before;
  std::uint32_t count;
  std::uint64_t timeout_ns;  ///< Of each wait.
  std::uint64_t* took_ns;    ///< Initiator: of each round, in this GPU's memory.
  Report* report;            ///< In this GPU's memory.
};

/// Loads all kernels on the device that is set. Comes before the first launch: a kernel that is
/// loaded by its launch does not start while another one waits on the same GPU.
cudaError_t load_kernels();

cudaError_t launch_initiator(const Rounds& rounds, linkspan::device::Scope scope,
                             cudaStream_t stream);
cudaError_t launch_target(const Rounds& rounds, linkspan::device::Scope scope, cudaStream_t stream);

constexpr unsigned kWideCtas = 16;  ///< As many reach the speed of the link.

/// One put by kWideCtas CTAs, and the wait for its answer. `arrived`: a word, zero before and
/// after.
cudaError_t launch_wide_put(const Rounds& rounds, std::uint32_t* arrived, cudaStream_t stream);

}  // namespace simple_write
