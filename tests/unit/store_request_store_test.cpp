// Tests what a Store makes of answers that other clients' requests come between.
#include "store/request_store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "store/table.hpp"
#include "tests/support/take.hpp"

namespace linkspan::store {
namespace store_request_store_test {

using namespace std::chrono_literals;
using test::take;

/// A Store over a table. Another client may act before each request and each wait.
class TableStore final : public RequestStore {
 public:
  TableStore() : RequestStore(10s, "/") {}

  std::string address() const override { return {}; }
  bool serves() const override { return false; }
  Status close(Duration /*timeout*/) override { return {}; }

  void other(Op op, const std::string& key, std::vector<std::string> values = {}) {
    Request request;
    request.op = op;
    request.keys = {"/" + key};
    request.values = std::move(values);
    (void)take(table_.apply(std::move(request)));
  }

  std::function<void()> before_get, before_wait;

 protected:
  Result<Message> exchange(const Request& request, base::Deadline /*deadline*/) override {
    if (request.op == Op::get || request.op == Op::multi_get) before_get();
    Buffer bytes;
    bytes.append(take(table_.apply(request)));
    auto reader = MessageReader::of_answer(request.op, request.keys.size(), limits_);
    EXPECT_TRUE(take(reader.read(bytes)));
    return std::move(reader.message());
  }
  Result<bool> await(const Keys& keys, base::Deadline /*deadline*/) override {
    before_wait();
    return std::ranges::all_of(keys, [this](const auto& key) { return table_.has(key); });
  }

 private:
  const Limits limits_{};
  Table table_{limits_};
};

class RequestStoreTest : public ::testing::Test {
 protected:
  /// Lets another client set the key before each wait, and delete it before the first get.
  void flicker(const std::string& key) {
    store_.before_wait = [this, key] { store_.other(Op::set, key, {"value"}); };
    store_.before_get = [this, key] {
      store_.other(Op::delete_key, key);
      store_.before_get = [] {};
    };
  }
  TableStore store_;
};

TEST_F(RequestStoreTest, WaitsAgain_WhenTheKeyWasDeletedAfterTheWait) {
  flicker("k");
  EXPECT_EQ(take(store_.get("k", 10s)), "value");
  ASSERT_TRUE(store_.set("empty", "").ok());
  flicker("k");
  EXPECT_EQ(take(store_.multi_get({"empty", "k"}, 10s)), (std::vector<std::string>{"", "value"}));
}

TEST_F(RequestStoreTest, TimesOut_WhenTheKeyWasDeletedAfterTheWait) {
  flicker("k");
  EXPECT_EQ(store_.get("k", 0s).status().code(), Code::timed_out);
}

TEST_F(RequestStoreTest, ReadsAnEmptyValue_AndStoresNothing) {
  store_.before_wait = store_.before_get = [] {};
  ASSERT_TRUE(store_.set("k", "").ok());
  EXPECT_EQ(take(store_.get("k", 0s)), "");
  EXPECT_EQ(take(store_.get("k", 0s)), "");
  flicker("gone");
  EXPECT_FALSE(store_.get("gone", 0s).ok());
  EXPECT_EQ(take(store_.num_keys()), 1);
}

}  // namespace store_request_store_test
}  // namespace linkspan::store
