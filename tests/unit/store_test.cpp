// Tests every operation of a Store, by the serving process and by clients.
#include "linkspan/store.hpp"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "base/clock.hpp"
#include "tests/unit/store_fixture.hpp"

namespace linkspan::test {
namespace store_test {

using namespace std::string_literals;

/// Two Stores of one content: "served" beside its client, "asked" two clients.
class StoreKinds : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string kind = GetParam();
    server_ = open(at_port(0, StoreRole::serve));
    ASSERT_NE(server_, nullptr);
    const std::uint16_t port = port_of(*server_);
    b_ = open(at_port(port));
    a_ = kind == "served" ? std::move(server_) : open(at_port(port));
  }
  std::unique_ptr<Store> server_, a_, b_;
};
INSTANTIATE_TEST_SUITE_P(Every, StoreKinds, ::testing::Values("served", "asked"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST_P(StoreKinds, ValuesAreBytes) {
  for (const std::string& value : {""s, "x"s, "\0\xff\0"s, std::string(1 << 20, '\7')}) {
    ASSERT_TRUE(a_->set("k/1", value).ok());
    EXPECT_EQ(*a_->get("k/1", 10s), value);  // a set has no answer, and this one comes after it
    EXPECT_EQ(*b_->get("k/1", 10s), value);
  }
  EXPECT_EQ(*a_->num_keys(), 1);
  EXPECT_TRUE(*b_->delete_key("k/1"));
  EXPECT_FALSE(*a_->delete_key("k/1"));
  EXPECT_EQ(*b_->num_keys(), 0);
}

TEST_P(StoreKinds, GetWaitsForWhoSets) {
  EXPECT_EQ(code_of(a_->get("later", 0s)), Code::timed_out);
  EXPECT_EQ(code_of(a_->get("later", 50ms)), Code::timed_out);
  auto waits = std::async(std::launch::async, [&] { return a_->get("later", 20s); });
  EXPECT_EQ(waits.wait_for(50ms), std::future_status::timeout);
  ASSERT_TRUE(b_->set("later", "now").ok());
  const auto got = waits.get();
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  EXPECT_EQ(*got, "now");
  EXPECT_EQ(*a_->get("later", 0s), "now");
}

TEST_P(StoreKinds, WaitsForAll) {
  EXPECT_TRUE(a_->wait({}, 0s).ok());
  EXPECT_TRUE(*a_->check({}));
  ASSERT_TRUE(b_->add("w/1", 1).ok());
  EXPECT_EQ(code_of(a_->wait({"w/1", "w/2"}, 20ms)), Code::timed_out);
  EXPECT_FALSE(*a_->check({"w/1", "w/2"}));
  auto waits = std::async(std::launch::async, [&] { return a_->wait({"w/1", "w/2", "w/3"}, 20s); });
  ASSERT_TRUE(b_->add("w/3", 1).ok());
  EXPECT_EQ(waits.wait_for(20ms), std::future_status::timeout);
  ASSERT_TRUE(b_->append("w/2", "").ok());
  EXPECT_TRUE(waits.get().ok());
  EXPECT_TRUE(*a_->check({"w/1", "w/2"}));
}

TEST_P(StoreKinds, Counters) {
  EXPECT_EQ(*a_->add("n", 5), 5);
  EXPECT_EQ(*b_->add("n", -7), -2);
  EXPECT_EQ(*a_->get("n", 10s), "-2");
  std::vector<std::jthread> threads;
  for (Store* each : {a_.get(), b_.get()})
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([each] {
        for (int j = 0; j < 50; ++j) EXPECT_TRUE(each->add("n", 1).ok());
      });
  threads.clear();
  EXPECT_EQ(*a_->add("n", 0), 198);
}

TEST_P(StoreKinds, CompareSet) {
  EXPECT_EQ(*a_->compare_set("c", "no", "x"), "no");
  EXPECT_FALSE(*b_->check({"c"}));
  EXPECT_EQ(*a_->compare_set("c", "", "one"), "one");
  EXPECT_EQ(*b_->compare_set("c", "", "two"), "one");
  EXPECT_EQ(*b_->compare_set("c", "one", "t\0wo"s), "t\0wo"s);
  EXPECT_EQ(*a_->compare_set("c", "one", "x"), "t\0wo"s);
}

TEST_P(StoreKinds, Many) {
  std::vector<std::string> keys, values;
  for (int i = 0; i < 300; ++i) {
    keys.push_back("m/" + std::to_string(i));
    values.emplace_back(static_cast<std::size_t>(i), 'x');
  }
  ASSERT_TRUE(a_->multi_set(keys, values).ok());
  EXPECT_EQ(*a_->multi_get(keys, 10s), values);
  EXPECT_EQ(*b_->multi_get(keys, 10s), values);
  ASSERT_TRUE(b_->append("m/1", "y\0z"s).ok());
  EXPECT_EQ(*b_->get("m/1", 10s), "xy\0z"s);
  EXPECT_EQ(code_of(a_->multi_get({"m/1", "none"}, 20ms)), Code::timed_out);
  EXPECT_TRUE(a_->multi_get({}, 0s)->empty());
}

TEST_P(StoreKinds, Queues) {
  EXPECT_EQ(*a_->queue_length("q"), 0);
  EXPECT_EQ(code_of(a_->queue_pop("q", 0s)), Code::timed_out);
  EXPECT_EQ(code_of(a_->queue_pop("q", 20ms)), Code::timed_out);
  ASSERT_TRUE(b_->queue_push("q", "1").ok());
  ASSERT_TRUE(b_->queue_push("q", "\0"s).ok());
  EXPECT_EQ(*b_->queue_length("q"), 2);
  EXPECT_EQ(*a_->queue_pop("q", 0s), "1");
  EXPECT_TRUE(*a_->check({"q"}));
  EXPECT_EQ(*b_->queue_pop("q", 10s), "\0"s);
  auto first = std::async(std::launch::async, [&] { return a_->queue_pop("q", 20s); });
  ASSERT_TRUE(b_->queue_push("q", "last").ok());
  EXPECT_EQ(*first.get(), "last");
  EXPECT_EQ(*b_->num_keys(), 0);
}

TEST_P(StoreKinds, WhatIsTooLargeIsRefusedHere) {
  const std::string key(8 << 10, 'k'), value((8 << 20) + 1, 'v');
  ASSERT_TRUE(a_->set(key, "of 8 KiB").ok());
  EXPECT_EQ(*b_->get(key, 10s), "of 8 KiB");
  const Status refused = a_->set(key + "k", "v");
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_NE(refused.what().find("a key of 8193 bytes: a store takes 8192"), std::string::npos)
      << refused.what();
  EXPECT_EQ(code_of(a_->set("k", value)), Code::invalid_argument);
  EXPECT_EQ(code_of(a_->multi_set({"k", "l"}, {"v"})), Code::invalid_argument);
  EXPECT_EQ(code_of(a_->wait(Store::Keys((128 << 10) + 1), 10s)), Code::invalid_argument);
  EXPECT_EQ(
      code_of(a_->multi_set(Store::Keys(9, "k"), std::vector<std::string>(9, value.substr(1)))),
      Code::invalid_argument);
  EXPECT_EQ(*a_->add("k", 1), 1) << "the connection is in order";
}

TEST_P(StoreKinds, AClosedOneAnswersCanceled) {
  auto waits = std::async(std::launch::async, [&] { return a_->get("never", 20s); });
  EXPECT_EQ(waits.wait_for(50ms), std::future_status::timeout);
  b_->close(1s).ok();
  EXPECT_EQ(code_of(b_->add("n", 1)), Code::canceled);
  EXPECT_TRUE(a_->close(5s).ok());
  EXPECT_EQ(code_of(waits.get()), Code::canceled);
  EXPECT_EQ(code_of(a_->set("n", "1")), Code::canceled);
  EXPECT_TRUE(a_->close(0s).ok()) << "again";
}

}  // namespace store_test
}  // namespace linkspan::test
