// The far end of a transport in an exec'd process: the child's side, which makes a HereEnd and
// executes requests, and the test's side, an End that sends them.
#include <unistd.h>

#include "base/process.hpp"
#include "tests/support/network.hpp"
#include "tests/support/tcp_pair.hpp"
#include "tests/support/transport_fixture.hpp"

namespace linkspan::test {
namespace {

constexpr const char* kHelper = "far_end";

std::vector<std::uint8_t> to_json(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {data, data + bytes.size()};
}
std::vector<std::byte> from_json(const Json& json) {
  std::vector<std::byte> bytes;
  for (const Json& each : json) bytes.push_back(static_cast<std::byte>(each.get<std::uint8_t>()));
  return bytes;
}

/// Replaces the control plane for an Engine's endpoints.
class LineChannel final : public Channel {
 public:
  LineChannel(Line& line, std::int64_t pid, Fd pidfd, bool connects)
      : line_(line), pid_(pid), pidfd_(std::move(pidfd)), connects_(connects) {}
  Status send(std::uint16_t op, std::span<const std::byte> bytes, std::span<Fd> fds) override {
    return line_.tell(op, bytes, fds);
  }
  transport::SessionKey session_key() const noexcept override { return key_; }
  transport::PeerProcess process() const noexcept override { return {pid_, pidfd_.get()}; }
  std::string_view peer_name() const noexcept override { return "the other end"; }
  void deliver_notification(std::vector<std::byte>, std::uint64_t) override {}
  bool connects() const noexcept override { return connects_; }
  Status open_data_connection() override {
    Network* const network = take(network_of_tests());
    auto [ours, theirs] = network != nullptr ? network->connection() : tcp_pair();
    base::Frame message{.header = {.op = kStreamOp}, .payload = {}, .fds = {}};
    message.fds.push_back(std::move(ours));
    line_.hear(std::move(message));
    return line_.tell(kStreamOp, {}, {&theirs, 1});
  }
  void fail_peer(const Status&) override {}

 private:
  Line& line_;
  const std::int64_t pid_;
  const Fd pidfd_;
  const bool connects_;
  std::array<std::byte, 32> key_ = {};
};

Result<std::shared_ptr<Channel>> channel_to(Line& line, pid_t pid, bool connects) {
  auto pidfd = base::open_pidfd(pid);
  if (!pidfd.ok()) return pidfd.status();
  return std::shared_ptr<Channel>(
      std::make_shared<LineChannel>(line, pid, *std::move(pidfd), connects));
}

const Subject* find_subject(const std::string& name) {
  for (const Subject& subject : all_subjects())
    if (subject.name == name) return &subject;
  return nullptr;
}

// ---- the child -------------------------------------------------------------------------------

/// Orders the child's own accesses after what has landed in its memory, and before what lands
/// later.
class Ordered {
 public:
  explicit Ordered(HereEnd* end) : end_(end) { poll(); }
  Ordered(const Ordered&) = delete;
  Ordered& operator=(const Ordered&) = delete;
  ~Ordered() { poll(); }

 private:
  void poll() const {
    if (end_ != nullptr && end_->endpoint() != nullptr) end_->progress();
  }
  HereEnd* const end_;
};

class FarServer {
 public:
  explicit FarServer(Line& line) : line_(line) {}

  Result<Answer> handle(const Json& call) {
    const auto what = call.at("do").get<std::string>();
    const Ordered ordered(end_.get());
    if (what == "open") return open(call.at("subject").get<std::string>());
    if (what == "address") return Answer{to_json(take(end_->address())), {}};
    if (what == "connect") return done(end_->connect(from_json(call.at("address"))));
    if (what == "close") return end_->close(), Answer{};
    if (what == "allocate") {
      memories_.push_back(take(end_->allocate(
          {.read = call.at("read").get<bool>(), .write = call.at("write").get<bool>()})));
      return Answer{memories_.size() - 1, {}};
    }
    Memory& memory = *memories_.at(call.at("memory").get<std::size_t>());
    if (what == "put") return memory.put(call.at("seed").get<std::uint64_t>()), Answer{};
    if (what == "retract") return done(end_->retract(memory));
    if (what == "publish") {
      PublishedKey key = take(end_->publish(memory));
      return Answer{to_json(key.bytes), take(memory::fds_for_peer(key))};
    }
    std::vector<Expected> expected;
    for (const Json& e : call.at("expected")) expected.push_back({e[0], e[1], e[2], e[3]});
    return Answer{memory.difference(call.at("seed").get<std::uint64_t>(), expected), {}};
  }

  bool work() {
    Endpoint* endpoint = end_ == nullptr ? nullptr : end_->endpoint();
    if (endpoint == nullptr) return false;
    while (auto message = line_.next()) must(deliver(*endpoint, *message));
    end_->progress();
    return endpoint->poll_hint().when != PollHint::When::idle;
  }

 private:
  static Result<Answer> done(const Status& status) {
    if (!status.ok()) return status;
    return Answer{};
  }
  Result<Answer> open(const std::string& name) {
    const Subject* subject = find_subject(name);
    if (subject == nullptr) return Status(Code::not_found, Scope::request, name);
    auto parts = subject->far_parts();
    if (!parts.ok()) return parts.status();
    end_ = std::make_unique<HereEnd>(*std::move(parts));
    end_->use(take(channel_to(line_, ::getppid(), false)));
    return Answer{};
  }

  Line& line_;
  std::unique_ptr<HereEnd> end_;
  std::vector<std::unique_ptr<Memory>> memories_;
};

void far_end_main(Line& line) {
  FarServer server(line);
  line.serve([&](const Json& call, const std::vector<Fd>&) { return server.handle(call); },
             [&] { return server.work(); });
  ::_exit(0);  // as suddenly as a user's process: nothing is closed first
}
const bool kRegistered = add_helper(kHelper, far_end_main);

// ---- the test's side -------------------------------------------------------------------------

class FarMemory final : public Memory {
 public:
  FarMemory(Line& line, std::size_t id) : line_(line), id_(id) {}
  void put(std::uint64_t seed) override {
    take(line_.call({{"do", "put"}, {"memory", id_}, {"seed", seed}}));
  }
  std::string difference(std::uint64_t seed, std::span<const Expected> expected) const override {
    Json list = Json::array();
    for (const Expected& e : expected) list.push_back({e.offset, e.seed, e.from, e.bytes});
    return take(line_.call({{"do", "difference"},
                            {"memory", id_},
                            {"seed", seed},
                            {"expected", std::move(list)}}))
        .value;
  }
  std::size_t id() const { return id_; }

 private:
  Line& line_;
  const std::size_t id_;
};

class FarProcess final : public End {
 public:
  explicit FarProcess(std::unique_ptr<Child> child) : child_(std::move(child)) {}
  Child& child() { return *child_; }

  Result<std::vector<std::byte>> address() override {
    return from_json(take(line().call({{"do", "address"}})).value);
  }
  Status connect(std::span<const std::byte> address) override {
    return line().call({{"do", "connect"}, {"address", to_json(address)}}).status();
  }
  Result<std::unique_ptr<Memory>> allocate(Permissions peers) override {
    auto id = line().call({{"do", "allocate"}, {"read", peers.read}, {"write", peers.write}});
    if (!id.ok()) return id.status();
    return std::unique_ptr<Memory>(
        std::make_unique<FarMemory>(line(), id->value.get<std::size_t>()));
  }
  Result<PublishedKey> publish(const Memory& memory) override {
    auto key = line().call({{"do", "publish"}, {"memory", id_of(memory)}});
    if (!key.ok()) return key.status();
    PublishedKey made{.bytes = from_json(key->value), .fds = {}};
    for (Fd& fd : key->fds) made.fds.push_back(std::make_shared<const Fd>(std::move(fd)));
    return made;
  }
  Status retract(const Memory& memory) override {
    return line().call({{"do", "retract"}, {"memory", id_of(memory)}}).status();
  }
  void progress() override {}  // it makes its own
  void close() override { take(line().call({{"do", "close"}})); }
  void die() override {
    child_->kill();
    alive_ = false;
  }
  bool alive() const override { return alive_; }

 private:
  Line& line() { return child_->line(); }
  static std::size_t id_of(const Memory& memory) {
    return dynamic_cast<const FarMemory&>(memory).id();
  }

  const std::unique_ptr<Child> child_;
  bool alive_ = true;
};

}  // namespace

Result<Ends> open_in_two_processes(const Subject& subject) {
  auto parts = subject.near_parts();
  if (!parts.ok()) return parts.status();
  auto child = Child::spawn(kHelper);
  if (!child.ok()) return child.status();
  auto far = std::make_unique<FarProcess>(*std::move(child));
  Line& line = far->child().line();
  if (auto opened = line.call({{"do", "open"}, {"subject", subject.name}}); !opened.ok())
    return opened.status();
  auto channel = channel_to(line, far->child().pid(), true);
  if (!channel.ok()) return channel.status();
  auto near = std::make_unique<HereEnd>(*std::move(parts));
  near->use(*std::move(channel));
  return Ends{std::move(far), std::move(near), &line};
}

}  // namespace linkspan::test
