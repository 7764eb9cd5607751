#include "bench/tcp_ping.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "bench/figures.hpp"
#include "net/tcp_socket.hpp"

namespace linkspan::bench {

using namespace std::chrono_literals;

Result<Pair> connected_pair() {
  const auto deadline = base::Deadline::after(base::Clock::steady(), 10s);
  auto at = net::resolve("127.0.0.1", 0);
  if (!at.ok()) return at.status();
  auto listening = net::listen_at(at->front());
  if (!listening.ok()) return listening.status();
  auto bound = net::address_of(*listening);
  if (!bound.ok()) return bound.status();
  auto one = net::connect_to(*bound, deadline);
  if (!one.ok()) return one.status();
  auto other =
      base::Fd::from("accept", ::accept4(listening->get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!other.ok()) return other.status();
  (void)::fcntl(one->get(), F_SETFL, 0);  // blocking
  net::prepare(*one);
  net::prepare(*other);
  return Pair{*std::move(one), *std::move(other)};
}

Result<Ends> connect() {
  auto near = Engine::open(), far = Engine::open();
  if (!near.ok()) return near.status();
  if (!far.ok()) return far.status();
  if (Status s = far->listen("tcp:127.0.0.1:0"); !s.ok()) return s;
  auto peer = near->connect(far->address());
  if (!peer.ok()) return peer.status();
  return Ends{*std::move(near), *std::move(far), *std::move(peer)};
}

Result<Route> connect(void* from, void* to, std::uint64_t bytes) {
  auto ends = connect();
  if (!ends.ok()) return ends.status();
  auto here = ends->near.register_memory(from, bytes);
  if (!here.ok()) return here.status();
  auto there = ends->far.register_memory(to, bytes, {.peers = {.read = true, .write = true}});
  if (!there.ok()) return there.status();
  if (Status s = ends->far.publish("to", *there); !s.ok()) return s;
  auto remote = ends->peer.lookup("to");
  if (!remote.ok()) return remote.status();
  return Route{*std::move(ends), *std::move(here), *std::move(there), *std::move(remote)};
}

TransferOptions by_tcp() {
  TransferOptions options;
  options.require = "tcp";
  options.deadline = kLimit;
  return options;
}

namespace {

/// One of two that send each other 8 bytes in turn.
class Player {
 public:
  static Result<std::unique_ptr<Player>> create(Engine& engine) {
    std::unique_ptr<Player> made(new Player(engine));
    auto here = engine.register_memory(made->words_.data(), sizeof made->words_,
                                       {.peers = {.read = true, .write = true}});
    if (!here.ok()) return here.status();
    made->here_ = *std::move(here);
    if (Status s = engine.publish("words", made->here_); !s.ok()) return s;
    return made;
  }
  Status meet(Peer peer) {
    peer_ = std::move(peer);
    auto there = peer_.lookup("words");
    if (!there.ok()) return there.status();
    there_ = *std::move(there);
    return {};
  }
  /// The number, with a notification behind it. The one before has landed, for it was answered: its
  /// end is waited for while this one is under way.
  Status serve(std::uint64_t number) {
    const std::size_t out = number % 2;
    words_[out] = number;
    constexpr std::array kTold{std::byte{1}};
    TransferOptions options = by_tcp();
    options.notification = kTold;
    const Block word{out * 8, kIn * 8, 8};
    auto moved = peer_.write(here_, there_, std::span(&word, 1), options);
    if (!moved.ok()) return moved.status();
    const auto before = std::exchange(last_, *std::move(moved));
    return before ? before->wait(kLimit) : Status();
  }
  Status expect(std::uint64_t number) {
    if (engine_.notifications(kLimit).size() != 1)
      return {Code::corrupt, Scope::process, "not one notification"};
    if (words_[kIn] != number || words_[kIn - 1] != 0 || words_[kIn + 1] != 0)
      return {Code::corrupt, Scope::process, "not the word that was written"};
    return {};
  }

 private:
  static constexpr std::size_t kIn = 4;  // in words; the first two are sent
  explicit Player(Engine& engine) : engine_(engine) {}

  alignas(64) std::array<std::uint64_t, 8> words_{};
  Engine& engine_;
  Region here_;
  Peer peer_;
  RemoteRegion there_;
  std::optional<Transfer> last_;
};

}  // namespace

/// 8 bytes and a notification there and back, beside 8 bytes by blocking calls.
Result<Json> ping(unsigned rounds) {
  auto ends = connect();
  if (!ends.ok()) return ends.status();
  auto near = Player::create(ends->near), far = Player::create(ends->far);
  if (!near.ok()) return near.status();
  if (!far.ok()) return far.status();
  auto back = ends->far.accept(kLimit);
  if (!back.ok()) return back.status();
  if (Status s = (*near)->meet(ends->peer); !s.ok()) return s;
  if (Status s = (*far)->meet(*std::move(back)); !s.ok()) return s;
  auto sockets = connected_pair();
  if (!sockets.ok()) return sockets.status();
  const auto by_socket = [](const base::Fd& socket, bool first, std::uint64_t number) -> Status {
    std::uint64_t heard = number;
    if (first && ::send(socket.get(), &number, 8, MSG_NOSIGNAL) != 8)
      return {Code::system, Scope::process, "a bare socket failed"};
    if (::recv(socket.get(), &heard, 8, MSG_WAITALL) != 8 || heard != number)
      return {Code::system, Scope::process, "a bare socket failed"};
    if (!first && ::send(socket.get(), &number, 8, MSG_NOSIGNAL) != 8)
      return {Code::system, Scope::process, "a bare socket failed"};
    return {};
  };
  /// Median of one way, in us.
  const auto play = [&](std::uint64_t from, const auto& here, const auto& there) -> Result<double> {
    std::vector<double> times;
    Status end, end_there;
    {
      std::jthread other([&] {
        for (unsigned i = 0; i < rounds && end_there.ok(); ++i) end_there = there(from + i);
      });
      for (unsigned i = 0; i < rounds && end.ok(); ++i) {
        const auto begin = base::Clock::steady().now();
        end = here(from + i);
        times.push_back(static_cast<double>((base::Clock::steady().now() - begin).count()) / 2000);
      }
    }
    if (!end.ok()) return end;
    if (!end_there.ok()) return end_there;
    return median(times);
  };
  std::vector<double> mine, theirs;
  for (std::uint64_t turn = 0; turn < 6; ++turn) {  // the first is not counted
    const std::uint64_t from = 1 + turn * rounds;
    auto one = play(
        from,
        [&](std::uint64_t number) {
          if (Status s = (*near)->serve(number); !s.ok()) return s;
          return (*near)->expect(number);
        },
        [&](std::uint64_t number) {
          if (Status s = (*far)->expect(number); !s.ok()) return s;
          return (*far)->serve(number);
        });
    if (!one.ok()) return one.status();
    auto other = play(
        from, [&](std::uint64_t number) { return by_socket(sockets->one, true, number); },
        [&](std::uint64_t number) { return by_socket(sockets->other, false, number); });
    if (!other.ok()) return other.status();
    if (turn == 0) continue;
    mine.push_back(*one);
    theirs.push_back(*other);
  }
  const double value = median(mine), ceiling = median(theirs), ratio = value / ceiling;
  constexpr double kBar = 1.3;
  return Json{{"id", kPingId},
              {"value", rounded(value)},
              {"unit", "us"},
              {"ceiling", rounded(ceiling)},
              {"ceiling_how", "8 bytes by a bare socket, blocking calls"},
              {"ratio", rounded(ratio)},
              {"runs", rounds * 5},
              {"verified", true},
              {"bar", kBar},
              {"pass", ratio <= kBar}};
}

}  // namespace linkspan::bench
