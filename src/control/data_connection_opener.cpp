#include "control/data_connection_opener.hpp"

#include <algorithm>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <utility>

#include "base/fd_channel.hpp"
#include "net/descriptor_watch.hpp"

namespace linkspan::control {

using asio::posix::stream_descriptor;

/// Connect timeout used when another route to the host exists. Does not apply once the TCP
/// connection is established.
constexpr auto kConnect = std::chrono::seconds(3);
/// Pause before the retry of a connection that found no room. Doubles up to kLastPause.
constexpr Duration kFirstPause = std::chrono::milliseconds(50),
                   kLastPause = std::chrono::seconds(1);

struct DataConnectionOpener::Opening {
  Opening(asio::io_context& io, net::DataConnectionRoute by, DataConnectionHello hello_to_send,
          Tls with, Duration all, Then what)
      : route(std::move(by)),
        hello(std::move(hello_to_send)),
        tls(std::move(with)),
        most(all),
        then(std::move(what)),
        waiting(io),
        limit(io) {}

  const net::DataConnectionRoute route;
  const DataConnectionHello hello;
  const Tls tls;  // shared with the Session; null: plain
  const Duration most;
  const Then then;
  base::Fd socket;                      // until it is connected; then in channel
  base::FdChannel channel{base::Fd()};  // then here
  net::BorrowedDescriptor waiting;      // of the socket
  asio::steady_timer limit;
  const base::Deadline whole = base::Deadline::in(most);
  Duration pause = kFirstPause;  // before the next attempt
};

DataConnectionOpener::DataConnectionOpener(asio::io_context& io, const Identity& us)
    : io_(io), us_(us) {}

DataConnectionOpener::~DataConnectionOpener() = default;

void DataConnectionOpener::close() { openings_.clear(); }

void DataConnectionOpener::open(const net::DataConnectionRoute& route,
                                const DataConnectionHello& hello, Tls tls, Duration limit,
                                Then then) {
  const std::uint64_t id = ++last_id_;
  openings_.emplace(
      id, std::make_unique<Opening>(io_, route, hello, std::move(tls), limit, std::move(then)));
  begin(id);
}

void DataConnectionOpener::begin(std::uint64_t id) {
  Opening& opening = *openings_.at(id);
  const net::DataConnectionRoute& route = opening.route;
  auto socket = route.interface.empty() ? begin_connect(route.to)
                                        : begin_connect(route.to, route.from, route.interface);
  if (!socket.ok()) return end(id, socket.status());
  opening.socket = *std::move(socket);
  if (Status status = net::watch(opening.waiting, opening.socket.get()); !status.ok())
    return end(id, status);
  opening.waiting.async_wait(stream_descriptor::wait_write, [this, id](const asio::error_code& e) {
    if (!e) send_hello(id);
  });
  end_after(id, route.interface.empty() ? opening.most : std::min<Duration>(kConnect, opening.most),
            "no answer from " + route.to.to_string());
}

/// Retries later, because the other side had no room. Returns false if too little time is left.
bool DataConnectionOpener::again(std::uint64_t id) {
  Opening& opening = *openings_.at(id);
  if (opening.whole.left() <= opening.pause) return false;
  if (opening.waiting.is_open()) (void)opening.waiting.release();
  opening.channel = base::FdChannel(base::Fd());
  opening.socket = base::Fd();
  opening.limit.expires_after(opening.pause);
  opening.pause = std::min<Duration>(2 * opening.pause, kLastPause);
  opening.limit.async_wait([this, id](const asio::error_code& e) {
    if (!e && openings_.contains(id)) begin(id);
  });
  return true;
}

/// Replaces the previous time limit.
void DataConnectionOpener::end_after(std::uint64_t id, Duration time, std::string why) {
  asio::steady_timer& limit = openings_.at(id)->limit;
  limit.expires_after(time);
  limit.async_wait([this, id, why = std::move(why)](const asio::error_code& e) {
    if (!e) end(id, Status(Code::timed_out, Scope::peer, why));
  });
}

void DataConnectionOpener::send_hello(std::uint64_t id) {
  const auto found = openings_.find(id);
  if (found == openings_.end()) return;
  Opening& opening = *found->second;
  Status status = connected(opening.socket, opening.route.to);
  if (!status.ok()) return end(id, status);
  net::prepare(opening.socket, us_.limits.silence);
  opening.channel = base::FdChannel(std::move(opening.socket));
  if (opening.tls != nullptr) {
    auto tls = base::TlsEnd::create(opening.tls, opening.channel.fd(), base::TlsSide::connector);
    if (!tls.ok()) return end(id, tls.status());
    opening.channel.secure(*std::move(tls));
  }
  status = opening.channel.queue({.op = static_cast<std::uint16_t>(FrameOp::data_connection),
                                  .id = 0,
                                  .incarnation = us_.incarnation},
                                 encode(opening.hello), {});
  if (status.ok()) status = opening.channel.flush();  // sends all of it: the socket buffer is empty
  if (!status.ok()) return end(id, status);
  end_after(id, opening.most, "a data connection was not made in time");
  receive_reply(id);
}

void DataConnectionOpener::receive_reply(std::uint64_t id) {
  const auto read = [this, id](const asio::error_code& e) {
    const auto found = openings_.find(id);
    if (e || found == openings_.end()) return;
    base::FdChannel& channel = found->second->channel;
    auto frame = channel.receive();
    if (!frame.ok()) return end(id, frame.status());
    (void)channel.flush();  // TLS sends nothing before its handshake
    const bool plain = *frame && (*frame)->plain;
    const auto op = *frame ? static_cast<FrameOp>((*frame)->header.op) : FrameOp::hello;
    if (op == FrameOp::hello && !plain) return receive_reply(id);  // sent to each connection
    if (op == FrameOp::ready && !plain) {
      (void)found->second->waiting.release();
      return end(id,
                 base::AuthenticatedSocket{channel.release_socket(), {}, channel.release_tls()});
    }
    end(id, op == FrameOp::error
                ? decode_error((*frame)->payload)
                : Status(Code::corrupt, Scope::peer, "no answer to a data connection's hello"));
  };
  Opening& opening = *openings_.at(id);
  if (opening.channel.has_buffered())
    asio::post(io_, [read] { read({}); });
  else
    opening.waiting.async_wait(stream_descriptor::wait_read, read);
}

void DataConnectionOpener::end(std::uint64_t id, Result<base::AuthenticatedSocket> with) {
  const auto found = openings_.find(id);
  if (found == openings_.end()) return;
  if (with.status().code() == Code::no_resource) {
    if (again(id)) return;
    with = Status(Code::unreachable, Scope::peer, with.status().what());
  }
  const std::unique_ptr<Opening> opening = std::move(found->second);
  openings_.erase(found);
  opening->then(std::move(with));
}

}  // namespace linkspan::control
