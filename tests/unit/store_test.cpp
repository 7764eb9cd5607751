// Every operation of a Store, of each kind; who serves, and what comes of it.
#include "linkspan/store.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "base/clock.hpp"
#include "control/store/tcp_socket.hpp"
#include "tests/support/process.hpp"

namespace linkspan {
namespace {

using namespace std::chrono_literals;
using namespace std::string_literals;

/// One that nobody has now. Another process may be quicker: tests on it may say busy, not succeed.
std::uint16_t free_port() {
  const auto address = *control::store::resolve("127.0.0.1", 0);
  const auto socket = control::store::listen_at(address.front());
  return control::store::address_of(*socket)->port();
}

TcpStoreOptions at_port(std::uint16_t port, StoreRole role = StoreRole::connect) {
  TcpStoreOptions options;
  options.port = port;
  options.role = role;
  options.timeout = 20s;
  return options;
}

std::uint16_t port_of(const Store& store) {
  const std::string address = store.address();
  return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

std::unique_ptr<Store> open(const TcpStoreOptions& options) {
  auto store = open_tcp_store(options);
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  return store.ok() ? *std::move(store) : nullptr;
}

Code code_of(const Status& status) { return status.code(); }
template <class T>
Code code_of(const Result<T>& result) {
  return result.status().code();
}

/// Two Stores of one content: "served" beside its client, "asked" two clients, "file" two of a
/// file.
class StoreKinds : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string kind = GetParam();
    if (kind == "file") {
      path_ =
          std::filesystem::temp_directory_path() / ("linkspan_store_" + std::to_string(::getpid()));
      std::filesystem::remove(path_);
      a_ = *open_file_store(path_);
      b_ = *open_file_store(path_);
      return;
    }
    server_ = open(at_port(0, StoreRole::serve));
    ASSERT_NE(server_, nullptr);
    const std::uint16_t port = port_of(*server_);
    b_ = open(at_port(port));
    a_ = kind == "served" ? std::move(server_) : open(at_port(port));
  }
  void TearDown() override {
    b_.reset();
    if (!path_.empty()) std::filesystem::remove(path_);
  }

  std::filesystem::path path_;
  std::unique_ptr<Store> server_, a_, b_;
};
INSTANTIATE_TEST_SUITE_P(Every, StoreKinds, ::testing::Values("served", "asked", "file"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST_P(StoreKinds, ValuesAreBytes) {
  for (const std::string& value : {""s, "x"s, "\0\xff\0"s, std::string(1 << 20, '\7')}) {
    ASSERT_TRUE(a_->set("k/1", value).ok());
    EXPECT_EQ(*a_->get("k/1", 1s), value);  // a set has no answer, and this one comes after it
    EXPECT_EQ(*b_->get("k/1", 1s), value);
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
  EXPECT_EQ(*a_->get("n", 1s), "-2");
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
  EXPECT_EQ(*a_->multi_get(keys, 1s), values);
  EXPECT_EQ(*b_->multi_get(keys, 1s), values);
  ASSERT_TRUE(b_->append("m/1", "y\0z"s).ok());
  EXPECT_EQ(*b_->get("m/1", 1s), "xy\0z"s);
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
  EXPECT_EQ(*b_->queue_pop("q", 1s), "\0"s);
  auto first = std::async(std::launch::async, [&] { return a_->queue_pop("q", 20s); });
  ASSERT_TRUE(b_->queue_push("q", "last").ok());
  EXPECT_EQ(*first.get(), "last");
  EXPECT_EQ(*b_->num_keys(), 0);
}

TEST_P(StoreKinds, WhatIsTooLargeIsRefusedHere) {
  const std::string key(8 << 10, 'k'), value((8 << 20) + 1, 'v');
  EXPECT_EQ(code_of(a_->set(key + "k", "v")), Code::invalid_argument);
  EXPECT_EQ(code_of(a_->set("k", value)), Code::invalid_argument);
  EXPECT_EQ(code_of(a_->multi_set({"k", "l"}, {"v"})), Code::invalid_argument);
  EXPECT_EQ(code_of(a_->wait(Store::Keys((128 << 10) + 1), 1s)), Code::invalid_argument);
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

// ---- who serves --------------------------------------------------------------------------------

/// A process that meets others at port argv: sets its key, waits for the other's, closes.
void meet_and_tell(test::Line& line) {
  std::unique_ptr<Store> store;
  line.serve(
      [&](const test::Json& request, std::vector<base::Fd>) -> Result<test::Answer> {
        if (request.at("do") == "close") {
          const Status closed = store->close(20s);
          return closed.ok() ? Result<test::Answer>(test::Answer{}) : closed;
        }
        const std::string name = request.at("name");
        if (!store) {
          auto options = at_port(request.at("port"), StoreRole::first_to_bind);
          auto opened = open_tcp_store(options);
          if (!opened.ok()) return opened.status();
          store = *std::move(opened);
        }
        if (Status status = store->set(name, "of " + name); !status.ok()) return status;
        auto other = store->get(request.at("other").get<std::string>(), 20s);
        if (!other.ok()) return other.status();
        return test::Answer{.value = {{"got", *other}, {"serves", store->serves()}}, .fds = {}};
      },
      [] { return false; });
}
const bool kMeets = test::add_helper("store_meets", meet_and_tell);

TEST(StoreRoles, TwoProcessesMeetInAnyOrderAndTheServerLeavesLast) {
  for (int round = 0; round < 4; ++round) {
    const std::uint16_t port = free_port();
    auto left = test::Child::spawn("store_meets");
    auto right = test::Child::spawn("store_meets");
    ASSERT_TRUE(left.ok() && right.ok());
    const auto ask = [&](test::Child& child, const char* name, const char* other) {
      return std::async(std::launch::async, [&child, port, name, other] {
        return child.line().call(
            {{"do", "meet"}, {"port", port}, {"name", name}, {"other", other}});
      });
    };
    const bool swapped = round % 2 != 0;
    auto a = ask(swapped ? **right : **left, "a", "b");
    if (round >= 2) std::this_thread::sleep_for(30ms);
    auto b = ask(swapped ? **left : **right, "b", "a");
    const auto got_a = a.get(), got_b = b.get();
    ASSERT_TRUE(got_a.ok()) << got_a.status().to_string();
    ASSERT_TRUE(got_b.ok()) << got_b.status().to_string();
    EXPECT_EQ(got_a->value.at("got"), "of b");
    EXPECT_EQ(got_b->value.at("got"), "of a");
    EXPECT_NE(got_a->value.at("serves"), got_b->value.at("serves"));
    const bool left_serves = (swapped ? got_b : got_a)->value.at("serves");
    test::Child &server = left_serves ? **left : **right, &client = left_serves ? **right : **left;
    const auto close = [](test::Child& child) {
      return child.line().call({{"do", "close"}}).status();
    };
    auto closed = std::async(std::launch::async, [&] { return close(server); });
    EXPECT_EQ(closed.wait_for(100ms), std::future_status::timeout) << "a client is still there";
    EXPECT_TRUE(close(client).ok());
    EXPECT_TRUE(closed.get().ok());
  }
}

TEST(StoreRoles, AKilledServerIsNoticedByWhoWaits) {
  const std::uint16_t port = free_port();
  auto server = test::Child::spawn("store_meets");
  ASSERT_TRUE(server.ok());
  auto met = std::async(std::launch::async, [&] {
    return (*server)->line().call({{"do", "meet"}, {"port", port}, {"name", "a"}, {"other", "b"}});
  });
  auto options = at_port(port);
  auto client = open(options);
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->set("b", "").ok());
  ASSERT_TRUE(met.get().ok());
  auto waits = std::async(std::launch::async, [&] { return client->get("never", 20s); });
  EXPECT_EQ(waits.wait_for(50ms), std::future_status::timeout);
  (*server)->kill();
  EXPECT_EQ(waits.wait_for(5s), std::future_status::ready);
  EXPECT_EQ(code_of(waits.get()), Code::disconnected);
  EXPECT_EQ(code_of(client->add("n", 1)), Code::disconnected);
  EXPECT_EQ(code_of(client->set("n", "1")), Code::disconnected);
}

TEST(StoreRoles, AStoppedServerCostsTheTimeoutOnce) {
  const std::uint16_t port = free_port();
  auto server = test::Child::spawn("store_meets");
  ASSERT_TRUE(server.ok());
  auto met = std::async(std::launch::async, [&] {
    return (*server)->line().call({{"do", "meet"}, {"port", port}, {"name", "a"}, {"other", "b"}});
  });
  auto options = at_port(port);
  options.timeout = 5s;
  auto client = open(options);
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->set("b", "").ok());
  ASSERT_TRUE(met.get().ok());
  (*server)->signal(SIGSTOP);
  options.timeout = 300ms;
  EXPECT_EQ(code_of(open_tcp_store(options)), Code::timed_out) << "the kernel alone accepts";
  EXPECT_EQ(code_of(client->num_keys()), Code::timed_out);
  EXPECT_EQ(code_of(client->num_keys()), Code::disconnected);
  (*server)->kill();
}

TEST(StoreRoles, WhoIsRefused) {
  auto server = open(at_port(0, StoreRole::serve));
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(server->serves());
  EXPECT_EQ(code_of(open_tcp_store(at_port(port_of(*server), StoreRole::serve))), Code::busy);
  EXPECT_EQ(code_of(open_tcp_store(at_port(0, StoreRole::connect))), Code::invalid_argument);
  auto options = at_port(free_port());
  options.timeout = 100ms;
  EXPECT_EQ(code_of(open_tcp_store(options)), Code::unreachable);
  options.role = StoreRole::serve;
  options.host = "0.0.0.0";
  EXPECT_EQ(code_of(open_tcp_store(options)), Code::permission_denied);
  options.insecure = true;
  EXPECT_TRUE(open_tcp_store(options).ok());
  options.host = "localhost";
  EXPECT_TRUE(open_tcp_store(options).ok());
  options.host = "192.0.2.1";  // of documentation, nobody's
  EXPECT_EQ(code_of(open_tcp_store(options)), Code::not_found);
  options.host = "no such host";
  EXPECT_EQ(code_of(open_tcp_store(options)), Code::not_found);
}

TEST(StoreRoles, WorkersAreWaitedFor) {
  auto options = at_port(free_port(), StoreRole::first_to_bind);
  options.workers = 3;
  std::vector<std::future<std::unique_ptr<Store>>> opened;
  for (int i = 0; i < 2; ++i)
    opened.push_back(std::async(std::launch::async, [options] { return open(options); }));
  const auto both = [&](std::future_status status) {
    int count = 0;
    for (auto& each : opened) count += each.wait_for(100ms) == status ? 1 : 0;
    return count;
  };
  EXPECT_GE(both(std::future_status::timeout), 1) << "who serves";
  opened.push_back(std::async(std::launch::async, [options] { return open(options); }));
  int servers = 0;
  std::vector<std::unique_ptr<Store>> stores;
  for (auto& each : opened) {
    stores.push_back(each.get());
    ASSERT_NE(stores.back(), nullptr);
    servers += stores.back()->serves() ? 1 : 0;
  }
  EXPECT_EQ(servers, 1);
  for (auto& each : stores)
    if (!each->serves()) each.reset();
  options.timeout = 200ms;
  options.port = free_port();
  options.role = StoreRole::serve;
  EXPECT_EQ(code_of(open_tcp_store(options)), Code::timed_out);
}

TEST(StoreRoles, AForkedChildIsTold) {
  auto store = open(at_port(0, StoreRole::serve));
  ASSERT_NE(store, nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool told = code_of(store->set("k", "v")) == Code::invalid_argument;
    store.reset();  // does not wait for a thread that it does not have
    ::_exit(told ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*store->add("n", 1), 1);
}

// ---- the file ----------------------------------------------------------------------------------

class StoreFile : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() /
            ("linkspan_store_file_" + std::to_string(::getpid()));
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }
  void write(std::string_view bytes, std::ios::openmode mode = std::ios::app) const {
    std::ofstream(path_, std::ios::binary | mode) << bytes;
  }
  std::filesystem::path path_;
};

TEST_F(StoreFile, OutlivesItsStoresAndATornEnd) {
  (*open_file_store(path_))->set("a", "1").ok();
  const auto whole = std::filesystem::file_size(path_);
  write("\1\1\0\0\0\0\0\0\0bcut"s);
  auto store = *open_file_store(path_);
  EXPECT_EQ(std::filesystem::file_size(path_), whole);
  EXPECT_EQ(*store->get("a", 1s), "1");
  write("\1\1\0"s);  // beside one that is open
  EXPECT_EQ(*store->add("n", 4), 4);
  EXPECT_EQ(*(*open_file_store(path_))->get("n", 1s), "4");
  EXPECT_EQ(*store->num_keys(), 2);
}

TEST_F(StoreFile, WhatIsNoStoreStaysAsItIs) {
  write("my thesis\n");
  EXPECT_EQ(code_of(open_file_store(path_)), Code::corrupt);
  EXPECT_EQ(std::filesystem::file_size(path_), 10u);
  write("linkspan store 1\n\xfe", std::ios::trunc);
  EXPECT_EQ(code_of(open_file_store(path_)), Code::corrupt);
  std::filesystem::remove(path_);
  std::filesystem::create_symlink("/dev/null", path_);
  EXPECT_EQ(code_of(open_file_store(path_)), Code::system);
  EXPECT_EQ(code_of(open_file_store("/tmp")), Code::system);
  EXPECT_EQ(code_of(open_file_store("/nonexistent/x")), Code::system);
}

}  // namespace
}  // namespace linkspan
