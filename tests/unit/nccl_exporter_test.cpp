// Tests libnccl-net-linkspan.so by its tables, as NCCL calls them.
#include <cstdlib>
#include <deque>

#include "tests/unit/nccl_exporter_fixture.hpp"

namespace linkspan::transport::nccl_net {
namespace nccl_exporter_test {

constexpr std::size_t kGuard = 64;
constexpr std::size_t kLargest = 3'000'001;

TEST_P(NcclExporter, TellsWhatItIs) {
  int count = 0;
  EXPECT_EQ(net_->devices(count), abi::kSuccess);
  EXPECT_EQ(count, 1);
  Properties device;
  EXPECT_EQ(net_->properties(0, device), abi::kSuccess);
  EXPECT_EQ(device.name, "lo");
  EXPECT_EQ(device.pointer_support, abi::kHost);
  EXPECT_GE(device.speed_mbps, 100'000);
  EXPECT_EQ(device.max_receives, 1);
  EXPECT_EQ(device.device_type, abi::kDeviceHost);
  EXPECT_EQ(net_->properties(1, device), abi::kInvalidArgument);
  EXPECT_TRUE(said("device 1: there are 1, from 0")) << Lines::all().text();
}

TEST_P(NcclExporter, SetsTheChunksOfSendAndReceive_UnlessTheUserDid) {
  constexpr const char* kVariable = "NCCL_P2P_NET_CHUNKSIZE";
  EXPECT_STREQ(std::getenv(kVariable), "524288");
  ::setenv(kVariable, "131072", 1);
  EXPECT_EQ(net_->init(&log_line), abi::kSuccess);
  EXPECT_STREQ(std::getenv(kVariable), "131072");
  ::unsetenv(kVariable);
}

TEST_P(NcclExporter, MovesMessagesOfEverySize_InTheirOrder) {
  const Ends ends = connect();
  const std::size_t sizes[] = {0, 1, 8, 4047, 4048, 4049, 65536, 1'000'003, kLargest};
  Bytes from = pattern_of(kLargest + 2 * kGuard, 1), to(from.size());
  void* const source = memory(ends.send, from);
  void* const target = memory(ends.receive, to);
  std::uint64_t seed = 2;
  for (const bool receive_first : {true, false})
    for (const std::size_t bytes : sizes) {
      test::put_pattern(from, seed++, 0);
      std::ranges::fill(to, std::byte{0xee});
      Bytes expected = to;
      std::copy_n(from.begin() + 3, bytes, expected.begin() + kGuard + 1);
      void *sent = nullptr, *received = nullptr;
      if (!receive_first) sent = send(ends.send, from.data() + 3, bytes, source);
      received = receive(ends.receive, to.data() + kGuard + 1, bytes + 5, target);
      if (receive_first) sent = send(ends.send, from.data() + 3, bytes, source);
      EXPECT_EQ(finish(sent, received), static_cast<int>(bytes));
      EXPECT_TRUE(to == expected) << bytes;
    }
  close(ends);
}

TEST_P(NcclExporter, KeepsManyMessagesInFlight) {
  constexpr std::size_t kMessages = 300, kEach = 20'000;
  const Ends ends = connect();
  Bytes from = pattern_of(kMessages * kEach, 1), to(from.size());
  void* const source = memory(ends.send, from);
  void* const target = memory(ends.receive, to);
  std::deque<void*> sent, received;
  std::size_t next_sent = 0, next_received = 0, bytes_of_sent = 0;
  /// Small and large ones alternate.
  const auto size_of = [](std::size_t i) { return i % 3 == 0 ? 100 + i : kEach - i; };
  while (next_received < kMessages || !received.empty() || !sent.empty()) {
    void* request = nullptr;
    if (next_sent < kMessages) {
      EXPECT_EQ(net_->send(ends.send, from.data() + next_sent * kEach, size_of(next_sent), 1,
                           source, request),
                abi::kSuccess);
      if (request != nullptr) sent.push_back(request), ++next_sent;
    }
    request = nullptr;
    if (next_received < kMessages) {
      EXPECT_EQ(
          net_->receive(ends.receive, to.data() + next_received * kEach, kEach, 1, target, request),
          abi::kSuccess);
      if (request != nullptr) received.push_back(request), ++next_received;
    }
    for (auto* const queue : {&sent, &received}) {
      bool done = false;
      int bytes = 0;
      if (queue->empty()) continue;
      ASSERT_EQ(net_->test(queue->front(), done, bytes), abi::kSuccess) << Lines::all().text();
      if (!done) continue;
      if (queue == &received) bytes_of_sent += static_cast<std::size_t>(bytes);
      queue->pop_front();
    }
  }
  std::size_t expected = 0;
  for (std::size_t i = 0; i < kMessages; ++i) {
    expected += size_of(i);
    ASSERT_TRUE(std::equal(from.begin() + static_cast<std::ptrdiff_t>(i * kEach),
                           from.begin() + static_cast<std::ptrdiff_t>(i * kEach + size_of(i)),
                           to.begin() + static_cast<std::ptrdiff_t>(i * kEach)))
        << i;
  }
  EXPECT_EQ(bytes_of_sent, expected);
  EXPECT_EQ(net_->deregister(ends.send, source), abi::kSuccess);
  EXPECT_EQ(net_->deregister(ends.receive, target), abi::kSuccess);
  close(ends);
}

/// NCCL closes a comm once its requests have ended, and small ones end at once. Ten times, because
/// the messages are mostly there when it closes.
TEST_P(NcclExporter, BringsSmallMessages_WhoseSenderHasClosed) {
  constexpr std::size_t kMessages = 16, kEach = 4000;  // as many as go before their receives
  Bytes from = pattern_of(kMessages * kEach, 1);
  for (int round = 0; round < 10; ++round) {
    const Ends ends = connect();
    Bytes to(from.size());
    void* const source = memory(ends.send, from);
    void* const target = memory(ends.receive, to);
    for (std::size_t i = 0; i < kMessages; ++i)
      finish(send(ends.send, from.data() + i * kEach, kEach, source), nullptr);
    EXPECT_EQ(net_->close_send(ends.send), abi::kSuccess);
    for (std::size_t i = 0; i < kMessages; ++i)
      EXPECT_EQ(finish(nullptr, receive(ends.receive, to.data() + i * kEach, kEach, target)),
                static_cast<int>(kEach));
    EXPECT_TRUE(to == from);
    EXPECT_EQ(net_->close_receive(ends.receive), abi::kSuccess);
    EXPECT_EQ(net_->close_listen(ends.listener), abi::kSuccess);
  }
}

TEST_P(NcclExporter, RefusesWhatNcclMustNotDo) {
  const Ends ends = connect();
  Bytes bytes(100'000);
  void* const source = memory(ends.send, bytes);
  void* request = nullptr;
  EXPECT_EQ(net_->send(ends.send, bytes.data() + 1, bytes.size(), 1, source, request),
            abi::kInvalidArgument);
  EXPECT_EQ(net_->send(ends.send, bytes.data(), bytes.size(), 1, nullptr, request),
            abi::kInvalidArgument);
  EXPECT_TRUE(said("isend of bytes that regMr has not been given")) << Lines::all().text();
  EXPECT_EQ(net_->receive(ends.receive, bytes.data(), bytes.size(), 1, source, request),
            abi::kInvalidArgument)
      << "of another comm";
  EXPECT_EQ(net_->send(ends.receive, bytes.data(), 1, 1, source, request), abi::kInvalidArgument);
  EXPECT_EQ(net_->deregister(ends.receive, source), abi::kInvalidArgument);
  EXPECT_EQ(net_->close_listen(ends.send), abi::kInvalidArgument);
  void* other = nullptr;
  EXPECT_EQ(net_->register_memory(ends.send, bytes.data(), bytes.size(), abi::kCuda, other),
            abi::kInvalidArgument);
  alignas(8) std::array<std::byte, abi::kHandleBytes> strange{};
  abi::DeviceHandle* kernels = nullptr;
  EXPECT_EQ(net_->connect(0, strange.data(), other, kernels), abi::kInvalidArgument);
  EXPECT_TRUE(said("connect by a handle of another plugin"));
  close(ends);
  EXPECT_EQ(net_->close_send(ends.send), abi::kInvalidArgument) << "twice";
}

/// NCCL aborts so: it does not test what is under way, and frees the memory.
TEST_P(NcclExporter, EndsAComm_WhoseMemoryIsDeregisteredInTheMidst) {
  const Ends ends = connect();
  Bytes from = pattern_of(kLargest, 1), to(kLargest);
  void* const source = memory(ends.send, from);
  void* const target = memory(ends.receive, to);
  void* const received = receive(ends.receive, to.data(), to.size(), target);
  void* const sent = send(ends.send, from.data(), from.size(), source);
  EXPECT_EQ(net_->deregister(ends.receive, target), abi::kSuccess);
  EXPECT_EQ(net_->deregister(ends.send, source), abi::kSuccess);
  const Bytes freed = to;
  for (void* const request : {sent, received}) {
    bool done = false;
    int bytes = 0;
    EXPECT_EQ(net_->test(request, done, bytes), abi::kInvalidArgument);
    EXPECT_FALSE(done);
  }
  EXPECT_TRUE(said("deregMr of memory of a message")) << Lines::all().text();
  EXPECT_TRUE(to == freed) << "a late byte";
  EXPECT_EQ(net_->deregister(ends.send, source), abi::kInvalidArgument) << "twice";
  close(ends);
}

/// A process that guesses the listener's number gets no comm.
TEST_P(NcclExporter, AcceptsOnlyWhoHasTheHandle) {
  alignas(8) std::array<std::byte, abi::kHandleBytes> handle{};
  void *listener = nullptr, *receive = nullptr, *send = nullptr;
  ASSERT_EQ(net_->listen(0, handle.data(), listener), abi::kSuccess);
  auto guessed = handle;
  guessed[8] ^= std::byte{1};  // the listener's number
  abi::DeviceHandle* kernels = nullptr;
  for (const auto end = base::Deadline::in(300ms); !end.passed();) {
    ASSERT_EQ(net_->connect(0, guessed.data(), send, kernels), abi::kSuccess);
    ASSERT_EQ(net_->accept(listener, receive, kernels), abi::kSuccess);
    ASSERT_TRUE(send == nullptr && receive == nullptr);
  }
  EXPECT_EQ(net_->close_listen(listener), abi::kSuccess);
}

TEST_P(NcclExporter, EndsTheSend_WhoseReceiveIsTooSmall) {
  const Ends ends = connect();
  Bytes from(100'000), to(100'000);
  void* const source = memory(ends.send, from);
  void* const target = memory(ends.receive, to);
  receive(ends.receive, to.data(), 50'000, target);
  void* request = nullptr;
  int result = net_->send(ends.send, from.data(), from.size(), 1, source, request);
  until([&] {
    bool done = false;
    int bytes = 0;
    if (result == abi::kSuccess) result = net_->test(request, done, bytes);
    EXPECT_FALSE(done);
    return result != abi::kSuccess;
  });
  EXPECT_EQ(result, abi::kInvalidUsage);
  EXPECT_TRUE(said("a message of 100000 bytes for a receive of 50000")) << Lines::all().text();
  close(ends);
}

TEST_P(NcclExporter, CopiesNoSmallMessage_OfDeregisteredMemory) {
  const Ends ends = connect();
  Bytes from = pattern_of(100, 1), to(100);
  void* const source = memory(ends.send, from);
  void* const target = memory(ends.receive, to);
  void* const received = receive(ends.receive, to.data(), to.size(), target);
  EXPECT_EQ(net_->deregister(ends.receive, target), abi::kSuccess);
  finish(send(ends.send, from.data(), from.size(), source), nullptr);
  for (const auto end = base::Deadline::in(50ms); !end.passed();) {
    bool done = false;
    int bytes = 0;
    ASSERT_EQ(net_->test(received, done, bytes), abi::kInvalidArgument);
  }
  EXPECT_TRUE(to == Bytes(100)) << "a late byte";
  close(ends);
}

INSTANTIATE_TEST_SUITE_P(Every, NcclExporter, ::testing::Range(6, 13), name_of_version);

}  // namespace nccl_exporter_test
}  // namespace linkspan::transport::nccl_net
