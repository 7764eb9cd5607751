// net/http_server.hpp - answers HTTP GET of one path with a text, for collectors such as
// Prometheus.
//
// Off the path of a byte: one thread of its own, `ls-http`, which may wait.
// Threads: any thread, but for end(), which is externally synchronised.
// Invariants: at most kClients are connected, the others are refused; each has kPatience to ask and
// kPatience to read its answer, however it behaves; a request has at most kMaxRequest bytes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/executor.hpp"
#include "base/fd.hpp"
#include "net/tcp_socket.hpp"

namespace linkspan::net {

/// Parses "9400", ":9400", "127.0.0.1:9400", "[::1]:9400" or "localhost:9400"; without a host it is
/// loopback. Resolves no names, because a resolver may take long. invalid_argument: the text is
/// none of these.
Result<TcpAddress> parse_http_address(const std::string& text);

class HttpServer {
 public:
  static constexpr std::size_t kClients = 4, kMaxRequest = std::size_t{64} << 10;
  static constexpr Duration kPatience = std::chrono::seconds(2);

  struct Page {
    std::string path;                   ///< "/metrics"
    std::string type;                   ///< Content-Type
    std::function<std::string()> text;  ///< Called by the server's thread for each answer.
  };

  /// Serves `page` to those who connect to `listening`. no_resource: no thread can be had.
  static Result<std::unique_ptr<HttpServer>> start(base::Fd listening, Page page);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  ///< Calls end(), and leaves behind a thread that stands for a second.

  /// Stops listening and drops the clients. Returns false at the deadline, if the thread still
  /// stands in Page::text().
  bool end(base::Deadline deadline);

 private:
  struct HttpState;
  explicit HttpServer(std::shared_ptr<HttpState> state) : state_(std::move(state)) {}

  std::shared_ptr<HttpState> state_;  // also the thread's; null: ended
  base::Executor executor_{base::kThreadNamed<"ls-http">};
};

}  // namespace linkspan::net
