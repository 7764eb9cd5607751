#include "tests/support/kinds.hpp"

#include <vector>

#include "cuda/stream.hpp"
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

Result<std::unique_ptr<Buffer>> Buffer::create(MemoryKind kind, std::uint64_t bytes, unsigned gpu,
                                               std::uint64_t guard, Make make) {
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
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  buffer->stream_.emplace(*std::move(stream));
  if (make == Make::chunks || make == Make::unshared_chunks) {
    constexpr std::uint64_t kBefore = 12345;  // of the first chunk, guard and all
    auto row = std::make_unique<ChunkRow>(**device, buffer->whole_bytes() + ChunkRow::kChunk,
                                          make == Make::chunks);
    buffer->whole_ = reinterpret_cast<std::byte*>(  // NOLINT(*-int-to-ptr)
        row->base() + ChunkRow::kChunk - kBefore);
    buffer->owner_ = std::move(row);
    return buffer;
  }
  if (make != Make::allocated) {
    auto pool = std::make_unique<PoolMemory>(**device, buffer->whole_bytes(), make == Make::pool);
    buffer->whole_ = reinterpret_cast<std::byte*>(pool->base());  // NOLINT(*-int-to-ptr)
    buffer->owner_ = std::move(pool);
    return buffer;
  }
  // The guard's end is the allocation's: where one begins elsewhere, the next may not. No more than
  // 256 of them fit into the 2 MiB from which the driver cuts small ones, and those begin right.
  std::vector<cuda::DeviceBuffer> misaligned;
  for (int i = 0; i < 512; ++i) {
    auto memory = cuda::DeviceBuffer::create(*scope, buffer->whole_bytes());
    if (!memory.ok()) return memory.status();
    if (memory->address() % kAlignment != 0) {
      misaligned.push_back(*std::move(memory));
      continue;
    }
    const auto& held = buffer->owner_.emplace<cuda::DeviceBuffer>(*std::move(memory));
    buffer->whole_ = reinterpret_cast<std::byte*>(held.address());  // NOLINT(*-int-to-ptr)
    return buffer;
  }
  return Status(Code::system, Scope::process, "no GPU memory begins at a multiple of 4096 bytes");
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
  const cuda::Driver& driver = device_->driver();
  if (auto code = driver.cuMemcpyAsync(address(to), address(from), bytes, stream_->get());
      code != cuda::CUDA_SUCCESS)
    return to_status(driver, code, "cuMemcpyAsync");
  return to_status(driver, driver.cuStreamSynchronize(stream_->get()), "cuStreamSynchronize");
}

}  // namespace linkspan::test
