// Tests small orders that are joined because others are in the stream.
#include <array>

#include "tests/support/no_memory.hpp"
#include "tests/unit/gpu_copier_fixture.hpp"

namespace linkspan::copy {
namespace joined_copies_test {

class JoinedCopies : public GpuCopierTest {
 protected:
  static constexpr std::size_t kMax = 8;

  void SetUp() override {
    GpuCopierTest::SetUp();
    for (std::size_t i = 0; i < kMax; ++i) source[i] = static_cast<unsigned char>(i + 1);
  }
  /// Returns an order of one byte, which no other order uses.
  Order order(std::size_t i) {
    pieces[i] = {address(&target[i]), address(&source[i]), 1};
    return {.method = Method::copy_engine, .pieces = {&pieces[i], 1}, .actual_method = &taken[i]};
  }
  /// Starts orders of which the first is in the stream and the others wait.
  std::vector<Ticket> begin(std::size_t count) {
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < count; ++i) {
      auto ticket = copier->start(order(i));
      EXPECT_TRUE(ticket.ok()) << i << ": " << ticket.status().to_string();
      tickets.push_back(ticket.ok() ? *ticket : 0);
    }
    EXPECT_EQ(script.work.size(), 2u);  // it and its word
    return tickets;
  }
  bool copied(std::size_t i) const { return target[i] == source[i]; }

  std::array<unsigned char, kMax> source{}, target{};
  std::array<Piece, kMax> pieces{};
  std::array<Method, kMax> taken{};
};

TEST_F(JoinedCopies, GoAsOneWhenSomebodyLooks) {
  auto tickets = begin(5);
  EXPECT_FALSE(copier->poll(tickets[4]).has_value());
  const std::size_t together = copier->has_kernel() ? 1 : 4;
  EXPECT_EQ(script.work.size(), 2 + together + 1);
  for (std::size_t i = 1; i < 5; ++i)
    EXPECT_EQ(taken[i], copier->has_kernel() ? Method::sm_kernel : Method::copy_engine);
  script.run(2 + together);
  EXPECT_TRUE(copier->poll(tickets[0]).value().ok());
  EXPECT_FALSE(copier->poll(tickets[1]).has_value()) << "their word is not written yet";
  script.run();
  for (const std::size_t i : {4u, 2u, 1u, 3u})
    EXPECT_TRUE(copier->poll(tickets[i]).value().ok()) << i;
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(copied(i)) << i;
  EXPECT_EQ(script.queries, 0);
  EXPECT_EQ(copier->expected(clock.now()), base::Time::max());
}

TEST_F(JoinedCopies, StayBehindTwoThatAreInTheStream) {
  auto tickets = begin(2);
  EXPECT_FALSE(copier->poll(tickets[1]).has_value());
  EXPECT_EQ(script.work.size(), 4u);
  for (std::size_t i = 2; i < 5; ++i) {
    const auto ticket = copier->start(order(i));
    ASSERT_TRUE(ticket.ok());
    tickets.push_back(*ticket);
    EXPECT_FALSE(copier->poll(*ticket).has_value());
    EXPECT_EQ(script.work.size(), 4u);
  }
  script.run(2);
  EXPECT_TRUE(copier->poll(tickets[0]).value().ok());
  EXPECT_GT(script.work.size(), 2u) << "one has ended";
  script.run();
  for (std::size_t i = 1; i < 5; ++i) EXPECT_TRUE(copier->poll(tickets[i]).value().ok()) << i;
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(copied(i)) << i;
}

TEST_F(JoinedCopies, BeginWithoutALookWhereThereIsEnoughOfThem) {
  const auto first = begin(1);
  const Bytes there(GpuCopier::kEnoughBytes / 4, 5);
  std::vector<Bytes> here(5, Bytes(there.size()));
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < 5; ++i) {
    const Piece piece{address(here[i].data()), address(there.data()), there.size()};
    const auto ticket = copier->start({.method = Method::copy_engine, .pieces = {&piece, 1}});
    ASSERT_TRUE(ticket.ok());
    tickets.push_back(*ticket);
    EXPECT_EQ(script.work.size() > 2, i >= 3) << i;
  }
  script.run();
  for (const Ticket ticket : tickets) {
    auto end = copier->poll(ticket);
    script.run();
    if (!end) end = copier->poll(ticket);
    ASSERT_TRUE(end.has_value());
    EXPECT_TRUE(end->ok());
  }
  for (const Bytes& each : here) EXPECT_TRUE(each == there);
}

TEST_F(JoinedCopies, OneThatIsCanceledMeanwhileIsNeverCopied) {
  const auto tickets = begin(5);
  copier->abort(tickets[2]);
  copier->abort(tickets[4]);
  copier->abort(tickets[4]);
  EXPECT_EQ(copier->poll(tickets[4]).value().code(), Code::canceled);
  EXPECT_EQ(copier->poll(tickets[2]).value().code(), Code::canceled);
  EXPECT_EQ(copier->poll(tickets[2]).value().code(), Code::internal);
  EXPECT_FALSE(copier->poll(tickets[3]).has_value());
  script.run();
  for (const std::size_t i : {0u, 1u, 3u}) EXPECT_TRUE(copier->poll(tickets[i]).value().ok()) << i;
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(copied(i), i != 2 && i != 4) << i;
  EXPECT_EQ(copier->expected(clock.now()), base::Time::max());
}

/// An order that is refused must leave no pieces: the next order would copy them.
TEST_F(JoinedCopies, NeedNoMemory) {
  (void)begin(1);
  std::size_t i = 0;
  Result<Ticket> ticket = Status::no_resource();
  test::fail_each_allocation([&] { ticket = copier->start(order(++i)); },
                             [](bool threw) { EXPECT_FALSE(threw); });
  EXPECT_EQ(i, 1u) << "an allocation failed";
  EXPECT_TRUE(ticket.ok());
}

TEST_F(JoinedCopies, OfWhichAllAreCanceledNothingBegins) {
  const auto tickets = begin(3);
  copier->abort(tickets[1]);
  copier->abort(tickets[2]);
  script.run();
  EXPECT_TRUE(copier->poll(tickets[0]).value().ok());
  for (const std::size_t i : {1u, 2u})
    EXPECT_EQ(copier->poll(tickets[i]).value().code(), Code::canceled) << i;
  EXPECT_TRUE(script.work.empty());
  EXPECT_EQ(copier->expected(clock.now()), base::Time::max());
}

TEST_F(JoinedCopies, AnAbortOfOneThatIsUnderWayLeavesTheOthersAlone) {
  const auto tickets = begin(5);
  script.run();
  EXPECT_FALSE(copier->poll(tickets[4]).has_value());
  for (const Ticket ticket : tickets) copier->abort(ticket);
  EXPECT_TRUE(script.urgent.empty());
  script.run();
  for (const Ticket ticket : tickets) EXPECT_TRUE(copier->poll(ticket).value().ok());
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(copied(i)) << i;
}

TEST_F(JoinedCopies, WhatDoesNotGoWithThemBeginsBehindThem) {
  auto event = copier->device().events().acquire();
  ASSERT_TRUE(event.ok());
  std::optional<PooledEvent> release;
  const std::vector<Piece> many(GpuCopier::kJoinedPieces + 1,
                                {address(&target[3]), address(&source[3]), 1});
  Order other_link = order(3), released = order(3), of_many = order(3);
  other_link.link = Link::peer;
  released.release = &release;
  of_many.pieces = many;
  for (const Order& last : {other_link, released, of_many}) {
    target = {};
    const auto tickets = begin(3);
    const auto behind = copier->start(last);
    ASSERT_TRUE(behind.ok()) << behind.status().to_string();
    EXPECT_GT(script.work.size(), 4u);
    std::vector<Ticket> all = tickets;
    all.push_back(*behind);
    for (const Ticket ticket : all) {
      auto end = copier->poll(ticket);
      script.run();
      if (!end) end = copier->poll(ticket);
      ASSERT_TRUE(end.has_value());
      EXPECT_TRUE(end->ok()) << end->to_string();
    }
    for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(copied(i)) << i;
  }
}

TEST_F(JoinedCopies, AreRefusedTogether) {
  const auto tickets = begin(5);
  script.copies_until_error = 0;
  script.launch = CUDA_ERROR_INVALID_VALUE;
  script.run();
  for (const std::size_t i : {1u, 2u, 3u, 4u})
    EXPECT_EQ(copier->poll(tickets[i]).value().code(), Code::cuda) << i;
  EXPECT_TRUE(copier->poll(tickets[0]).value().ok());
  for (std::size_t i = 1; i < 5; ++i) EXPECT_FALSE(copied(i)) << i;
  script.copies_until_error = -1;
  EXPECT_EQ(copier->expected(clock.now()), base::Time::max());
  const auto next = copier->start(order(5));
  ASSERT_TRUE(next.ok());
  script.run();
  EXPECT_TRUE(copier->poll(*next).value().ok());
}

TEST_F(JoinedCopies, ALostContextEndsThemToo) {
  const auto tickets = begin(5);
  clock.advance(seconds(1));
  script.query = CUDA_ERROR_ILLEGAL_ADDRESS;
  for (const Ticket ticket : {tickets[4], tickets[0], tickets[2], tickets[1], tickets[3]}) {
    const auto end = copier->poll(ticket);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->scope(), Scope::process);
  }
  EXPECT_EQ(copier->expected(clock.now()), base::Time::max());
}

TEST_F(JoinedCopies, AStreamThatIsIdleEndsOnlyWhatIsInIt) {
  script.write = CUDA_ERROR_INVALID_VALUE;  // no flag write succeeds
  const auto first = copier->start(order(0)), second = copier->start(order(1));
  const auto waits = copier->start(order(2));
  ASSERT_TRUE(first.ok() && second.ok() && waits.ok());
  script.run();
  clock.advance(seconds(1));
  EXPECT_FALSE(copier->poll(*waits).has_value()) << "it has not begun";
  EXPECT_FALSE(copied(2));
  EXPECT_FALSE(copied(1));
  EXPECT_EQ(copier->poll(*first).value().code(), Code::cuda);
}

}  // namespace joined_copies_test
}  // namespace linkspan::copy
