// transport/nccl_net/tcpx/structs.hpp - what an UNPACK plugin shows of a completed receive: its
// fragments, and the bounce pool that contains them.
//
// The layouts are part of the plugin's ABI and must not change. The n-th receive of a comm, counted
// from 0 and including empty ones, uses slot n % kMetaSlots.
// Threads: declarations only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace linkspan::transport::nccl_net::tcpx {

constexpr std::size_t kMetaSlots = 16;
constexpr std::size_t kMaxFragments = 2048;  ///< Maximum of one receive.

/// Describes a fragment: `len` bytes at `src_off` of the pool belong at `dst_off` of the receive's
/// buffer.
struct alignas(16) LoadMeta {
  std::uint32_t src_off;
  std::uint32_t len;
  std::uint64_t dst_off;
};
static_assert(sizeof(LoadMeta) == 16 && alignof(LoadMeta) == 16);
static_assert(offsetof(LoadMeta, len) == 4 && offsetof(LoadMeta, dst_off) == 8);

/// Lies in pinned, mapped host memory; the plugin writes it.
struct MetaQueue {
  LoadMeta entries[kMetaSlots][kMaxFragments];
  std::uint64_t counts[kMetaSlots];
};
static_assert(offsetof(MetaQueue, counts) == std::size_t{16} * 2048 * 16);
static_assert(sizeof(MetaQueue) == std::size_t{16} * 2048 * 16 + std::size_t{16} * 8);

/// Lies in GPU memory, where abi::DeviceHandle::handle points.
struct DeviceState {
  MetaQueue* meta;
  void* bounce;
  std::uint64_t head;
};
static_assert(sizeof(DeviceState) == 24 && offsetof(DeviceState, bounce) == 8 &&
              offsetof(DeviceState, head) == 16);
static_assert(std::is_trivially_copyable_v<MetaQueue> && std::is_trivially_copyable_v<DeviceState>);

}  // namespace linkspan::transport::nccl_net::tcpx
