#include "transport/nccl_net/tcpx/rx_cmsg_parser.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/support/rx_control.hpp"

namespace linkspan::transport::nccl_net::tcpx {
namespace tcpx_rx_cmsg_parser_test {

using test::RxControl;

constexpr std::uint32_t kTop = ~std::uint32_t{0};

RxMessage parsed(const RxControl& control) {
  RxMessage message;
  const Status status = parse_control(control.bytes(), 0, message);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return message;
}

/// Returns the error text; checks that the message is unchanged.
std::string refusal(std::span<const std::byte> control, int flags = 0, Code code = Code::corrupt) {
  RxMessage message;
  EXPECT_TRUE(parse_control(RxControl().tcpx(kScmDevmemOffset, 0, 7, 1).bytes(), 0, message).ok());
  const Status status = parse_control(control, flags, message);
  EXPECT_EQ(status.code(), code) << status.to_string();
  EXPECT_EQ(message.bytes, 7u);
  EXPECT_EQ(message.fragments.size(), 1u);
  return status.what();
}

void expect_says(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << ": " << text;
}

TEST(TcpxRxCmsg, TheTcpxKernelsFragments) {
  const RxMessage message = parsed(RxControl()
                                       .tcpx(kScmDevmemHeader, 0, 66)
                                       .tcpx(kScmDevmemOffset, 8192, 4030, 5)
                                       .tcpx(kScmDevmemOffset, 4096, 100, 6)
                                       .tcpx(kScmDevmemHeader, 0, 3)
                                       .tcpx(kScmDevmemOffset, kTop, 1, 9));
  EXPECT_EQ(message.kernel, RxKernel::tcpx);
  EXPECT_EQ(message.bytes, 66u + 4030 + 100 + 3 + 1);
  EXPECT_EQ(message.linear_bytes, 69u);
  ASSERT_EQ(message.fragments.size(), 3u);
  EXPECT_EQ(message.fragments[0].dst_off, 66u);
  EXPECT_EQ(message.fragments[0].src_off, 8192u);
  EXPECT_EQ(message.fragments[0].bytes, 4030u);
  EXPECT_EQ(message.fragments[0].token, 5u);
  EXPECT_EQ(message.fragments[2].dst_off, 66u + 4030 + 100 + 3);
  EXPECT_EQ(message.fragments[2].src_off, std::uint64_t{kTop});
  ASSERT_EQ(message.linear.size(), 2u);
  EXPECT_EQ(message.linear[1].dst_off, 66u + 4030 + 100);
  EXPECT_EQ(message.linear[1].src_off, 66u) << "behind the first in the iovecs";
  EXPECT_EQ(message.linear[1].bytes, 3u);
  ASSERT_EQ(message.tokens.size(), 2u);
  EXPECT_EQ(message.tokens[0].first, 5u);
  EXPECT_EQ(message.tokens[0].count, 2u);
  EXPECT_EQ(message.tokens[1].first, 9u);
}

TEST(TcpxRxCmsg, TheUpstreamKernelsFragments) {
  const std::uint64_t far = std::uint64_t{7} << 32;
  const RxMessage message = parsed(RxControl()
                                       .upstream(kScmDevmemDmabuf, far + 16, 4096, kTop - 1, 3)
                                       .upstream(kScmDevmemLinear, 0, 20)
                                       .upstream(kScmDevmemDmabuf, 0, kTop, kTop, 3)
                                       .upstream(kScmDevmemDmabuf, 64, 1, 0, 3));
  EXPECT_EQ(message.kernel, RxKernel::upstream);
  EXPECT_EQ(message.bytes, std::uint64_t{4096} + 20 + kTop + 1);
  ASSERT_EQ(message.fragments.size(), 3u);
  EXPECT_EQ(message.fragments[0].src_off, far + 16);
  EXPECT_EQ(message.fragments[0].dmabuf, 3u);
  EXPECT_EQ(message.fragments[2].dst_off, 4096u + 20 + std::uint64_t{kTop});
  ASSERT_EQ(message.linear.size(), 1u);
  EXPECT_EQ(message.linear[0].dst_off, 4096u);
  ASSERT_EQ(message.tokens.size(), 2u) << "a range does not go on at 0";
  EXPECT_EQ(message.tokens[0].count, 2u);
  EXPECT_EQ(message.tokens[1].first, 0u);
}

TEST(TcpxRxCmsg, AMessageGoesOnInTheNextCall) {
  RxMessage message;
  ASSERT_TRUE(parse_control({}, 0, message).ok());
  EXPECT_EQ(message.kernel, RxKernel::none) << "ordinary data";
  for (std::uint32_t i = 0; i < 3; ++i)
    ASSERT_TRUE(parse_control(RxControl()
                                  .upstream(kScmDevmemLinear, 0, 10)
                                  .upstream(kScmDevmemDmabuf, 4096 * i, 90, i, 1)
                                  .bytes(),
                              0, message)
                    .ok());
  EXPECT_EQ(message.bytes, 300u);
  EXPECT_EQ(message.linear_bytes, 30u);
  EXPECT_EQ(message.fragments[2].dst_off, 210u);
  EXPECT_EQ(message.linear[2].src_off, 20u);
  expect_says(refusal(RxControl().upstream(kScmDevmemDmabuf, 0, 1).bytes()),
              {"type 79", "upstream", "GPUDirect-TCPX"});
}

TEST(TcpxRxCmsg, PaddingAndAlignmentAreAsTheKernelLikes) {
  // A u32 more than a multiple of 8: the room may end with the data.
  const RxControl last =
      RxControl().tcpx(kScmDevmemOffset, 1, 2, 3).tcpx(kScmDevmemOffset, 4, 5, 6).without_padding();
  EXPECT_EQ(last.bytes().size(), 32u + 28);
  EXPECT_EQ(parsed(last).bytes, 7u);
  std::vector<std::byte> room(last.bytes().size() + 8);
  for (std::size_t odd = 0; odd < 8; ++odd) {
    std::copy(last.bytes().begin(), last.bytes().end(),
              room.begin() + static_cast<std::ptrdiff_t>(odd));
    RxMessage message;
    EXPECT_TRUE(parse_control(std::span(room).subspan(odd, last.bytes().size()), 0, message).ok());
    EXPECT_EQ(message.fragments.at(1).src_off, 4u);
  }
}

TEST(TcpxRxCmsg, EveryCutIsRefused) {
  const RxControl whole =
      RxControl().tcpx(kScmDevmemOffset, 1, 2, 3).upstream(kScmDevmemDmabuf, 4, 5, 6, 7);
  const RxControl one = RxControl().upstream(kScmDevmemDmabuf, 4, 5, 6, 7);
  for (std::size_t bytes = 1; bytes < one.bytes().size(); ++bytes) {
    const std::vector<std::byte> cut(one.bytes().begin(),
                                     one.bytes().begin() + static_cast<std::ptrdiff_t>(bytes));
    const std::string what = refusal(cut);
    expect_says(what, {"control message 0", "at byte 0", std::to_string(bytes).c_str()});
  }
  expect_says(refusal(std::vector<std::byte>(whole.bytes().begin(), whole.bytes().begin() + 47)),
              {"control message 1", "at byte 32", "15 bytes are left"});
}

TEST(TcpxRxCmsg, LengthsThatCannotBe) {
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{15}, std::size_t{41}, ~std::size_t{0}, ~std::size_t{7}}) {
    std::vector<std::byte> bytes = RxControl().upstream(kScmDevmemDmabuf, 4, 5, 6, 7).bytes();
    std::memcpy(bytes.data(), &length, sizeof length);
    expect_says(refusal(bytes), {"length is", std::to_string(length).c_str(), "16 to 40"});
  }
  const std::uint32_t words[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  for (const std::size_t count : {std::size_t{0}, std::size_t{2}, std::size_t{4}, std::size_t{6}})
    expect_says(
        refusal(RxControl().add(SOL_SOCKET, kScmDevmemOffset, std::span(words, count)).bytes()),
        {"type 99", (std::to_string(4 * count) + " bytes of data, not 12").c_str()});
  for (const std::size_t count : {std::size_t{3}, std::size_t{5}, std::size_t{8}})
    expect_says(
        refusal(RxControl().add(SOL_SOCKET, kScmDevmemLinear, std::span(words, count)).bytes()),
        {"type 78", "GPUDirect"});
  RxMessage fresh;
  const Status status = parse_control(
      RxControl().add(SOL_SOCKET, kScmDevmemLinear, std::span(words, 3)).bytes(), 0, fresh);
  expect_says(status.what(), {"type 78", "12 bytes of data, not 24"});
}

TEST(TcpxRxCmsg, WhatIsNoFragment) {
  const std::uint32_t words[] = {1, 2, 3};
  expect_says(
      refusal(
          RxControl().tcpx(kScmDevmemOffset, 0, 1, 0).add(SOL_SOCKET, SCM_RIGHTS, words).bytes()),
      {"control message 1, at byte 32", "type 1 ", "98, 99"});
  expect_says(refusal(RxControl().add(41, kScmDevmemOffset, words).bytes()),
              {"level is 41", "SOL_SOCKET (1)"});
  expect_says(refusal(RxControl().tcpx(kScmDevmemOffset, 64, 0, 1).bytes()), {"0 bytes"});
  expect_says(refusal(RxControl().tcpx(kScmDevmemHeader, 0, 0).bytes()), {"0 bytes"});
  RxMessage message;
  const Status past = parse_control(
      RxControl().upstream(kScmDevmemDmabuf, ~std::uint64_t{0} - 4, 4, 0, 1).bytes(), 0, message);
  EXPECT_EQ(past.code(), Code::ok) << "the last that can be: " << past.to_string();
  const Status beyond = parse_control(
      RxControl().upstream(kScmDevmemDmabuf, ~std::uint64_t{0} - 4, 5, 0, 1).bytes(), 0, message);
  expect_says(beyond.what(), {"5 bytes at 18446744073709551611", "passes the end"});
}

TEST(TcpxRxCmsg, ARoomThatWasTooSmallIsSaid) {
  expect_says(
      refusal(RxControl().tcpx(kScmDevmemOffset, 0, 1).bytes(), MSG_CTRUNC, Code::truncated),
      {"32 bytes of room", "MSG_CTRUNC"});
}

}  // namespace tcpx_rx_cmsg_parser_test
}  // namespace linkspan::transport::nccl_net::tcpx
