#include "transport/nccl_net/tcpx/pool.hpp"

#include <cstring>

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"

namespace linkspan::transport::nccl_net::tcpx {

Result<Pool> find_pool(const cuda::Topology& topology, const cuda::Device& device,
                       const abi::DeviceHandle* kernels) {
  DeviceState state{};
  if (kernels == nullptr || kernels->handle == nullptr || kernels->size < sizeof state)
    return Status(Code::corrupt, Scope::transport,
                  "the network plugin unpacks and shows no state for it");
  const auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  const auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  auto made = cuda::PinnedBuffer::create(*scope, sizeof state);
  if (!made.ok()) return made.status();
  const auto copy = cuda::DeferredDestroyer::end_by(
      topology.destroyer(), std::make_unique<cuda::PinnedBuffer>(*std::move(made)));
  if (Status status = stream->copy(*scope, copy->device_address(),
                                   reinterpret_cast<std::uintptr_t>(kernels->handle), sizeof state);
      !status.ok())
    return status;
  if (Status status = stream->synchronize(*scope); !status.ok()) return status;
  std::memcpy(&state, copy->data(), sizeof state);
  const auto facts = topology.query(state.bounce);
  if (!facts.ok()) return facts.status();
  Pool pool{.meta = state.meta, .bounce = reinterpret_cast<std::uintptr_t>(state.bounce)};
  pool.bytes = facts->base + facts->bytes - pool.bounce;
  return pool;
}

}  // namespace linkspan::transport::nccl_net::tcpx
