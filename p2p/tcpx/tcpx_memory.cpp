#include "p2p/tcpx/tcpx_memory.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace linkspan::tool {
namespace {

constexpr std::uint64_t kPage = 4096;

std::uint64_t page_up(std::uint64_t number) { return (number + kPage - 1) / kPage * kPage; }
std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

Result<std::unique_ptr<TcpxMemory>> TcpxMemory::create(bool on_gpu, std::uint64_t bytes) {
  auto memory = std::unique_ptr<TcpxMemory>(new TcpxMemory);
  memory->bytes_ = page_up(std::max(bytes, kPage));
  if (on_gpu) {
    if (Status status = memory->allocate_on_gpu(); !status.ok()) return status;
  } else {
    memory->host_.resize(memory->bytes_ + kPage);
    memory->at_ = page_up(number(memory->host_.data()));
  }
  return memory;
}

Status TcpxMemory::allocate_on_gpu() {
  auto topology = cuda::Topology::create();
  if (!topology.ok()) return topology.status();
  topology_ = *std::move(topology);
  auto device = topology_->activate(topology_->devices().front().uuid);
  if (!device.ok()) return device.status();
  device_ = *device;
  auto scope = device_->enter();
  if (!scope.ok()) return scope.status();
  scope_.emplace(*std::move(scope));
  auto buffer = cuda::DeviceBuffer::create(*scope_, bytes_ + kPage);
  if (!buffer.ok()) return buffer.status();
  gpu_.emplace(*std::move(buffer));
  at_ = page_up(gpu_->address());
  auto stream = cuda::Stream::create(*scope_);
  if (!stream.ok()) return stream.status();
  stream_.emplace(*std::move(stream));
  return {};
}

Status TcpxMemory::copy(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) const {
  if (!on_gpu()) {
    std::memcpy(reinterpret_cast<void*>(to),                  // NOLINT(performance-no-int-to-ptr)
                reinterpret_cast<const void*>(from), bytes);  // NOLINT(performance-no-int-to-ptr)
    return {};
  }
  if (Status status = stream_->copy(*scope_, to, from, bytes); !status.ok()) return status;
  return stream_->synchronize(*scope_);
}

Status TcpxMemory::put(const std::vector<unsigned char>& from) const {
  return copy(at_, number(from.data()), from.size());
}
Status TcpxMemory::get(std::vector<unsigned char>& into) const {
  return copy(number(into.data()), at_, into.size());
}
Status TcpxMemory::fill(unsigned char value) const {
  return put(std::vector<unsigned char>(bytes_, value));
}

}  // namespace linkspan::tool
