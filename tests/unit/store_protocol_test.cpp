// Tests the bytes of TCPStore's protocol, and the table that they change.
#include "store/protocol.hpp"

#include <gtest/gtest.h>
#include <malloc.h>

#include <array>

#include "store/table.hpp"

namespace linkspan::store {
namespace store_protocol_test {

using namespace std::string_literals;

Request request(Op op, std::vector<std::string> keys = {}, std::vector<std::string> values = {},
                std::int64_t number = 0) {
  Request out;
  out.op = op;
  out.keys = std::move(keys);
  out.values = std::move(values);
  out.number = number;
  return out;
}

std::vector<Request> all_requests() {
  return {request(Op::set, {"/k"}, {"v\0w"s}),
          request(Op::compare_set, {"/k"}, {"", "new"}),
          request(Op::get, {"/k"}),
          request(Op::add, {"/n"}, {}, -7),
          request(Op::check, {"/a", "", "/b"}),
          request(Op::wait, {}),
          request(Op::num_keys),
          request(Op::delete_key, {std::string(8192, 'k')}),
          request(Op::append, {"/k"}, {std::string(100'000, 'x')}),
          request(Op::multi_get, {"/a", "/b"}),
          request(Op::multi_set, {"/a", "/b"}, {"1", ""}),
          request(Op::cancel_wait),
          request(Op::ping, {}, {}, 0x7fffffff),
          request(Op::queue_push, {"/q"}, {"v"}),
          request(Op::queue_pop, {"/q"}),
          request(Op::queue_length, {"/q"}),
          request(Op::list_keys)};
}

std::string greeting() {
  std::string out(1, '\0');
  put_number(out, kMagic, 4);
  return out;
}

class StoreProtocol : public ::testing::TestWithParam<std::size_t> {};

/// In pieces of GetParam() bytes.
TEST_P(StoreProtocol, RequestsComeOutAsTheyWentIn) {
  for (const Dialect dialect : {Dialect::current, Dialect::older}) {
    std::string bytes = dialect == Dialect::current ? greeting() : "";
    std::vector<Request> sent;
    for (Request& each : all_requests()) {
      const auto encoded = encode(each, dialect);
      if (!encoded.ok()) {
        EXPECT_EQ(encoded.status().code(), Code::unsupported);
        EXPECT_FALSE(code_of(each.op, dialect));
        continue;
      }
      bytes += *encoded;
      sent.push_back(std::move(each));
    }
    const Limits limits;
    RequestParser parser(limits);
    std::size_t got = 0;
    for (std::size_t at = 0; at < bytes.size(); at += GetParam()) {
      parser.feed(std::string_view(bytes).substr(at, GetParam()));
      for (;;) {
        auto next = parser.next();
        ASSERT_TRUE(next.ok()) << next.status().to_string();
        if (!*next) break;
        ASSERT_LT(got, sent.size());
        EXPECT_EQ((*next)->op, sent[got].op);
        EXPECT_EQ((*next)->keys, sent[got].keys);
        EXPECT_EQ((*next)->values, sent[got].values);
        if (sent[got].op == Op::add || sent[got].op == Op::ping) {
          EXPECT_EQ((*next)->number, sent[got].number);
        }
        ++got;
      }
    }
    EXPECT_EQ(got, sent.size());
    EXPECT_EQ(parser.dialect(), dialect);
    EXPECT_FALSE(parser.midway());
  }
}
INSTANTIATE_TEST_SUITE_P(Pieces, StoreProtocol, ::testing::Values(1, 3, 4096, 1 << 20));

Code refusal(const std::string& bytes, const Limits& limits = {}) {
  RequestParser parser(limits);
  parser.feed(bytes);
  for (;;) {
    auto next = parser.next();
    if (!next.ok()) return next.status().code();
    if (!*next) return Code::pending;
  }
}

TEST(StoreProtocolLimits, WhatPassesThemIsRefusedBeforeItCame) {
  const auto with = [](Op op, std::initializer_list<std::uint64_t> numbers) {
    std::string out = greeting() + static_cast<char>(op);
    for (const std::uint64_t each : numbers) put_number(out, each, 8);
    return out;
  };
  const Limits limits;
  EXPECT_EQ(refusal(with(Op::get, {limits.key})), Code::pending);
  EXPECT_EQ(refusal(with(Op::get, {limits.key + 1})), Code::corrupt);
  EXPECT_EQ(refusal(with(Op::get, {~std::uint64_t{0}})), Code::corrupt);
  EXPECT_EQ(refusal(with(Op::set, {0, limits.value})), Code::pending);
  EXPECT_EQ(refusal(with(Op::set, {0, limits.value + 1})), Code::corrupt);
  EXPECT_EQ(refusal(with(Op::wait, {limits.fields})), Code::pending);
  EXPECT_EQ(refusal(with(Op::wait, {limits.fields + 1})), Code::corrupt);
  EXPECT_EQ(refusal(with(Op::multi_set, {~std::uint64_t{0}})), Code::corrupt);
  // Empty keys cost as well.
  const Limits small{.fields = 100, .message = 64 * kText};
  std::string many = with(Op::check, {100});
  many += std::string(100 * 8, '\0');
  EXPECT_EQ(refusal(many, small), Code::corrupt);
}

TEST(StoreProtocolLimits, WhatIsNoClientIsRefused) {
  EXPECT_EQ(refusal("GET / HTTP/1.1\r\n"), Code::corrupt);
  EXPECT_EQ(refusal(greeting() + '\0'), Code::corrupt) << "validated twice";
  EXPECT_EQ(refusal(greeting() + static_cast<char>(kOps)), Code::corrupt);
  EXPECT_EQ(refusal("\x07"), Code::corrupt) << "torch 1.13's watch_key";
  EXPECT_EQ(refusal("\0\xce\xf7\x85"s), Code::pending) << "not decided yet";
  EXPECT_EQ(refusal("\0\xce\xf7\x85\x3d\0\0\0\0"s), Code::corrupt) << "a set of a key of 1 GB";
}

class StoreTable : public ::testing::Test {
 protected:
  std::string ask(Request asked) {
    auto answer = table_.apply(std::move(asked));
    return answer.ok() ? *answer : name_of(answer.status().code());
  }
  static std::string number(std::int64_t value) {
    std::string out;
    put_number(out, static_cast<std::uint64_t>(value), 8);
    return out;
  }
  static std::string text(std::string_view value) {
    std::string out;
    put_text(out, value);
    return out;
  }

  const Limits limits_{.value = 100, .message = 400, .entries = 4, .stored = 1000};
  Table table_{limits_};
};

TEST_F(StoreTable, CountsWhatItHolds) {
  EXPECT_EQ(ask(request(Op::set, {"a"}, {"12345"})), "");
  EXPECT_EQ(table_.stored(), kEntry);
  EXPECT_EQ(ask(request(Op::append, {"a"}, {"678"})), "");
  EXPECT_EQ(ask(request(Op::append, {"b"}, {"1"})), "");
  EXPECT_EQ(ask(request(Op::queue_push, {"q"}, {"xy"})), "");
  EXPECT_EQ(table_.entries(), 3u);
  EXPECT_EQ(table_.stored(), 3 * kEntry);
  EXPECT_EQ(ask(request(Op::queue_pop, {"q"})), number(1) + text("xy"));
  EXPECT_EQ(ask(request(Op::queue_pop, {"q"})), number(0));
  EXPECT_EQ(ask(request(Op::delete_key, {"b"})), number(1));
  EXPECT_EQ(ask(request(Op::set, {"a"}, {""})), "");
  EXPECT_EQ(table_.stored(), kEntry);
  EXPECT_EQ(ask(request(Op::delete_key, {"a"})), number(1));
  EXPECT_EQ(table_.stored(), 0u);
  EXPECT_EQ(table_.entries(), 0u);
}

TEST(StoreTableCost, IsAtLeastWhatIsAllocated) {
  const auto allocated = [] { return ::mallinfo2().uordblks + ::mallinfo2().hblkhd; };
  constexpr std::size_t kEach = 20'000;
  struct Kind {
    const char* name;
    Op op;
    std::size_t key, value;
  };
  for (const Kind& kind :
       {Kind{"keys", Op::set, 8, 1}, Kind{"long keys", Op::set, 40, 30},
        Kind{"appended", Op::append, 8, 100}, Kind{"queues", Op::queue_push, 8, 1},
        Kind{"long", Op::queue_push, 40, 30}}) {
    const Limits limits;
    const std::size_t before = allocated();
    Table table(limits);
    for (std::size_t i = 0; i < 2 * kEach; ++i) {
      std::string key = std::to_string(i % kEach);
      key.resize(kind.key, 'k');
      ASSERT_TRUE(table.apply(request(kind.op, {key}, {std::string(kind.value, 'v')})).ok());
    }
    const std::size_t after = allocated();
    if (after <= before) continue;  // beside a sanitizer malloc does not count
    EXPECT_GE(table.stored() + 65536, after - before) << kind.name;
  }
}

TEST_F(StoreTable, AShortValueGivesBackTheLongOnesMemory) {
  EXPECT_EQ(ask(request(Op::set, {"a"}, {std::string(90, 'x')})), "");
  EXPECT_EQ(table_.stored(), kEntry + 91);
  EXPECT_EQ(ask(request(Op::set, {"a"}, {"1"})), "");
  EXPECT_EQ(table_.stored(), kEntry);
}

TEST_F(StoreTable, WhatPassesALimitChangesNothing) {
  EXPECT_EQ(ask(request(Op::multi_set, {"a", "b", "c", "d"}, {"1", "2", "3", "4"})), "");
  EXPECT_EQ(ask(request(Op::set, {"e"}, {""})), "no_resource");
  EXPECT_EQ(ask(request(Op::queue_push, {"q"}, {""})), "no_resource");
  EXPECT_EQ(ask(request(Op::add, {"e"}, {}, 1)), "no_resource");
  EXPECT_EQ(ask(request(Op::compare_set, {"e"}, {"", "x"})), "no_resource");
  EXPECT_EQ(ask(request(Op::multi_set, {"a", "e"}, {"x", "y"})), "no_resource");
  EXPECT_EQ(ask(request(Op::get, {"a"})), text("1"));
  EXPECT_EQ(ask(request(Op::set, {"a"}, {std::string(100, 'x')})), "") << "in the place of another";
  EXPECT_EQ(ask(request(Op::append, {"a"}, {"x"})), "no_resource") << "a value beyond its limit";
  EXPECT_EQ(ask(request(Op::set, {"b"}, {std::string(700, 'x')})), "no_resource");
  EXPECT_EQ(
      ask(request(Op::multi_get, {"a", "a", "a"})),
      text(std::string(100, 'x')) + text(std::string(100, 'x')) + text(std::string(100, 'x')));
  EXPECT_EQ(ask(request(Op::multi_get, {"a", "a", "a", "a"})), "no_resource");
  EXPECT_EQ(table_.entries(), 4u);
}

TEST_F(StoreTable, Adds) {
  EXPECT_EQ(ask(request(Op::add, {"n"}, {}, -5)), number(-5));
  EXPECT_EQ(ask(request(Op::add, {"n"}, {}, 7)), number(2));
  EXPECT_EQ(ask(request(Op::get, {"n"})), text("2"));
  for (const char* const odd : {"", "x", "+-1", "--1", "9223372036854775808"}) {
    EXPECT_EQ(ask(request(Op::set, {"n"}, {odd})), "");
    EXPECT_EQ(ask(request(Op::add, {"n"}, {}, 1)), "invalid_argument") << odd;
  }
  EXPECT_EQ(ask(request(Op::set, {"n"}, {" +40 and more"})), "");
  EXPECT_EQ(ask(request(Op::add, {"n"}, {}, 2)), number(42));
  EXPECT_EQ(ask(request(Op::set, {"n"}, {"9223372036854775807"})), "");
  EXPECT_EQ(ask(request(Op::add, {"n"}, {}, 1)), "invalid_argument");
}

}  // namespace store_protocol_test
}  // namespace linkspan::store
