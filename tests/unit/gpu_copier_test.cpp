#include "copy/gpu_copier.hpp"

#include <thread>

#include "tests/unit/gpu_copier_fixture.hpp"

namespace linkspan::copy {
namespace {

Bytes pattern(std::size_t bytes, std::size_t seed) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<unsigned char>(i * 131 + (i >> 8) * 7 + seed);
  return data;
}

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
  EXPECT_EQ(copier->poll(*first)->code(), Code::internal);  // told once
  script.run();
  EXPECT_TRUE(copier->poll(*second).has_value());
  EXPECT_EQ(script.queries, 0);
}

/// A word within the lane's stream would hold up what comes behind it.
TEST_F(GpuCopierTest, WritesTheWordOfWhatIsLargeAndNotAloneFromBeside) {
  const Bytes source(256u << 10, 7);
  Bytes target(source.size());
  const Piece large{address(target.data()), address(source.data()), source.size()};
  const auto start_large = [&] {
    auto ticket = copier->start({.method = Method::copy_engine, .pieces = {&large, 1}});
    EXPECT_TRUE(ticket.ok());
    EXPECT_FALSE(copier->poll(*ticket).has_value());  // whoever looks has no more of them
    return *ticket;
  };
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
  script.wait = CUDA_ERROR_INVALID_VALUE;
  second = start_large();  // its copy is queued: the streams tell its end
  script.run();
  EXPECT_TRUE(copier->poll(alone).value().ok());
  EXPECT_EQ(script.queries, 0);
  clock.advance(std::chrono::seconds(1));
  const auto end = copier->poll(second);
  ASSERT_TRUE(end.has_value());
  EXPECT_FALSE(end->ok());
  EXPECT_EQ(script.queries, 2);  // the lane's stream and that beside it
}

/// It would go back, and whoever looks late would never hear of the second.
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
  for (unsigned i = 0; i < 2 * GpuCopier::kOrdersPerLane; ++i) {
    auto ticket = copier->start({.method = Method::copy_engine, .pieces = {}});
    ASSERT_TRUE(ticket.ok());
    ASSERT_TRUE(copier->poll(*ticket).has_value());
  }
  EXPECT_EQ(copier->expected(clock.now()), base::Time::max());
}

TEST_F(GpuCopierTest, KeepsTheDepthOfAStream) {
  std::vector<Ticket> tickets;
  for (unsigned i = 0; i < GpuCopier::kOrdersPerLane; ++i) {
    auto ticket = start();
    ASSERT_TRUE(ticket.ok()) << i;
    tickets.push_back(*ticket);
  }
  EXPECT_EQ(start().status().code(), Code::no_resource);
  EXPECT_EQ(start(2).status().code(), Code::no_resource);  // the same of two lanes
  EXPECT_TRUE(start(1).ok());                              // the other
  script.run();
  EXPECT_EQ(start().status().code(), Code::no_resource);  // ended, but nobody was told
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
  auto event = copier->device().events().take();
  ASSERT_TRUE(event.ok());
  const Piece piece{address(&to), address(&from), 1};
  const auto behind = [&](std::uint64_t stream) {
    return copier->start({.method = Method::copy_engine,
                          .pieces = {&piece, 1},
                          .after = &**event,
                          .stream = stream});
  };
  for (std::uint64_t stream = 1; stream <= GpuCopier::kHeldLanes; ++stream) {
    ASSERT_TRUE(behind(stream).ok());
    ASSERT_TRUE(behind(stream).ok());
  }
  EXPECT_EQ(script.waits, 2 * static_cast<int>(GpuCopier::kHeldLanes));
  EXPECT_EQ(behind(99).status().code(), Code::no_resource);
  EXPECT_TRUE(start().ok());  // what waits for nobody is not held up
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
  auto event = copier->device().events().take();
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
    open({.lanes = 1, .ctas = bound});
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
  for (unsigned i = 0; i < GpuCopier::kSlotsPerLane; ++i) {
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
  for (unsigned i = 0; i < 2 * GpuCopier::kSlotsPerLane; ++i)
    EXPECT_EQ(start_kernel().status().code(), Code::cuda);  // and not no_resource
}

TEST_F(GpuCopierTest, AnAbortStopsItsOwnKernelAndNoOther) {
  if (!copier->has_kernel()) GTEST_SKIP() << "needs a build with kernels";
  for (const bool in_time : {true, false}) {
    to = kPoison;
    std::vector<Ticket> tickets;
    for (unsigned i = 0; i < GpuCopier::kSlotsPerLane; ++i) {
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
    // The word that stopped it is on its way still: nobody else may be given it.
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

// ---- the driver of this machine, or the simulated one -------------------------------------------

class GpuCopies : public ::testing::TestWithParam<Method> {
 protected:
  static constexpr std::size_t kBytes = (std::size_t{6} << 20) + 123;

  void SetUp() override {
    auto created = Topology::create();
    if (!created.ok()) {
      ASSERT_EQ(created.status().code(), Code::unsupported);
      GTEST_SKIP() << "needs a GPU or the simulated driver";
    }
    topology = *std::move(created);
    auto activated = topology->activate(topology->devices()[0].uuid);
    ASSERT_TRUE(activated.ok()) << activated.status().to_string();
    device = *activated;
    auto made = GpuCopier::create(*device, {});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    copier = *std::move(made);
    if (GetParam() == Method::sm_kernel && !copier->has_kernel())
      GTEST_SKIP() << "needs a build with kernels";
    auto scope = device->enter();
    ASSERT_TRUE(scope.ok());
    for (auto& buffer : host) {
      auto pinned = PinnedBuffer::create(*scope, kBytes);
      ASSERT_TRUE(pinned.ok()) << pinned.status().to_string();
      buffer.push_back(*std::move(pinned));
    }
    for (int i = 0; i < 2; ++i) {
      auto buffer = DeviceBuffer::create(*scope, kBytes);
      ASSERT_TRUE(buffer.ok()) << buffer.status().to_string();
      gpu.push_back(*std::move(buffer));
    }
  }

  Status end_of(Ticket ticket) {
    const auto deadline = base::Deadline::after(base::Clock::steady(), seconds(30));
    while (!deadline.passed()) {
      if (auto end = copier->poll(ticket)) return *end;
      std::this_thread::yield();
    }
    return Status(Code::timed_out, Scope::request, "the order never ended");
  }
  Status run(std::span<const Piece> pieces, Method method = GetParam()) {
    auto ticket = copier->start({.method = method, .pieces = pieces});
    return ticket.ok() ? end_of(*ticket) : ticket.status();
  }
  /// Whole buffers, by the copy engine. `at`: an address of the GPU.
  void put(std::uint64_t at, const Bytes& data) {
    std::memcpy(host[0][0].data(), data.data(), data.size());
    const Piece piece{at, address(host[0][0].data()), data.size()};
    const Status end = run({&piece, 1}, Method::copy_engine);
    ASSERT_TRUE(end.ok()) << end.to_string();
  }
  Bytes get(std::uint64_t at) {
    const Piece piece{address(host[0][0].data()), at, kBytes};
    EXPECT_TRUE(run({&piece, 1}, Method::copy_engine).ok());
    Bytes data(kBytes);
    std::memcpy(data.data(), host[0][0].data(), kBytes);
    return data;
  }
  /// Odd sizes, every misalignment of either side; offsets, none touching the next.
  static std::vector<Piece> scattered() {
    std::vector<Piece> pieces;
    std::uint64_t to = 3, from = 1, k = 0;
    const std::uint64_t sizes[] = {1, 3, 16, 255, 4096, 4097, 65535, 65537, 0, 17, 400003};
    for (;; ++k) {
      const std::uint64_t n = sizes[k % std::size(sizes)];
      if (pieces.size() == 500 || to + n + 64 > kBytes || from + n + 64 > kBytes) return pieces;
      pieces.push_back({to, from, n});
      to += n + k % 17 + 1;
      from += n + k * 7 % 17 + 1;
    }
  }
  static std::vector<Piece> placed(std::vector<Piece> pieces, std::uint64_t to,
                                   std::uint64_t from) {
    for (Piece& piece : pieces) piece = {piece.to + to, piece.from + from, piece.bytes};
    return pieces;
  }

  std::unique_ptr<Topology> topology;
  const Device* device = nullptr;
  std::unique_ptr<GpuCopier> copier;
  std::vector<PinnedBuffer> host[2];  // [0]: to verify with; [1]: to copy from and to
  std::vector<DeviceBuffer> gpu;
};

TEST_P(GpuCopies, CopiesExactlyThePieces) {
  const Bytes poison(kBytes, kPoison);
  const auto offsets = scattered();
  const std::uint64_t pinned = address(host[1][0].data());
  const struct {
    std::uint64_t to, from;
  } directions[] = {
      {gpu[0].address(), gpu[1].address()}, {gpu[0].address(), pinned}, {pinned, gpu[1].address()}};
  std::size_t seed = 0;
  for (const auto& way : directions) {
    const Bytes data = pattern(kBytes, ++seed);
    put(way.from, data);
    put(way.to, poison);
    const Status end = run(placed(offsets, way.to, way.from));
    ASSERT_TRUE(end.ok()) << end.to_string();
    Bytes want = poison;
    for (const Piece& p : offsets) std::memcpy(want.data() + p.to, data.data() + p.from, p.bytes);
    EXPECT_TRUE(get(way.to) == want) << "direction " << seed;
  }
}

TEST_P(GpuCopies, CopiesAllOfTheLargestOrder) {
  const Bytes data = pattern(kBytes, 9);
  put(gpu[1].address(), data);
  put(gpu[0].address(), Bytes(kBytes, kPoison));
  const std::uint64_t count = GpuCopier::max_pieces(GetParam());
  std::vector<Piece> pieces;
  for (std::uint64_t i = 0; i < count; ++i)  // in reverse order, 255 bytes each
    pieces.push_back({gpu[0].address() + 257 * i, gpu[1].address() + 256 * (count - i), 255});
  const Status end = run(pieces);
  ASSERT_TRUE(end.ok()) << end.to_string();
  Bytes want(kBytes, kPoison);
  for (std::uint64_t i = 0; i < count; ++i)
    std::memcpy(want.data() + 257 * i, data.data() + 256 * (count - i), 255);
  EXPECT_TRUE(get(gpu[0].address()) == want);
  pieces.push_back({gpu[0].address(), gpu[1].address(), 1});
  EXPECT_EQ(run(pieces).code(), Code::invalid_argument);
}

TEST_P(GpuCopies, OrdersOfALaneRunInOrder) {
  const Bytes data = pattern(kBytes, 4);
  put(gpu[0].address(), data);
  put(gpu[1].address(), Bytes(kBytes, kPoison));
  const Piece there{gpu[1].address(), gpu[0].address(), kBytes};
  const Piece back{address(host[1][0].data()), gpu[1].address(), kBytes};
  auto first = copier->start({.method = GetParam(), .pieces = {&there, 1}, .lane = 5});
  auto second = copier->start({.method = GetParam(), .pieces = {&back, 1}, .lane = 1});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(end_of(*second).ok());
  EXPECT_EQ(std::memcmp(host[1][0].data(), data.data(), kBytes), 0);
  EXPECT_TRUE(end_of(*first).ok());
}

TEST_P(GpuCopies, ManyOrdersInFlight) {
  const Bytes data = pattern(kBytes, 8);
  put(gpu[0].address(), data);
  put(gpu[1].address(), Bytes(kBytes, kPoison));
  constexpr std::size_t kPart = 4099;
  const std::size_t parts = kBytes / kPart;
  std::deque<Ticket> running;
  for (std::size_t i = 0; i < parts;) {
    const Piece part{gpu[1].address() + i * kPart, gpu[0].address() + i * kPart, kPart};
    auto ticket = copier->start(
        {.method = GetParam(), .pieces = {&part, 1}, .lane = static_cast<unsigned>(i % 7)});
    if (ticket.ok()) {
      running.push_back(*ticket);
      ++i;
      continue;
    }
    ASSERT_EQ(ticket.status().code(), Code::no_resource);
    ASSERT_FALSE(running.empty());
    ASSERT_TRUE(end_of(running.front()).ok());
    running.pop_front();
  }
  for (Ticket ticket : running) ASSERT_TRUE(end_of(ticket).ok());
  Bytes want(kBytes, kPoison);
  std::memcpy(want.data(), data.data(), parts * kPart);
  EXPECT_TRUE(get(gpu[1].address()) == want);
}

TEST_P(GpuCopies, AnAbortedOrderIsQuietAndLeavesTheNextAlone) {
  const Bytes data = pattern(kBytes, 2);
  put(gpu[0].address(), data);
  const Piece all{gpu[1].address(), gpu[0].address(), kBytes};
  for (int i = 0; i < 12; ++i) {
    put(gpu[1].address(), Bytes(kBytes, kPoison));
    auto ticket = copier->start({.method = GetParam(), .pieces = {&all, 1}});
    ASSERT_TRUE(ticket.ok());
    copier->abort(*ticket);
    const Status end = end_of(*ticket);
    EXPECT_TRUE(end.ok() || (end.code() == Code::canceled && GetParam() == Method::sm_kernel))
        << end.to_string();
    put(gpu[1].address(), Bytes(kBytes, kPoison));
    EXPECT_TRUE(get(gpu[1].address()) == Bytes(kBytes, kPoison));  // no late bytes
    ASSERT_TRUE(run({&all, 1}).ok());
    ASSERT_TRUE(get(gpu[1].address()) == data);
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, GpuCopies,
                         ::testing::Values(Method::copy_engine, Method::sm_kernel),
                         [](const auto& method) { return std::string(name_of(method.param)); });

}  // namespace
}  // namespace linkspan::copy
