// transport/nccl_net/tcpx/rx_descriptor.hpp - the fragments of one receive, checked and merged:
// what an unpack works from.
//
// A block can only be made by the checks: each fragment lies in the pool, each byte of the receive
// comes exactly once. So who has one may copy by it without another look.
// Threads: a DescriptorBlock is immutable after construction.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "linkspan/status.hpp"
#include "transport/nccl_net/tcpx/rx_cmsg_parser.hpp"
#include "transport/nccl_net/tcpx/structs.hpp"

namespace linkspan::transport::nccl_net::tcpx {

struct RxBounds {
  std::uint64_t pool_bytes = 0;     ///< Of the bounce pool; what lies beyond 4 GiB is refused.
  std::uint64_t receive_bytes = 0;  ///< What the receive has, not what there was room for.
  std::uint32_t dmabuf = 0;         ///< Upstream: the pool's number.
};

class DescriptorBlock {
 public:
  // corrupt, each with the number of the entry and its values: more than kMaxFragments, one of no
  // bytes, outside the pool or the receive, an overlap, a gap, an end that is not the receive's.
  // In any order; the numbers count as they came.
  static Result<DescriptorBlock> of(std::span<const LoadMeta> entries, const RxBounds& bounds);
  /// Numbers count the fragments, of the linear pieces likewise. The linear pieces are no part of
  /// the block: they are on the host and the caller's to put in their place.
  static Result<DescriptorBlock> of(const RxMessage& message, const RxBounds& bounds);
  /// Of a receive that the plugin's test() has told the end of. The queue is read once: what the
  /// plugin's process writes there later changes nothing.
  static Result<DescriptorBlock> of_slot(const MetaQueue& queue, std::size_t slot,
                                         const RxBounds& bounds);

  /// By dst_off; what was contiguous in the pool and in the receive is one.
  std::span<const LoadMeta> entries() const noexcept { return entries_; }
  std::uint64_t bytes() const noexcept { return bytes_; }        ///< Their sum.
  std::uint32_t largest() const noexcept { return largest_; }    ///< Bytes of an entry.
  std::size_t fragments() const noexcept { return fragments_; }  ///< As they came.

 private:
  explicit DescriptorBlock(std::size_t fragments) : fragments_(fragments) {}

  void set(std::vector<LoadMeta> entries);

  std::vector<LoadMeta> entries_;
  std::uint32_t largest_ = 0;
  std::uint64_t bytes_ = 0;
  std::size_t fragments_;
};

}  // namespace linkspan::transport::nccl_net::tcpx
