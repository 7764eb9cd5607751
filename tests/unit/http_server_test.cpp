#include "net/http_server.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "net/tcp_socket.hpp"
#include "tests/support/take.hpp"

namespace linkspan::net {
namespace http_server_test {

using namespace std::chrono_literals;
using test::take;

class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    start([] { return std::string("a 1\n"); });
  }

  void start(std::function<std::string()> text) {
    server_ = take(
        HttpServer::start(take(resolve("127.0.0.1", 0)).front(),
                          {.path = "/metrics", .type = "text/plain", .text = std::move(text)}));
    const std::string url = server_->url();
    const auto port = std::stoul(url.substr(url.rfind(':') + 1));
    address_ = take(resolve("127.0.0.1", static_cast<std::uint16_t>(port))).front();
  }
  base::Fd connect() const { return take(connect_to(address_, base::Deadline::in(10s))); }

  /// Returns all that the server sends until it closes the connection.
  static std::string rest_of(const base::Fd& socket) {
    std::string all;
    for (;;) {
      auto some = receive_some(socket, 1 << 16, base::Deadline::in(10s));
      if (!some.ok()) {
        EXPECT_EQ(some.status().code(), Code::disconnected) << some.status().to_string();
        return all;
      }
      all += *some;
    }
  }
  std::string ask(const std::string& request) const {
    const base::Fd socket = connect();
    EXPECT_TRUE(send_all(socket, request, base::Deadline::in(10s)).ok());
    return rest_of(socket);
  }
  std::string first_line_for(const std::string& request) const {
    const std::string answer = ask(request);
    return answer.substr(0, answer.find("\r\n"));
  }

  TcpAddress address_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersGetAndHead) {
  const std::string head =
      "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n"
      "Connection: close\r\n\r\n";
  EXPECT_EQ(ask("GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"), head + "a 1\n");
  EXPECT_EQ(ask("GET /metrics?name[]=a HTTP/1.0\r\n\r\n"), head + "a 1\n");
  EXPECT_EQ(ask("HEAD /metrics HTTP/1.1\r\n\r\n"), head);
}

TEST_F(HttpServerTest, RefusesWhatItDoesNotServe) {
  EXPECT_EQ(first_line_for("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
  EXPECT_EQ(first_line_for("GET /metricsandmore HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
  EXPECT_EQ(first_line_for("POST /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
  for (const char* bad : {"\r\n\r\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n",
                          "GET /metrics HTTP/2\r\n\r\n", "\x16\x03\x01 \x02 \r\n\r\n"})
    EXPECT_EQ(first_line_for(bad), "HTTP/1.1 400 Bad Request") << bad;
}

TEST_F(HttpServerTest, RefusesARequestThatIsTooLong_AndTheAnswerArrives) {
  const std::string line = "GET /metrics HTTP/1.1\r\nX: ";
  EXPECT_EQ(first_line_for(line + std::string(HttpServer::kMaxRequest + 1, 'x')),
            "HTTP/1.1 431 Request Header Fields Too Large");
  const std::string fits(HttpServer::kMaxRequest - line.size() - 4, 'x');
  EXPECT_EQ(first_line_for(line + fits + "\r\n\r\n"), "HTTP/1.1 200 OK");
}

TEST_F(HttpServerTest, DropsOneThatSendsByteAfterByte) {
  const base::Fd slow = connect();
  const auto begin = std::chrono::steady_clock::now();
  const auto limit = base::Deadline::in(HttpServer::kPatience + 8s);
  while (send_all(slow, "x", base::Deadline::in(1s)).ok() && !limit.passed())
    std::this_thread::sleep_for(20ms);
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, HttpServer::kPatience - 100ms);
  EXPECT_FALSE(limit.passed());
}

TEST_F(HttpServerTest, DropsOneThatReadsNothing_AndServesOthersMeanwhile) {
  server_.reset();
  start([] { return std::string(64 << 20, 'x'); });  // more than sockets buffer
  const base::Fd lazy = connect();
  ASSERT_TRUE(send_all(lazy, "GET /metrics HTTP/1.1\r\n\r\n", base::Deadline::in(10s)).ok());
  EXPECT_EQ(first_line_for("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
  std::this_thread::sleep_for(HttpServer::kPatience + 500ms);
  EXPECT_LT(rest_of(lazy).size(), std::size_t{64} << 20);
}

TEST_F(HttpServerTest, RefusesMoreThanAFewAtATime_AndRecovers) {
  std::vector<base::Fd> silent;
  for (std::size_t i = 0; i < HttpServer::kClients; ++i) silent.push_back(connect());
  // The server accepts in order, so this one is closed before any of those.
  const base::Fd late = connect();
  EXPECT_EQ(rest_of(late), "");
  silent.clear();
  std::string line;
  for (const auto deadline = base::Deadline::in(10s); line.empty() && !deadline.passed();)
    line = first_line_for("GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_EQ(line, "HTTP/1.1 200 OK");
}

TEST_F(HttpServerTest, EndsByItsDeadline_WhereItsTextStands) {
  server_.reset();
  std::atomic<bool> asked{false}, released{false};
  start([&] {
    asked = true;
    while (!released) std::this_thread::sleep_for(1ms);
    return std::string();
  });
  const base::Fd client = connect();
  ASSERT_TRUE(send_all(client, "GET /metrics HTTP/1.1\r\n\r\n", base::Deadline::in(10s)).ok());
  while (!asked) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(server_->end(base::Deadline::in(50ms)));
  released = true;
  EXPECT_TRUE(server_->end(base::Deadline::in(10s)));
  EXPECT_TRUE(server_->end(base::Deadline::in(0s)));
}

TEST_F(HttpServerTest, FreesItsPortWhenItEnds) {
  EXPECT_EQ(listen_at(address_).status().code(), Code::busy);
  EXPECT_TRUE(server_->end(base::Deadline::in(10s)));
  EXPECT_TRUE(listen_at(address_).ok());
}

}  // namespace http_server_test
}  // namespace linkspan::net
