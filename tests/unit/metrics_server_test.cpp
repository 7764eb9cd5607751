// Tests the counters of real Engines by HTTP.
#include "engine/diagnostics/metrics_server.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>

#include "linkspan/engine.hpp"
#include "tests/support/take.hpp"

namespace linkspan::engine {
namespace metrics_server_test {

using namespace std::chrono_literals;
using test::take;

class MetricsServerTest : public ::testing::Test {
 protected:
  void TearDown() override {
    ::unsetenv("LINKSPAN_METRICS");
    ::unsetenv("LINKSPAN_METRICS_RANK");
    ::unsetenv("LINKSPAN_LOG_LEVEL");
  }
  static void set(const char* address, const char* rank = "") {
    ::setenv("LINKSPAN_METRICS", address, 1);
    ::setenv("LINKSPAN_METRICS_RANK", rank, 1);
    ::setenv("LINKSPAN_LOG_LEVEL", "INFO", 1);
  }
  Result<Engine> open(const char* name) {
    return Engine::open(
        {.name = name, .use_gpu = false, .log = [this](LogLevel, std::string_view line) {
           const std::lock_guard lock(mutex_);
           log_.append(line).append("\n");
         }});
  }
  /// Waits for the log's thread.
  bool is_logged(const std::string& text) {
    for (const auto deadline = base::Deadline::in(10s); !deadline.passed();) {
      const std::lock_guard lock(mutex_);
      if (log_.find(text) != std::string::npos) return true;
    }
    return false;
  }
  /// Returns the port of "counters are served at http://127.0.0.1:PORT/metrics".
  std::uint16_t served_port() {
    const std::string before = "counters are served at http://127.0.0.1:";
    if (!is_logged(before)) return 0;
    const std::lock_guard lock(mutex_);
    return static_cast<std::uint16_t>(std::atoi(log_.c_str() + log_.find(before) + before.size()));
  }
  static std::string get(std::uint16_t port) {
    const auto address = take(parse_metrics_address(std::to_string(port)));
    const base::Fd socket = take(net::connect_to(address, base::Deadline::in(10s)));
    EXPECT_TRUE(net::send_all(socket, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
                              base::Deadline::in(10s))
                    .ok());
    std::string all;
    for (;;) {
      auto some = net::receive_some(socket, 1 << 16, base::Deadline::in(10s));
      if (!some.ok()) return all;
      all += *some;
    }
  }

  std::mutex mutex_;
  std::string log_;
};

TEST_F(MetricsServerTest, ServesWhatMetricsReturns_UntilTheEngineIsClosed) {
  set("0");
  Engine engine = take(open("served"));
  const std::uint16_t port = served_port();
  ASSERT_NE(port, 0) << log_;
  const std::string answer = get(port);
  EXPECT_EQ(answer.substr(answer.find("\r\n\r\n") + 4), engine.metrics());
  EXPECT_NE(answer.find("linkspan_engine_info{engine=\"served\",pid=\""), std::string::npos);
  EXPECT_NE(answer.find("text/plain; version=0.0.4; charset=utf-8"), std::string::npos);
  ASSERT_TRUE(engine.close(10s).ok());
  EXPECT_TRUE(net::listen_at(take(parse_metrics_address(std::to_string(port)))).ok());
}

TEST_F(MetricsServerTest, AnEngineWhosePortIsTakenSaysSoAndWorks) {
  const base::Fd taken = take(net::listen_at(take(parse_metrics_address("0"))));
  const std::uint16_t port = take(net::address_of(taken)).port();
  set((":" + std::to_string(port)).c_str());
  Engine engine = take(open("unlucky"));
  EXPECT_TRUE(is_logged("counters are not served: listen at 127.0.0.1:" + std::to_string(port)));
  EXPECT_TRUE(is_logged("set LINKSPAN_METRICS_RANK"));
  EXPECT_TRUE(engine.close(10s).ok());
}

TEST_F(MetricsServerTest, TheRankIsAddedToThePort) {
  std::uint16_t port = 0;
  {
    const base::Fd free = take(net::listen_at(take(parse_metrics_address("0"))));
    port = take(net::address_of(free)).port();
  }
  set(std::to_string(port - 3).c_str(), "3");
  Engine engine = take(open("ranked"));
  EXPECT_EQ(served_port(), port) << log_;
}

TEST_F(MetricsServerTest, AWrongValueIsNamed) {
  for (const char* wrong : {"here", "10.0.0.7", "1.2.3.4:x", "127.0.0.1:65536", "::1:9400",
                            "[127.0.0.1]:9400", "example.org:9400", "9400 "}) {
    set(wrong);
    const Status status = open("wrong").status();
    EXPECT_EQ(status.code(), Code::invalid_argument) << wrong;
    EXPECT_NE(status.what().find("LINKSPAN_METRICS=\"" + std::string(wrong) + "\""),
              std::string::npos)
        << status.what();
  }
  set("65000", "600");
  const Status status = open("wrong").status();
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_NE(status.what().find("LINKSPAN_METRICS_RANK=\"600\""), std::string::npos)
      << status.what();
}

TEST(MetricsAddress, IsLoopbackUnlessANumberIsGiven) {
  for (const char* text : {"9400", ":9400", "localhost:9400", "127.0.0.1:9400"})
    EXPECT_EQ(take(parse_metrics_address(text)).to_string(), "127.0.0.1:9400") << text;
  EXPECT_EQ(take(parse_metrics_address("[::1]:9400")).to_string(), "[::1]:9400");
  EXPECT_EQ(take(parse_metrics_address("0.0.0.0:9400")).to_string(), "0.0.0.0:9400");
}

}  // namespace metrics_server_test
}  // namespace linkspan::engine
