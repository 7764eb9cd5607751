// Tests a TCP peer that stops within a write: deregister() and dump() name the peer, and
// invalidate() does not wait for it.
#include <signal.h>

#include "tests/conformance/wire_pair.hpp"

namespace linkspan::test {
namespace wire_stall_test {

TEST(WireStalls, AreNamedAndEndedByInvalidate) {
  constexpr std::uint64_t kBytes = std::uint64_t{32} << 20;
  Held here;  // outlives the Engine
  FarEngine far(with_wire(kTcp));
  Engine engine = take(Engine::open(wire_options(kTcp)));
  ASSERT_TRUE(engine.listen(listen_at(kTcp)).ok());
  far.add("theirs", {.kind = "host", .bytes = kBytes});
  far.connect(engine.address());
  const Peer peer = take(engine.accept(10s));
  const auto limit = base::Deadline::after(base::Clock::steady(), 20s);
  const auto writes = [&] { return engine.dump().find("does a write") != std::string::npos; };
  Status busy;
  for (;;) {
    here = Held::make(engine, {.kind = "host", .bytes = kBytes});
    ASSERT_TRUE(engine.publish("target", here.region).ok());
    far.churn(Op::write, "theirs", "target", {0, 0, kBytes}, "tcp");
    while (!writes() && !limit.passed()) {
    }
    far.process().signal(SIGSTOP);
    busy = engine.deregister(here.region, 100ms);
    if (!busy.ok() || limit.passed()) break;
    far.process().signal(SIGCONT);  // all of the write was sent before
    (void)far.rest();
    far.let_go();
  }
  EXPECT_EQ(busy.code(), Code::busy) << busy.to_string();
  EXPECT_NE(busy.what().find("peer " + std::to_string(peer.id()) + " "), std::string::npos)
      << busy.what();
  EXPECT_NE(busy.what().find("a write"), std::string::npos) << busy.what();
  EXPECT_EQ(engine.invalidate(here.region, 5s).to_string(), "ok") << engine.dump();
  here.fill(4);
  far.process().signal(SIGCONT);
  (void)far.rest();
  EXPECT_EQ(here.difference(4), "") << "a late byte";
}

}  // namespace wire_stall_test
}  // namespace linkspan::test
