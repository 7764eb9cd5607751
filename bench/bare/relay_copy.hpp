// bench/bare/relay_copy.hpp - host memory to one GPU over its own PCIe link and another GPU's: the
// ceiling of what takes two links.
//
// Half of the bytes go by one cuMemcpyAsync. The other half go in chunks into two slots of the
// other GPU's memory and from there over NVLink: fetched by the first GPU, or pushed by the other
// one.
// Threads: externally synchronised.
// Invariants: the Devices outlive it, and have peer access to each other.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

#include "bench/bare/end_word.hpp"
#include "cuda/event.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::bare {

class RelayCopy {
 public:
  enum class SecondHop : std::uint8_t { fetched, pushed };
  static constexpr std::size_t kSlots = 2, kChunk = std::size_t{8} << 20;

  static Result<std::unique_ptr<RelayCopy>> create(const cuda::Device& device,
                                                   const cuda::Device& other);

  /// From the call to the moment that the host sees the end. `to_of_other` is `to` as the other GPU
  /// knows it. timed_out: as GpuCopy::run().
  Result<Duration> run(cuda::CUdeviceptr to, cuda::CUdeviceptr to_of_other, cuda::CUdeviceptr from,
                       std::size_t bytes, SecondHop second, Duration limit);

 private:
  struct Hop {
    const cuda::Device* device;
    cuda::Stream stream;
    std::array<cuda::Event, kSlots> done;
    static Result<Hop> create(const cuda::Device& device);
  };
  RelayCopy(const cuda::Device& device, cuda::Stream own, EndWord word, cuda::DeviceBuffer slots,
            Hop fill, Hop fetch, Hop push)
      : device_(device),
        word_(std::move(word)),
        slots_(std::move(slots)),
        own_(std::move(own)),
        fill_(std::move(fill)),
        fetch_(std::move(fetch)),
        push_(std::move(push)) {}
  static Status copy(Hop& hop, std::size_t slot, const cuda::Event& after, cuda::CUdeviceptr to,
                     cuda::CUdeviceptr from, std::size_t bytes);

  const cuda::Device& device_;
  EndWord word_;
  cuda::DeviceBuffer slots_;
  cuda::Stream own_;
  Hop fill_, fetch_, push_;
  std::uint64_t runs_ = 0;
};

}  // namespace linkspan::bare
