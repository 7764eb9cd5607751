// Tests that the sanitizers of these programs follow sendmsg() as the kernel means it.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/process.hpp"
#include "tests/support/take.hpp"

namespace linkspan {
namespace {

using namespace std::chrono_literals;

/// The peer's answer by another path, which no sanitizer sees, orders the fill behind the send.
TEST(SanitizedSendmsg, MemoryThatWasSentIsFilledAtFullSpeed) {
  auto [ours, theirs] = test::take(base::socket_pair());
  std::vector<std::uint64_t> words(20'000);
  std::atomic<bool> sent{false}, filled{false};
  std::jthread sender([&, &socket = ours] {
    iovec part{words.data(), words.size() * sizeof words[0]};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    EXPECT_EQ(::sendmsg(socket.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(part.iov_len));
    sent.store(true, std::memory_order_relaxed);
    while (!filled.load(std::memory_order_relaxed)) std::this_thread::yield();
  });
  while (!sent.load(std::memory_order_relaxed)) std::this_thread::yield();
  const base::Time begin = base::Clock::steady().now();
  for (std::uint64_t& word : words) word = 1;
  EXPECT_LT(base::Clock::steady().now() - begin, 500ms);
  filled.store(true, std::memory_order_relaxed);
}

}  // namespace
}  // namespace linkspan
