#include "copy/chooser.hpp"

#include <algorithm>

namespace linkspan::copy {
namespace {

// One GPU to another over NVLink, or to and from pinned memory over PCIe 5 x16. Two H200, driver
// 580; docs/cuda_notes.md, "rates". 1 GB/s is 1000 bytes a microsecond.
constexpr double kEngineBytes[] = {55.5e3, 396.7e3};  // a microsecond; [device to device]
constexpr double kKernelBytes[] = {51.4e3, 356e3};    // 132 CTAs; 8192 blocks of 4 KiB
constexpr double kEngineUsAPiece = 2.4;      // a loop of small copies, back to back; with the rate
                                             // above it gives 1 MiB 208 GB/s (217 measured)
constexpr double kKernelUs = 5;              // launch and flag
constexpr double kKernelUsAPiece = 0.002;    // the list written and read through mapped memory
constexpr double kExecutorUs = 50;           // to wake a sleeping thread
constexpr double kMemcpyBytes = 11e3;        // one thread; 4 threads 32-48 GB/s together
constexpr std::uint64_t kMemcpyThreads = 4;  // more add nothing
constexpr double kPageableBytes = 8.7e3;     // to a GPU by the driver's own staging; back 17.2
constexpr double kCrossBytes = 4.3e3;        // process_vm_readv, one thread: 4.3-6.2
constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;  // what one thread takes at a time

double microseconds(Method method, bool device_to_device, std::uint64_t bytes,
                    std::uint64_t pieces) {
  const auto size = static_cast<double>(bytes), count = static_cast<double>(pieces);
  const std::size_t link = device_to_device ? 1 : 0;
  switch (method) {
    case Method::copy_engine:
      return count * kEngineUsAPiece + size / kEngineBytes[link];
    case Method::sm_kernel:
      return kKernelUs + count * kKernelUsAPiece + size / kKernelBytes[link];
    case Method::cpu_threads: {
      const auto threads = std::clamp(bytes / kChunkBytes, std::uint64_t{1}, kMemcpyThreads);
      return kExecutorUs + size / (kMemcpyBytes * static_cast<double>(threads));
    }
    case Method::pageable:
      return kExecutorUs + size / kPageableBytes;
    case Method::cross_process:
      return kExecutorUs + size / kCrossBytes;
  }
  return 0;
}

}  // namespace

Method choose_gpu(const ShapeFacts& shape) {
  if (!shape.kernel_available) return Method::copy_engine;
  const auto time = [&shape](Method method) {
    return microseconds(method, shape.device_to_device, shape.bytes, shape.pieces);
  };
  return time(Method::sm_kernel) < time(Method::copy_engine) ? Method::sm_kernel
                                                             : Method::copy_engine;
}

Duration expected_time(Method method, bool device_to_device, std::uint64_t bytes,
                       std::uint64_t pieces) {
  const std::chrono::duration<double, std::micro> time(
      microseconds(method, device_to_device, bytes, pieces));
  return std::chrono::duration_cast<Duration>(time);
}

double expected_gbps(Method method, bool device_to_device, std::uint64_t bytes,
                     std::uint64_t pieces) {
  if (bytes == 0) return 0;
  return static_cast<double>(bytes) / microseconds(method, device_to_device, bytes, pieces) / 1e3;
}

base::Time next_look(base::Time due, base::Time now) noexcept {
  using std::chrono::microseconds, std::chrono::milliseconds;
  if (now < due) return due;
  const Duration wait = std::min<Duration>((now - due) / 16, milliseconds(1));
  return wait < microseconds(2) ? now : now + wait;
}

}  // namespace linkspan::copy
