#include "tests/support/nccl_net_plugin/gpu.hpp"

#include <algorithm>
#include <bit>

namespace linkspan::nccl_test {
namespace {

using namespace cuda;  // NOLINT(google-build-using-namespace)

/// The GPU's, by the process's count; -1: not memory of a GPU.
int ordinal_of(const Driver& driver, CUdeviceptr memory) {
  unsigned type = 0;
  int ordinal = -1;
  if (driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory) !=
          CUDA_SUCCESS ||
      type != CU_MEMORYTYPE_DEVICE ||
      driver.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory) !=
          CUDA_SUCCESS)
    return -1;
  return ordinal;
}

const Driver* driver() {
  const Result<const Driver*> found = Driver::get();
  return found.ok() ? *found : nullptr;
}

}  // namespace

bool Gpu::any() {
  int count = 0;
  return driver() != nullptr && driver()->cuDeviceGetCount(&count) == CUDA_SUCCESS && count > 0;
}

CUcontext Gpu::current() {
  CUcontext context = nullptr;
  return any() && driver()->cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

Result<std::unique_ptr<Gpu>> Gpu::open(CUcontext context) {
  const Result<DeviceScope> scope = DeviceScope::enter(*driver(), context);
  if (!scope.ok()) return scope.status();
  Result<Stream> stream = Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  Result<PinnedBuffer> word = PinnedBuffer::create(*scope, sizeof(std::uint64_t));
  if (!word.ok()) return word.status();
  std::fill_n(word->data(), sizeof(std::uint64_t), std::byte{0});
  const Result<DeviceBuffer> here = DeviceBuffer::create(*scope, 1);  // to ask where "here" is
  if (!here.ok()) return here.status();
  return std::unique_ptr<Gpu>(new Gpu(context, ordinal_of(*driver(), here->address()),
                                      *std::move(stream), *std::move(word)));
}

bool Gpu::owns(const void* memory, std::size_t bytes) const {
  const CUdeviceptr begin = address_of(memory);
  return ordinal_of(*driver(), begin) == ordinal_ &&
         ordinal_of(*driver(), begin + bytes - 1) == ordinal_;
}

Result<std::uint64_t> Gpu::mark(const DeviceScope& scope) {
  Status status = stream_.write_value(scope, word_.device_address(), begun_ + 1);
  if (!status.ok()) return status;
  return ++begun_;
}

Result<std::uint64_t> Gpu::copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  const Result<DeviceScope> scope = DeviceScope::enter(*driver(), context_);
  if (!scope.ok()) return scope.status();
  if (Status status = stream_.copy(*scope, to, from, bytes); !status.ok()) return status;
  return mark(*scope);
}

Result<std::uint64_t> Gpu::fill(CUdeviceptr to, unsigned char value, std::size_t bytes) {
  const Result<DeviceScope> scope = DeviceScope::enter(*driver(), context_);
  if (!scope.ok()) return scope.status();
  if (Status status = stream_.fill(*scope, to, value, bytes); !status.ok()) return status;
  return mark(*scope);
}

bool Gpu::passed(std::uint64_t number) const noexcept {
  auto* const word = reinterpret_cast<std::uint64_t*>(word_.data());
  return std::atomic_ref(*word).load(std::memory_order_acquire) >= number;
}

Status Gpu::health() const {
  const Result<DeviceScope> scope = DeviceScope::enter(*driver(), context_);
  if (!scope.ok()) return scope.status();
  Status status = stream_.query(*scope);
  return status.code() == Code::pending ? Status() : status;
}

void Gpu::drain() {
  const Result<DeviceScope> scope = DeviceScope::enter(*driver(), context_);
  if (scope.ok()) (void)stream_.synchronize(*scope);
}

Result<PinnedBuffer> Gpu::pinned(std::size_t bytes) const {
  const Result<DeviceScope> scope = DeviceScope::enter(*driver(), context_);
  if (!scope.ok()) return scope.status();
  return PinnedBuffer::create(*scope, bytes);
}

Result<DeviceBuffer> Gpu::device(std::size_t bytes) const {
  const Result<DeviceScope> scope = DeviceScope::enter(*driver(), context_);
  if (!scope.ok()) return scope.status();
  return DeviceBuffer::create(*scope, bytes);
}

Status Staging::reserve(const Gpu& gpu, std::size_t bytes) {
  if (buffer_ && buffer_->bytes() >= bytes) return {};
  Result<PinnedBuffer> grown = gpu.pinned(std::bit_ceil(std::max<std::size_t>(bytes, 4096)));
  if (!grown.ok()) return grown.status();
  buffer_.emplace(*std::move(grown));
  return {};
}

}  // namespace linkspan::nccl_test
