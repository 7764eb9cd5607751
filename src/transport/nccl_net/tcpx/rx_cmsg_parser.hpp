// transport/nccl_net/tcpx/rx_cmsg_parser.hpp - what the kernel says beside bytes that a NIC has put
// into GPU memory: the control messages of a recvmsg(2), as a list of fragments.
//
// Two kernels speak: the one that GPUDirect-TCPX was made for, and the upstream one with devmem TCP
// (docs/tcpx.md). Each control message is a fragment in the bounce pool, with a token to give back,
// or a run of bytes that went through the CPU into the iovec: protocol headers of an application,
// bytes that the NIC did not split off. The bytes of a stream are theirs in the order of the
// messages, of whichever sort.
// Threads: pure functions. Nothing is taken on trust: what does not fit is an error that says
// where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "linkspan/status.hpp"

namespace linkspan::transport::nccl_net::tcpx {

// Of SOL_SOCKET. Debian's headers have none of them.
constexpr int kScmDevmemLinear = 78, kScmDevmemDmabuf = 79;  ///< Upstream.
constexpr int kScmDevmemHeader = 98, kScmDevmemOffset = 99;  ///< GPUDirect-TCPX's kernel.

enum class RxKernel : std::uint8_t { none, tcpx, upstream };

/// A run of bytes of the stream.
struct RxPiece {
  std::uint64_t dst_off = 0;  ///< Where in what was received.
  std::uint64_t src_off = 0;  ///< In the pool; of a linear piece among the bytes in the iovecs.
  std::uint32_t bytes = 0;    ///< Never zero.
  std::uint32_t token = 0;    ///< Of a fragment only, as the next.
  std::uint32_t dmabuf = 0;   ///< Upstream: the pool's number. Zero: the other kernel has none.
};

/// Tokens `first`, `first` + 1, ..., as SO_DEVMEM_DONTNEED takes them.
struct RxTokens {
  std::uint32_t first = 0, count = 0;
};

/// What was received so far of one message, by one recvmsg or several.
struct RxMessage {
  RxKernel kernel = RxKernel::none;
  std::uint64_t bytes = 0, linear_bytes = 0;  ///< All of them; those in the iovecs.
  std::vector<RxPiece> fragments, linear;
  std::vector<RxTokens> tokens;  ///< Of all fragments, to be given back once they were read.
};

/// Adds what one recvmsg has told: `control` is what it wrote there, `flags` its msg_flags. No
/// control message at all is ordinary data, and adds nothing. truncated: the room for control
/// messages was too small (MSG_CTRUNC). corrupt: it is none of the two kernels' layouts, or a size
/// or an offset is none that can be. `into` is as it was after an error.
Status parse_control(std::span<const std::byte> control, int flags, RxMessage& into);

}  // namespace linkspan::transport::nccl_net::tcpx
