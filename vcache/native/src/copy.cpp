#include "vcache/native/src/copy.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace linkspan::nvlink {
namespace {

constexpr std::uint64_t kLegacyStream = 1, kPerThreadStream = 2;  // CUDA's values for them

std::string hex(std::uint64_t number) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  do text.insert(text.begin(), kDigits[number % 16]);
  while ((number /= 16) != 0);
  return "0x" + text;
}

std::string name_of(const Side& side) {
  return std::string(side.name) + " on GPU " + std::to_string(side.gpu);
}

Outcome out_of_bounds(const Side& side, std::uint64_t bytes, std::uint64_t there) {
  return {NVLINK_TRANSFER_INVALID_VALUE, name_of(side) + ": " + std::to_string(bytes) +
                                             " bytes from offset " + std::to_string(side.offset) +
                                             " on leave the allocation, which has " +
                                             std::to_string(there)};
}

bool fits(std::uint64_t offset, std::uint64_t bytes, std::uint64_t there) {
  return offset <= there && bytes <= there - offset;
}

/// Finds the allocation around `address` in the current context. Returns false if the driver knows
/// none.
bool range(const cuda::Driver& driver, std::uint64_t address, std::uint64_t& base,
           std::uint64_t& bytes) {
  cuda::CUdeviceptr begin = 0;
  std::size_t size = 0;
  if (driver.cuMemGetAddressRange(&begin, &size, address) != cuda::CUDA_SUCCESS) return false;
  base = begin;
  bytes = size;
  return true;
}

/// Returns true if `address` lies in a chunk of virtual memory, which adjacent chunks may continue.
/// Other memory ends with its allocation, though the next one may begin there (fact:
/// Handles.MemoryOfCuMemAllocIsNoChunk).
bool in_chunk(const cuda::Driver& driver, std::uint64_t address) {
  cuda::CUmemGenericAllocationHandle chunk = 0;
  return driver.cuMemRetainAllocationHandle != nullptr && driver.cuMemRelease != nullptr &&
         driver.cuMemRetainAllocationHandle(
             &chunk, reinterpret_cast<void*>(address)) ==  // NOLINT(performance-no-int-to-ptr)
             cuda::CUDA_SUCCESS &&
         driver.cuMemRelease(chunk) == cuda::CUDA_SUCCESS;
}

/// Checks that a side is device memory of this process.
Outcome check_local(const cuda::Driver& driver, const Side& side, std::uint64_t bytes) {
  const auto no_memory = [&](const std::string& what) {
    return Outcome{NVLINK_TRANSFER_INVALID_VALUE, name_of(side) + ": " + what};
  };
  unsigned type = 0;
  if (driver.cuPointerGetAttribute(&type, cuda::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, side.pointer) !=
          cuda::CUDA_SUCCESS ||
      type != cuda::CU_MEMORYTYPE_DEVICE)
    return no_memory("pointer " + hex(side.pointer) + " is not device memory of this process");
  std::uint64_t begin = 0, there = 0;
  if (!range(driver, side.pointer, begin, there))
    return no_memory("the driver knows no memory at " + hex(side.pointer));
  std::uint64_t end = begin + there;
  while (!fits(side.offset, bytes, end - side.pointer)) {
    if (!in_chunk(driver, end - 1) || !in_chunk(driver, end) || !range(driver, end, begin, there))
      return out_of_bounds(side, bytes, end - side.pointer);
    end = begin + there;
  }
  return {};
}

/// Finds the allocation for a handle of this process: the one that the pointer lies in.
Outcome own_handle(const cuda::Driver& driver, const Side& side, const Handle& handle,
                   std::uint64_t bytes, std::uint64_t& address) {
  const auto refused = [&](const char* what) {
    return Outcome{
        static_cast<int>(cuda::CUDA_ERROR_INVALID_CONTEXT),
        name_of(side) + ": the handle is of this very process, which cannot open it" + what};
  };
  if (side.pointer == 0) return refused(": give the pointer too");
  std::uint64_t base = 0, there = 0;
  cuda::CUipcMemHandle its{};
  if (!range(driver, side.pointer, base, there) ||
      driver.cuIpcGetMemHandle(&its, base) != cuda::CUDA_SUCCESS ||
      std::bit_cast<Handle>(its) != handle)
    return refused(", and the pointer lies in another allocation");
  if (!fits(side.offset, bytes, there)) return out_of_bounds(side, bytes, there);
  address = base + side.offset;
  return {};
}

}  // namespace

Outcome Copy::resolve(Gpus& gpus, const Side& side, std::uint64_t bytes, End& end) {
  end.gpu = side.gpu;
  if (Outcome o = gpus.context(side.gpu, end.context); !o.ok()) return o;
  const cuda::Driver& driver = gpus.driver();
  const auto scope = cuda::DeviceScope::enter(driver, end.context);
  if (!scope.ok()) return {NVLINK_TRANSFER_FAILED, name_of(side) + ": " + scope.status().what()};
  if (side.handle == nullptr || side.handle_bytes == 0) {
    end.address = side.pointer + side.offset;
    return check_local(driver, side, bytes);
  }
  Handle handle{};
  std::memcpy(handle.data(), side.handle, side.handle_bytes);
  const std::string what = name_of(side);
  if (Outcome o = HandleCache::only().open(gpus, side.gpu, handle, what, end.mapping); !o.ok())
    return o;
  if (end.mapping == nullptr) return own_handle(driver, side, handle, bytes, end.address);
  if (!fits(side.offset, bytes, end.mapping->bytes()))
    return out_of_bounds(side, bytes, end.mapping->bytes());
  end.address = end.mapping->base() + side.offset;
  return {};
}

Outcome Copy::prepare(Gpus& gpus, const Side& source, const Side& target, std::uint64_t bytes,
                      Copy& copy) {
  for (const Side* side : {&source, &target}) {
    cuda::CUcontext context = nullptr;
    if (Outcome o = gpus.context(side->gpu, context); !o.ok()) return o;
    const bool has_handle = side->handle != nullptr && side->handle_bytes != 0;
    if (has_handle && side->handle_bytes > NVLINK_TRANSFER_HANDLE_BYTES)
      return {NVLINK_TRANSFER_INVALID_VALUE, name_of(*side) + ": a handle of " +
                                                 std::to_string(side->handle_bytes) +
                                                 " bytes; CUDA's have 64"};
    if (!has_handle && side->pointer == 0)
      return {NVLINK_TRANSFER_INVALID_DEVICE_POINTER,
              name_of(*side) + ": neither a handle nor a pointer"};
  }
  if (Outcome o = resolve(gpus, source, bytes, copy.source_); !o.ok()) return o;
  if (Outcome o = resolve(gpus, target, bytes, copy.target_); !o.ok()) return o;
  copy.gpus_ = &gpus;
  copy.bytes_ = bytes;
  copy.staged_ = gpus.staged(source.gpu, target.gpu);
  copy.name_ = std::to_string(bytes) + " bytes from GPU " + std::to_string(source.gpu) +
               " to GPU " + std::to_string(target.gpu);
  return {};
}

Outcome Copy::check_stream(void* stream, cuda::CUstream& handle) const {
  const auto raw = reinterpret_cast<std::uintptr_t>(stream);
  handle = reinterpret_cast<cuda::CUstream>(raw == 0 ? std::uintptr_t{kLegacyStream} : raw);
  if (raw > kPerThreadStream) {
    cuda::CUcontext owner = nullptr;
    const auto r = driver().cuStreamGetCtx(handle, &owner);
    if (r != cuda::CUDA_SUCCESS) return outcome(driver(), r, "cuStreamGetCtx", "the stream");
    if (owner != source_.context)
      return {NVLINK_TRANSFER_INVALID_STREAM,
              "the stream " + hex(raw) + " is not of the source's GPU " +
                  std::to_string(source_.gpu) + ": give one of that GPU, or null"};
  }
  cuda::CUstreamCaptureStatus status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
  const auto r = driver().cuStreamIsCapturing(handle, &status);
  if (r != cuda::CUDA_SUCCESS) return outcome(driver(), r, "cuStreamIsCapturing", "the stream");
  if (status != cuda::CU_STREAM_CAPTURE_STATUS_NONE)
    return {NVLINK_TRANSFER_CAPTURING, "the stream records a graph: copy before or after that"};
  return {};
}

Outcome Copy::submit(std::uint64_t from, std::uint64_t most, cuda::CUstream stream) const {
  const std::uint64_t bytes = std::min(most, bytes_ - from);
  const auto r = driver().cuMemcpyPeerAsync(target_.address + from, target_.context,
                                            source_.address + from, source_.context, bytes, stream);
  return outcome(driver(), r, "cuMemcpyPeerAsync", name_);
}

}  // namespace linkspan::nvlink
