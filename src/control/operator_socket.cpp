#include "control/operator_socket.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>

#include "base/process.hpp"
#include "control/handshake.hpp"

namespace linkspan::control {
namespace {

constexpr std::string_view kOperatorPrefix = "linkspan-ps/";
constexpr std::size_t kMaxAnswer = std::size_t{64} << 20;
constexpr int kBacklog = 16;

struct Abstract {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

/// Empty: too long for a socket.
std::optional<Abstract> abstract(std::string_view name) {
  Abstract out;
  if (name.size() >= sizeof out.address.sun_path) return std::nullopt;
  out.address.sun_family = AF_UNIX;
  std::memcpy(out.address.sun_path + 1, name.data(), name.size());  // behind a zero byte
  out.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return out;
}

Result<base::Fd> new_operator_socket() {
  return base::Fd::from("socket", ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

Result<base::Fd> listen_for_operators(std::uint64_t incarnation) {
  const auto name = abstract(std::string(kOperatorPrefix) + std::to_string(::geteuid()) + "/" +
                             std::to_string(incarnation));
  auto socket = new_operator_socket();
  if (!socket.ok()) return socket;
  if (::bind(socket->get(), reinterpret_cast<const sockaddr*>(&name->address), name->bytes) != 0)
    return base::Fd::from("bind of the operator's socket", -1).status();
  if (::listen(socket->get(), kBacklog) != 0) return base::Fd::from("listen", -1).status();
  return socket;
}

Result<std::vector<std::string>> operator_sockets() {
  std::ifstream table("/proc/net/unix");
  if (!table) return Status(Code::system, Scope::process, "/proc/net/unix cannot be read");
  std::set<std::string> names;  // each connection of it has a line too
  const std::string mark = " @" + std::string(kOperatorPrefix);
  for (std::string line; std::getline(table, line);)
    if (const auto at = line.find(mark); at != std::string::npos) names.insert(line.substr(at + 2));
  return std::vector<std::string>(names.begin(), names.end());
}

Result<OperatorCall> OperatorCall::connect(const std::string& name) {
  const auto address = abstract(name);
  if (!address) return Status(Code::invalid_argument, Scope::request, "no name of a socket");
  auto socket = new_operator_socket();
  if (!socket.ok()) return socket.status();
  if (::connect(socket->get(), reinterpret_cast<const sockaddr*>(&address->address),
                address->bytes) != 0) {
    if (errno == ECONNREFUSED) return Status(Code::not_found, Scope::request, "it has ended");
    if (errno == EAGAIN)
      return Status(Code::unreachable, Scope::request, "too many ask it at this time");
    return base::Fd::from("connect to the operator's socket", -1).status();
  }
  auto owner = base::peer_credentials(socket->get());
  if (!owner.ok()) return owner.status();
  return OperatorCall(*std::move(socket), owner->pid, owner->uid);
}

Status OperatorCall::ask(OperatorOp question) {
  if (Status status =
          channel_.queue({.length = 0, .op = static_cast<std::uint16_t>(question)}, {}, {});
      !status.ok())
    return status;
  return channel_.flush();  // 24 bytes have room in a new socket
}

Result<std::string> OperatorCall::answer(base::Deadline deadline) {
  std::string text;
  for (;;) {
    auto frame = channel_.receive();
    if (!frame.ok()) return frame.status();
    if (!*frame) {
      if (deadline.passed())
        return Status(Code::timed_out, Scope::peer, "it did not answer in time");
      pollfd wait{.fd = channel_.fd(), .events = POLLIN, .revents = 0};
      ::poll(&wait, 1, deadline.left_ms());
      continue;
    }
    const auto& payload = (*frame)->payload;
    switch (static_cast<OperatorOp>((*frame)->header.op)) {
      case OperatorOp::text:
        if (payload.size() > kMaxAnswer - text.size())
          return Status(Code::corrupt, Scope::peer, "its answer has no end");
        text.append(reinterpret_cast<const char*>(payload.data()), payload.size());
        break;
      case OperatorOp::end:
        return text;
      case OperatorOp::error:
        return decode_error(payload);
      default:
        return Status(Code::corrupt, Scope::peer, "it answered with an op that is none");
    }
  }
}

}  // namespace linkspan::control
