#include "tests/support/nccl_net_plugin/gpu.hpp"

#include <algorithm>
#include <atomic>
#include <bit>

namespace linkspan::nccl_test {
namespace {

using namespace cuda;  // NOLINT(google-build-using-namespace)

/// Null: there is none.
const Driver* driver() {
  const Result<const Driver*> found = Driver::get();
  return found.ok() ? *found : nullptr;
}

/// Returns the GPU's ordinal in this process; -1 if it is not GPU memory.
int ordinal_of(CUdeviceptr memory) {
  unsigned type = 0;
  int ordinal = -1;
  if (driver()->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory) !=
          CUDA_SUCCESS ||
      type != CU_MEMORYTYPE_DEVICE ||
      driver()->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory) !=
          CUDA_SUCCESS)
    return -1;
  return ordinal;
}

/// Makes a context current while it exists. If that failed, each call reports it.
class Within {
 public:
  explicit Within(CUcontext context)
      : pushed_(driver()->cuCtxPushCurrent(context) == CUDA_SUCCESS) {}
  ~Within() {
    CUcontext popped = nullptr;
    if (pushed_) driver()->cuCtxPopCurrent(&popped);
  }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;

 private:
  const bool pushed_;
};

Status status_of(CUresult result, const char* call) { return to_status(*driver(), result, call); }

}  // namespace

Block::~Block() {
  if (context_ == nullptr) return;
  const Within within(context_);
  if (data_ != nullptr)
    driver()->cuMemFreeHost(data_);
  else
    driver()->cuMemFree(address_);
}

bool Gpu::any() {
  int count = 0;
  return driver() != nullptr && driver()->cuDeviceGetCount(&count) == CUDA_SUCCESS && count > 0;
}

bool Gpu::is_its(const void* memory) { return any() && ordinal_of(address_of(memory)) >= 0; }

CUcontext Gpu::current() {
  CUcontext context = nullptr;
  return any() && driver()->cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

Result<std::unique_ptr<Gpu>> Gpu::open(CUcontext context) {
  std::unique_ptr<Gpu> gpu(new Gpu(context));
  const Within within(context);
  const CUresult r = driver()->cuStreamCreateWithPriority(&gpu->stream_, CU_STREAM_NON_BLOCKING, 0);
  if (r != CUDA_SUCCESS) return status_of(r, "cuStreamCreateWithPriority");
  Result<Block> word = gpu->pinned(sizeof(std::uint64_t));
  if (!word.ok()) return word.status();
  std::fill_n(word->data(), sizeof(std::uint64_t), std::byte{0});
  gpu->word_.emplace(*std::move(word));
  const Result<Block> here = gpu->device(1);  // to ask where "here" is
  if (!here.ok()) return here.status();
  gpu->ordinal_ = ordinal_of(here->address());
  return gpu;
}

Gpu::~Gpu() {
  const Within within(context_);
  if (stream_ != nullptr) driver()->cuStreamDestroy(stream_);
}

bool Gpu::owns(const void* memory, std::size_t bytes) const {
  const CUdeviceptr begin = address_of(memory);
  return ordinal_of(begin) == ordinal_ && ordinal_of(begin + bytes - 1) == ordinal_;
}

Result<std::uint64_t> Gpu::mark() {
  const CUresult r = driver()->cuStreamWriteValue64(stream_, word_->address(), begun_ + 1,
                                                    CU_STREAM_WRITE_VALUE_DEFAULT);
  if (r != CUDA_SUCCESS) return status_of(r, "cuStreamWriteValue64");
  return ++begun_;
}

Result<std::uint64_t> Gpu::copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  const Within within(context_);
  const CUresult r = driver()->cuMemcpyAsync(to, from, bytes, stream_);
  if (r != CUDA_SUCCESS) return status_of(r, "cuMemcpyAsync");
  return mark();
}

Result<std::uint64_t> Gpu::fill(CUdeviceptr to, unsigned char value, std::size_t bytes) {
  const Within within(context_);
  const CUresult r = driver()->cuMemsetD8Async(to, value, bytes, stream_);
  if (r != CUDA_SUCCESS) return status_of(r, "cuMemsetD8Async");
  return mark();
}

bool Gpu::passed(std::uint64_t number) const noexcept {
  auto* const word = reinterpret_cast<std::uint64_t*>(word_->data());
  return std::atomic_ref(*word).load(std::memory_order_acquire) >= number;
}

Status Gpu::health() const {
  const Within within(context_);
  const CUresult r = driver()->cuStreamQuery(stream_);
  return r == CUDA_ERROR_NOT_READY ? Status() : status_of(r, "cuStreamQuery");
}

void Gpu::drain() {
  const Within within(context_);
  driver()->cuStreamSynchronize(stream_);
}

Result<Block> Gpu::pinned(std::size_t bytes) const {
  const Within within(context_);
  void* data = nullptr;
  CUresult r =
      driver()->cuMemHostAlloc(&data, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (r != CUDA_SUCCESS) return status_of(r, "cuMemHostAlloc");
  CUdeviceptr address = 0;
  r = driver()->cuMemHostGetDevicePointer(&address, data, 0);
  Block block(context_, address, data, bytes);
  if (r != CUDA_SUCCESS) return status_of(r, "cuMemHostGetDevicePointer");
  return block;
}

Result<Block> Gpu::device(std::size_t bytes) const {
  const Within within(context_);
  CUdeviceptr address = 0;
  const CUresult r = driver()->cuMemAlloc(&address, bytes);
  if (r != CUDA_SUCCESS) return status_of(r, "cuMemAlloc");
  return Block(context_, address, nullptr, bytes);
}

Status Staging::reserve(const Gpu& gpu, std::size_t bytes) {
  if (block_ && block_->bytes() >= bytes) return {};
  Result<Block> grown = gpu.pinned(std::bit_ceil(std::max<std::size_t>(bytes, 4096)));
  if (!grown.ok()) return grown.status();
  block_.emplace(*std::move(grown));
  return {};
}

}  // namespace linkspan::nccl_test
