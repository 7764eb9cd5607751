#include "tests/support/kinds.hpp"

#include "cuda/stream.hpp"
#include "tests/support/fake_cuda/controls.hpp"
#include "tests/support/memory_entries.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace {

const Result<std::unique_ptr<cuda::Topology>>& created() {
  static const Result<std::unique_ptr<cuda::Topology>> kTopology = cuda::Topology::create();
  return kTopology;
}

cuda::CUdeviceptr address(const void* pointer) {
  return static_cast<cuda::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer));
}

}  // namespace

cuda::Topology* topology() { return created().ok() ? created()->get() : nullptr; }

Status need_gpus(unsigned count) {
  if (!created().ok() && created().status().code() != Code::unsupported) return created().status();
  if (topology() != nullptr && topology()->devices().size() >= count) return {};
  return {Code::unsupported, Scope::request,
          std::string(kNeedsGpu) + ": " +
              (created().ok() ? std::to_string(count) + " of them" : created().status().what())};
}

Result<std::unique_ptr<UnsharedMemory>> UnsharedMemory::create(const cuda::Device& device,
                                                               std::uint64_t bytes) {
  const auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  std::unique_ptr<UnsharedMemory> made(new UnsharedMemory(device));
  if (const FakeCuda fake = FakeCuda::find()) {
    auto buffer = cuda::DeviceBuffer::create(*scope, bytes);
    if (!buffer.ok()) return buffer.status();
    made->address_ = buffer->address();
    made->simulated_.emplace(*std::move(buffer));
    fake.unshare(made->address_);
    return made;
  }
  constexpr std::uint64_t kGranularity = 2u << 20;
  const cuda::MemoryEntries vmm = cuda::MemoryEntries::find();
  const auto status = [&](cuda::CUresult r, const char* call) {
    return to_status(device.driver(), r, call);
  };
  made->bytes_ = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  cuda::CUmemAllocationProp prop{};
  prop.type = 1;
  prop.location = {.type = 1, .id = device.info().ordinal};
  if (auto r = vmm.cuMemCreate(&made->handle_, made->bytes_, &prop, 0))
    return status(r, "cuMemCreate");
  if (auto r = vmm.cuMemAddressReserve(&made->address_, made->bytes_, 0, 0, 0))
    return status(r, "cuMemAddressReserve");
  if (auto r = vmm.cuMemMap(made->address_, made->bytes_, 0, made->handle_, 0))
    return status(r, "cuMemMap");
  made->mapped_ = true;
  const cuda::CUmemAccessDesc access{.location = prop.location, .flags = 3};
  if (auto r = vmm.cuMemSetAccess(made->address_, made->bytes_, &access, 1))
    return status(r, "cuMemSetAccess");
  return made;
}

UnsharedMemory::~UnsharedMemory() {
  if (simulated_ || bytes_ == 0) return;
  const auto scope = device_.enter();
  const cuda::MemoryEntries vmm = cuda::MemoryEntries::find();
  if (mapped_) (void)vmm.cuMemUnmap(address_, bytes_);
  if (address_ != 0) (void)vmm.cuMemAddressFree(address_, bytes_);
  if (handle_ != 0) (void)device_.driver().cuMemRelease(handle_);
}

Result<std::unique_ptr<Buffer>> Buffer::create(MemoryKind kind, std::uint64_t bytes, unsigned gpu,
                                               std::uint64_t guard, bool unshared) {
  std::unique_ptr<Buffer> buffer(new Buffer(bytes, guard));
  if (kind == MemoryKind::host) {
    auto& memory = buffer->owner_.emplace<std::vector<std::byte>>(buffer->whole_bytes());
    buffer->whole_ = memory.data();
    return buffer;
  }
  if (Status status = need_gpus(gpu + 1); !status.ok()) return status;
  auto device = topology()->activate(topology()->devices()[gpu].uuid);
  if (!device.ok()) return device.status();
  auto scope = (*device)->enter();
  if (!scope.ok()) return scope.status();
  if (kind == MemoryKind::pinned) {
    auto memory = cuda::PinnedBuffer::create(*scope, buffer->whole_bytes());
    if (!memory.ok()) return memory.status();
    buffer->whole_ = buffer->owner_.emplace<cuda::PinnedBuffer>(*std::move(memory)).data();
    return buffer;
  }
  buffer->device_ = *device;
  if (unshared) {
    auto memory = UnsharedMemory::create(**device, buffer->whole_bytes());
    if (!memory.ok()) return memory.status();
    const auto& held = buffer->owner_.emplace<std::unique_ptr<UnsharedMemory>>(*std::move(memory));
    buffer->whole_ = reinterpret_cast<std::byte*>(held->address());  // NOLINT(*-int-to-ptr)
    return buffer;
  }
  auto memory = cuda::DeviceBuffer::create(*scope, buffer->whole_bytes());
  if (!memory.ok()) return memory.status();
  const auto& held = buffer->owner_.emplace<cuda::DeviceBuffer>(*std::move(memory));
  buffer->whole_ = reinterpret_cast<std::byte*>(held.address());  // NOLINT(*-int-to-ptr)
  return buffer;
}

std::unique_ptr<Buffer> Buffer::over(void* whole, std::uint64_t bytes, std::uint64_t guard) {
  std::unique_ptr<Buffer> buffer(new Buffer(bytes, guard));
  buffer->whole_ = static_cast<std::byte*>(whole);
  return buffer;
}

void Buffer::fill(std::uint64_t seed) { put(seed, 0, whole_bytes()); }
void Buffer::fill(std::uint64_t seed, const Extent& part) {
  put(seed, guard_ + part.offset, part.bytes);
}

void Buffer::put(std::uint64_t seed, std::uint64_t position, std::uint64_t bytes) {
  if (device_ == nullptr) return put_pattern({whole_ + position, bytes}, seed, position);
  std::vector<std::byte> staged(bytes);
  put_pattern(staged, seed, position);
  must(copy(staged.data(), whole_ + position, bytes));
}

std::string Buffer::difference(std::uint64_t seed, std::span<const Expected> expected,
                               std::span<const Extent> anything) const {
  if (device_ == nullptr)
    return first_difference({whole_, whole_bytes()}, seed, guard_, expected, anything);
  std::vector<std::byte> staged(whole_bytes());
  must(copy(whole_, staged.data(), staged.size()));
  return first_difference(staged, seed, guard_, expected, anything);
}

Status Buffer::copy(const void* from, void* to, std::uint64_t bytes) const {
  auto scope = device_->enter();
  if (!scope.ok()) return scope.status();
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  const cuda::Driver& driver = device_->driver();
  if (auto code = driver.cuMemcpyAsync(address(to), address(from), bytes, stream->get());
      code != cuda::CUDA_SUCCESS)
    return to_status(driver, code, "cuMemcpyAsync");
  return to_status(driver, driver.cuStreamSynchronize(stream->get()), "cuStreamSynchronize");
}

}  // namespace linkspan::test
