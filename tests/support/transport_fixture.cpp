#include "tests/support/transport_fixture.hpp"

#include <cstdlib>

namespace linkspan::test {
namespace {

/// A channel for ends that need none: it refuses to send.
class SilentChannel final : public Channel {
 public:
  Status send(std::uint16_t, std::span<const std::byte>, std::span<Fd>) override {
    return {Code::unsupported, Scope::request, "this subject has no control connection"};
  }
  transport::SessionKey session_key() const noexcept override { return key_; }
  transport::PeerProcess process() const noexcept override { return {}; }
  std::string_view peer_name() const noexcept override { return "the other end"; }
  void deliver_notification(std::vector<std::byte>, std::uint64_t) override {}
  bool connects() const noexcept override { return false; }
  Status open_data_connection() override {
    return {Code::unsupported, Scope::peer, "no streams here"};
  }
  void fail_peer(const Status&) override {}

 private:
  std::array<std::byte, 32> key_ = {};
};
SilentChannel g_silent;

struct NoSink final : CompletionSink {
  void complete(Completion&&) override { ADD_FAILURE() << "an end that posts nothing completed"; }
};

class HereMemory final : public Memory {
 public:
  HereMemory(std::shared_ptr<const memory::Registration> whole,
             std::shared_ptr<const memory::Registration> part, std::unique_ptr<Buffer> buffer)
      : registration(std::move(part)), whole_(std::move(whole)), buffer_(std::move(buffer)) {}

  std::string difference(std::uint64_t seed, std::span<const Expected> expected) const override {
    return buffer_->difference(seed, expected);
  }
  void put(std::uint64_t seed) override { buffer_->fill(seed); }

  const std::shared_ptr<const memory::Registration> registration;  // also the registry's

 private:
  const std::shared_ptr<const memory::Registration>
      whole_;  // of shared memory; also the registry's
  const std::unique_ptr<Buffer> buffer_;
};

const HereMemory& here_memory(const Memory& memory) {
  return dynamic_cast<const HereMemory&>(memory);
}

}  // namespace

HereEnd::~HereEnd() {
  if (endpoint_ != nullptr) endpoint_->close();
}

Status HereEnd::connect_by(std::span<const std::byte> address, Deadline deadline) {
  auto made = transport().connect(address, channel_ ? *channel_ : g_silent, deadline);
  if (made.ok()) endpoint_ = *std::move(made);
  return made.status();
}

const memory::Region& HereEnd::region(const Memory& memory) {
  return here_memory(memory).registration->region();
}

Result<std::unique_ptr<Memory>> HereEnd::allocate(Permissions peers) {
  constexpr std::uint64_t kGuard = Buffer::kGuard, kWhole = Memory::kBytes + 2 * kGuard;
  peers.exclusive = peers.exclusive || parts_.exclusive;
  std::shared_ptr<const memory::Registration> whole;
  std::unique_ptr<Buffer> buffer;
  if (parts_.kind == MemoryKind::shared) {
    auto made = parts_.registry->allocate_shared(kWhole, peers);
    if (!made.ok()) return made.status();
    whole = *std::move(made);
    const std::uint64_t at = whole->region().facts().address;
    buffer = Buffer::over(reinterpret_cast<void*>(at), Memory::kBytes);  // NOLINT(*-int-to-ptr)
  } else {
    auto made = Buffer::create(parts_.kind, Memory::kBytes);
    if (!made.ok()) return made.status();
    buffer = *std::move(made);
  }
  auto added = parts_.registry->add(buffer->data(), buffer->bytes(), peers, false);
  if (!added.ok()) return added.status();
  return std::unique_ptr<Memory>(
      std::make_unique<HereMemory>(std::move(whole), *std::move(added), std::move(buffer)));
}

Result<PublishedKey> HereEnd::publish(const Memory& memory) {
  return transport().publish(region(memory));
}

Status HereEnd::retract(const Memory& memory) { return transport().retract(region(memory), false); }

void HereEnd::progress() {
  NoSink sink;
  if (endpoint_ != nullptr) endpoint_->progress(sink);
}

void HereEnd::close() {
  if (endpoint_ != nullptr) endpoint_->close();
}

void HereEnd::die() {
  endpoint_.reset();
  alive_ = false;
}

Link::Link(Ends ends) : ends_(std::move(ends)), near(ends_.near.get()), far(ends_.far.get()) {
  const Permissions all{.read = true, .write = true};
  here = take(near->allocate(all));
  there = take(far->allocate(all));
  here->fill(1);
  there->fill(2);
  take(near->publish(*here));
  key = take(far->publish(*there));
  remote = take(import(key));
  must(near->connect_by(take(far->address()), Deadline::after(clock, 10s)));
  endpoint = near->endpoint();
}

Link::~Link() {
  endpoint->close();
  if (far->alive()) far->close();
  EXPECT_TRUE(drain()) << "a completion was lost";
  linger();
  remote.reset();
  if (far->alive()) {
    EXPECT_TRUE(retract(*far, *there).ok());
  }
  EXPECT_TRUE(retract(*near, *here).ok());
}

Result<std::unique_ptr<Mapping>> Link::import(std::span<const std::byte> bytes,
                                              const SharedFds& fds, Deadline deadline) {
  std::vector<Fd> duplicates;
  for (const auto& fd : fds) duplicates.push_back(take(fd->duplicate()));
  return near->transport().import_key({bytes, duplicates}, deadline);
}

Status Link::retract(End& end, const Memory& memory) {
  const Deadline limit = soon();
  Status status = end.retract(memory);
  while (status.code() == Code::busy && !limit.passed()) {
    progress();
    status = end.retract(memory);
  }
  return status;
}

Status Link::post(const Batch& batch) {
  posting_ = true;
  auto begun = endpoint->post(batch);
  posting_ = false;
  if (!begun.ok()) return begun.status();
  inflight_.insert(batch.cookie);
  paths[batch.cookie] = begun->path;
  posted = *std::move(begun);
  return {};
}

Status deliver(Endpoint& endpoint, base::Frame& message) {
  if (message.header.op != kStreamOp)
    return endpoint.on_message(message.header.op, message.payload, message.fds);
  return endpoint.on_data_connection(base::AuthenticatedSocket{std::move(message.fds.front())});
}

bool Link::deliver() {
  bool any = false;
  while (ends_.line != nullptr) {
    auto message = ends_.line->next();
    if (!message) break;
    const Status status = test::deliver(*endpoint, *message);
    EXPECT_TRUE(status.ok()) << status.to_string();
    any = true;
  }
  return any;
}

void Link::progress() {
  deliver();
  endpoint->progress(*this);
  if (far->alive()) far->progress();
}

void Link::progress_when_asked() {
  const Deadline limit = soon();
  const PollHint look = endpoint->poll_hint();
  const auto due = [&look] {
    return look.when == PollHint::When::now ||
           (look.when == PollHint::When::at && look.at <= Clock::steady().now());
  };
  while (!deliver() && !due() && !limit.passed()) far->progress();
  endpoint->progress(*this);
}

bool Link::drain() {
  const Deadline limit = soon();
  while (!inflight_.empty() && !limit.passed()) progress();
  return inflight_.empty();
}

void Link::linger() {
  const Deadline limit = Deadline::after(Clock::steady(), 5ms);
  while (!limit.passed()) progress();
}

void Link::run(const Batch& batch) {
  const Status status = post(batch);
  ASSERT_TRUE(status.ok()) << status.to_string();
  ASSERT_TRUE(drain());
  EXPECT_TRUE(done.at(batch.cookie).ok()) << done.at(batch.cookie).to_string();
}

void Link::complete(Completion&& completion) {
  EXPECT_FALSE(posting_) << "a sink was called from inside post()";
  EXPECT_EQ(inflight_.erase(completion.cookie), 1u) << "not in flight: " << completion.cookie;
  done[completion.cookie] = completion.status;
  if (!completion.path.path.empty()) paths[completion.cookie] = completion.path;
}

void TransportConformance::SetUp() {
  auto ends = GetParam().open(GetParam());
  if (ends.ok()) {
    link = std::make_unique<Link>(*std::move(ends));
    link->join();
    return;
  }
  ASSERT_EQ(ends.status().code(), Code::unsupported) << ends.status().to_string();
  const char* listed = std::getenv("LINKSPAN_TEST_REQUIRE");
  const std::string required = "," + std::string(listed ? listed : "") + ",";
  ASSERT_EQ(required.find("," + GetParam().name + ","), std::string::npos)
      << "required here: " << ends.status().to_string();
  GTEST_SKIP() << ends.status().to_string();
}

}  // namespace linkspan::test
