#include "bench/tcp_small.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/bare/gpu_copy.hpp"
#include "bench/figures.hpp"
#include "bench/memory.hpp"

namespace linkspan::bench {
namespace {

constexpr std::uint64_t kSeed = 1, kPoison = 2;

using Clock = base::Clock;

double us_since(base::Time begin) {
  return static_cast<double>((Clock::steady().now() - begin).count()) / 1000;
}

bool send_all(const base::Fd& socket, const std::byte* from, std::uint64_t bytes) {
  while (bytes != 0) {
    const ssize_t sent = ::send(socket.get(), from, bytes, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    from += sent;
    bytes -= static_cast<std::uint64_t>(sent);
  }
  return true;
}

bool receive_all(const base::Fd& socket, std::byte* to, std::uint64_t bytes) {
  return ::recv(socket.get(), to, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
}

/// Blocking sockets. The caller's thread sends the first share, a thread each of the others.
class BareSockets {
 public:
  static Result<std::unique_ptr<BareSockets>> create(unsigned sockets, const std::byte* from,
                                                     std::byte* to, std::uint64_t bytes) {
    auto made = std::make_unique<BareSockets>();
    for (unsigned i = 0; i < sockets; ++i) {
      auto pair = connected_pair();
      if (!pair.ok()) return pair.status();
      const std::uint64_t begin = bytes * i / sockets, end = bytes * (i + 1) / sockets;
      Stream& stream = *made->streams_.emplace_back(std::make_unique<Stream>());
      stream.sockets = *std::move(pair);
      stream.from = from + begin;
      stream.to = to + begin;
      stream.bytes = end - begin;
    }
    for (const auto& each : made->streams_) {
      made->threads_.emplace_back([&stream = *each] {  // until its socket ends
        std::array<std::byte, 8> answer{};
        while (receive_all(stream.sockets.other, stream.to, stream.bytes) &&
               send_all(stream.sockets.other, answer.data(), answer.size()))
          continue;
      });
      if (each != made->streams_.front())
        made->threads_.emplace_back([&stream = *each](const std::stop_token& stop) {
          for (stream.begin.acquire(); !stop.stop_requested(); stream.begin.acquire()) {
            stream.ok = stream.move();
            stream.ended.release();
          }
        });
    }
    return made;
  }
  ~BareSockets() {
    for (std::jthread& each : threads_) each.request_stop();
    for (const auto& each : streams_) {
      each->begin.release();
      ::shutdown(each->sockets.one.get(), SHUT_RDWR);
    }
  }
  BareSockets() = default;
  BareSockets(const BareSockets&) = delete;
  BareSockets& operator=(const BareSockets&) = delete;

  Result<double> run() {
    const auto begin = Clock::steady().now();
    for (std::size_t i = 1; i < streams_.size(); ++i) streams_[i]->begin.release();
    bool ok = streams_.front()->move();
    for (std::size_t i = 1; i < streams_.size(); ++i) {
      streams_[i]->ended.acquire();
      ok = ok && streams_[i]->ok;
    }
    if (!ok) return Status(Code::system, Scope::process, "a bare socket failed");
    return us_since(begin);
  }

 private:
  struct Stream {
    Pair sockets;
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::uint64_t bytes = 0;
    bool ok = false;
    std::binary_semaphore begin{0}, ended{0};

    bool move() const {
      std::array<std::byte, 8> answer{};
      return send_all(sockets.one, from, bytes) &&
             receive_all(sockets.one, answer.data(), answer.size());
    }
  };
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::jthread> threads_;  // last: they use the streams
};

/// Bare copies between memory of a GPU and pinned memory, which a socket reads or writes: a copy of
/// 1 MiB takes nearly twice as long then, because the CPU's caches have its lines.
class PinnedCopy {
 public:
  static Result<PinnedCopy> create(const Memory& memory, bool to_gpu) {
    const auto scope = memory.device()->enter();
    if (!scope.ok()) return scope.status();
    auto pinned = cuda::PinnedBuffer::create(*scope, memory.bytes());
    if (!pinned.ok()) return pinned.status();
    auto copy = bare::GpuCopy::create(*memory.device());
    if (!copy.ok()) return copy.status();
    const bare::Way in{memory.address(), pinned->device_address()}, out{in.from, in.to};
    return PinnedCopy(*std::move(pinned), *std::move(copy), to_gpu ? in : out, memory.bytes());
  }
  std::byte* pinned() const { return pinned_.data(); }
  Result<double> run() {
    const auto took = copy_->run(way_, bytes_, kLimit);
    if (!took.ok()) return took.status();
    return static_cast<double>(took->count()) / 1000;
  }

 private:
  PinnedCopy(cuda::PinnedBuffer pinned, std::unique_ptr<bare::GpuCopy> copy, bare::Way way,
             std::uint64_t bytes)
      : pinned_(std::move(pinned)), copy_(std::move(copy)), way_(way), bytes_(bytes) {}

  cuda::PinnedBuffer pinned_;
  std::unique_ptr<bare::GpuCopy> copy_;
  bare::Way way_;
  std::uint64_t bytes_;
};

/// Bare code that moves the same bytes: by sockets and, of GPUs, by copies before and after.
class BarePath {
 public:
  static Result<BarePath> create(const Memory& from, const Memory& to) {
    BarePath made(from, to);
    if (from.device() == nullptr) return made;
    auto out = PinnedCopy::create(from, false), in = PinnedCopy::create(to, true);
    if (!out.ok()) return out.status();
    if (!in.ok()) return in.status();
    made.out_.emplace(*std::move(out));
    made.in_.emplace(*std::move(in));
    return made;
  }
  Status open(unsigned sockets) {
    auto* const source = out_ ? out_->pinned() : static_cast<std::byte*>(from_.at(0));
    auto* const target = in_ ? in_->pinned() : static_cast<std::byte*>(to_.at(0));
    auto made = BareSockets::create(sockets, source, target, from_.bytes());
    if (!made.ok()) return made.status();
    sockets_ = *std::move(made);
    return {};
  }
  /// Fills what run() writes with something else.
  Status poison() {
    if (in_) std::fill_n(in_->pinned(), to_.bytes(), std::byte{});
    return to_.fill(kPoison);
  }
  /// Returns microseconds. Requires open().
  Result<double> run() {
    double sum = 0;
    for (const auto& took : {out_ ? out_->run() : 0.0, sockets_->run(), in_ ? in_->run() : 0.0}) {
      if (!took.ok()) return took.status();
      sum += *took;
    }
    return sum;
  }

 private:
  BarePath(const Memory& from, const Memory& to) : from_(from), to_(to) {}

  const Memory &from_, &to_;
  std::optional<PinnedCopy> out_, in_;
  std::unique_ptr<BareSockets> sockets_;
};

}  // namespace

Result<Json> measure_small(const SmallCase& c, std::span<const cuda::Device* const> gpus,
                           unsigned turns, unsigned runs) {
  auto from = Memory::create(c.on_gpu ? gpus.front() : nullptr, c.bytes);
  if (!from.ok()) return from.status();
  auto to = Memory::create(c.on_gpu ? gpus.back() : nullptr, c.bytes);
  if (!to.ok()) return to.status();
  auto route = connect(from->at(0), to->at(0), c.bytes);
  if (!route.ok()) return route.status();
  const Peer& peer = route->ends.peer;
  const TransferOptions options = by_tcp();
  const Block all{0, 0, c.bytes};
  const auto write = [&]() -> Result<double> {
    const auto begin = Clock::steady().now();
    auto moved = peer.write(route->here, route->remote, std::span(&all, 1), options);
    if (!moved.ok()) return moved.status();
    if (Status s = moved->wait(kLimit); !s.ok()) return s;
    return us_since(begin);
  };
  if (Status s = from->fill(kSeed); !s.ok()) return s;
  auto bare = BarePath::create(*from, *to);
  if (!bare.ok()) return bare.status();
  // The first turn is not counted: the Engine makes data connections while they pay.
  std::vector<double> mine, theirs;
  unsigned streams = 0;
  for (unsigned turn = 0; turn <= turns; ++turn) {
    if (Status s = to->fill(kPoison); !s.ok()) return s;
    for (unsigned i = 0; i < runs; ++i) {
      const auto took = write();
      if (!took.ok()) return took.status();
      if (turn != 0) mine.push_back(*took);
    }
    if (Status s = to->verify(kSeed); !s.ok()) return s;
    const auto told = peer.explain(Op::write, route->here, route->remote, 1, c.bytes);
    if (!told.ok()) return told.status();
    const auto now = static_cast<unsigned>(std::stoul(told->reason));  // "8 TCP streams"
    const unsigned used = c.bytes == 8 ? 1 : now;
    if (used != std::exchange(streams, used))
      if (Status s = bare->open(used); !s.ok()) return s;
    if (turn == 0) continue;
    if (Status s = bare->poison(); !s.ok()) return s;
    for (unsigned i = 0; i < runs; ++i) {
      const auto took = bare->run();
      if (!took.ok()) return took.status();
      theirs.push_back(*took);
    }
    if (Status s = to->verify(kSeed); !s.ok()) return s;
  }
  const double value = median(mine), ceiling = median(theirs), ratio = value / ceiling;
  return Json{
      {"id", c.id},
      {"value", rounded(value)},
      {"unit", "us"},
      {"ceiling", rounded(ceiling)},
      {"ceiling_how", std::to_string(streams) + " bare sockets of " +
                          (c.on_gpu ? "pinned" : "host") + " memory, each answered by 8 bytes" +
                          (c.on_gpu ? ", and the bare copies to and from it" : "")},
      {"ratio", rounded(ratio)},
      {"streams", streams},
      {"gpus", c.on_gpu ? std::min<std::size_t>(gpus.size(), 2) : 0},
      {"runs", mine.size()},
      {"verified", true},
      {"bar", c.bar},
      {"pass", ratio <= c.bar}};
}

}  // namespace linkspan::bench
