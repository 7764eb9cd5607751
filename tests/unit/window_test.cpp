// Tests WindowState and WindowSet over a copier whose transfers the test ends: the order of signals
// and copies, what begins after a failure, and when a window leaves its set.
#include "engine/windows/window.hpp"

#include <gtest/gtest.h>

#include <array>

#include "linkspan/device/put.cuh"
#include "tests/support/no_memory.hpp"
#include "tests/support/take.hpp"

namespace linkspan::engine {
namespace window_test {

using test::take;

constexpr device::PadLayout kLayout{.signals = 4, .mailboxes = 0, .mailbox_bytes = 0};
constexpr std::uint64_t kBytes = 4096;

/// Records what a window copies.
class RecordingCopier final : public WindowCopier {
 public:
  struct Copy {
    Op op;
    Block block;
    std::shared_ptr<TransferState> transfer;
  };

  Result<std::shared_ptr<TransferState>> copy(std::uint64_t, Op op, const WindowRegions&,
                                              const Block& block) override {
    if (full) return Status::no_resource();
    copies.push_back({op, block, std::make_shared<TransferState>()});
    return copies.back().transfer;
  }
  void end(std::size_t copy, const Status& status = {}) const {
    copies.at(copy).transfer->end = status;
    copies.at(copy).transfer->quiet = true;
  }

  std::vector<Copy> copies;
  bool full = false;
};

class WindowTest : public ::testing::Test {
 protected:
  WindowTest() {
    const base::MutexLock lock(set_->mutex);
    set_->in_use.resize(sources_.size());
  }

  /// A window with orders left stays in the set, and keeps it.
  ~WindowTest() override {
    std::set<std::shared_ptr<WindowState>> windows;
    const base::MutexLock lock(set_->mutex);
    windows.swap(set_->all);
  }

  /// Opens a window that reaches the peer's memory by the proxy alone.
  std::shared_ptr<WindowState> open(Permissions peers = {.read = false}) {
    auto remote = std::make_shared<ImportedRegion>();
    remote->name = "theirs";
    remote->bytes = kBytes;
    remote->peers = peers;
    WindowState::WindowParts parts;
    parts.peer = 7;
    parts.data.remote = parts.pad.remote = remote;
    parts.local = registered(local_);
    parts.local_pad = registered(pad_);
    parts.mapped.why_not = "nothing is mapped";
    {
      const base::MutexLock lock(set_->mutex);
      parts.signal_source = *set_->acquire();
    }
    return take(WindowState::create(std::move(parts), {.layout = kLayout, .queue = 4}, set_));
  }
  bool serve(WindowState& window) {
    const base::MutexLock lock(set_->mutex);
    return window.serve(copier_, reinterpret_cast<std::uintptr_t>(sources_.data()));
  }
  std::size_t windows() {
    const base::MutexLock lock(set_->mutex);
    return set_->all.size();
  }
  void put(const WindowState& window, std::uint64_t at) {
    ASSERT_EQ(device::put_signal<device::Scope::thread>(window.device(), at, local_.data(), 1, 3),
              device::Outcome::ok);
  }

  const std::shared_ptr<WindowSet> set_ = std::make_shared<WindowSet>();
  RecordingCopier copier_;
  alignas(16) std::array<std::byte, kBytes> local_{};
  alignas(16) std::array<std::byte, kBytes> pad_{};
  std::array<std::uint64_t, 2> sources_{};

 private:
  std::shared_ptr<const memory::Registration> registered(std::span<const std::byte> memory) {
    return take(registry_.add_private(reinterpret_cast<std::uintptr_t>(memory.data()),
                                      memory.size(), MemoryKind::host, {}));
  }

  memory::Registry registry_{1, nullptr};
};

TEST_F(WindowTest, WritesASignal_OnceTheCopyBeforeItIsQuiet) {
  const auto window = open();
  put(*window, 16);
  EXPECT_TRUE(serve(*window));
  ASSERT_EQ(copier_.copies.size(), 1u);
  EXPECT_EQ(copier_.copies[0].block.remote_offset, 16u);
  EXPECT_FALSE(serve(*window)) << "the copy is in flight";
  copier_.end(0);
  EXPECT_TRUE(serve(*window));
  ASSERT_EQ(copier_.copies.size(), 2u);
  EXPECT_EQ(copier_.copies[1].block.remote_offset, 3 * 8u);
  EXPECT_EQ(sources_[0], 1u);
}

TEST_F(WindowTest, AddsUpSignals_AndWritesOneAtATime) {
  const auto window = open();
  std::uint64_t last = 0;
  {
    const base::MutexLock lock(set_->mutex);
    window->enqueue_raise(2, 5);
    last = window->enqueue_raise(2, 1);
  }
  serve(*window);
  EXPECT_EQ(copier_.copies.size(), 1u);
  EXPECT_EQ(sources_[0], 5u);
  copier_.end(0);
  serve(*window);
  EXPECT_EQ(copier_.copies.size(), 2u);
  EXPECT_EQ(sources_[0], 6u);
  copier_.end(1);
  serve(*window);
  const base::MutexLock lock(set_->mutex);
  EXPECT_TRUE(window->raised(last));
}

/// A window before may have raised it.
TEST_F(WindowTest, AddsToTheValueInThePad_WhereItMayReadIt) {
  const auto window = open({.read = true});
  {
    const base::MutexLock lock(set_->mutex);
    for (const std::uint64_t n : {5u, 1u}) window->enqueue_raise(2, n);
  }
  serve(*window);
  ASSERT_EQ(copier_.copies.size(), 1u);
  EXPECT_EQ(copier_.copies[0].op, Op::read);
  EXPECT_EQ(copier_.copies[0].block.remote_offset, 2 * 8u);
  sources_[0] = 40;
  for (const std::uint64_t sum : {45u, 46u}) {
    copier_.end(copier_.copies.size() - 1);
    serve(*window);
    EXPECT_EQ(copier_.copies.back().op, Op::write);
    EXPECT_EQ(sources_[0], sum);
  }
  EXPECT_EQ(copier_.copies.size(), 3u);
}

TEST_F(WindowTest, RaisesOnce_WhenMemoryEndsMeanwhile) {
  const auto window = open();
  for (std::uint64_t sum = 1; sum < 30; ++sum) {  // beyond the first room of any list
    {
      const base::MutexLock lock(set_->mutex);
      window->enqueue_raise(2, 1);
    }
    test::fail_each_allocation([&] { serve(*window); }, [](bool) {});
    ASSERT_EQ(copier_.copies.size(), sum);
    ASSERT_EQ(sources_[0], sum);
    copier_.end(sum - 1);
    serve(*window);
  }
}

TEST_F(WindowTest, TriesAgain_WhenTheCopierHadNoRoom) {
  const auto window = open();
  copier_.full = true;
  put(*window, 16);
  EXPECT_FALSE(serve(*window));
  copier_.full = false;
  EXPECT_TRUE(serve(*window));
  EXPECT_EQ(copier_.copies.size(), 1u);
}

TEST_F(WindowTest, BeginsNothing_AfterACopyFailed) {
  const auto window = open();
  put(*window, 16);
  serve(*window);
  copier_.end(0, Status(Code::disconnected, Scope::peer, "it left"));
  serve(*window);
  {
    const base::MutexLock lock(set_->mutex);
    EXPECT_EQ(window->failure().code(), Code::disconnected);
    window->enqueue_raise(0, 1);
  }
  EXPECT_FALSE(serve(*window));
  EXPECT_EQ(copier_.copies.size(), 1u);
}

TEST_F(WindowTest, LeavesItsSet_WhenItsLastHandleEndsAndNothingIsLeft) {
  auto window = open();
  auto another = open();
  put(*window, 16);
  EXPECT_EQ(windows(), 2u);
  another.reset();
  EXPECT_EQ(windows(), 1u);
  WindowState& left = *window;
  window.reset();
  EXPECT_EQ(windows(), 1u) << "an order is left";
  serve(left);
  copier_.end(0);
  serve(left);
  copier_.end(1);
  serve(left);
  const base::MutexLock lock(set_->mutex);
  EXPECT_TRUE(left.drained());
  EXPECT_TRUE(left.released());
}

TEST_F(WindowTest, GivesItsSourceToAnother_OnceTheSignalIsQuiet) {
  const auto reader = std::make_shared<TransferState>();
  const base::MutexLock lock(set_->mutex);
  EXPECT_EQ(set_->acquire(), 0u);
  EXPECT_EQ(set_->acquire(), 1u);
  set_->release(0, reader);
  EXPECT_EQ(set_->acquire(), std::nullopt);
  reader->quiet = true;
  EXPECT_EQ(set_->acquire(), 0u);
}

TEST_F(WindowTest, SaysWhyItIsAProxy) {
  const auto window = open();
  EXPECT_EQ(window->path(), "proxy: nothing is mapped");
  const base::MutexLock lock(set_->mutex);
  EXPECT_EQ(
      window->dump(),
      "window onto \"theirs\" of peer 7, proxy: nothing is mapped: 0 orders of kernels taken, "
      "0 done\n");
}

}  // namespace window_test
}  // namespace linkspan::engine
