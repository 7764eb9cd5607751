// control/introspection_server.hpp - answers the operator's tool for an Engine, on the Control
// thread.
//
// Off the path of a byte. It serves few clients at a time with one query each, and drops slow ones,
// so no client can delay a peer.
// Threads: the Control thread, but for open(), which comes before it starts.
// Invariants: at most kClients are connected, each for at most kPatience; at most kASecond are
// accepted in a second.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "control/introspection_socket.hpp"
#include "net/acceptor.hpp"
#include "net/descriptor_watch.hpp"

namespace linkspan::control {

class IntrospectionServer {
 public:
  static constexpr std::size_t kClients = 8;
  static constexpr unsigned kASecond = 256;
  static constexpr Duration kPatience = std::chrono::seconds(2);

  /// `answer` is called on the Control thread. `closer` outlives the server.
  IntrospectionServer(asio::io_context& io, const base::FdCloser& closer,
                      std::function<Result<std::string>(IntrospectionOp)> answer)
      : io_(io),
        answer_(std::move(answer)),
        acceptor_(
            io, [this](base::Fd socket) { admit(std::move(socket)); }, &closer) {}
  IntrospectionServer(const IntrospectionServer&) = delete;
  IntrospectionServer& operator=(const IntrospectionServer&) = delete;
  ~IntrospectionServer() = default;

  Status open(const std::string& folder, std::uint64_t incarnation);
  void close();
  void resume() { acceptor_.resume(); }  ///< Calls net::Acceptor::resume().

 private:
  struct Client {
    Client(asio::io_context& io, base::Fd fd) : channel(std::move(fd)), socket(io), patience(io) {}

    base::FdChannel channel;
    net::BorrowedDescriptor socket;  // of channel
    asio::steady_timer patience;
    bool answered = false;
  };

  void admit(base::Fd socket);
  void wait(std::uint64_t id);
  void serve(std::uint64_t id);
  static Status queue(Client& client, IntrospectionOp op, std::span<const std::byte> payload);
  Status reply(Client& client, const Result<std::string>& answer);

  asio::io_context& io_;
  const std::function<Result<std::string>(IntrospectionOp)> answer_;
  net::Acceptor acceptor_;
  std::map<std::uint64_t, std::unique_ptr<Client>> clients_;
  std::uint64_t last_id_ = 0;
};

}  // namespace linkspan::control
