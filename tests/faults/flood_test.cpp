// Tests peers that send too much or read too little, and many that connect and go: each is served
// or pushed back by itself, and no other peer waits for them.
#include <signal.h>

#include <atomic>
#include <thread>

#include "control/exchange.hpp"
#include "control/socket_address.hpp"
#include "tests/conformance/engine_fixture.hpp"
#include "tests/faults/raw_peer.hpp"

namespace linkspan::test {
namespace flood_test {

using control::FrameOp;

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kPiece = 64u << 10;
/// For an undisturbed transfer or lookup; a busy machine takes some of it.
constexpr Duration kBound = 10s;

/// An undisturbed peer, and its longest wait.
class Neighbour {
 public:
  Neighbour() {
    mine_ = Held::make(engine, {.kind = "shared"});
    far_.add("there", {.kind = "shared"});
    mine_.fill(1);
    far_.fill("there", 2);
    peer_ = take(engine.connect(far_.address()));
    must(engine.listen());
  }
  /// Makes a lookup, a write and its notification.
  void move() {
    const base::Time begin = base::Clock::steady().now();
    const RemoteRegion there = take(peer_.lookup("there", 5s));
    const Block part = part_of(kMiB, moved_ % 16, 16);
    const std::byte bell[] = {std::byte{1}};
    EXPECT_EQ(finished(peer_.write(mine_.region, there, std::span(&part, 1),
                                   {.deadline = 5s, .notification = bell}))
                  .to_string(),
              "ok");
    const Duration took = base::Clock::steady().now() - begin;
    longest_ = std::max(longest_, took);
    ++moved_;
  }
  void poll() {
    while (moved_ < 16) move();
    EXPECT_EQ(far_.difference("there", 2, {{0, 1, 0, kMiB}}), "");
    EXPECT_EQ(far_.notifications(moved_).size(), moved_);
    EXPECT_LT(longest_, kBound);
    std::printf("%zu moves, at most %.1f ms\n", std::size_t{moved_},
                std::chrono::duration<double, std::milli>(longest_).count());
  }
  const Region& region() const { return mine_.region; }

 private:
  Held mine_;  // outlives the Engine
  FarEngine far_;

 public:
  Engine engine = take(Engine::open(engine_options("near")));

 private:
  Peer peer_;
  std::uint64_t moved_ = 0;
  Duration longest_{0};
};

TEST(Flood, AnswersWaitForAPeerThatReadsLate) {
  constexpr std::uint64_t kAsked = 20000;  // far more than a socket holds
  Neighbour neighbour;
  RawPeer late(neighbour.engine.address());
  ASSERT_TRUE(late.greet(RawPeer::hello()));
  for (std::uint64_t i = 0; i < kAsked; ++i)
    ASSERT_TRUE(late.send(FrameOp::import, control::encode_import("nothing"), i + 1));
  neighbour.move();
  for (std::uint64_t i = 0; i < kAsked; ++i) {
    const auto answer = late.next();
    ASSERT_TRUE(answer.has_value()) << i << " of " << kAsked;
    ASSERT_EQ(answer->header.id, i + 1);
  }
  neighbour.poll();
}

TEST(Flood, APeerThatReadsNoAnswersAboutItsMessagesIsDropped) {
  constexpr std::uint64_t kPlenty = 4'000'000;  // 16 MiB of answers are queued, and 65,536 more
  Neighbour neighbour;
  RawPeer deaf(neighbour.engine.address());
  ASSERT_TRUE(deaf.greet(RawPeer::hello()));
  const auto unknown = control::encode(control::MessageAccept{.serial = 3});
  std::uint64_t sent = 0;
  while (sent < kPlenty && deaf.send(FrameOp::accept, unknown, sent + 1)) ++sent;
  EXPECT_LT(sent, kPlenty);
  EXPECT_GT(sent, 65536u);
  neighbour.move();
  neighbour.poll();
}

TEST(Flood, AnEndlessOneStarvesNobody) {
  Neighbour neighbour;
  std::atomic<bool> end{false};
  std::atomic<std::uint64_t> frames{0};
  std::vector<std::jthread> flooding;
  for (const FrameOp op : {FrameOp::goodbye, FrameOp::import})
    flooding.emplace_back([&, op] {
      RawPeer flood(neighbour.engine.address());
      flood.greet(RawPeer::hello());
      const auto payload =
          op == FrameOp::import ? control::encode_import("nothing") : std::vector<std::byte>();
      while (!end && flood.send(op, payload)) {
        ++frames;
        if (op == FrameOp::import) (void)flood.next();
      }
    });
  flooding.emplace_back([&] {  // connects, and is gone
    const std::string path = neighbour.engine.address().substr(std::string("unix:").size());
    while (!end) frames += control::connect_to(path).ok() ? 1 : 0;
  });
  const auto limit = base::Deadline::after(base::Clock::steady(), 700ms);
  const auto slow = base::Deadline::after(base::Clock::steady(), 20s);  // machines have longer
  while (!limit.passed() || (frames <= 1000 && !slow.passed())) neighbour.move();
  end = true;
  flooding.clear();
  EXPECT_GT(frames, 1000u);
  neighbour.poll();
}

TEST(Flood, APeerThatReadsNothingIsPushedBackAndEndsByItsDeadline) {
  Neighbour neighbour;
  FarEngine deaf;
  deaf.add("there", {.kind = "shared"});
  deaf.fill("there", 3);
  const Peer peer = take(neighbour.engine.connect(deaf.address()));
  const RemoteRegion there = take(peer.lookup("there"));
  deaf.process().signal(SIGSTOP);
  const std::vector<std::byte> large(65536);
  std::size_t sent = 0;
  Status full;
  while ((full = peer.notify(large)).ok()) ASSERT_LT(++sent, 1000u);
  EXPECT_EQ(full.code(), Code::no_resource) << full.to_string();
  EXPECT_EQ(peer.notify(large).code(), Code::no_resource);

  // The bytes arrive without the peer's help; the notification after them cannot.
  std::uint64_t written = 0;
  const auto write = [&](Duration deadline) {
    const Block next{written, written, kPiece};
    written += kPiece;
    return take(peer.write(neighbour.region(), there, std::span(&next, 1),
                           {.deadline = deadline, .notification = large}));
  };
  const Transfer timed = write(100ms), canceled = write(20s);
  const Status end = timed.wait(2s);
  EXPECT_TRUE(timed.done());
  EXPECT_EQ(end.code(), Code::timed_out) << end.to_string();
  EXPECT_NE(end.what().find("written"), std::string::npos) << end.to_string();
  EXPECT_FALSE(canceled.done());
  EXPECT_EQ(canceled.cancel().to_string(), "ok");
  EXPECT_EQ(canceled.status().code(), Code::canceled);
  const Status asked = peer.lookup("there", 50ms).status();  // a small frame may have room
  EXPECT_TRUE(asked.code() == Code::timed_out || asked.code() == Code::no_resource);
  neighbour.poll();

  const Transfer waits = write(20s);
  deaf.process().signal(SIGCONT);
  EXPECT_EQ(waits.wait(20s).to_string(), "ok");
  EXPECT_EQ(deaf.difference("there", 3, {{0, 1, 0, written}}), "");
}

// ---- many visitors ---------------------------------------------------------------------------

constexpr const char* kVisitors = "visitors";
constexpr int kThreads = 8, kVisits = 8;

/// Engines that connect, look up, move their own piece and leave.
Result<Answer> visit(const Json& call) {
  const auto address = call.at("address").get<std::string>();
  std::atomic<int> served{0};
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kVisits; ++i) {
        EngineOptions options = engine_options("visitor");
        options.use_gpu = false;
        auto engine = Engine::open(options);
        if (!engine.ok()) continue;
        auto memory = engine->allocate_shared(kPiece);
        auto peer = engine->connect(address);
        if (!memory.ok() || !peer.ok()) continue;
        auto remote = peer->lookup("guests");
        if (!remote.ok()) continue;
        const auto at = static_cast<std::uint64_t>(thread * kVisits + i);
        put_pattern({static_cast<std::byte*>(memory->data()), kPiece}, 9, at * kPiece);
        const Block block{0, at * kPiece, kPiece};
        if (finished(peer->write(*memory, *remote, std::span(&block, 1))).ok()) ++served;
        if (i % 2 == 0) (void)engine->close(5s);  // the others leave without a word
      }
    });
  threads.clear();
  return Answer{served.load(), {}};
}
void visitors_main(Line& line) {
  line.serve([](const Json& call, const std::vector<base::Fd>&) { return visit(call); },
             [] { return false; });
}
const bool kRegistered = add_helper(kVisitors, visitors_main);

TEST(Flood, SixtyFourComeAndGoWhileOthersMove) {
  constexpr std::uint64_t kGuests = kThreads * kVisits;
  Held guests;  // outlives the Engine
  Neighbour neighbour;
  guests = Held::make(neighbour.engine, {.kind = "shared", .bytes = kGuests * kPiece, .guard = 0});
  guests.fill(8);
  must(neighbour.engine.publish("guests", guests.region));
  const auto visitors = take(Child::spawn(kVisitors));
  std::atomic<bool> over{false};
  std::jthread visiting([&] {
    const auto served =
        visitors->line().call({{"address", neighbour.engine.address()}, {"do", "visit"}});
    EXPECT_TRUE(served.ok() && served->value == kGuests) << served.status().to_string();
    over = true;
  });
  while (!over) neighbour.move();
  visiting.join();
  neighbour.poll();
  EXPECT_EQ(guests.difference(8, {{0, 9, 0, kGuests * kPiece}}), "");
  for (std::uint64_t i = 0; i < kGuests; ++i) EXPECT_TRUE(neighbour.engine.accept(1s).ok());
  // No guest maps it any more.
  EXPECT_EQ(neighbour.engine.deregister(guests.region, 5s).to_string(), "ok");
}

}  // namespace flood_test
}  // namespace linkspan::test
