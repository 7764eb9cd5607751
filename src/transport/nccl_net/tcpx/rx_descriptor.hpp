// transport/nccl_net/tcpx/rx_descriptor.hpp - the fragments of one receive, checked and merged: the
// input of an unpack.
//
// A block exists only if all checks passed: each fragment lies in the pool, each byte of the
// receive comes exactly once. It can be copied by without further checks.
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
  std::uint64_t pool_bytes = 0;  ///< Size of the bounce pool; fragments beyond 4 GiB are refused.
  std::uint64_t receive_bytes = 0;  ///< What was received, not the size of the buffer.
  std::uint32_t dmabuf = 0;         ///< Upstream kernel: the pool's number.
};

class DescriptorBlock {
 public:
  // Builds a block from entries in any order. corrupt, with the entry's number and values: more
  // than kMaxFragments, no bytes, outside the pool or the receive, an overlap, a gap, or a wrong
  // end.
  static Result<DescriptorBlock> of(std::span<const LoadMeta> entries, const RxBounds& bounds);
  /// Builds a block from the fragments. Linear pieces are checked but not part of the block: they
  /// are on the host, and the caller stores them.
  static Result<DescriptorBlock> of(const RxMessage& message, const RxBounds& bounds);
  /// Builds a block for a receive that the plugin's test() has completed. Reads the queue once, so
  /// later writes by the plugin change nothing.
  static Result<DescriptorBlock> of_slot(const MetaQueue& queue, std::size_t slot,
                                         const RxBounds& bounds);

  /// Sorted by dst_off; neighbours in both pool and receive are merged.
  std::span<const LoadMeta> entries() const noexcept { return entries_; }
  std::uint64_t bytes() const noexcept { return bytes_; }        ///< Sum of the entries.
  std::uint32_t largest() const noexcept { return largest_; }    ///< Bytes of the largest entry.
  std::size_t fragments() const noexcept { return fragments_; }  ///< Number before merging.

 private:
  explicit DescriptorBlock(std::size_t fragments) : fragments_(fragments) {}

  void set(std::vector<LoadMeta> entries);

  std::vector<LoadMeta> entries_;
  std::uint32_t largest_ = 0;
  std::uint64_t bytes_ = 0;
  std::size_t fragments_;
};

}  // namespace linkspan::transport::nccl_net::tcpx
