// tests/unit/device_stream.hpp - messages of a mailbox that both sides can work out for themselves:
// of any size up to twice what goes as packets, at any place.
//
// Small messages are put down by the receiver, so they may go anywhere in the first part of the
// mailbox's share of the region. Larger ones land when they are sent: each has a place of its own
// until kSlots others have come.
// Threads: immutable after construction.
#pragma once

#include "tests/unit/device_fixture.hpp"

namespace linkspan::device {

struct Stream {
  struct Message {
    std::uint64_t offset, bytes, seed;
  };
  static constexpr std::uint64_t kAnywhere = 1024, kPlace = 520, kPlaces = 2 * PadLayout::kSlots;
  static constexpr std::uint64_t kShare = kAnywhere + kPlaces * kPlace;

  std::uint64_t messages;
  std::uint32_t mailbox_bytes;
  std::uint64_t seed;

  PadLayout layout(std::uint32_t mailboxes) const {
    return {.signals = 3, .mailboxes = mailboxes, .mailbox_bytes = mailbox_bytes};
  }
  static std::uint64_t region_bytes(std::uint32_t mailboxes) { return mailboxes * kShare; }

  Message message(std::uint32_t mailbox, std::uint64_t number) const {
    std::minstd_rand random(static_cast<unsigned>(seed * 7919 + mailbox * 104729 + number));
    random.discard(3);
    const std::uint64_t bytes = random() % (2 * mailbox_bytes + 1);
    const bool small = bytes <= mailbox_bytes;
    const std::uint64_t offset =
        small ? random() % (kAnywhere - bytes) : kAnywhere + number % kPlaces * kPlace + number % 7;
    return {mailbox * kShare + offset, bytes, (seed * 4 + mailbox) << 15 ^ number};
  }

  /// Returns the same with places for messages that land when they are sent.
  Message landing(std::uint32_t mailbox, std::uint64_t number) const {
    Message landing = message(mailbox, number);
    landing.offset = mailbox * kShare + kAnywhere + number % kPlaces * kPlace + number % 7;
    return landing;
  }

  void send_all(const Window& window, std::uint32_t mailbox) const {
    Dawdle dawdle(static_cast<unsigned>(seed + mailbox));
    MailboxSender<Scope::warp> sender(window, mailbox, window.within(kLong));
    for (std::uint64_t number = 1; number <= messages; ++number) {
      const Message m = message(mailbox, number);
      Source source(m.seed, m.bytes, number % 16);
      ASSERT_EQ(sender.next(), number);
      ASSERT_EQ(sender.send(m.offset, source.data(), m.bytes), Outcome::ok) << number;
      dawdle();
    }
  }
  /// Receives messages to `region`. Checks each before the next, and that nothing else was written
  /// where small ones go.
  void receive_all(const Window& window, std::span<std::byte> region, std::uint32_t mailbox) const {
    constexpr std::uint64_t kPoison = 77;
    Dawdle dawdle(static_cast<unsigned>(seed + mailbox + 1000));
    const std::span<std::byte> anywhere = region.subspan(mailbox * kShare, kAnywhere);
    test::put_pattern(anywhere, kPoison, 0);
    MailboxReceiver<Scope::warp> receiver(window, mailbox, window.within(kLong));
    for (std::uint64_t number = 1; number <= messages; ++number) {
      const Message m = message(mailbox, number);
      ASSERT_EQ(receiver.next(), number);
      ASSERT_EQ(receiver.receive(m.offset, m.bytes), Outcome::ok) << number;
      const auto got = region.subspan(m.offset, m.bytes);
      ASSERT_EQ(test::first_difference(got, m.seed, 0, {}), "") << number << " of " << m.bytes;
      if (m.bytes <= mailbox_bytes) test::put_pattern(got, kPoison, m.offset - mailbox * kShare);
      if (number % 16 == 0) {
        ASSERT_EQ(test::first_difference(anywhere, kPoison, 0, {}), "") << "behind " << number;
      }
      dawdle();
    }
  }
};

}  // namespace linkspan::device
