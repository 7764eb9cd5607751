// Tests what an Engine does beside its services: waits, cancels, notifications, and its end, whole
// and of one peer.
#include "engine/engine_impl.hpp"

#include <unistd.h>

#include <cstdlib>

#include "engine/transfers/completion_queue.hpp"
#include "linkspan/device/put.cuh"
#include "tests/unit/engine_pair.hpp"

namespace linkspan::engine {
namespace engine_impl_test {

using namespace std::chrono_literals;
using control::FrameOp;
using test::contains, test::impl_of, test::is, test::must, test::RawPeer, test::take;

class EngineImplTest : public test::EnginePair {
 protected:
  /// Submits a receive that nobody sends to.
  std::shared_ptr<TransferState> receive() {
    return take(impl_.services().messages.submit(to_far_.id(), {.tag = 1}, room_.data(),
                                                 room_.size(), {.deadline = 1h}));
  }

  EngineImpl& impl_ = impl_of(near_);
  std::vector<std::byte> room_ = std::vector<std::byte>(64);
};

TEST_F(EngineImplTest, RefusesOptionsThatAreWrong) {
  const std::string longest(control::kMaxEngineName, 'n');
  EXPECT_TRUE(is(EngineImpl::open({.name = longest + "n", .use_gpu = false}).status(),
                 Code::invalid_argument, "EngineOptions::name has 257 bytes"));
  EXPECT_TRUE(is(EngineImpl::open({.name = longest, .use_gpu = false}).status(), Code::ok));
  EXPECT_TRUE(
      is(EngineImpl::open({.use_gpu = false, .transport = {{"pigeon.speed", "1"}}}).status(),
         Code::invalid_argument, "pigeon.speed"));
}

TEST_F(EngineImplTest, RefusesASecurityThatDoesNotGoWithItsSecret) {
  const std::string secret = "a secret of the tests";
  for (const Security security : {Security::authenticated, Security::encrypted}) {
    EXPECT_TRUE(is(
        EngineImpl::open({.use_gpu = false, .security = security}).status(), Code::invalid_argument,
        "EngineOptions::security=\"" + std::string(name_of(security)) +
            "\": needs a secret, and there is none: give both sides the same by "
            "LINKSPAN_SECRET_FILE, EngineOptions::secret_file or EngineOptions::secret"));
    EXPECT_TRUE(
        is(EngineImpl::open({.use_gpu = false, .security = security, .secret = secret}).status(),
           Code::ok));
  }
  for (const Security security : {Security::loopback_only, Security::insecure}) {
    const std::string contradicts = "EngineOptions::security=\"" + std::string(name_of(security)) +
                                    "\": contradicts the secret of EngineOptions::";
    const Status refused =
        EngineImpl::open({.use_gpu = false, .security = security, .secret = secret}).status();
    EXPECT_TRUE(is(refused, Code::invalid_argument, contradicts + "secret: set authenticated"));
    EXPECT_FALSE(contains(refused.what(), secret));
    EXPECT_TRUE(is(
        EngineImpl::open({.use_gpu = false, .security = security, .secret_file = "/none"}).status(),
        Code::invalid_argument, contradicts + "secret_file: set authenticated"));
  }
}

TEST_F(EngineImplTest, TakesItsSecretFromTheOptions) {
  EXPECT_TRUE(is(EngineImpl::open(
                     {.use_gpu = false, .secret_file = "/none", .secret = "a secret of the tests"})
                     .status(),
                 Code::invalid_argument,
                 "EngineOptions::secret and EngineOptions::secret_file are both set: set one"));
  const Status few = EngineImpl::open({.use_gpu = false, .secret = "fifteen bytes ."}).status();
  EXPECT_TRUE(is(few, Code::invalid_argument, "EngineOptions::secret has 15 bytes"));
  EXPECT_FALSE(contains(few.what(), "fifteen"));
  EXPECT_TRUE(is(EngineImpl::open({.use_gpu = false, .secret = std::string(4097, 's')}).status(),
                 Code::invalid_argument, "EngineOptions::secret has more than 4096 bytes"));
  for (const char* variable : {"LINKSPAN_SECRET_FILE", "LINKSPAN_SECRET"}) {
    ::setenv(variable, "/none", 1);  // and too short
    EXPECT_FALSE(EngineImpl::open({.use_gpu = false}).ok()) << variable;
    EXPECT_TRUE(is(EngineImpl::open({.use_gpu = false, .secret = "a secret of the tests"}).status(),
                   Code::ok));
    ::unsetenv(variable);
  }
}

TEST_F(EngineImplTest, HasANameAndItsOptions) {
  const Engine engine = take(Engine::open({.use_gpu = false}));
  EXPECT_TRUE(contains(engine.dump(), "engine \"pid " + std::to_string(::getpid()) + "\""));
  EXPECT_TRUE(
      is(EngineImpl::open({.use_gpu = false, .secret_file = "/nonexistent/secret"}).status(),
         Code::not_found, "/nonexistent/secret"));
  EXPECT_TRUE(
      is(EngineImpl::open({.use_gpu = false, .transport = {{"tcp.interfaces", "none0"}}}).status(),
         Code::not_found, "none0"));
}

TEST_F(EngineImplTest, WaitsNoLongerThanItsTimeout) {
  const auto transfer = receive();
  const std::string goes_on = "transfer " + std::to_string(transfer->id) + " goes on";
  for (const Duration timeout : {Duration(1ms), Duration(0), Duration::min()})
    EXPECT_TRUE(is(impl_.wait(*transfer, timeout), Code::pending, goes_on));
  EXPECT_FALSE(transfer->quiet);
  must(take(to_near_.send(1, room_.data(), 64)).wait(10s));
  EXPECT_TRUE(is(impl_.wait(*transfer, Duration::max()), Code::ok));
}

TEST_F(EngineImplTest, CancelsWhatIsNotQuiet) {
  const auto transfer = receive();
  EXPECT_TRUE(is(impl_.cancel(*transfer), Code::ok));
  EXPECT_TRUE(is(impl_.wait(*transfer, 10s), Code::canceled));
  EXPECT_TRUE(is(impl_.cancel(*transfer), Code::ok));
  EXPECT_TRUE(is(transfer->end, Code::canceled));
}

TEST_F(EngineImplTest, SaysThatACanceledTransferIsPending_WhileThePeerMayReadIt) {
  RawPeer raw(far_);
  EngineImpl& impl = impl_of(far_);
  const auto transfer = take(impl.services().messages.submit(raw.peer().id(), {.sends = true},
                                                             room_.data(), room_.size(), {}));
  (void)raw.next(FrameOp::offer);
  EXPECT_TRUE(is(impl.cancel(*transfer), Code::pending,
                 "transfer " + std::to_string(transfer->id) + " is not quiet yet"));
  EXPECT_EQ(raw.next(FrameOp::withdraw).header.id, transfer->id);
  raw.send(FrameOp::finished, transfer->id,
           control::encode(control::MessageFinished{
               .status = Status(Code::canceled, Scope::request, "let go")}));
  EXPECT_TRUE(is(impl.wait(*transfer, 10s), Code::canceled));
}

TEST_F(EngineImplTest, AttachesATransferOnce) {
  const std::shared_ptr<CompletionQueueState> queue = take(CompletionQueueState::create());
  const auto transfer = receive();
  EXPECT_TRUE(is(impl_.attach_completion_queue(*transfer, queue, 7), Code::ok));
  EXPECT_TRUE(is(impl_.attach_completion_queue(*transfer, queue, 8), Code::invalid_argument,
                 "was added to a completion queue before"));
  EXPECT_TRUE(queue->pop(9).empty());
  must(impl_.cancel(*transfer));
  std::vector<std::uint64_t> cookies;
  EXPECT_TRUE(test::eventually([&] { return !(cookies = queue->pop(9)).empty(); }));
  EXPECT_EQ(cookies, std::vector<std::uint64_t>{7});
}

TEST_F(EngineImplTest, AttachesAQuietTransferOfAForgottenPeer) {
  const std::shared_ptr<CompletionQueueState> queue = take(CompletionQueueState::create());
  RawPeer raw(far_);
  EngineImpl& impl = impl_of(far_);
  const auto transfer = take(impl.services().messages.submit(raw.peer().id(), {}, nullptr, 0, {}));
  raw.leave();
  EXPECT_TRUE(is(impl.wait(*transfer, 10s), Code::disconnected));
  EXPECT_TRUE(test::eventually(
      [&] { return !contains(far_.metrics(), "peer=\"" + std::to_string(raw.peer().id())); }));
  EXPECT_TRUE(is(impl.attach_completion_queue(*transfer, queue, 7), Code::ok));
  EXPECT_EQ(queue->pop(9), std::vector<std::uint64_t>{7});
}

TEST_F(EngineImplTest, NotifiesWithAtMostTheLongestMessage) {
  std::vector<std::byte> message(Inbox::kMaxMessage + 1);
  EXPECT_TRUE(is(impl_.notify(to_far_.id(), message), Code::invalid_argument,
                 "a message of 65537 bytes; at most 65536"));
  message.pop_back();
  EXPECT_TRUE(is(impl_.notify(77, message), Code::disconnected, "peer 77 is not connected"));
  EXPECT_TRUE(is(impl_.notify(to_far_.id(), message), Code::ok));
  const auto received = far_.notifications(10s);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].peer, to_near_.id());
  EXPECT_EQ(received[0].bytes.size(), Inbox::kMaxMessage);
}

TEST_F(EngineImplTest, SaysThatAPeerIsGone_AfterClose) {
  EXPECT_EQ(impl_.state(to_far_.id()), PeerState::up);
  EXPECT_EQ(impl_.state(77), PeerState::gone);
  EXPECT_TRUE(is(impl_.close(10s), Code::ok));
  EXPECT_EQ(impl_.state(to_far_.id()), PeerState::gone);
  EXPECT_TRUE(test::eventually([&] { return to_near_.state() == PeerState::gone; }));
  EXPECT_TRUE(is(impl_.close(0s), Code::ok));
}

TEST_F(EngineImplTest, RefusesAllThatBegins_AfterClose) {
  must(impl_.close(10s));
  EXPECT_TRUE(is(near_.allocate_shared(4096).status(), Code::canceled, "the Engine is closed"));
  EXPECT_TRUE(is(near_.accept(1h).status(), Code::canceled));
  EXPECT_TRUE(near_.notifications(1h).empty());
  EXPECT_FALSE(near_.connect(far_.address(), 1ms).ok());
  EXPECT_FALSE(to_far_.recv(1, room_.data(), room_.size()).ok());
  EXPECT_FALSE(to_far_.notify(std::span<const std::byte>()).ok());
}

TEST_F(EngineImplTest, NamesThePeerThatKeepsItFromClosing) {
  RawPeer raw(far_);
  const Transfer sent = take(raw.peer().send(1, room_.data(), room_.size()));
  (void)raw.next(FrameOp::offer);
  const Status pending = far_.close(20ms);
  EXPECT_TRUE(is(pending, Code::pending, "not quiet: transfers of odd (peer "));
  EXPECT_TRUE(is(pending, Code::pending, ") with 1"));
  EXPECT_FALSE(sent.done());
  EXPECT_FALSE(raw.peer().recv(1, room_.data(), room_.size()).ok()) << "it is being closed";
  raw.leave();
  EXPECT_TRUE(is(far_.close(10s), Code::ok));
  EXPECT_TRUE(sent.done());
}

TEST_F(EngineImplTest, NamesThePeerThatMayCopyOnItsMemory) {
  RawPeer raw(far_);
  const Region region = take(far_.allocate_shared(4096));
  must(far_.publish("data", region));
  raw.send(FrameOp::import, 3, control::encode_import("data"));
  (void)raw.next(FrameOp::imported);
  EXPECT_TRUE(is(far_.close(20ms), Code::pending, "memory of this Engine may be copied by odd"));
  raw.leave();
  EXPECT_TRUE(is(far_.close(10s), Code::ok));
}

TEST_F(EngineImplTest, ClosesOnePeerAlone) {
  must(near_.listen());
  const Peer other = take(far_.connect(near_.address())), to_other = take(near_.accept(10s));
  const auto transfer = receive();
  EXPECT_TRUE(is(impl_.close(77, 10s), Code::ok));
  EXPECT_TRUE(is(impl_.close(to_far_.id(), 10s), Code::ok));
  EXPECT_TRUE(is(transfer->end, Code::canceled));
  EXPECT_EQ(impl_.state(to_far_.id()), PeerState::gone);
  EXPECT_TRUE(is(impl_.notify(to_far_.id(), room_), Code::disconnected));
  EXPECT_EQ(impl_.state(to_other.id()), PeerState::up);
  EXPECT_TRUE(is(impl_.notify(to_other.id(), room_), Code::ok));
  EXPECT_TRUE(is(impl_.close(to_far_.id(), 10s), Code::ok));
}

TEST_F(EngineImplTest, IsPending_WhileAClosedPeerDoesNotAnswer) {
  RawPeer raw(far_);
  EngineImpl& impl = impl_of(far_);
  const std::uint64_t id = raw.peer().id();
  const Transfer sent = take(raw.peer().send(1, room_.data(), room_.size()));
  (void)raw.next(FrameOp::offer);
  EXPECT_TRUE(is(impl.close(id, 20ms), Code::pending,
                 "peer " + std::to_string(id) + " may still touch memory of transfers with it"));
  EXPECT_EQ(impl.state(id), PeerState::lost);
  raw.send(FrameOp::finished, raw.next(FrameOp::withdraw).header.id,
           control::encode(control::MessageFinished{
               .status = Status(Code::canceled, Scope::request, "let go")}));
  EXPECT_TRUE(is(sent.wait(10s), Code::canceled));
  EXPECT_TRUE(is(impl.close(id, 20ms), Code::pending, "has not answered the goodbye"));
  EXPECT_EQ(to_near_.state(), PeerState::up);
  raw.leave();
  EXPECT_TRUE(is(impl.close(id, 10s), Code::ok));
}

TEST_F(EngineImplTest, IsPending_WhileAKernelsOrderHasNoRoom) {
  const Region local = take(near_.allocate_shared(4096)), pad = take(near_.allocate_shared(64));
  const auto data = share("data", 4096), their_pad = share("pad", 64);
  const Window window = take(to_far_.window({.local = local,
                                             .remote = data.second,
                                             .local_pad = pad,
                                             .remote_pad = their_pad.second,
                                             .layout = {.signals = 4, .mailboxes = 0},
                                             .force_proxy = true}));
  std::vector<Transfer> fill;
  for (std::size_t i = 0; i < PeerScheduler::kMaxTransfers; ++i)
    fill.push_back(take(to_far_.recv(1, nullptr, 0, {.deadline = 1h})));
  ASSERT_EQ(device::put<device::Scope::thread>(window.device(), 0, local.data(), 8),
            device::Outcome::ok);
  EXPECT_TRUE(is(impl_.close(20ms), Code::pending, "what kernels ordered for peer"));
  EXPECT_TRUE(is(window.failure(), Code::canceled, "the Engine is closed"));
  EXPECT_TRUE(is(impl_.close(10s), Code::ok));  // it was dropped
  for (const Transfer& each : fill) ASSERT_TRUE(is(each.status(), Code::canceled));
}

/// A remote peer that does not let go of a message's memory.
class EngineImplAndRemote : public EngineImplTest {
 protected:
  static Engine& by_tcp(Engine& engine) {
    must(engine.listen("tcp:127.0.0.1:0"));
    return engine;
  }
  void SetUp() override {
    sent_ = take(raw_.peer().send(1, room_.data(), room_.size(), {.deadline = 1h}));
    (void)raw_.next(FrameOp::offer);
  }

  RawPeer raw_{by_tcp(far_)};
  Transfer sent_;
};

TEST_F(EngineImplAndRemote, IsDropped_WhenItHoldsUpClose) {
  EXPECT_TRUE(is(far_.close(10s), Code::ok));
  EXPECT_TRUE(sent_.done());
  raw_.expect_dropped();
}

TEST_F(EngineImplAndRemote, IsDropped_WhenItHoldsUpItsOwnClose) {
  EXPECT_TRUE(is(raw_.peer().close(2s), Code::ok));
  EXPECT_TRUE(sent_.done());
  EXPECT_EQ(to_near_.state(), PeerState::up);
  raw_.expect_dropped();
}

TEST(EngineImplKept, OutlivesItsHandles_WhenItWasNotQuiet) {
  auto engine = std::make_unique<Engine>(take(Engine::open({.use_gpu = false})));
  std::weak_ptr<EngineImpl> impl = HandleAccess::impl(*engine);
  // Reachable for a sanitizer, which would report the object as leaked.
  static const std::shared_ptr<EngineImpl>* kept = nullptr;
  kept = new std::shared_ptr<EngineImpl>(impl);
  must((*kept)->close(10s));
  engine.reset();
  EXPECT_EQ(impl.use_count(), 1) << "it was quiet";
  (*kept)->keep_forever();
  EXPECT_EQ(impl.use_count(), 2);
}

}  // namespace engine_impl_test
}  // namespace linkspan::engine
