#include "net/http_server.hpp"

#include <algorithm>
#include <array>
#include <asio/buffer.hpp>
#include <asio/generic/stream_protocol.hpp>
#include <asio/io_context.hpp>
#include <asio/read_until.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <exception>
#include <string_view>
#include <utility>

#include "base/no_memory.hpp"
#include "net/acceptor.hpp"

namespace linkspan::net {
namespace {

constexpr unsigned kASecond = 256, kBurst = 256;  // connections
constexpr std::string_view kEndOfHead = "\r\n\r\n";

/// One answer: its status line, more headers, body.
std::string reply(const char* status, const std::string& headers, const std::string& body) {
  return std::string("HTTP/1.1 ") + status + "\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
}

std::string refusal(const char* status, const std::string& why, const std::string& headers = {}) {
  return reply(status, headers + "Content-Type: text/plain; charset=utf-8\r\n", why + "\n");
}

/// Cuts the next word of the request's first line.
std::string_view next_word(std::string_view& line) {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(line.size(), word.size() + 1));
  return word;
}

std::string answer_to(std::string_view head, const HttpServer::Page& page) {
  std::string_view line = head.substr(0, head.find("\r\n"));
  const std::string_view method = next_word(line), target = next_word(line);
  if (method.empty() || target.empty() || !line.starts_with("HTTP/1."))
    return refusal("400 Bad Request", "this is no request of HTTP/1: GET " + page.path);
  if (method != "GET" && method != "HEAD")
    return refusal("405 Method Not Allowed", "only GET and HEAD are served",
                   "Allow: GET, HEAD\r\n");
  if (target.substr(0, target.find('?')) != page.path)
    return refusal("404 Not Found", "only " + page.path + " is served");
  std::string answer = reply("200 OK", "Content-Type: " + page.type + "\r\n", page.text());
  if (method == "HEAD") answer.resize(answer.find(kEndOfHead) + kEndOfHead.size());
  return answer;
}

}  // namespace

struct HttpServer::HttpState {
  struct HttpClient {
    explicit HttpClient(HttpState& of) : server(of), socket(of.io), patience(of.io) {
      ++server.clients;
    }
    HttpClient(const HttpClient&) = delete;
    HttpClient& operator=(const HttpClient&) = delete;
    ~HttpClient() { --server.clients; }

    HttpState& server;
    asio::generic::stream_protocol::socket socket;
    asio::steady_timer patience;
    std::string request, answer;
    std::array<char, 4096> unread{};
  };
  using HttpClientPtr = std::shared_ptr<HttpClient>;  // owned by the operation that it waits for

  explicit HttpState(Page served) : page(std::move(served)) {}

  void run() {
    for (bool thrown = false; !io.stopped();) {
      try {
        if (thrown) {
          io.run_one_for(base::kWithoutMemory);
          acceptor.resume();
          thrown = false;
        }
        io.run_one();
      } catch (const std::exception&) {  // no memory: the client of that operation is dropped
        thrown = true;
      }
    }
  }

  void admit(base::Fd accepted) {
    if (clients >= kClients) return;
    const auto client = std::make_shared<HttpClient>(*this);
    asio::error_code error;
    client->socket.assign(asio::generic::stream_protocol(AF_INET, 0), accepted.get(), error);
    if (error) return;
    (void)accepted.release();
    limit(client);
    asio::async_read_until(client->socket, asio::dynamic_buffer(client->request, kMaxRequest),
                           kEndOfHead, [this, client](asio::error_code failed, std::size_t bytes) {
                             on_request(client, failed, bytes);
                           });
  }

  /// Closes the client's socket after kPatience, whatever it has sent or read until then.
  void limit(const HttpClientPtr& client) {
    client->patience.expires_after(kPatience);
    client->patience.async_wait([weak = std::weak_ptr(client)](asio::error_code) {
      const HttpClientPtr late = weak.lock();
      if (late == nullptr || late->patience.expiry() > std::chrono::steady_clock::now()) return;
      asio::error_code ignored;
      late->socket.close(ignored);
    });
  }

  void on_request(const HttpClientPtr& client, asio::error_code error, std::size_t bytes) {
    if (!error)
      client->answer = answer_to(std::string_view(client->request).substr(0, bytes), page);
    else if (error == asio::error::not_found)
      client->answer = refusal("431 Request Header Fields Too Large",
                               "a request has at most " + std::to_string(kMaxRequest) + " bytes");
    else
      return;
    limit(client);  // the text may have taken long
    asio::async_write(client->socket, asio::buffer(client->answer),
                      [client](asio::error_code failed, std::size_t) {
                        if (!failed) drain(client);
                      });
  }

  /// Reads until the client closes: what it has sent and was not read would reset the connection,
  /// and with it the answer.
  static void drain(const HttpClientPtr& client) {
    asio::error_code ignored;
    client->socket.shutdown(asio::socket_base::shutdown_send, ignored);
    client->socket.async_read_some(asio::buffer(client->unread),
                                   [client](asio::error_code ended, std::size_t) {
                                     if (!ended) drain(client);
                                   });
  }

  const Page page;
  std::size_t clients = 0;
  asio::io_context io{1};
  Acceptor acceptor{io, [this](base::Fd socket) { admit(std::move(socket)); }};
};

Result<std::unique_ptr<HttpServer>> HttpServer::start(const TcpAddress& address, Page page) {
  auto listening = listen_at(address);
  if (!listening.ok()) return listening.status();
  const auto actual = address_of(*listening);
  if (!actual.ok()) return actual.status();
  std::string url = "http://" + actual->to_string() + page.path;
  auto state = std::make_shared<HttpState>(std::move(page));
  state->acceptor.limit_rate(kASecond, kBurst);
  if (Status status = state->acceptor.listen(*std::move(listening)); !status.ok()) return status;
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(state), std::move(url)));
  base::Executor::Task task = [state = server->state_] { state->run(); };
  if (server->executor_.try_run(task)) return server;
  return Status(Code::no_resource, Scope::process, "no thread can be had to serve HTTP");
}

HttpServer::~HttpServer() { (void)end(base::Deadline::in(std::chrono::seconds(1))); }

bool HttpServer::end(base::Deadline deadline) {
  if (state_ == nullptr) return true;
  state_->io.stop();
  if (!executor_.end(deadline)) return false;
  state_.reset();  // closes the sockets
  return true;
}

}  // namespace linkspan::net
