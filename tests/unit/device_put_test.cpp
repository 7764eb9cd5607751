// Tests put.cuh on the host with one lane, so it tests arithmetic. GPUs test lanes; ThreadSanitizer
// and tests/device/ptx_test.py test memory order.
#include "linkspan/device/put.cuh"

#include <gtest/gtest.h>

#include "tests/unit/device_fixture.hpp"

namespace linkspan::device {
namespace device_put_test {

using test::Expected;

constexpr std::uint64_t kBytes = 1024, kOld = 1, kNew = 2;
// Around what a lane moves at once: 8 * 16, 2 * 16 and all smaller words.
constexpr std::uint64_t kSizes[] = {0,  1,  2,  3,  4,  5,   7,   8,   9,   15,  16, 17,
                                    31, 32, 33, 63, 65, 127, 128, 129, 144, 255, 257};

std::vector<Expected> landed(std::uint64_t offset, std::uint64_t bytes, std::uint64_t seed) {
  return {{offset, seed, 0, bytes}};
}

TEST(DevicePut, AnySizeFromAnyAddressToAny) {
  WindowPair pair({}, kBytes);
  for (std::uint64_t to = 0; to < 16; ++to)
    for (std::uint64_t apart = 0; apart < 16; ++apart)
      for (const std::uint64_t bytes : kSizes) {
        pair.b.region.fill(kOld);
        Source source(kNew, bytes, apart);
        ASSERT_EQ(put<Scope::block>(pair.from_a, 320 + to, source.data(), bytes), Outcome::ok);
        ASSERT_EQ(pair.b.region.difference(kOld, landed(320 + to, bytes, kNew)), "")
            << bytes << " bytes from " << apart << " to " << to;
        ASSERT_EQ(source.difference(kNew), "");
      }
}

TEST(DevicePut, AnySizeIsGotFromAnyAddressToAny) {
  WindowPair pair({}, kBytes);
  for (std::uint64_t from = 0; from < 16; ++from)
    for (std::uint64_t apart = 0; apart < 16; ++apart)
      for (const std::uint64_t bytes : kSizes) {
        pair.a.region.fill(kOld);
        pair.b.region.fill(kNew);
        const std::uint64_t to = 320 + apart;
        ASSERT_EQ(get<Scope::warp>(pair.from_a, pair.a.region.data() + to, 160 + from, bytes),
                  Outcome::ok);
        ASSERT_EQ(
            pair.a.region.difference(kOld, std::vector<Expected>{{to, kNew, 160 + from, bytes}}),
            "")
            << bytes << " bytes from " << from << " to " << apart;
        ASSERT_EQ(pair.b.region.difference(kNew, {}), "");
      }
}

TEST(DevicePut, ALargeOneUpToTheLastByte) {
  constexpr std::uint64_t kLarge = (3u << 20) + 7;
  WindowPair pair({}, kLarge + 5);
  pair.b.region.fill(kOld);
  Source source(kNew, kLarge, 3);
  ASSERT_EQ(put<Scope::thread>(pair.from_a, 5, source.data(), kLarge), Outcome::ok);
  EXPECT_EQ(pair.b.region.difference(kOld, landed(5, kLarge, kNew)), "");
}

TEST(DevicePut, TheSignalIsRaisedByThatMuchAndNoOther) {
  WindowPair pair({.signals = 5}, kBytes);
  pair.b.region.fill(kOld);
  Source source(kNew, 100, 1);
  ASSERT_EQ(put_signal<Scope::block>(pair.from_a, 7, source.data(), 100, 4), Outcome::ok);
  ASSERT_EQ(put_signal<Scope::warp>(pair.from_a, 7, source.data(), 100, 2, 1u << 20), Outcome::ok);
  ASSERT_EQ(put_signal<Scope::thread>(pair.from_a, 7, source.data(), 0, 2, 5), Outcome::ok);
  EXPECT_EQ(pair.b.region.difference(kOld, landed(7, 100, kNew)), "");
  const std::uint64_t due[] = {0, 0, (1u << 20) + 5, 0, 1};
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_EQ(read_signal(pair.from_b, i), due[i]) << i;
  EXPECT_EQ(flush<Scope::block>(pair.from_a, pair.from_a.within(0)), Outcome::ok);
}

TEST(DevicePut, OutOfTheRegionNothingIsWritten) {
  WindowPair pair({.signals = 3, .mailboxes = 2, .mailbox_bytes = 64}, kBytes);
  pair.a.region.fill(kOld);
  pair.b.region.fill(kOld);
  Source source(kNew, 4 * kBytes);
  constexpr std::uint64_t kMax = ~std::uint64_t{0};
  const struct {
    std::uint64_t offset, bytes;
  } outside[] = {{kBytes + 1, 0}, {kBytes, 1},  {kBytes - 1, 2}, {0, kBytes + 1},    {1, kMax},
                 {kMax, 1},       {kMax, kMax}, {kMax - 7, 8},   {kBytes, kMax - 3}, {kMax, 0}};
  const Window& window = pair.from_a;
  const Bound bound = window.within(0);
  for (const auto [offset, bytes] : outside) {
    EXPECT_EQ(put<Scope::warp>(window, offset, source.data(), bytes), Outcome::out_of_range);
    EXPECT_EQ(put_signal<Scope::warp>(window, offset, source.data(), bytes, 0),
              Outcome::out_of_range);
    EXPECT_EQ(get<Scope::warp>(window, source.data(), offset, bytes), Outcome::out_of_range);
    EXPECT_EQ(send<Scope::warp>(window, 0, 1, offset, source.data(), bytes, bound),
              Outcome::out_of_range);
    EXPECT_EQ(receive<Scope::warp>(window, 0, 1, offset, bytes, bound), Outcome::out_of_range);
  }
  for (const std::uint32_t unknown : {3u, 4u, ~0u}) {
    EXPECT_EQ(put_signal<Scope::block>(window, 0, source.data(), 8, unknown),
              Outcome::out_of_range);
    EXPECT_EQ(signal_add(window, unknown), Outcome::out_of_range);
    EXPECT_EQ(wait_signal(window, unknown, 0, bound), Outcome::out_of_range);
    EXPECT_EQ(read_signal(window, unknown), 0u);
    EXPECT_EQ(send<Scope::warp>(window, unknown, 1, 0, source.data(), 8, bound),
              Outcome::out_of_range);
    EXPECT_EQ(receive<Scope::warp>(window, unknown, 1, 0, 8, bound), Outcome::out_of_range);
  }
  EXPECT_EQ(send<Scope::warp>(window, 0, 0, 0, source.data(), 8, bound), Outcome::out_of_range);
  EXPECT_EQ(receive<Scope::warp>(window, 0, 0, 0, 8, bound), Outcome::out_of_range);

  EXPECT_EQ(pair.a.region.difference(kOld, {}), "");
  EXPECT_EQ(pair.b.region.difference(kOld, {}), "");
  EXPECT_EQ(source.difference(kNew), "");
  for (Side* side : {&pair.a, &pair.b})
    for (const std::byte byte : side->pad.inside()) ASSERT_EQ(byte, std::byte{0});
}

TEST(DevicePut, TheSharesOfAGridAreTheWhole) {
  std::minstd_rand random(7);
  for (int round = 0; round < 20000; ++round) {
    const std::uint64_t bytes = random() % (round % 2 == 0 ? 3000u : 3000000u);
    const std::uint64_t parts = 1 + random() % 300;
    std::uint64_t end = 0;
    for (std::uint64_t part = 0; part < parts; ++part) {
      const detail::Share share = detail::share_of(bytes, part, parts);
      if (share.bytes == 0) continue;
      ASSERT_EQ(share.offset, end) << bytes << " in " << parts << ", part " << part;
      ASSERT_EQ(share.offset % 128, 0u) << bytes << " in " << parts << ", part " << part;
      end += share.bytes;
    }
    ASSERT_EQ(end, bytes) << "in " << parts;
  }
}

}  // namespace device_put_test
}  // namespace linkspan::device
