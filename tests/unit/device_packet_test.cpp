// Tests packet.cuh on the host. Messages of another length, or of an older cycle of epochs, leave
// old words in a slot. Either side may be the slower one.
#include "linkspan/device/packet.cuh"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <numeric>
#include <thread>

#include "tests/unit/device_stream.hpp"

namespace linkspan::device {
namespace device_packet_test {

constexpr std::uint64_t kEvery = PadLayout::kSlots / 2;

TEST(DevicePacket, AStreamOfAllSizes) {
  const Stream stream{.messages = 20000, .mailbox_bytes = 256, .seed = 1};
  WindowPair pair(stream.layout(1), Stream::region_bytes(1));
  const std::jthread sender([&] { stream.send_all(pair.from_a, 0); });
  stream.receive_all(pair.from_b, pair.b.region.inside(), 0);
}

TEST(DevicePacket, AStreamWhoseEpochsBeginAgain) {
  const Stream stream{.messages = 3000, .mailbox_bytes = 64, .seed = 3};
  WindowPair pair(stream.layout(1), Stream::region_bytes(1));
  pair.from_a.wrap = pair.from_b.wrap = 55;
  const std::jthread sender([&] { stream.send_all(pair.from_a, 0); });
  stream.receive_all(pair.from_b, pair.b.region.inside(), 0);
}

TEST(DevicePacket, WhatDidNotEndWellIsSentAndReceivedAgain) {
  WindowPair pair({.signals = 0, .mailboxes = 1, .mailbox_bytes = 64}, 16);
  MailboxSender<Scope::warp> sender(pair.from_a, 0, pair.from_a.within(1000), 7);
  MailboxReceiver<Scope::warp> receiver(pair.from_b, 0, pair.from_b.within(1000), 7);
  Source source(1, 16);
  EXPECT_EQ(receiver.receive(0, 16), Outcome::timed_out);
  EXPECT_EQ(receiver.receive(8, 16), Outcome::out_of_range);
  EXPECT_EQ(sender.send(8, source.data(), 16), Outcome::out_of_range);
  EXPECT_EQ(sender.next(), 7U);
  EXPECT_EQ(sender.send(0, source.data(), 16), Outcome::ok);
  EXPECT_EQ(receiver.next(), 7U);
  EXPECT_EQ(receiver.receive(0, 16), Outcome::ok);
  EXPECT_EQ(sender.next(), 8U);
  EXPECT_EQ(receiver.next(), 8U);
  EXPECT_EQ(test::first_difference(pair.b.region.inside(), 1, 0, {}), "");
}

TEST(DevicePacket, MailboxesBothWaysDoNotMix) {
  constexpr std::uint32_t kMailboxes = 3;
  const Stream stream{.messages = 800, .mailbox_bytes = 64, .seed = 2};
  WindowPair pair(stream.layout(kMailboxes), Stream::region_bytes(kMailboxes));
  std::vector<std::jthread> threads;
  for (std::uint32_t mailbox = 0; mailbox < kMailboxes; ++mailbox)
    for (const bool of_a : {true, false}) {
      const Window& window = of_a ? pair.from_a : pair.from_b;
      Side& mine = of_a ? pair.a : pair.b;
      Stream ours = stream, theirs = stream;
      (of_a ? ours : theirs).seed += 100;
      threads.emplace_back([=] { ours.send_all(window, mailbox); });
      threads.emplace_back(
          [=, &mine] { theirs.receive_all(window, mine.region.inside(), mailbox); });
    }
}

TEST(DevicePacket, CreditHoldsTheSenderBack) {
  constexpr std::uint64_t kBytes = 24;
  WindowPair pair({.signals = 0, .mailboxes = 1, .mailbox_bytes = 64}, 16 * kBytes);
  const auto sends = [&](std::uint64_t number) {
    Source source(number, kBytes);
    return send<Scope::warp>(pair.from_a, 0, number, number % 16 * kBytes, source.data(), kBytes,
                             pair.from_a.within(1000));
  };
  const auto receives = [&](std::uint64_t number) {
    return receive<Scope::warp>(pair.from_b, 0, number, number % 16 * kBytes, kBytes,
                                pair.from_b.within(1000));
  };
  // Credit returns with the receive that follows the messages it is for.
  std::uint64_t sent = 0, received = 1;
  for (; sent < PadLayout::kSlots; ++sent) ASSERT_EQ(sends(sent + 1), Outcome::ok) << sent;
  ASSERT_EQ(receives(received), Outcome::ok);
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(sends(sent + 1), Outcome::timed_out) << "after " << sent;
    for (std::uint64_t i = 0; i < kEvery; ++i) {
      EXPECT_EQ(sends(sent + 1), Outcome::timed_out) << "credit after " << i;
      ++received;
      ASSERT_EQ(receives(received), Outcome::ok);
      const auto got = pair.b.region.inside().subspan(received % 16 * kBytes, kBytes);
      ASSERT_EQ(test::first_difference(got, received, 0, {}), "");
    }
    for (std::uint64_t i = 0; i < kEvery; ++i) ASSERT_EQ(sends(++sent), Outcome::ok) << sent;
  }
  while (received < sent) ASSERT_EQ(receives(++received), Outcome::ok);
  EXPECT_EQ(receives(received + 1), Outcome::timed_out);
  pair.a.abort = 1;
  for (std::uint64_t i = 0; i < PadLayout::kSlots; ++i) ASSERT_EQ(sends(++sent), Outcome::ok);
  EXPECT_EQ(send<Scope::block>(pair.from_a, 0, sent + 1, 0, nullptr, 0, pair.from_a.within(kLong)),
            Outcome::aborted);
}

class DevicePacketWrap : public ::testing::TestWithParam<std::uint32_t> {};

// Each message first comes in part: its first words alone, as words may, being in no order. What
// the rest of the slot holds of older messages must then not pass for it.
TEST_P(DevicePacketWrap, NoWordOfAnOlderCycleIsTaken) {
  constexpr std::uint64_t kBytes = 128;
  WindowPair pair({.signals = 0, .mailboxes = 1, .mailbox_bytes = kBytes}, kBytes);
  pair.from_a.wrap = pair.from_b.wrap = GetParam();
  const std::uint64_t cycle = std::lcm<std::uint64_t>(GetParam(), PadLayout::kSlots);
  std::minstd_rand random(GetParam());
  for (std::uint64_t number = 1; number <= 4 * cycle; ++number) {
    // A slot that a long message filled and none but short ones since is full of its epoch.
    const std::uint64_t longest = number / cycle % 2 == 0 ? 9 : kBytes + 1;
    const bool begins = number % cycle < PadLayout::kSlots;
    const std::uint64_t bytes = begins ? kBytes : random() % longest;
    Source part(number + 5000, 8), source(number, bytes);
    const auto receives = [&] {
      return receive<Scope::block>(pair.from_b, 0, number, 0, bytes, pair.from_b.within(0));
    };
    const auto sends = [&](Source& from, std::uint64_t count) {
      return send<Scope::block>(pair.from_a, 0, number, 0, from.data(), count,
                                pair.from_a.within(kLong));
    };
    ASSERT_EQ(receives(), Outcome::timed_out) << number << ": nothing has been sent";
    if (bytes > 8) {
      ASSERT_EQ(sends(part, 8), Outcome::ok);
      ASSERT_EQ(receives(), Outcome::timed_out) << number << ": most of it is not there";
    }
    pair.b.region.fill(9999);
    ASSERT_EQ(sends(source, bytes), Outcome::ok);
    ASSERT_EQ(receives(), Outcome::ok) << number;
    ASSERT_EQ(pair.b.region.difference(9999, std::vector<test::Expected>{{0, number, 0, bytes}}),
              "")
        << number << " of " << bytes;
  }
}
INSTANTIATE_TEST_SUITE_P(Every, DevicePacketWrap, ::testing::Values(16, 17, 21, 48, 55),
                         [](const auto& test) { return std::to_string(test.param); });

TEST(DevicePacket, EachWordIsWaitedFor) {
  WindowPair pair({.signals = 0, .mailboxes = 1, .mailbox_bytes = 64}, 64);
  constexpr std::uint64_t kWords = 4, kEpoch = std::uint64_t{1} << 32;
  std::uint64_t* slot = detail::slot_of(pair.from_b, pair.from_b.local_pad, 0, 1);
  const auto receives = [&] {
    return receive<Scope::warp>(pair.from_b, 0, 1, 0, 4 * kWords, pair.from_b.within(0));
  };
  for (std::uint64_t missing = 0; missing < kWords; ++missing) {
    for (std::uint64_t i = 0; i < kWords; ++i)
      detail::store_relaxed(slot + i, i == missing ? 2 * kEpoch : kEpoch | (i + 1));
    EXPECT_EQ(receives(), Outcome::timed_out) << "word " << missing;
    detail::store_relaxed(slot + missing, kEpoch | (missing + 1));
    EXPECT_EQ(receives(), Outcome::ok);
  }
  for (std::uint64_t i = 0; i < kWords; ++i)
    EXPECT_EQ(std::to_integer<std::uint64_t>(pair.b.region.data()[4 * i]), i + 1);
}

TEST(DevicePacket, StreamsOverTheEndOfTheEpochs) {
  for (const std::uint32_t wrap : {16u, 17u, 29u}) {
    const Stream stream{.messages = 5000, .mailbox_bytes = 128, .seed = wrap};
    WindowPair pair(stream.layout(1), Stream::region_bytes(1));
    pair.from_a.wrap = pair.from_b.wrap = wrap;
    const std::jthread sender([&] { stream.send_all(pair.from_a, 0); });
    stream.receive_all(pair.from_b, pair.b.region.inside(), 0);
  }
}

TEST(DevicePacket, WithoutSlotsAllGoesByPut) {
  WindowPair pair({.signals = 1, .mailboxes = 2, .mailbox_bytes = 0}, 64);
  Source source(3, 40);
  for (const std::uint64_t bytes : {0u, 40u}) {
    const std::uint64_t number = bytes == 0 ? 1 : 2;
    EXPECT_EQ(receive<Scope::warp>(pair.from_b, 1, number, 8, bytes, pair.from_b.within(0)),
              Outcome::timed_out);
    ASSERT_EQ(
        send<Scope::warp>(pair.from_a, 1, number, 8, source.data(), bytes, pair.from_a.within(0)),
        Outcome::ok);
    EXPECT_EQ(receive<Scope::warp>(pair.from_b, 1, number, 8, bytes, pair.from_b.within(0)),
              Outcome::ok);
  }
  EXPECT_EQ(test::first_difference(pair.b.region.inside().subspan(8, 40), 3, 0, {}), "");
}

// ---- between two looks of the receiver ----------------------------------------------------------
struct Held {
  Window sender;
  std::byte* page = nullptr;
  std::size_t bytes = 0;
  struct sigaction before {};
};
Held held;

/// Runs when the receiver has not seen message 1 and is about to check whether something was put.
void both_are_sent(int, siginfo_t*, void*) {
  ::mprotect(held.page, held.bytes, PROT_READ | PROT_WRITE);
  static constexpr unsigned char kData[48] = {1, 2, 3, 4, 5, 6, 7, 8};
  (void)send<Scope::thread>(held.sender, 0, 1, 0, kData, 8, {});
  (void)send<Scope::thread>(held.sender, 0, 2, 16, kData, sizeof kData, {});
}

TEST(DevicePacket, ASmallMessageIsTakenThoughALargeOneFollowedAtOnce) {
  const PadLayout layout{.signals = 0, .mailboxes = 1, .mailbox_bytes = 16};
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  auto* pages = static_cast<std::byte*>(
      ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(static_cast<void*>(pages), MAP_FAILED);
  WindowPair pair(layout, 64);
  pair.b.region.clear();
  // The counters end a page and the slots begin the next.
  auto* pad = raw(pages + page - layout.slots_at());
  pair.from_a.remote_pad = pair.from_b.local_pad = pad;
  held = {pair.from_a, pages, page, {}};
  struct sigaction action {};
  action.sa_sigaction = both_are_sent;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  ASSERT_EQ(::sigaction(SIGSEGV, &action, &held.before), 0);
  ASSERT_EQ(::mprotect(pages, page, PROT_NONE), 0);
  const Outcome end = receive<Scope::thread>(pair.from_b, 0, 1, 0, 8, pair.from_b.within(kLong));
  ::sigaction(SIGSEGV, &held.before, nullptr);
  EXPECT_EQ(end, Outcome::ok);
  EXPECT_EQ(std::to_integer<int>(pair.b.region.data()[7]), 8) << "its bytes are not there";
  EXPECT_EQ(receive<Scope::thread>(pair.from_b, 0, 2, 16, 48, pair.from_b.within(0)), Outcome::ok);
  ::munmap(pages, 2 * page);
}

}  // namespace device_packet_test
}  // namespace linkspan::device
