#include "base/fd_channel.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/process.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/support/raw_message.hpp"

namespace linkspan::base {
namespace fd_channel_test {

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed = 0) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<std::byte>((i * 31 + seed) ^ i >> 8);
  return data;
}

std::vector<Fd> eventfds(std::size_t count) {
  std::vector<Fd> fds;
  for (std::size_t i = 0; i < count; ++i)
    fds.emplace_back(::eventfd(static_cast<unsigned>(i + 1), EFD_CLOEXEC | EFD_NONBLOCK));
  return fds;
}

/// Returns the number that an eventfd was made with.
std::uint64_t value_of(const Fd& fd) {
  std::uint64_t value = 0;
  return ::read(fd.get(), &value, sizeof value) == sizeof value ? value : 0;
}

std::size_t open_fds() {
  std::size_t open = 0;
  for (int fd = 0; fd < 1024; ++fd) open += ::fcntl(fd, F_GETFD) >= 0 ? 1u : 0u;
  return open;
}

class FdChannelTest : public testing::Test {
 protected:
  FdChannelTest() : FdChannelTest(socket_pair()) {}
  explicit FdChannelTest(Result<std::pair<Fd, Fd>> pair)
      : here(std::move(pair->first)), there(std::move(pair->second)) {}

  /// Sends bytes, and fds with the first of them, as a hostile peer would.
  void send_raw(std::span<const std::byte> bytes, std::span<const Fd> fds = {}) const {
    ASSERT_EQ(test::send_message(here.fd(), bytes, fds), static_cast<ssize_t>(bytes.size()));
  }
  /// Returns the next frame, which must be there.
  Frame next() {
    Result<std::optional<Frame>> got = there.receive();
    EXPECT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_TRUE(got.ok() && got->has_value());
    return got.ok() && *got ? **std::move(got) : Frame();
  }
  bool nothing_yet() {
    const auto got = there.receive();
    return got.ok() && !got->has_value();
  }
  Code receive_code() { return there.receive().status().code(); }

  FdChannel here, there;
};

TEST(FrameHeader, IsLittleEndianOnTheWire) {
  const FrameHeader header{0x01020304, 0x0506, 0x0708, 0x1112131415161718, 0x2122232425262728};
  const auto bytes = encode(header);
  const unsigned char expected[] = {4,    3,    2,    1,    6,    5,    8,    7,
                                    0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
                                    0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21};
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof expected), 0);
  EXPECT_EQ(decode_header(bytes), header);
}

TEST_F(FdChannelTest, CarriesFramesWithTheirOwnFds) {
  const auto small = pattern(5);
  auto two = eventfds(2), all = eventfds(kMaxFrameFds);
  ASSERT_TRUE(here.queue({.op = 1, .id = 7, .incarnation = 9}, small, two).ok());
  ASSERT_TRUE(here.queue({.op = 2}, {}, {}).ok());
  ASSERT_TRUE(here.queue({.op = 3}, small, all).ok());
  EXPECT_FALSE(two[0].valid());  // taken
  EXPECT_TRUE(nothing_yet());
  ASSERT_TRUE(here.flush().ok());
  EXPECT_FALSE(here.wants_write());

  const Frame first = next();
  EXPECT_EQ(first.header, (FrameHeader{5, kProtocolVersion, 1, 7, 9}));
  EXPECT_EQ(first.payload, small);
  ASSERT_EQ(first.fds.size(), 2u);
  EXPECT_EQ(value_of(first.fds[0]), 1u);
  EXPECT_EQ(value_of(first.fds[1]), 2u);
  EXPECT_EQ(::fcntl(first.fds[1].get(), F_GETFD), FD_CLOEXEC);
  const Frame second = next();
  EXPECT_EQ(second.header.op, 2);
  EXPECT_TRUE(second.payload.empty() && second.fds.empty());
  const Frame third = next();
  ASSERT_EQ(third.fds.size(), kMaxFrameFds);
  EXPECT_EQ(value_of(third.fds.back()), kMaxFrameFds);
  EXPECT_TRUE(nothing_yet());
}

TEST_F(FdChannelTest, QueuesNothing_WhenMemoryEnds) {
  const MacKey key{};
  here.authenticate_sent(key);
  there.authenticate_received(key);
  const auto payload = pattern(1000);
  auto fds = eventfds(2);
  const auto queue = [&] { ASSERT_TRUE(here.queue({.op = 1}, payload, fds).ok()); };
  test::fail_each_allocation(queue, [&](bool threw) {
    EXPECT_EQ(here.wants_write(), !threw);
    EXPECT_EQ(fds[0].valid() && fds[1].valid(), threw);
    if (threw) queue();
    ASSERT_TRUE(here.flush().ok());
    const Frame frame = next();
    EXPECT_EQ(frame.payload, payload);
    EXPECT_EQ(frame.fds.size(), 2u);
    fds = eventfds(2);
  });
}

TEST_F(FdChannelTest, ReceivesAFrameWithAllItsFdsLater_WhenMemoryEnds) {
  const auto payload = pattern(1000);
  const auto send = [&] {
    auto fds = eventfds(kMaxFrameFds);
    ASSERT_TRUE(here.queue({.op = 1}, payload, fds).ok());
    ASSERT_TRUE(here.flush().ok());
  };
  const std::size_t before = open_fds();
  send();
  std::optional<Frame> frame;
  test::fail_each_allocation([&] { frame = *there.receive(); },
                             [&](bool threw) {
                               if (threw) frame = next();
                               ASSERT_TRUE(frame);
                               EXPECT_EQ(frame->payload, payload);
                               ASSERT_EQ(frame->fds.size(), kMaxFrameFds);
                               EXPECT_EQ(value_of(frame->fds.back()), kMaxFrameFds);
                               frame.reset();
                               EXPECT_EQ(open_fds(), before);
                               send();
                             });
}

TEST_F(FdChannelTest, GoesOnWhereAFullSocketStoppedIt) {
  for (unsigned i = 0; i < 4; ++i) {
    auto fds = eventfds(i);
    ASSERT_TRUE(here.queue({.id = i}, pattern(kMaxPayload - i, i), fds).ok());
  }
  std::vector<Frame> got;
  ASSERT_TRUE(here.flush().ok());
  EXPECT_TRUE(here.wants_write()) << "a socket holds no 4 MiB";
  for (int turns = 0; got.size() < 4 && turns < 10000; ++turns) {
    ASSERT_TRUE(here.flush().ok());
    auto frame = there.receive();
    ASSERT_TRUE(frame.ok()) << frame.status().to_string();
    if (*frame) got.push_back(**std::move(frame));
  }
  ASSERT_EQ(got.size(), 4u);
  for (unsigned i = 0; i < 4; ++i) {
    EXPECT_EQ(got[i].header.id, i);
    EXPECT_EQ(got[i].payload, pattern(kMaxPayload - i, i));
    EXPECT_EQ(got[i].fds.size(), i);
  }
}

TEST_F(FdChannelTest, PutsAFrameTogetherFromSingleBytes) {
  const auto payload = pattern(3);
  FrameHeader header{.length = 3, .op = 4};
  auto bytes = encode(header);
  std::vector<std::byte> all(bytes.begin(), bytes.end());
  all.insert(all.end(), payload.begin(), payload.end());
  const auto fds = eventfds(1);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(nothing_yet());
    send_raw(std::span(all).subspan(i, 1), i == 0 ? std::span(fds) : std::span<const Fd>());
  }
  const Frame frame = next();
  EXPECT_EQ(frame.payload, payload);
  EXPECT_EQ(frame.fds.size(), 1u);
}

/// Two ends of a TCP connection, which keeps few bytes and carries them in pieces of its own.
class FdChannelOverTcp : public FdChannelTest {
 protected:
  FdChannelOverTcp() : FdChannelTest(connected()) {}

 private:
  static Result<std::pair<Fd, Fd>> connected() {
    const Fd listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof at;
    auto* const raw = reinterpret_cast<sockaddr*>(&at);
    const int few = 8192;
    Fd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ::setsockopt(one.get(), SOL_SOCKET, SO_SNDBUF, &few, sizeof few);
    ::setsockopt(listening.get(), SOL_SOCKET, SO_RCVBUF, &few, sizeof few);
    if (::bind(listening.get(), raw, bytes) != 0 || ::listen(listening.get(), 1) != 0 ||
        ::getsockname(listening.get(), raw, &bytes) != 0 || ::connect(one.get(), raw, bytes) != 0)
      return Fd::from("a TCP connection", -1).status();
    return std::pair(std::move(one),
                     Fd(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }
};

TEST_F(FdChannelOverTcp, AFrameOfAnySizeArrivesWhole) {
  const std::size_t sizes[] = {0, 1, 8192, 65537, kMaxPayload};
  for (const std::size_t size : sizes)
    ASSERT_TRUE(here.queue({.id = size}, pattern(size), {}).ok());
  std::size_t turns = 0;
  for (const std::size_t size : sizes) {
    std::optional<Frame> got;
    for (; !got && turns < 1000000; ++turns) {
      ASSERT_TRUE(here.flush().ok());
      auto frame = there.receive();
      ASSERT_TRUE(frame.ok()) << frame.status().to_string();
      got = *std::move(frame);
    }
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->header.id, size);
    EXPECT_EQ(got->payload, pattern(size));
  }
  EXPECT_GT(turns, 20u) << "it went in one piece";
}

TEST_F(FdChannelOverTcp, AResetIsAnEndAndWhatCameBeforeIsHeard) {
  ASSERT_TRUE(here.queue({.op = 6}, pattern(10), {}).ok());
  ASSERT_TRUE(here.flush().ok());
  EXPECT_EQ(next().header.op, 6);
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(::setsockopt(here.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  here = FdChannel(Fd());
  EXPECT_EQ(receive_code(), Code::disconnected);
}

TEST_F(FdChannelTest, RefusesWhatNoFrameHoldsAndTakesNothing) {
  auto fds = eventfds(kMaxFrameFds + 1);
  EXPECT_EQ(here.queue({}, {}, fds).code(), Code::invalid_argument);
  EXPECT_TRUE(fds[0].valid());
  EXPECT_EQ(here.queue({}, pattern(kMaxPayload + 1), {}).code(), Code::invalid_argument);
  Fd closed;
  EXPECT_EQ(here.queue({}, {}, {&closed, 1}).code(), Code::invalid_argument);
  EXPECT_FALSE(here.wants_write());
}

TEST_F(FdChannelTest, PushesBackWhenTheQueueIsFull) {
  const auto payload = pattern(kMaxPayload);
  Status status;
  std::size_t taken = 0;
  while (taken < 100 && (status = here.queue({}, payload, {})).ok()) ++taken;
  EXPECT_EQ(status.code(), Code::no_resource);
  EXPECT_EQ(taken, kMaxQueuedBytes / (kMaxPayload + kFrameHeaderBytes));

  while (taken-- > 0) {  // and recovers
    while (nothing_yet()) ASSERT_TRUE(here.flush().ok());
    ASSERT_TRUE(here.flush().ok());
  }
  EXPECT_TRUE(here.queue({}, payload, {}).ok());
}

TEST_F(FdChannelTest, PushesBackWhenTooManyFdsWait) {
  for (std::size_t i = 0; i < kMaxQueuedFds; i += kMaxFrameFds) {
    auto fds = eventfds(kMaxFrameFds);
    ASSERT_TRUE(here.queue({}, {}, fds).ok());
  }
  auto more = eventfds(1);
  EXPECT_EQ(here.queue({}, {}, more).code(), Code::no_resource);
  EXPECT_TRUE(more[0].valid());
}

TEST_F(FdChannelTest, ALengthBeyondTheBoundIsCorrupt) {
  for (const std::uint32_t length : {static_cast<std::uint32_t>(kMaxPayload + 1), ~0u}) {
    Result<std::pair<Fd, Fd>> pair = socket_pair();
    ASSERT_TRUE(pair.ok());
    here = FdChannel(std::move(pair->first));
    there = FdChannel(std::move(pair->second));
    send_raw(encode({.length = length}), eventfds(1));
    const std::size_t before = open_fds();
    EXPECT_EQ(receive_code(), Code::corrupt);
    EXPECT_EQ(open_fds(), before) << "its fd was not closed";
    EXPECT_EQ(receive_code(), Code::corrupt);  // from now on
    EXPECT_EQ(there.queue({}, {}, {}).code(), Code::corrupt);
    EXPECT_EQ(there.flush().code(), Code::corrupt);
    EXPECT_EQ(here.receive().status().code(), Code::disconnected);
  }
}

TEST_F(FdChannelTest, FdsInsideAPayloadAreCorruptAndClosed) {
  send_raw(encode({.length = 8}));
  send_raw(pattern(4));
  EXPECT_TRUE(nothing_yet());
  send_raw(pattern(4), eventfds(3));
  const std::size_t before = open_fds();
  EXPECT_EQ(receive_code(), Code::corrupt);
  EXPECT_EQ(open_fds(), before);
}

TEST_F(FdChannelTest, MoreFdsThanAFrameHoldsAreCorruptAndClosed) {
  const auto fds = eventfds(kMaxFrameFds + 1);
  send_raw(encode({}), fds);
  const std::size_t before = open_fds();
  EXPECT_EQ(receive_code(), Code::corrupt);
  EXPECT_EQ(open_fds(), before);
}

TEST_F(FdChannelTest, FdsAddUpOverThePartsOfAHeader) {
  const auto header = encode({});
  for (std::size_t i = 0; i < 2; ++i) {
    send_raw(std::span(header).subspan(i * 12, 12), eventfds(40));
    const std::size_t before = open_fds();
    EXPECT_EQ(receive_code(), i == 0 ? Code::ok : Code::corrupt);
    EXPECT_EQ(open_fds(), i == 0 ? before + 40 : before - 40);
  }
}

TEST_F(FdChannelTest, DeliversWhatCameBeforeTheEnd) {
  ASSERT_TRUE(here.queue({.op = 6}, pattern(10), {}).ok());
  ASSERT_TRUE(here.flush().ok());
  here = FdChannel(Fd());  // closes
  EXPECT_EQ(there.queue({}, {}, {}).code(), Code::ok);
  EXPECT_EQ(there.flush().code(), Code::disconnected);
  EXPECT_FALSE(there.wants_write());
  EXPECT_EQ(next().header.op, 6);
  EXPECT_EQ(receive_code(), Code::disconnected);
}

TEST_F(FdChannelTest, AnEndWithinAFrameIsDisconnectedToo) {
  send_raw(encode({.length = 8}));
  here = FdChannel(Fd());
  EXPECT_EQ(receive_code(), Code::disconnected);
}

}  // namespace fd_channel_test
}  // namespace linkspan::base
