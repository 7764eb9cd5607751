// Tests which process serves a Store over TCP, which ones wait, and the effects of a server's end.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "tests/support/process.hpp"
#include "tests/support/take.hpp"
#include "tests/unit/store_fixture.hpp"

namespace linkspan::test {
namespace store_roles_test {

/// Runs a process that meets others at the port in argv: sets its key, waits for the other's,
/// closes.
void meet_and_tell(Line& line) {
  std::unique_ptr<Store> store;
  line.serve(
      [&](const Json& request, std::vector<base::Fd>) -> Result<Answer> {
        if (request.at("do") == "close") {
          const Status closed = store->close(20s);
          return closed.ok() ? Result<Answer>(Answer{}) : closed;
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
        return Answer{.value = {{"got", *other}, {"serves", store->serves()}}, .fds = {}};
      },
      [] { return false; });
}
const bool kMeets = add_helper("store_meets", meet_and_tell);

TEST(StoreRoles, TwoProcessesMeetInAnyOrderAndTheServerLeavesLast) {
  for (int round = 0; round < 4; ++round) {
    const std::uint16_t port = free_port();
    auto left = Child::spawn("store_meets");
    auto right = Child::spawn("store_meets");
    ASSERT_TRUE(left.ok() && right.ok());
    const auto ask = [&](Child& child, const char* name, const char* other) {
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
    Child &server = left_serves ? **left : **right, &client = left_serves ? **right : **left;
    const auto close = [](Child& child) { return child.line().call({{"do", "close"}}).status(); };
    auto closed = std::async(std::launch::async, [&] { return close(server); });
    EXPECT_EQ(closed.wait_for(100ms), std::future_status::timeout) << "a client is still there";
    EXPECT_TRUE(close(client).ok());
    EXPECT_TRUE(closed.get().ok());
  }
}

/// A process that serves, and a client here that has met it.
class StoreServedElsewhere : public ::testing::Test {
 protected:
  void SetUp() override {
    options_ = at_port(free_port());
    options_.timeout = 5s;
    server_ = take(Child::spawn("store_meets"));
    auto met = std::async(std::launch::async, [this] {
      return server_->line().call(
          {{"do", "meet"}, {"port", options_.port}, {"name", "a"}, {"other", "b"}});
    });
    client_ = open(options_);
    ASSERT_NE(client_, nullptr);
    ASSERT_TRUE(client_->set("b", "").ok());
    ASSERT_TRUE(met.get().ok());
  }

  TcpStoreOptions options_;
  std::unique_ptr<Child> server_;
  std::unique_ptr<Store> client_;
};

TEST_F(StoreServedElsewhere, AKilledOneIsNoticedByWhoWaits) {
  auto waits = std::async(std::launch::async, [&] { return client_->get("never", 20s); });
  EXPECT_EQ(waits.wait_for(50ms), std::future_status::timeout);
  server_->kill();
  EXPECT_EQ(waits.wait_for(5s), std::future_status::ready);
  EXPECT_EQ(code_of(waits.get()), Code::disconnected);
  EXPECT_EQ(code_of(client_->add("n", 1)), Code::disconnected);
  EXPECT_EQ(code_of(client_->set("n", "1")), Code::disconnected);
}

TEST_F(StoreServedElsewhere, AStoppedOneCostsTheTimeoutOnce) {
  server_->signal(SIGSTOP);
  options_.timeout = 300ms;
  EXPECT_EQ(code_of(open_tcp_store(options_)), Code::timed_out) << "the kernel alone accepts";
  EXPECT_EQ(code_of(client_->num_keys()), Code::timed_out);
  EXPECT_EQ(code_of(client_->num_keys()), Code::disconnected);
  server_->kill();
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
  options.host = "192.0.2.1";  // an address for documentation, which no host has
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

TEST(StoreRoles, AForkedChildIsToldAtOnce_WhenACallOfTheParentWaits) {
  const auto server = open(at_port(0, StoreRole::serve));
  ASSERT_NE(server, nullptr);
  auto options = at_port(port_of(*server));
  options.timeout = 10s;
  const auto store = open(options);
  ASSERT_NE(store, nullptr);
  auto waits = std::async(std::launch::async, [&] { return store->get("later", 60s); });
  EXPECT_EQ(waits.wait_for(50ms), std::future_status::timeout);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto limit = base::Deadline::in(5s);
    const bool told = code_of(store->set("k", "v")) == Code::invalid_argument &&
                      code_of(store->get("k", 10s)) == Code::invalid_argument;
    ::_exit(told && !limit.passed() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(server->set("later", "now").ok());
  EXPECT_EQ(code_of(waits.get()), Code::ok);
}

}  // namespace store_roles_test
}  // namespace linkspan::test
