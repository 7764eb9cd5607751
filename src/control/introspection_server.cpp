#include "control/introspection_server.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/process.hpp"
#include "control/handshake.hpp"
#include "net/descriptor_watch.hpp"

namespace linkspan::control {
namespace {

using asio::posix::stream_descriptor;

constexpr std::size_t kFrame = std::size_t{256} << 10;

}  // namespace

Status IntrospectionServer::open(const std::string& folder, std::uint64_t incarnation) {
  auto socket = listen_for_introspection(folder, incarnation);
  if (!socket.ok()) return socket.status();
  acceptor_.limit_rate(kASecond, kASecond);
  return acceptor_.listen(std::move(socket->listening), std::move(socket->path));
}

void IntrospectionServer::close() {
  acceptor_.stop();
  clients_.clear();
}

void IntrospectionServer::admit(base::Fd socket) {
  if (clients_.size() >= kClients) return;  // closes it
  const auto who = base::peer_credentials(socket.get());
  if (!who.ok()) return;
  const std::uint64_t id = ++last_id_;
  Client& client =
      *clients_.emplace(id, std::make_unique<Client>(io_, std::move(socket))).first->second;
  if (!net::watch(client.socket, client.channel.fd()).ok()) {
    clients_.erase(id);
    return;
  }
  client.patience.expires_after(kPatience);
  client.patience.async_wait([this, id](const asio::error_code& error) {
    if (!error) clients_.erase(id);
  });
  if (who->uid != ::geteuid() && who->uid != 0) {
    client.answered = true;
    (void)reply(client, Status(Code::permission_denied, Scope::process,
                               "uid " + std::to_string(who->uid) +
                                   " may not ask an Engine of uid " + std::to_string(::geteuid())));
  }
  serve(id);
}

void IntrospectionServer::wait(std::uint64_t id) {
  Client& client = *clients_.at(id);
  client.socket.async_wait(
      client.answered ? stream_descriptor::wait_write : stream_descriptor::wait_read,
      [this, id](const asio::error_code& error) {
        if (!error && clients_.contains(id)) serve(id);
      });
}

void IntrospectionServer::serve(std::uint64_t id) {
  Client& client = *clients_.at(id);
  if (!client.answered) {
    auto frame = client.channel.receive();
    if (!frame.ok()) {
      clients_.erase(id);
      return;
    }
    if (!*frame) return wait(id);
    client.answered = true;
    const auto op = static_cast<IntrospectionOp>((*frame)->header.op);
    if (!reply(client, answer_(op)).ok()) {
      clients_.erase(id);
      return;
    }
  }
  const Status sent = client.channel.flush();
  if (sent.ok() && client.channel.wants_write()) return wait(id);
  clients_.erase(id);
}

Status IntrospectionServer::queue(Client& client, IntrospectionOp op,
                                  std::span<const std::byte> payload) {
  return client.channel.queue({.length = 0, .op = static_cast<std::uint16_t>(op)}, payload, {});
}

Status IntrospectionServer::reply(Client& client, const Result<std::string>& answer) {
  if (!answer.ok()) return queue(client, IntrospectionOp::error, encode_error(answer.status()));
  auto left = std::as_bytes(std::span(*answer));
  while (!left.empty()) {
    const auto some = left.first(std::min(left.size(), kFrame));
    left = left.subspan(some.size());
    if (Status status = queue(client, IntrospectionOp::text, some); !status.ok()) return status;
  }
  return queue(client, IntrospectionOp::end, {});
}

}  // namespace linkspan::control
