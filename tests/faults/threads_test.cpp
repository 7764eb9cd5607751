// Tests sixteen user threads on one Engine with three peers: each registers, looks up, submits,
// waits, cancels, explains, sends messages and deregisters, and finds its own bytes.
#include <random>
#include <thread>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace threads_test {

constexpr std::uint64_t kThreads = 16, kPeers = 3, kSlice = 32u << 10;
constexpr std::uint64_t kRounds = 12;  // of each thread; a sanitizer takes seconds for them

struct Far {
  FarEngine process;
  Peer peer;
};

/// The work of one thread, which has a slice of every far region.
class Worker {
 public:
  Worker(Engine& engine, std::vector<std::unique_ptr<Far>>& far, const std::vector<Kind>& kinds,
         std::uint64_t index)
      : engine_(engine), far_(far), kinds_(kinds), index_(index), random_(index) {}

  void run() {
    for (std::uint64_t i = 0; i < kRounds; ++i) round();
  }
  std::uint64_t sent() const noexcept { return sent_; }

 private:
  void round() {
    const Kind& near = kinds_[random_() % kinds_.size()];
    const Kind& away = kinds_[random_() % kinds_.size()];
    const Peer& peer = far_[random_() % kPeers]->peer;
    Held out = Held::make(engine_, {.kind = near.name, .bytes = kSlice});
    Held back = Held::make(engine_, {.kind = near.name, .bytes = kSlice});
    {
      const RemoteRegion remote = take(peer.lookup(away.name));
      const auto way = take(peer.explain(Op::write, out.region, remote, 1, kSlice));
      EXPECT_NE(way.path, "") << near.name << " to " << away.name;
      const std::uint64_t seed = 1000 * (index_ + 1) + ++seeds_;
      out.fill(seed);
      back.fill(seed + 500);
      write(peer, out.region, remote);
      const std::vector<Block> blocks = random_() % 2 == 0 ? whole() : pieces();
      EXPECT_EQ(finished(peer.read(back.region, remote, blocks)).to_string(), "ok");
      std::vector<Expected> due;
      for (const Block& b : blocks)
        due.push_back({b.local_offset, seed, b.remote_offset - at(), b.bytes});
      EXPECT_EQ(back.difference(seed + 500, due), "") << near.name << " and " << away.name;
      cancel_some(peer, back.region, remote);
      EXPECT_EQ(out.difference(seed), "");
    }
    release(out);
    release(back);
  }

  /// Writes its slice in parts, with a message after the last.
  void write(const Peer& peer, const Region& from, const RemoteRegion& to) {
    constexpr std::uint64_t kParts = 8;
    const std::string text = std::to_string(index_);
    std::vector<Transfer> parts;
    for (std::uint64_t i = 0; i < kParts; ++i) {
      Block part = part_of(kSlice, i, kParts);
      part.remote_offset += at();
      TransferOptions options;
      if (i + 1 == kParts) options.notification = std::as_bytes(std::span(text));
      parts.push_back(take(peer.write(from, to, std::span(&part, 1), options)));
    }
    for (const Transfer& part : parts) EXPECT_EQ(part.wait(30s).to_string(), "ok");
    must(peer.notify(std::as_bytes(std::span(text))));
    sent_ += 2;
  }

  void cancel_some(const Peer& peer, const Region& into, const RemoteRegion& from) {
    std::vector<Transfer> moved;
    for (std::uint64_t i = 0; i < 4; ++i) {
      Block part = part_of(kSlice, i, 4);
      part.remote_offset += at();
      moved.push_back(take(peer.read(into, from, std::span(&part, 1))));
    }
    for (const Transfer& each : moved) {
      const Status asked = each.cancel();
      EXPECT_TRUE(asked.ok() || asked.code() == Code::pending) << asked.to_string();
    }
    for (const Transfer& each : moved) {
      const Status end = each.wait(30s);
      EXPECT_TRUE(each.done() && (end.ok() || end.code() == Code::canceled)) << end.to_string();
    }
  }

  void release(Held& held) {
    EXPECT_EQ(engine_.deregister(held.region).to_string(), "ok");
    if (held.whole.valid()) {
      EXPECT_EQ(engine_.deregister(held.whole).to_string(), "ok");
    }
  }

  std::uint64_t at() const noexcept { return index_ * kSlice; }
  std::vector<Block> whole() const { return {{0, at(), kSlice}}; }
  std::vector<Block> pieces() const {
    std::vector<Block> blocks;
    for (std::uint64_t i = 0; i < kSlice / 512; ++i)
      blocks.push_back({i * 512 + 1, at() + i * 512 + 9, 300});
    return blocks;
  }

  Engine& engine_;
  std::vector<std::unique_ptr<Far>>& far_;
  const std::vector<Kind>& kinds_;
  const std::uint64_t index_;
  std::mt19937_64 random_;
  std::uint64_t seeds_ = 0, sent_ = 0;
};

TEST(Threads, SixteenOnOneEngineFindTheirBytes) {
  std::vector<Kind> kinds;
  for (const Kind& kind : kKinds)
    if (kinds_here({kind}).ok()) kinds.push_back(kind);
  std::vector<std::unique_ptr<Far>> far;
  Engine engine = take(Engine::open(engine_options("near")));
  for (std::uint64_t i = 0; i < kPeers; ++i) {
    far.push_back(std::make_unique<Far>());
    for (const Kind& kind : kinds)
      far[i]->process.add(kind.name, {.kind = kind.name, .bytes = kThreads * kSlice});
    far[i]->peer = take(engine.connect(far[i]->process.address()));
  }
  std::vector<Worker> workers;
  for (std::uint64_t i = 0; i < kThreads; ++i) workers.emplace_back(engine, far, kinds, i);
  {
    std::vector<std::jthread> threads;
    for (Worker& worker : workers)
      threads.emplace_back([&worker] {
        try {
          worker.run();
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
      });
  }
  std::uint64_t sent = 0, came = 0;
  for (const Worker& worker : workers) sent += worker.sent();
  // Chance decides how many each peer got, so the far sides' counts are added up.
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  while (came < sent && !limit.passed())
    for (auto& each : far) came += each->process.notifications(0).size();
  EXPECT_EQ(came, sent);
  EXPECT_EQ(sent, kThreads * kRounds * 2);
  EXPECT_EQ(engine.dump().find("transfer "), std::string::npos) << engine.dump();
}

}  // namespace threads_test
}  // namespace linkspan::test
