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
#include <utility>

#include "base/executor.hpp"
#include "net/tcp_socket.hpp"

namespace linkspan::net {

class HttpServer {
 public:
  static constexpr std::size_t kClients = 4, kMaxRequest = std::size_t{64} << 10;
  static constexpr Duration kPatience = std::chrono::seconds(2);

  struct Page {
    std::string path;                   ///< "/metrics"
    std::string type;                   ///< Content-Type
    std::function<std::string()> text;  ///< Called by the server's thread for each answer.
  };

  /// Listens at `address` and serves `page`. Errors as listen_at(). no_resource: no thread can be
  /// had.
  static Result<std::unique_ptr<HttpServer>> start(const TcpAddress& address, Page page);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  ///< Calls end(), and leaves behind a thread that stands for a second.

  /// Returns "http://127.0.0.1:9400/metrics", with the actual port.
  const std::string& url() const noexcept { return url_; }
  /// Stops listening and drops the clients. Returns false at the deadline, if the thread still
  /// stands in Page::text().
  bool end(base::Deadline deadline);

 private:
  struct HttpState;
  HttpServer(std::shared_ptr<HttpState> state, std::string url)
      : state_(std::move(state)), url_(std::move(url)) {}

  std::shared_ptr<HttpState> state_;  // also the thread's; null: ended
  const std::string url_;
  base::Executor executor_{base::kThreadNamed<"ls-http">};
};

}  // namespace linkspan::net
