#include "control/listeners.hpp"

#include <unistd.h>

#include <asio/post.hpp>
#include <utility>

namespace linkspan::control {

Listeners::Listeners(asio::io_context& io, const Identity& us, const base::Log& log,
                     std::function<void(base::Fd)> accept)
    : io_(io), us_(us), log_(log), accept_(std::move(accept)), unix_(io, accept_, us.closer.get()) {
  unix_.limit_rate(us.limits.local_a_second, us.limits.local_burst);
}

Result<SocketAddress> Listeners::listen(const SocketAddress& address) {
  auto listening = listen_at(address, us_.leaves_host(), net::addresses_of(us_.interfaces));
  if (!listening.ok()) return listening.status();
  const SocketAddress at = listening->at;
  std::string all = at.to_string();
  for (const base::Fd& each : listening->beside)
    if (const auto more = net::address_of(each); more.ok()) all += " and " + more->to_string();
  if (!listening->beside.empty() && log_.enabled(base::Level::info))
    log_.write(base::Level::info, "data connections are taken at " + all);
  if (listening->beyond_loopback && us_.secret.empty() && log_.enabled(base::Level::warning))
    log_.write(base::Level::warning,
               all +
                   " is open to everybody who reaches it, as `insecure` says: whoever connects "
                   "is a peer, and nothing shows who he is");
  asio::post(io_, [this, started = *std::move(listening)]() mutable { start(std::move(started)); });
  return at;
}

void Listeners::start(Listening listening) {
  const std::string& path = listening.at.path;
  if (stopped_) {
    if (!path.empty()) ::unlink(path.c_str());
    return;
  }
  if (!path.empty()) return start(unix_, std::move(listening.socket), path);
  auto& sockets = listening.beside;
  sockets.push_back(std::move(listening.socket));
  while (tcp_.size() < sockets.size()) tcp_.emplace_back(io_, accept_);
  for (std::size_t i = 0; i < tcp_.size(); ++i) {
    if (i < sockets.size())
      start(tcp_[i], std::move(sockets[i]));
    else
      tcp_[i].stop();
  }
}

void Listeners::start(net::Acceptor& acceptor, base::Fd socket, std::string path) {
  if (const Status status = acceptor.listen(std::move(socket), std::move(path)); !status.ok())
    log_.write(base::Level::error, "nobody is accepted: " + status.to_string());
}

void Listeners::stop() {
  stopped_ = true;
  unix_.stop();
  for (net::Acceptor& each : tcp_) each.stop();
}

void Listeners::resume() {
  unix_.resume();
  for (net::Acceptor& each : tcp_) each.resume();
}

}  // namespace linkspan::control
