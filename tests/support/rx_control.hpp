// tests/support/rx_control.hpp - control messages as the two kernels write them, for the parser of
// transport/nccl_net/tcpx.
//
// Threads: externally synchronised.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "transport/nccl_net/tcpx/rx_cmsg_parser.hpp"

namespace linkspan::test {

/// Builds what recvmsg would leave in msg_control.
class RxControl {
 public:
  /// Adds any control message.
  RxControl& add(int level, int type, std::span<const std::uint32_t> words) {
    const std::size_t length = words.size_bytes();
    std::vector<std::byte> room(CMSG_SPACE(length));
    cmsghdr header{};
    header.cmsg_len = CMSG_LEN(length);
    header.cmsg_level = level;
    header.cmsg_type = type;
    std::memcpy(room.data(), &header, sizeof header);
    if (length != 0) std::memcpy(room.data() + CMSG_LEN(0), words.data(), length);
    padding_ = room.size() - CMSG_LEN(length);
    bytes_.insert(bytes_.end(), room.begin(), room.end());
    return *this;
  }
  /// Adds {offset, size, token}.
  RxControl& tcpx(int type, std::uint32_t offset, std::uint32_t bytes, std::uint32_t token = 0) {
    const std::uint32_t words[] = {offset, bytes, token};
    return add(SOL_SOCKET, type, words);
  }
  /// Adds {u64 offset, size, token, DMA-BUF, flags}.
  RxControl& upstream(int type, std::uint64_t offset, std::uint32_t bytes, std::uint32_t token = 0,
                      std::uint32_t dmabuf = 0) {
    const std::uint32_t words[] = {static_cast<std::uint32_t>(offset),
                                   static_cast<std::uint32_t>(offset >> 32),
                                   bytes,
                                   token,
                                   dmabuf,
                                   0};
    return add(SOL_SOCKET, type, words);
  }
  /// Removes the last message's padding, as the end of the room does.
  RxControl& without_padding() {
    bytes_.resize(bytes_.size() - padding_);
    padding_ = 0;
    return *this;
  }
  const std::vector<std::byte>& bytes() const noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  std::size_t padding_ = 0;  // of the last one
};

}  // namespace linkspan::test
