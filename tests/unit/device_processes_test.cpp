// Tests the device headers between two processes that share memory, like kernels of two GPUs.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "tests/support/process.hpp"
#include "tests/support/take.hpp"
#include "tests/unit/device_stream.hpp"

namespace linkspan::device {
namespace device_processes_test {

using test::Answer;
using test::Child;
using test::Json;
using test::Line;
using test::take;

constexpr const char* kHelper = "device_peer";
constexpr std::uint32_t kMailboxes = 2;
constexpr std::uint64_t kRounds = 1000, kBytes = 333;
constexpr Stream kStream{.messages = 4000, .mailbox_bytes = 128, .seed = 21};

/// The regions and pads of both in one memfd, and a window, as one of the processes sees them.
class Shared {
 public:
  Shared(const base::Fd& fd, bool first) {
    at_ = static_cast<std::byte*>(
        ::mmap(nullptr, 2 * kSide, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    if (at_ == MAP_FAILED) throw std::runtime_error("mmap");
    window_.layout = kStream.layout(kMailboxes);
    window_.local = raw(at_) + (first ? 0 : kSide);
    window_.remote = raw(at_) + (first ? kSide : 0);
    window_.local_bytes = window_.remote_bytes = kPadAt;
    window_.local_pad = window_.local + kPadAt;
    window_.remote_pad = window_.remote + kPadAt;
    window_.wrap = 29;
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(at_, 2 * kSide); }
  static base::Fd make() {
    base::Fd fd =
        take(base::Fd::from("memfd_create", ::memfd_create("device_processes", MFD_CLOEXEC)));
    EXPECT_EQ(::ftruncate(fd.get(), 2 * kSide), 0);
    return fd;
  }

  /// Plays one side, which answers if `serves`, else begins. The data show which side sent them,
  /// and in which round.
  void play(bool serves) const {
    Dawdle dawdle(serves ? 1 : 2);
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      if (serves) hear(round, false);
      dawdle();
      Source source(2 * round + (serves ? 1 : 0), kBytes, round % 16);
      ASSERT_EQ(put_signal<Scope::block>(window_, 0, source.data(), kBytes, 1), Outcome::ok);
      if (!serves) hear(round, true);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  /// Sends a stream of messages each way, each in a mailbox of its own.
  void stream(bool first) const {
    const std::jthread sender([&] { kStream.send_all(window_, first ? 0 : 1); });
    kStream.receive_all(window_, {reinterpret_cast<std::byte*>(window_.local), kPadAt},
                        first ? 1 : 0);
  }

 private:
  static constexpr std::uint64_t kPadAt = kMailboxes * (Stream::kShare + 63) / 64 * 64;
  static constexpr std::uint64_t kSide = 1 << 18;
  static_assert(kPadAt >= kMailboxes * Stream::kShare && kPadAt % 64 == 0 && kPadAt < kSide / 2);

  void hear(std::uint64_t round, bool from_server) const {
    ASSERT_EQ(wait_signal<Scope::block>(window_, 1, round, window_.within(kLong)), Outcome::ok);
    const std::span<const std::byte> held(reinterpret_cast<std::byte*>(window_.local), kBytes);
    ASSERT_EQ(test::first_difference(held, 2 * round + (from_server ? 1 : 0), 0, {}), "") << round;
  }

  std::byte* at_;
  Window window_;
};

void device_peer(Line& line) {
  line.serve(
      [](const Json&, const std::vector<base::Fd>& fds) -> Result<Answer> {
        const Shared shared(fds.at(0), false);
        shared.play(true);
        shared.stream(false);
        return Answer{{{"well", !::testing::UnitTest::GetInstance()->Failed()}}, {}};
      },
      [] { return false; });
}
const bool kRegistered = test::add_helper(kHelper, device_peer);

TEST(DeviceProcesses, PlayPingPongAndSendEachOtherPackets) {
  ASSERT_TRUE(kRegistered);
  base::Fd fd = Shared::make();
  const Shared shared(fd, true);
  const auto child = take(Child::spawn(kHelper));
  bool well = false;
  {
    const std::jthread asker([&] {
      std::vector<base::Fd> fds;
      fds.push_back(std::move(fd));
      const auto answer = child->line().call({{"do", "play"}}, std::move(fds));
      EXPECT_TRUE(answer.ok()) << answer.status().to_string();
      well = answer.ok() && answer->value.at("well").get<bool>();
    });
    shared.play(false);
    shared.stream(true);
  }
  EXPECT_TRUE(well) << "the other process says why, above";
}

}  // namespace device_processes_test
}  // namespace linkspan::device
