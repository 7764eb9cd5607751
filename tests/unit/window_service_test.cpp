// Tests windows of CPU memory: what is refused, signals that this side raises and awaits, the proxy
// while its peer has no room, and what ends a window.
#include "engine/windows/window_service.hpp"

#include <atomic>
#include <future>

#include "linkspan/device/put.cuh"
#include "linkspan/device/signal.cuh"
#include "tests/unit/engine_pair.hpp"

namespace linkspan::engine {
namespace window_service_test {

using namespace std::chrono_literals;
using When = transport::PollHint::When;
using test::impl_of, test::is, test::must, test::take;

constexpr device::PadLayout kLayout{.signals = 4, .mailboxes = 0, .mailbox_bytes = 0};
constexpr std::uint64_t kBytes = 4096;

class Windows : public test::EnginePair {
 protected:
  using Opened = Result<std::shared_ptr<WindowState>>;

  explicit Windows(std::string_view address = {}) : EnginePair(address) {}
  /// Adds the regions that are not set.
  WindowOptions filled(WindowOptions options) {
    options.local = local_;
    options.remote = data_.second;
    options.local_pad = pad_;
    if (!options.remote_pad.valid()) options.remote_pad = their_pad_.second;
    return options;
  }
  Opened open(WindowOptions options = {.layout = kLayout}) {
    return service_.open(to_far_.id(), filled(std::move(options)));
  }
  Opened open_proxied() { return open({.layout = kLayout, .force_proxy = true, .queue = 4}); }
  /// Returns the signal in a pad.
  static std::atomic_ref<std::uint64_t> signal(const Region& pad, std::size_t index) {
    return std::atomic_ref(static_cast<std::uint64_t*>(pad.data())[index]);
  }
  std::uint64_t raised(std::size_t index) { return signal(their_pad_.first, index).load(); }

  WindowService& service_ = impl_of(near_).services().windows;
  Region local_ = take(near_.allocate_shared(kBytes));
  Region pad_ = take(near_.allocate_shared(kLayout.bytes()));
  std::pair<Region, RemoteRegion> data_ = share("data", kBytes);
  std::pair<Region, RemoteRegion> their_pad_ = share("pad", kLayout.bytes());
};

class WindowsOverTcp : public Windows {
 protected:
  WindowsOverTcp() : Windows("tcp:127.0.0.1:0") {}
};

TEST_F(Windows, RefusePadsAndOptionsThatDoNotFit) {
  EXPECT_TRUE(is(open({.layout = {.signals = 1000}}).status(), Code::invalid_argument,
                 "the local pad has"));
  EXPECT_TRUE(is(open({.layout = {.signals = (1u << 20) + 1}}).status(), Code::invalid_argument,
                 "PadLayout::signals is 1048577; at most 1048576"));
  EXPECT_TRUE(is(open({.layout = kLayout, .queue = 0}).status(), Code::invalid_argument,
                 "WindowOptions::queue"));
  GpuUuid gpu{};
  gpu[0] = std::byte{1};
  EXPECT_TRUE(is(open({.layout = kLayout, .gpu = gpu}).status(), Code::unsupported,
                 "a window of a GPU: EngineOptions::use_gpu is false"));
  const auto read_only = share("read only", kLayout.bytes(), {.read = true});
  EXPECT_TRUE(is(open({.remote_pad = read_only.second, .layout = kLayout}).status(),
                 Code::permission_denied, "signals are written to \"read only\""));
  WindowOptions options = filled({.layout = kLayout});
  EXPECT_TRUE(is(service_.open(to_far_.id() + 1, options).status(), Code::disconnected));
  options.local = {};
  EXPECT_TRUE(
      is(service_.open(to_far_.id(), options).status(), Code::invalid_argument, "no local region"));
  EXPECT_EQ(service_.dump(), "");
}

TEST_F(Windows, AreAsManyAsHaveASignalSource) {
  std::vector<std::shared_ptr<WindowState>> windows;
  for (int i = 0; i < 512; ++i) windows.push_back(take(open()));
  EXPECT_TRUE(is(open().status(), Code::no_resource, "512 windows are open"));
  EXPECT_TRUE(test::contains(service_.dump(), "and 448 more windows\n"));
  windows.pop_back();
  windows.push_back(take(open()));
  // One that is refused later keeps no source.
  windows.pop_back();
  EXPECT_TRUE(is(open({.layout = kLayout, .queue = 0}).status(), Code::invalid_argument));
  windows.push_back(take(open()));
  windows.clear();
  EXPECT_EQ(service_.dump(), "");
}

TEST_F(Windows, RaiseSignalsInThePeersPad) {
  const auto window = take(open());
  EXPECT_EQ(window->path(), "mapped");
  EXPECT_TRUE(is(service_.raise(*window, 2, 3, 10s), Code::ok));
  EXPECT_TRUE(is(service_.raise(*window, 2, 4, 10s), Code::ok));
  EXPECT_EQ(raised(2), 7u);
  EXPECT_EQ(raised(1), 0u);
  EXPECT_TRUE(is(service_.raise(*window, kLayout.signals, 1, 10s), Code::invalid_argument,
                 "there is no signal 4: the pads have 4"));
}

TEST_F(WindowsOverTcp, RaiseSignalsInAPadThatIsNotMapped) {
  const auto window = take(open());
  EXPECT_EQ(window->path().find("proxy: "), 0u);
  const auto other = take(open());
  EXPECT_TRUE(is(service_.raise(*window, 2, 3, 10s), Code::ok));
  EXPECT_TRUE(is(service_.raise(*other, 1, 5, 10s), Code::ok));
  EXPECT_TRUE(is(service_.raise(*window, 2, 4, 10s), Code::ok));
  EXPECT_EQ(raised(2), 7u);
  EXPECT_EQ(raised(1), 5u);
}

TEST_F(WindowsOverTcp, GoOnWithTheSignalsOfOnesBefore) {
  for (std::uint64_t sum = 1; sum <= 3; ++sum) {
    const auto window = take(open());
    EXPECT_TRUE(is(service_.raise(*window, 2, 1, 10s), Code::ok));
    EXPECT_EQ(raised(2), sum);
  }
}

TEST_F(WindowsOverTcp, WaitForTheOrdersOfOnesBefore) {
  for (std::uint64_t sum = 5; sum <= 100; sum += 5) {
    {
      const auto before = take(open_proxied());
      for (int i = 0; i < 4; ++i)
        ASSERT_EQ(device::signal_add(before->device(), 2), device::Outcome::ok);
    }
    const auto window = take(open());
    EXPECT_TRUE(is(service_.raise(*window, 2, 1, 10s), Code::ok));
    ASSERT_EQ(raised(2), sum);
  }
}

TEST_F(WindowsOverTcp, ReadTheSignalsThatTheyRaise) {
  const auto write_only = share("write only", kLayout.bytes(), {.read = false, .write = true});
  EXPECT_TRUE(is(open({.remote_pad = write_only.second, .layout = kLayout}).status(),
                 Code::permission_denied, "let peers read \"write only\""));
}

TEST_F(Windows, WaitForSignalsInTheirPad) {
  const auto window = take(open());
  EXPECT_EQ(take(service_.wait_signal(*window, 1, 0, 0s)), 0u);
  EXPECT_TRUE(is(service_.wait_signal(*window, 1, 2, 1ms).status(), Code::timed_out,
                 "signal 1 is 0, not 2"));
  EXPECT_TRUE(is(service_.wait_signal(*window, 4, 0, 1h).status(), Code::invalid_argument));
  auto seen = std::async(std::launch::async,
                         [&] { return take(service_.wait_signal(*window, 1, 2, 10s)); });
  signal(pad_, 1) = 1;
  signal(pad_, 1) = 5;
  EXPECT_EQ(seen.get(), 5u);
}

TEST_F(Windows, EndByCancel) {
  const auto window = take(open()), other = take(open());
  EXPECT_TRUE(is(service_.failure(*window), Code::ok));
  auto waits = std::async(std::launch::async,
                          [&] { return service_.wait_signal(*window, 1, 2, 10s).status(); });
  must(service_.cancel(*window));
  EXPECT_TRUE(is(waits.get(), Code::canceled, "Window::cancel() was called"));
  EXPECT_TRUE(is(service_.failure(*window), Code::canceled));
  EXPECT_TRUE(is(service_.raise(*window, 0, 1, 10s), Code::canceled));
  EXPECT_EQ(raised(0), 0u);
  service_.end(std::nullopt, {Code::internal, Scope::process, "a later reason"});
  EXPECT_TRUE(is(service_.failure(*window), Code::canceled));
  EXPECT_TRUE(is(service_.failure(*other), Code::internal));
}

/// The user unmaps it next.
TEST_F(Windows, EndWithTheirPad_WhichNoCallReadsAnyMore) {
  const auto window = take(open());
  auto waiting = std::async(std::launch::async,
                            [&] { return service_.wait_signal(*window, 1, 1, 10s).status(); });
  auto handle = HandleAccess::registration(pad_);
  const std::weak_ptr pad = handle;
  ASSERT_TRUE(test::eventually([&] { return handle->users() == 1; }));
  must(near_.deregister(pad_));
  EXPECT_EQ(handle->users(), 0u);
  EXPECT_TRUE(is(waiting.get(), Code::invalid_argument, "pad was deregistered"));
  pad_ = {};
  handle.reset();
  EXPECT_TRUE(pad.expired()) << "what it keeps, such as a pin, ends later";
  EXPECT_TRUE(is(service_.wait_signal(*window, 1, 1, 10s).status(), Code::invalid_argument,
                 "pad was deregistered"));
  EXPECT_TRUE(is(service_.failure(*window), Code::invalid_argument, "pad was deregistered"));
}

TEST_F(Windows, EndWithTheirPad_AlsoThoseThatWereOpenedMeanwhile) {
  const auto before = take(open());
  must(near_.publish("kept", pad_));
  std::optional<RemoteRegion> kept = take(to_near_.lookup("kept"));
  auto deregistered = std::async(std::launch::async, [&] { return near_.deregister(pad_, 10s); });
  ASSERT_TRUE(test::eventually([&] { return !service_.failure(*before).ok(); }));
  const auto window = take(open());
  kept.reset();
  EXPECT_TRUE(is(deregistered.get(), Code::ok));
  EXPECT_TRUE(is(service_.failure(*window), Code::invalid_argument, "pad was deregistered"));
}

TEST_F(Windows, EndWithTheirPeerAlone) {
  const auto window = take(open());
  service_.end(to_far_.id() + 1, {Code::internal, Scope::process, "another peer"});
  EXPECT_TRUE(is(service_.failure(*window), Code::ok));
  auto waits = std::async(std::launch::async,
                          [&] { return service_.wait_signal(*window, 1, 2, 10s).status(); });
  must(far_.close(10s));
  EXPECT_TRUE(is(waits.get(), Code::disconnected));
  EXPECT_TRUE(is(service_.failure(*window), Code::disconnected));
  EXPECT_TRUE(is(open().status(), Code::disconnected));
}

TEST_F(Windows, ArePolledOnlyWhileKernelsMayOrder) {
  EXPECT_EQ(service_.serve().when, When::idle);
  const auto mapped = take(open());
  EXPECT_EQ(service_.serve().when, When::idle);
  const auto proxied = take(open_proxied());
  const auto hint = service_.serve();
  EXPECT_EQ(hint.when, When::at);
  EXPECT_FALSE(hint.moved);
  must(service_.cancel(*proxied));
  EXPECT_EQ(service_.serve().when, When::idle);
}

TEST_F(Windows, CarryOutTheOrdersOfKernels) {
  const auto window = take(open_proxied());
  EXPECT_EQ(window->path(), "proxy: WindowOptions::force_proxy");
  auto* const bytes = static_cast<unsigned char*>(local_.data());
  bytes[8] = 42;
  ASSERT_EQ(device::put_signal<device::Scope::thread>(window->device(), 16, bytes + 8, 1, 3),
            device::Outcome::ok);
  EXPECT_TRUE(test::eventually([&] { return raised(3) == 1; }));
  EXPECT_EQ(static_cast<unsigned char*>(data_.first.data())[16], 42);
  EXPECT_TRUE(is(service_.finish(base::Deadline::in(10s)), Code::ok));
}

TEST_F(Windows, ArePending_WhileAnOrderHasNoRoom) {
  const auto window = take(open_proxied());
  std::vector<Transfer> fill;
  for (std::size_t i = 0; i < PeerScheduler::kMaxTransfers; ++i)
    fill.push_back(take(to_far_.recv(1, nullptr, 0, {.deadline = 1h})));
  auto* const bytes = static_cast<unsigned char*>(local_.data());
  bytes[8] = 42;
  ASSERT_EQ(device::put_signal<device::Scope::thread>(window->device(), 16, bytes + 8, 1, 3),
            device::Outcome::ok);
  EXPECT_TRUE(is(
      service_.finish(base::Deadline::in(20ms)), Code::pending,
      "what kernels ordered for peer " + std::to_string(to_far_.id()) + " was not done in time"));
  EXPECT_FALSE(service_.serve().moved);
  EXPECT_EQ(raised(3), 0u);
  for (const Transfer& each : fill) (void)each.cancel();
  EXPECT_TRUE(is(service_.finish(base::Deadline::in(10s)), Code::ok));
  EXPECT_EQ(raised(3), 1u);
  EXPECT_EQ(static_cast<unsigned char*>(data_.first.data())[16], 42);
}

TEST_F(Windows, AreNamedInDumps) {
  {
    const auto window = take(open_proxied());
    EXPECT_EQ(service_.dump(), "window onto \"data\" of peer " + std::to_string(to_far_.id()) +
                                   ", proxy: WindowOptions::force_proxy: 0 orders of kernels "
                                   "taken, 0 done\n");
    must(service_.cancel(*window));
    EXPECT_TRUE(test::contains(service_.dump(), "; ended: Window::cancel() was called\n"));
  }
  EXPECT_EQ(service_.dump(), "");
}

}  // namespace window_service_test
}  // namespace linkspan::engine
