// Fuzzes a peer in every state of its connection: a real Session of a whole Engine (EngineImpl),
// fed by the fuzzer's thread. For the kernel the peer is another process.
//
// Finds, beside what the sanitizers see: a transfer that does not end when its peer is gone, a
// Session that does not, fds that stay open.
#include "tests/fuzz/frames.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "base/process.hpp"
#include "control/exchange.hpp"
#include "engine/engine_impl.hpp"
#include "engine/handle_access.hpp"
#include "tests/fuzz/support.hpp"
#include "transport/local/local_transport.hpp"

namespace linkspan::fuzz {
namespace {

using namespace std::chrono_literals;
using control::FrameOp;

constexpr std::size_t kBytes = 4096;
constexpr int kTurns = 4096;

/// A process that makes socket pairs: both ends are its own by SO_PEERCRED.
class Elsewhere {
 public:
  Elsewhere() : Elsewhere(*base::socket_pair()) {}

  std::pair<base::Fd, base::Fd> sockets() {
    demand(channel_.queue({}, {}, {}).ok() && channel_.flush().ok(), "the other process is gone");
    for (;;) {
      auto frame = channel_.receive();
      demand(frame.ok(), "the other process is gone");
      if (*frame) return {std::move((*frame)->fds.at(0)), std::move((*frame)->fds.at(1))};
      wait(channel_);
    }
  }
  base::Fd pidfd() const { return *pidfd_.duplicate(); }

 private:
  explicit Elsewhere(std::pair<base::Fd, base::Fd> pair) : channel_(std::move(pair.first)) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      channel_ = base::FdChannel(base::Fd());
      serve(base::FdChannel(std::move(pair.second)));
    }
    pidfd_ = *base::open_pidfd(pid);
  }
  static void wait(const base::FdChannel& channel) {
    pollfd readable{.fd = channel.fd(), .events = POLLIN, .revents = 0};
    ::poll(&readable, 1, 1000);
  }
  [[noreturn]] static void serve(base::FdChannel channel) {
    for (;;) {
      auto asked = channel.receive();
      if (!asked.ok()) ::_exit(0);
      if (!*asked) {
        wait(channel);
        continue;
      }
      auto pair = base::socket_pair();
      base::Fd fds[] = {std::move(pair->first), std::move(pair->second)};
      if (!channel.queue({}, {}, fds).ok() || !channel.flush().ok()) ::_exit(1);
    }
  }

  base::FdChannel channel_;
  base::Fd pidfd_;
};

/// Does nothing: Peer::hear() flushes the Session.
struct NoWriter final : control::SessionWriter {
  void write_when_ready(std::uint64_t) override {}
};

/// Holds the Engine and the memory that all inputs share.
struct World {
  Elsewhere elsewhere;  // first: it forks
  const base::Log log{base::Level::off, base::stderr_sink()};
  control::Identity us{.engine = "fuzzed", .incarnation = 5};
  std::shared_ptr<engine::EngineImpl> impl = open();
  std::vector<std::byte> loose = std::vector<std::byte>(kBytes);
  std::vector<Region> regions;
  // The peer's half: regions that can be mapped, with their keys.
  memory::Registry peer_registry{kPeerIncarnation, nullptr};
  std::unique_ptr<transport::Transport> peer_transport = *transport::local::LocalTransport::create(
      {.registry = &peer_registry, .incarnation = kPeerIncarnation});
  std::vector<std::shared_ptr<const memory::Registration>> peer_regions;
  std::vector<memory::PublishedKey> peer_keys;
  NoWriter writer;
  std::uint64_t sessions = 0;
  std::size_t fds = 0;  // open when nothing is going on

  World() {
    constexpr Permissions kAll{.read = true, .write = true};
    add("s", impl->services().registrations.allocate_shared(kBytes, {.peers = kAll}));
    add("x", impl->services().registrations.allocate_shared(kBytes, {.peers = {true, true, true}}));
    add("h", impl->services().registrations.add(loose.data(), kBytes, {.peers = kAll}));
    for (int i = 0; i < 3; ++i) {
      peer_regions.push_back(*peer_registry.allocate_shared(kBytes, kAll));
      peer_keys.push_back(*peer_transport->publish(peer_regions.back()->region()));
    }
  }
  static std::shared_ptr<engine::EngineImpl> open() {
    auto made = engine::EngineImpl::open({.name = "fuzzed",
                                          .use_gpu = false,
                                          .cpu_threads = 1,
                                          .log = [](LogLevel, std::string_view) {}});
    demand(made.ok(), "no Engine");
    return *std::move(made);
  }
  void add(const char* name, engine::RegistrationService::Registered made) {
    demand(made.ok(), "no region");
    regions.push_back(*engine::HandleAccess::wrap<Region>(impl, std::move(made)));
    demand(impl->services().directory.publish(name, regions.back()).ok(), "no name");
  }
};

World& world() {
  static auto* const all = new World;  // never ends: its threads may be at work
  return *all;
}

/// A connection, from hello to its end.
class Peer {
 public:
  explicit Peer(World& all) : all_(all) {
    auto [theirs, ours] = all.elsewhere.sockets();
    client_ = base::FdChannel(std::move(theirs));
    session_ = std::make_shared<control::Session>(++all.sessions, false, std::move(ours), all.us,
                                                  all.impl->services(), all.writer, all.log);
    demand(session_->start().ok(), "the other process is refused");
  }

  void play(Input& input) {
    const std::uint8_t what = input.byte() % static_cast<std::uint8_t>(Step::steps);
    if (what < static_cast<std::uint8_t>(Step::hello)) {
      const std::uint8_t id = input.byte();
      auto fds = fds_of(input);
      return say(what, id < kTransferIds ? id : transfer_id(id), input.take(input.word()), fds);
    }
    switch (static_cast<Step>(what)) {
      case Step::hello:
        return greet();
      case Step::raw: {
        const auto bytes = input.take(input.byte());
        (void)::send(client_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        return hear();
      }
      case Step::receive: {
        const std::uint64_t tag = input.byte();
        return post(false, tag, all_.loose.data(), input.word());
      }
      case Step::send: {
        const std::uint64_t tag = input.byte();
        const std::size_t bytes = input.word();
        const bool exclusive = (input.byte() & 1) != 0;
        return post(true, tag, exclusive ? all_.regions[1].data() : all_.loose.data(), bytes);
      }
      case Step::cancel:
        if (const std::size_t at = input.byte(); !posted_.empty())
          (void)posted_[at % posted_.size()].cancel();
        return;
      case Step::stranger:
        return say(input.byte(), 0, {}, {}, kPeerIncarnation + 1);
      case Step::import_offered:
        return say(op(FrameOp::import), 3, control::encode_import({}, offered_), {});
      case Step::answer: {
        auto fds = fds_of(input);
        const auto bytes = input.take(input.word());
        return say(op(FrameOp::imported), asked_, control::encode_imported(bytes), fds);
      }
      case Step::good_answer:
        return answer(input.byte());
      case Step::good_offer: {
        const std::uint64_t tag = input.byte(), bytes = input.word();
        return say(op(FrameOp::offer), input.byte(),
                   control::encode(control::MessageOffer{.tag = tag,
                                                         .bytes = bytes,
                                                         .kind = MemoryKind::shared,
                                                         .serial = bytes == 0 ? 0u : 1u}),
                   {});
      }
      case Step::steps:
        return;
    }
  }

  void greet() {
    const control::Hello hello{.engine = "peer",
                               .process = {},
                               .key_share = {},
                               .transports = {{"local", all_.peer_transport->address()}}};
    base::Fd pidfd[] = {all_.elsewhere.pidfd()};
    say(op(FrameOp::hello), 0, encode(hello), pidfd);
    say(op(FrameOp::ready), 0, {}, {});
  }

  void end() {
    client_ = base::FdChannel(base::Fd());
    for (int turn = 0; turn < kTurns && !session_->is_disconnected(); ++turn) {
      session_->on_readable();
      pollfd more{.fd = session_->socket().fd(), .events = POLLIN, .revents = 0};
      if (!session_->is_disconnected())
        ::poll(&more, 1, 10);  // the process that made the sockets also closes its copies
    }
    demand(session_->is_disconnected(), "a closed socket is not seen");
    session_->on_process_end();
    demand(session_->is_terminated(), "a peer that has ended is not gone");
    for (const Transfer& each : posted_) (void)each.wait(10s);
    for (const Transfer& each : posted_) demand(each.done(), "a transfer does not end");
  }

 private:
  static std::uint16_t op(FrameOp frame) { return static_cast<std::uint16_t>(frame); }
  static std::vector<base::Fd> fds_of(Input& input) {
    std::vector<base::Fd> fds;
    for (std::size_t left = input.byte() % 4; left > 0; --left)
      fds.push_back(make_fd(input.byte()));
    return fds;
  }
  std::uint64_t transfer_id(std::uint8_t id) const {
    return posted_.empty() ? ~std::uint64_t{0} : posted_[id % posted_.size()].id();
  }

  void say(std::uint16_t what, std::uint64_t id, std::span<const std::byte> payload,
           std::span<base::Fd> fds, std::uint64_t incarnation = kPeerIncarnation) {
    const base::FrameHeader header{.length = 0, .op = what, .id = id, .incarnation = incarnation};
    (void)client_.queue(header, payload, fds);
    hear();
  }
  void hear() {
    for (int turn = 0; turn < kTurns; ++turn) {
      const bool told = !client_.flush().ok() || !client_.wants_write();
      session_->on_readable();
      (void)session_->socket().flush();
      while (auto frame = next()) note(*frame);
      if (told || session_->is_disconnected()) return;
    }
  }
  std::optional<base::Frame> next() {
    auto frame = client_.receive();
    return frame.ok() ? std::move(*frame) : std::nullopt;
  }
  void note(const base::Frame& frame) {
    if (frame.header.op == op(FrameOp::import)) asked_ = frame.header.id;
    if (frame.header.op != op(FrameOp::offer)) return;
    const auto offer = control::decode_offer(frame.payload);
    demand(offer.ok(), "our own offer is malformed");
    offered_ = offer->serial;
  }
  void answer(std::size_t which) {
    which %= all_.peer_keys.size();
    const memory::PublishedKey& key = all_.peer_keys[which];
    memory::Descriptor descriptor;
    descriptor.id = all_.peer_regions[which]->id();
    descriptor.kind = MemoryKind::shared;
    descriptor.peers = {.read = true, .write = true};
    descriptor.bytes = kBytes;
    descriptor.keys.push_back({.transport = "local",
                               .bytes = key.bytes,
                               .fd_count = static_cast<std::uint32_t>(key.fds.size())});
    auto fds = *memory::fds_for_peer(key);
    say(op(FrameOp::imported), asked_, control::encode_imported(memory::encode(descriptor)), fds);
  }
  void post(bool sends, std::uint64_t tag, const void* data, std::size_t bytes) {
    if (posted_.size() >= 64) return;
    auto made = all_.impl->services().messages.submit(
        session_->id(), {.sends = sends, .tag = tag % 4}, data, bytes % kBytes, {.deadline = 20s});
    if (made.ok())
      posted_.push_back(*engine::HandleAccess::wrap<Transfer>(all_.impl, std::move(made)));
    hear();
  }

  World& all_;
  base::FdChannel client_{base::Fd()};
  std::shared_ptr<control::Session> session_;  // also the PeerScheduler's
  std::vector<Transfer> posted_;
  std::uint64_t asked_ = 0, offered_ = 0;
};

/// Waits for descriptors that other threads close.
bool settles(World& all) {
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  while (open_fds() > all.fds) {
    if (limit.passed()) return false;
    all.impl->progress();
    ::poll(nullptr, 0, 1);
  }
  return true;
}

}  // namespace
}  // namespace linkspan::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace linkspan::fuzz;
  World& all = world();
  Input input(data, size);
  {
    Peer peer(all);
    if ((input.byte() & 1) == 0) peer.greet();
    for (int steps = 0; steps < 256 && !input.empty(); ++steps) peer.play(input);
    peer.end();
  }
  (void)all.impl->services().inbox.collect();
  all.impl->progress();
  constexpr std::uint64_t kWarm = 64;  // threads, caches and the palette of fds are there
  if (all.sessions == kWarm) {
    ::poll(nullptr, 0, 200);
    all.fds = open_fds();
  }
  if (all.sessions > kWarm && all.sessions % 64 == 0) demand(settles(all), "fds stay open");
  return 0;
}
