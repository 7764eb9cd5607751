#include "store/store_client.hpp"

#include <utility>

#include "base/process.hpp"
#include "net/staggered_connect.hpp"

namespace linkspan::store {
namespace {

using base::Deadline;

constexpr std::size_t kClientRead = std::size_t{64} << 10;

/// Sends a first request and receives its answer. disconnected: the server does not understand this
/// dialect, or has ended.
Result<StoreClient> greet(base::Fd socket, Dialect dialect, const Limits& limits,
                          Deadline deadline) {
  StoreClient client(std::move(socket), dialect);
  Request first;
  if (dialect == Dialect::current) {
    // An older server reads these ten bytes as a `set` whose key is longer than any key may be, and
    // closes the connection. So the high bits are set, and all bytes go in one send.
    first.op = Op::ping;
    first.number = 0xffffff | static_cast<std::int64_t>(base::random_u64() & 0xff) << 24;
    std::string bytes(1, '\0');
    put_number(bytes, kMagic, 4);
    bytes += *encode(first, dialect);
    if (Status sent = net::send_all(client.socket(), bytes, deadline); !sent.ok()) return sent;
  } else {
    first.op = Op::num_keys;
    if (Status sent = client.send(first, deadline); !sent.ok()) return sent;
  }
  auto answer = client.receive(first.op, 0, limits, deadline);
  if (!answer.ok()) return answer.status();
  if (dialect == Dialect::current && answer->number != first.number)
    return Status(Code::corrupt, Scope::peer, "what answers there is no TCPStore");
  return client;
}

/// Returns whether the server is one of this library.
Result<bool> is_ours(StoreClient& client, const Limits& limits, Deadline deadline) {
  Request ask;
  ask.op = Op::check;
  ask.keys = {kOurServer};
  if (Status sent = client.send(ask, deadline); !sent.ok()) return sent;
  auto answer = client.receive(ask.op, 1, limits, deadline);
  if (!answer.ok()) return answer.status();
  return answer->number == kReady;
}

}  // namespace

Status StoreClient::send(const Request& request, Deadline deadline) {
  auto bytes = encode(request, dialect_);
  if (!bytes.ok()) return bytes.status();
  return net::send_all(socket_, *bytes, deadline);
}

Result<Message> StoreClient::receive(Op op, std::size_t keys, const Limits& limits,
                                     Deadline deadline) {
  midway_ = true;  // also where an exception leaves this function
  MessageReader reader = MessageReader::of_answer(op, keys, limits);
  for (;;) {
    auto whole = reader.read(input_);
    if (!whole.ok()) return whole.status();
    midway_ = !*whole;
    if (*whole) return std::move(reader.message());
    auto more = net::receive_some(socket_, kClientRead, deadline);
    if (!more.ok()) return more.status();
    input_.append(*more);
  }
}

Result<StoreClient> meet(const std::vector<net::TcpAddress>& addresses, StoreDialect wish,
                         const Limits& limits, Deadline deadline) {
  auto socket = connect_to(addresses, deadline);
  if (!socket.ok()) return socket.status();
  const auto at = net::peer_of(socket->get());
  if (!at.ok()) return at.status();
  const Dialect first = wish == StoreDialect::older ? Dialect::older : Dialect::current;
  auto client = greet(*std::move(socket), first, limits, deadline);
  if (client.status().code() != Code::disconnected || wish != StoreDialect::detect) return client;
  socket = connect_to(*at, deadline);
  if (!socket.ok()) return socket.status();
  client = greet(*std::move(socket), Dialect::older, limits, deadline);
  if (!client.ok()) return client;
  auto ours = is_ours(*client, limits, deadline);
  if (!ours.ok()) return ours.status();
  if (!*ours) return client;
  // This server understands both, and was full when the first connection came.
  socket = connect_to(*at, deadline);
  if (!socket.ok()) return socket.status();
  return greet(*std::move(socket), Dialect::current, limits, deadline);
}

}  // namespace linkspan::store
