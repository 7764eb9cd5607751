// tests/support/nccl_net_plugin/abi.hpp - what the versions of the network plugin ABI share, as the
// test plugin declares it.
//
// Declared apart from src/transport/nccl_net/abi.hpp and in another manner (versioned_abi.hpp), so
// that the two check each other: tests/unit/nccl_net_abi_test.cpp. Names are those of the ABI.
// Threads: declarations only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace linkspan::nccl_test {

enum Answer : int {
  kOk,
  kCudaError,
  kSystemError,
  kInternalError,
  kInvalidArgument,
  kInvalidUsage,
  kRemoteError,
  kInProgress,
};
inline constexpr int kHostPointer = 1, kCudaPointer = 2;
inline constexpr int kHostDevice = 0, kUnpackDevice = 1;
inline constexpr int kLogWarn = 2, kLogInfo = 3;
inline constexpr unsigned long kLogOfNet = 16;
inline constexpr std::size_t kHandleBytes = 128;

using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);
using Profiler = int (*)(void**, int, void*, std::int64_t, void*);

struct NetDeviceHandle {
  int netDeviceType;
  int netDeviceVersion;
  void* handle;
  std::size_t size;
  int needsProxyProgress;
};

struct Config {
  int trafficClass;
};

// ---- the UNPACK device type, version 7 ----------------------------------------------------------

inline constexpr std::size_t kUnpackSlots = 16, kUnpackFragments = 2048;
inline constexpr int kUnpackVersion = 7;

struct alignas(16) UnpackEntry {
  std::uint32_t src_off;  // in the bounce pool
  std::uint32_t len;
  std::uint64_t dst_off;  // in the buffer of the receive
};

/// In mapped host memory.
struct UnpackMeta {
  UnpackEntry mem[kUnpackSlots][kUnpackFragments];
  std::uint64_t cnt[kUnpackSlots];
};

/// In device memory, where NetDeviceHandle::handle points.
struct UnpackHandle {
  std::uint64_t meta;         // UnpackMeta*
  std::uint64_t bounce_pool;  // also a pointer
  std::uint64_t head;         // of the kernels' own count
};
static_assert(sizeof(UnpackEntry) == 16 && sizeof(UnpackHandle) == 24);
static_assert(offsetof(UnpackMeta, cnt) == 16 * 2048 * 16);

}  // namespace linkspan::nccl_test
