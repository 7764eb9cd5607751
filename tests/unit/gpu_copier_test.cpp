// Tests GpuCopier over a driver whose streams run when the test lets them.
#include "tests/unit/gpu_copier_fixture.hpp"

namespace linkspan::copy {
namespace gpu_copier_test {

TEST_F(GpuCopierTest, EndsWithItsWordAndNotBefore) {
  auto first = start(), second = start();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(copier->poll(*second).has_value());
  EXPECT_EQ(script.work.size(), 4u);  // copy, word, copy, word
  script.run(1);
  EXPECT_EQ(to, 7);
  EXPECT_FALSE(copier->poll(*first).has_value());
  script.run(2);
  EXPECT_FALSE(copier->poll(*second).has_value());
  auto end = copier->poll(*first);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->ok());
  EXPECT_EQ(copier->poll(*first)->code(), Code::internal);  // reported once
  script.run();
  EXPECT_TRUE(copier->poll(*second).has_value());
  EXPECT_EQ(script.queries, 0);
}

/// A flag write in the queue's own stream would delay later copies.
TEST_F(GpuCopierTest, WritesTheWordOfWhatIsLargeAndNotAloneFromBeside) {
  const Bytes source(64u << 20, 7);
  Bytes target(source.size());
  const auto start_one = [&](std::size_t bytes) {
    const Piece piece{address(target.data()), address(source.data()), bytes};
    auto ticket = copier->start({.method = Method::copy_engine, .pieces = {&piece, 1}});
    EXPECT_TRUE(ticket.ok());
    EXPECT_FALSE(copier->poll(*ticket).has_value());  // poll() does not return it again
    return *ticket;
  };
  const auto start_large = [&] { return start_one(256u << 10); };
  Ticket alone = start_large();
  EXPECT_EQ(script.records, 0);
  Ticket second = start_large();
  EXPECT_EQ(script.records, 1);
  EXPECT_EQ(script.waits, 1);
  script.run();
  EXPECT_TRUE(copier->poll(alone).value().ok());
  EXPECT_TRUE(copier->poll(second).value().ok());
  alone = start_large();
  const auto small = start();
  ASSERT_TRUE(small.ok());
  EXPECT_FALSE(copier->poll(*small).has_value());
  EXPECT_EQ(script.records, 1) << "what is small ends before anyone would be held up";
  script.run();
  EXPECT_TRUE(copier->poll(alone).value().ok());

  alone = start_large();
  second = start_one(source.size());
  EXPECT_EQ(script.records, 1) << "beside so much the word costs less than the way to it";
  script.run();
  EXPECT_TRUE(copier->poll(alone).value().ok());
  EXPECT_TRUE(copier->poll(second).value().ok());

  alone = start_large();
  script.wait = CUDA_ERROR_INVALID_VALUE;
  second = start_large();  // its copy is queued, so the streams show its end
  script.run();
  EXPECT_TRUE(copier->poll(alone).value().ok());
  EXPECT_EQ(script.queries, 0);
  clock.advance(std::chrono::seconds(1));
  const auto end = copier->poll(second);
  ASSERT_TRUE(end.has_value());
  EXPECT_FALSE(end->ok());
  EXPECT_EQ(script.queries, 2);  // the lane's stream and that beside it
}

/// The flag would go back, and a late poll would never see the second order.
TEST_F(GpuCopierTest, NoWordOvertakesTheOneBeforeIt) {
  const Bytes source(256u << 10, 7);
  Bytes target(source.size());
  const Piece large{address(target.data()), address(source.data()), source.size()};
  const auto first = start();
  const auto beside = copier->start({.method = Method::copy_engine, .pieces = {&large, 1}});
  ASSERT_TRUE(first.ok() && beside.ok());
  EXPECT_FALSE(copier->poll(*beside).has_value());
  EXPECT_EQ(script.records, 1);
  script.run(2);
  EXPECT_TRUE(copier->poll(*first)->ok());
  const auto small = start();
  ASSERT_TRUE(small.ok());
  EXPECT_FALSE(copier->poll(*small).has_value());
  EXPECT_EQ(script.records, 2) << "the word of the one before it is still to come";
  script.run();
  EXPECT_TRUE(copier->poll(*small)->ok());
  EXPECT_TRUE(copier->poll(*beside)->ok());
}

TEST_F(GpuCopierTest, CompletesWhatHasNoBytesAtOnce) {
  auto before = start();
  const Piece none{address(&to), address(&from), 0};
  auto empty = copier->start({.method = Method::copy_engine, .pieces = {&none, 1}});
  auto behind = start();
  ASSERT_TRUE(before.ok() && empty.ok() && behind.ok());
  EXPECT_EQ(copier->expected(clock.now()), clock.now());
  ASSERT_TRUE(copier->poll(*empty).has_value());
  EXPECT_FALSE(copier->poll(*before).has_value());
  script.run();
  EXPECT_TRUE(copier->poll(*behind).has_value());
  EXPECT_TRUE(copier->poll(*before).has_value());
  // For longer than the ring, alone in a lane.
  for (unsigned i = 0; i < 2 * GpuCopier::kOrdersPerQueue; ++i) {
    auto ticket = copier->start({.method = Method::copy_engine, .pieces = {}});
    ASSERT_TRUE(ticket.ok());
    ASSERT_TRUE(copier->poll(*ticket).has_value());
  }
  EXPECT_EQ(copier->expected(clock.now()), base::Time::max());
}

TEST_F(GpuCopierTest, KeepsTheDepthOfAStream) {
  std::vector<Ticket> tickets;
  for (unsigned i = 0; i < GpuCopier::kOrdersPerQueue; ++i) {
    auto ticket = start();
    ASSERT_TRUE(ticket.ok()) << i;
    tickets.push_back(*ticket);
  }
  EXPECT_EQ(start().status().code(), Code::no_resource);
  EXPECT_EQ(start(2).status().code(), Code::no_resource);  // the same of two lanes
  EXPECT_TRUE(start(1).ok());                              // the other
  script.run();
  EXPECT_EQ(start().status().code(), Code::no_resource);  // ended, but not reported
  EXPECT_FALSE(copier->poll(tickets.back()).has_value());
  EXPECT_LE(script.work.size(), GpuCopier::kStreamEntries);  // of those that have waited
  script.run();
  for (Ticket ticket : tickets) EXPECT_TRUE(copier->poll(ticket).has_value());
  EXPECT_TRUE(start().ok());

  open();
  const std::vector<Piece> most(GpuCopier::max_pieces(Method::copy_engine),
                                {address(&to), address(&from), 1});
  ASSERT_TRUE(copier->start({.method = Method::copy_engine, .pieces = most}).ok());
  script.work.clear();
  open();
  while (start().ok()) {
  }
  EXPECT_LE(script.work.size(), GpuCopier::kStreamEntries);
}

TEST_F(GpuCopierTest, GivesEachHeldStreamALaneOfItsOwn) {
  auto event = copier->device().events().acquire();
  ASSERT_TRUE(event.ok());
  const Piece piece{address(&to), address(&from), 1};
  const auto behind = [&](std::uint64_t stream) {
    return copier->start({.method = Method::copy_engine,
                          .pieces = {&piece, 1},
                          .after = &**event,
                          .stream = stream});
  };
  for (std::uint64_t stream = 1; stream <= GpuCopier::kStreamOrderedQueues; ++stream) {
    ASSERT_TRUE(behind(stream).ok());
    ASSERT_TRUE(behind(stream).ok());
  }
  EXPECT_EQ(script.waits, 2 * static_cast<int>(GpuCopier::kStreamOrderedQueues));
  EXPECT_EQ(behind(99).status().code(), Code::no_resource);
  EXPECT_TRUE(start().ok());  // an order without a stream is not delayed
  script.run();
  EXPECT_TRUE(behind(99).ok());
  EXPECT_EQ(script.records, 0);
}

TEST_F(GpuCopierTest, RecordsAnEventBehindAnOrder) {
  std::optional<PooledEvent> release;
  const Piece piece{address(&to), address(&from), 1};
  ASSERT_TRUE(
      copier->start({.method = Method::copy_engine, .pieces = {&piece, 1}, .release = &release})
          .ok());
  EXPECT_TRUE(release.has_value());
  EXPECT_EQ(script.records, 1);
}

TEST_F(GpuCopierTest, StartsNothingWhenAWaitIsRefused) {
  auto event = copier->device().events().acquire();
  ASSERT_TRUE(event.ok());
  script.wait = CUDA_ERROR_INVALID_HANDLE;
  const Piece piece{address(&to), address(&from), 1};
  EXPECT_EQ(copier
                ->start({.method = Method::copy_engine,
                         .pieces = {&piece, 1},
                         .after = &**event,
                         .stream = 1})
                .status()
                .code(),
            Code::cuda);
  EXPECT_TRUE(script.work.empty());
}

TEST_F(GpuCopierTest, RefusesWhatOneOrderCannotHold) {
  const std::vector<Piece> most(GpuCopier::max_pieces(Method::copy_engine) + 1,
                                {address(&to), address(&from), 1});
  const Piece large{address(&to), address(&from), GpuCopier::copy_bytes(Link::host) * most.size()};
  const Piece huge{address(&to), address(&from), ~std::uint64_t{0}};
  for (std::span<const Piece> pieces : {std::span(most), std::span(&large, 1), std::span(&huge, 1)})
    EXPECT_EQ(copier->start({.method = Method::copy_engine, .pieces = pieces}).status().code(),
              Code::invalid_argument);
  EXPECT_EQ(copier->start({.method = Method::cpu_threads}).status().code(), Code::invalid_argument);
  EXPECT_TRUE(script.work.empty());
  EXPECT_EQ(GpuCopier::entries(Method::copy_engine, Link::host, 0), 0u);
  for (const Link link : {Link::host, Link::peer})
    EXPECT_EQ(GpuCopier::entries(Method::copy_engine, link, GpuCopier::copy_bytes(link)), 1u);
  EXPECT_EQ(GpuCopier::entries(Method::sm_kernel, Link::peer, GpuCopier::kListBytes + 1), 2u);
}

TEST_F(GpuCopierTest, SaysWhyThereIsNoKernel) {
  script.load = CUDA_ERROR_NO_BINARY_FOR_GPU;
  open();
  EXPECT_FALSE(copier->has_kernel());
  const Status refused = start(0, Method::sm_kernel).status();
  EXPECT_EQ(refused.code(), Code::unsupported);
  EXPECT_NE(refused.what().find(device->kernels().what()), std::string::npos);
  EXPECT_TRUE(start().ok());
}

TEST_F(GpuCopierTest, TakesNoMoreCtasThanItMay) {
  std::vector<unsigned char> there(64), here(64, 3);
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < there.size(); ++i)
    pieces.push_back({address(&there[i]), address(&here[i]), 1});
  const Order order{.method = Method::sm_kernel, .pieces = pieces};
  const auto ctas_of = [&](std::optional<unsigned> bound, unsigned of_order = ~0u) {
    open({.queues = 1, .ctas = bound});
    if (!copier->has_kernel()) return 0u;
    Order bounded = order;
    bounded.ctas = of_order;
    EXPECT_TRUE(copier->start(bounded).ok());
    script.run();
    EXPECT_EQ(there, here);
    return script.ctas;
  };
  if (ctas_of({}) == 0) GTEST_SKIP() << "needs a build with kernels";
  EXPECT_EQ(ctas_of({}), 2u);  // as the scripted GPU has SMs
  EXPECT_EQ(ctas_of(1), 1u);
  EXPECT_EQ(ctas_of(7), 2u);
  EXPECT_EQ(ctas_of({}, 1), 1u);
  EXPECT_EQ(ctas_of(1, 2), 1u);
  EXPECT_EQ(ctas_of(0), 0u);
  const Status refused = copier->start(order).status();
  EXPECT_EQ(refused.code(), Code::unsupported);
  EXPECT_NE(refused.what().find("LINKSPAN_COPY_CTAS"), std::string::npos) << refused.to_string();
  EXPECT_TRUE(start().ok()) << "copy engines have none";
}

TEST_F(GpuCopierTest, AnErrorBeforeTheFirstCopyStartsNothing) {
  script.copies_until_error = 0;
  EXPECT_EQ(start().status().code(), Code::cuda);
  EXPECT_TRUE(script.work.empty());
  script.copies_until_error = -1;
  auto next = start();
  ASSERT_TRUE(next.ok());
  script.run();
  EXPECT_TRUE(copier->poll(*next)->ok());
}

TEST_F(GpuCopierTest, AnErrorAfterTheFirstCopyEndsTheOrderOnlyWhenItIsQuiet) {
  const std::vector<Piece> three(3, {address(&to), address(&from), 1});
  script.copies_until_error = 2;
  auto ticket = copier->start({.method = Method::copy_engine, .pieces = three});
  ASSERT_TRUE(ticket.ok());
  script.run(2);
  EXPECT_FALSE(copier->poll(*ticket).has_value());
  script.run();
  EXPECT_EQ(copier->poll(*ticket)->code(), Code::cuda);
}

TEST_F(GpuCopierTest, AsksTheStreamWhenTheWordCannotTell) {
  script.write = CUDA_ERROR_INVALID_VALUE;
  auto ticket = start();
  ASSERT_TRUE(ticket.ok());
  EXPECT_FALSE(copier->poll(*ticket).has_value());
  EXPECT_EQ(script.queries, 1);
  script.run();
  clock.advance(milliseconds(50));
  auto end = copier->poll(*ticket);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code(), Code::cuda);
}

TEST_F(GpuCopierTest, ALostContextEndsEveryOrderWithItsCause) {
  auto first = start(0), second = start(0), other = start(1);
  ASSERT_TRUE(first.ok() && second.ok() && other.ok());
  EXPECT_TRUE(copier->context_error().ok());
  clock.advance(milliseconds(150));
  EXPECT_FALSE(copier->poll(*first).has_value());
  EXPECT_EQ(script.queries, 0);  // not overdue
  clock.advance(milliseconds(100));
  EXPECT_FALSE(copier->poll(*first).has_value());
  EXPECT_FALSE(copier->poll(*second).has_value());
  EXPECT_EQ(script.queries, 1);  // pending; and not asked again so soon
  clock.advance(milliseconds(50));
  script.query = CUDA_ERROR_ILLEGAL_ADDRESS;
  for (Ticket ticket : {*second, *first, *other}) {
    const auto end = copier->poll(ticket);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->scope(), Scope::process);
    EXPECT_NE(end->what().find("700"), std::string::npos) << end->what();
  }
  EXPECT_EQ(start().status().scope(), Scope::process);
  EXPECT_EQ(copier->context_error().scope(), Scope::process);
  EXPECT_EQ(copier->expected(clock.now()), base::Time::max());
}

TEST_F(GpuCopierTest, ADriverThatCannotTellEndsNothing) {
  auto ticket = start();
  ASSERT_TRUE(ticket.ok());
  clock.advance(seconds(1));
  script.query = CUDA_ERROR_INVALID_HANDLE;
  EXPECT_FALSE(copier->poll(*ticket).has_value());
  script.run();
  EXPECT_TRUE(copier->poll(*ticket)->ok());
}

TEST_F(GpuCopierTest, ExpectsTheOldestAndThenNews) {
  auto ticket = start();
  ASSERT_TRUE(ticket.ok());
  const base::Time due = copier->expected(clock.now());
  EXPECT_GT(due, clock.now());
  EXPECT_LT(due, clock.now() + milliseconds(1));
  auto later = start();
  ASSERT_TRUE(later.ok());
  EXPECT_EQ(copier->expected(clock.now()), due);
  EXPECT_FALSE(copier->poll(*later).has_value());
  script.run();
  EXPECT_TRUE(copier->poll(*later).value().ok());
  EXPECT_EQ(copier->expected(clock.now()), clock.now());  // the first has ended as well
}

TEST_F(GpuCopierTest, AKernelSlotIsBusyUntilItsKernelHasEnded) {
  if (!copier->has_kernel()) GTEST_SKIP() << "needs a build with kernels";
  std::vector<Ticket> tickets;
  for (unsigned i = 0; i < GpuCopier::kKernelArgsPerQueue; ++i) {
    auto ticket = start_kernel();
    ASSERT_TRUE(ticket.ok());
    tickets.push_back(*ticket);
  }
  EXPECT_EQ(start_kernel().status().code(), Code::no_resource);
  script.run(4);
  EXPECT_TRUE(copier->poll(tickets[1])->ok());
  EXPECT_TRUE(copier->poll(tickets[0])->ok());
  auto next = start_kernel(), last = start_kernel();
  ASSERT_TRUE(next.ok() && last.ok());  // in the slots of the two that ended
  EXPECT_EQ(start_kernel().status().code(), Code::no_resource);
  script.run();
  for (Ticket ticket : {tickets[2], tickets[3], *next, *last})
    EXPECT_TRUE(copier->poll(ticket)->ok());
  script.launch = CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < 2 * GpuCopier::kKernelArgsPerQueue; ++i)
    EXPECT_EQ(start_kernel().status().code(), Code::cuda);  // and not no_resource
}

TEST_F(GpuCopierTest, AnAbortStopsItsOwnKernelAndNoOther) {
  if (!copier->has_kernel()) GTEST_SKIP() << "needs a build with kernels";
  for (const bool in_time : {true, false}) {
    to = kPoison;
    std::vector<Ticket> tickets;
    for (unsigned i = 0; i < GpuCopier::kKernelArgsPerQueue; ++i) {
      auto ticket = start_kernel();
      ASSERT_TRUE(ticket.ok());
      tickets.push_back(*ticket);
    }
    copier->abort(tickets[0]);
    copier->abort(tickets[0]);
    EXPECT_FALSE(copier->poll(tickets[0]).has_value()) << "its kernel may still write";
    EXPECT_EQ(script.urgent.size(), 1u);
    if (in_time) script.run_urgent();
    script.run(2);
    EXPECT_EQ(to, in_time ? kPoison : 7);
    EXPECT_EQ(copier->poll(tickets[0])->code(), in_time ? Code::canceled : Code::ok);
    // The abort flag is still being written, so no other order may use it.
    EXPECT_EQ(start_kernel().status().code(), Code::no_resource);
    script.run_urgent();
    auto next = start_kernel();
    ASSERT_TRUE(next.ok());
    tickets[0] = *next;
    script.run();
    for (Ticket ticket : tickets) EXPECT_TRUE(copier->poll(ticket)->ok());
    copier->abort(*next);
    EXPECT_TRUE(script.urgent.empty());
  }
}

}  // namespace gpu_copier_test
}  // namespace linkspan::copy
