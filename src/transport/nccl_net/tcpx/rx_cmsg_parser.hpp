// transport/nccl_net/tcpx/rx_cmsg_parser.hpp - parses the control messages of a recvmsg(2) that a
// NIC has received into GPU memory, into a list of fragments.
//
// Two kernels are supported: GPUDirect-TCPX's, and the upstream one with devmem TCP (docs/tcpx.md).
// A control message is a fragment in the bounce pool with a token to return, or a run of bytes that
// the CPU copied to the iovec: an application's protocol headers, or bytes that the NIC did not
// split off. The messages, of either sort, are in the order of the byte stream.
// Threads: pure functions. All input is checked; errors say where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "linkspan/status.hpp"

namespace linkspan::transport::nccl_net::tcpx {

// At level SOL_SOCKET. Debian's headers do not define them.
constexpr int kScmDevmemLinear = 78, kScmDevmemDmabuf = 79;  ///< Upstream kernel.
constexpr int kScmDevmemHeader = 98, kScmDevmemOffset = 99;  ///< GPUDirect-TCPX's kernel.

enum class RxKernel : std::uint8_t { none, tcpx, upstream };

/// Describes a run of bytes of the byte stream.
struct RxPiece {
  std::uint64_t dst_off = 0;  ///< Position in the received message.
  std::uint64_t src_off = 0;  ///< Position in the pool; linear: among the bytes in the iovecs.
  std::uint32_t bytes = 0;    ///< Never zero.
  std::uint32_t token = 0;    ///< Fragments only.
  std::uint32_t dmabuf = 0;   ///< Fragments, upstream kernel: the pool's number; otherwise 0.
};

/// Describes tokens `first`, `first` + 1, ..., as SO_DEVMEM_DONTNEED takes them.
struct RxTokens {
  std::uint32_t first = 0, count = 0;
};

/// Collects what was received of one message, by one or several recvmsg.
struct RxMessage {
  RxKernel kernel = RxKernel::none;
  std::uint64_t bytes = 0, linear_bytes = 0;  ///< All bytes; those in the iovecs.
  std::vector<RxPiece> fragments, linear;
  std::vector<RxTokens> tokens;  ///< Tokens of all fragments; returned once these were read.
};

/// Adds the result of one recvmsg: `control` is what it wrote there, `flags` its msg_flags. Without
/// control messages it is ordinary data and adds nothing. truncated: the space for control messages
/// was too small (MSG_CTRUNC). corrupt: the layout is neither kernel's, or a size or offset is
/// impossible. `into` is unchanged after an error.
Status parse_control(std::span<const std::byte> control, int flags, RxMessage& into);

}  // namespace linkspan::transport::nccl_net::tcpx
