#include "control/introspection_socket.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/process.hpp"
#include "control/handshake.hpp"
#include "control/socket_address.hpp"

namespace linkspan::control {
namespace {

constexpr std::string_view kOperatorPrefix = "linkspan-ps-";
/// Bytes of an answer's frames with their headers, and of those that are read after the deadline:
/// more than a socket keeps by default.
constexpr std::size_t kMaxAnswer = std::size_t{64} << 20, kMaxLate = std::size_t{1} << 20;
constexpr int kBacklog = 16;
/// Sockets of dead Engines that may lie in a folder before a new Engine removes them, and their
/// minimum age: a socket that is being created does not accept yet.
constexpr std::size_t kMaxLeft = 32;
constexpr auto kLeftFor = std::chrono::minutes(1);

namespace fs = std::filesystem;

std::vector<fs::directory_entry> sockets_in(const std::string& folder) {
  std::vector<fs::directory_entry> found;
  std::error_code error;
  for (fs::directory_iterator next(folder, error), end; !error && next != end;
       next.increment(error))
    if (next->path().filename().native().starts_with(kOperatorPrefix)) found.push_back(*next);
  return found;
}

/// Removes sockets of Engines that were killed.
void remove_left(const std::string& folder) {
  const auto found = sockets_in(folder);
  if (found.size() <= kMaxLeft) return;
  for (const fs::directory_entry& each : found) {
    std::error_code error;
    const auto made = each.last_write_time(error);
    if (error || fs::file_time_type::clock::now() - made < kLeftFor) continue;
    if (connect_to(each.path().native()).status().code() == Code::unreachable)
      ::unlink(each.path().c_str());
  }
}

}  // namespace

Result<IntrospectionSocket> listen_for_introspection(const std::string& folder,
                                                     std::uint64_t incarnation) {
  if (Status status = secure_folder(folder); !status.ok()) return status;
  remove_left(folder);
  IntrospectionSocket made{
      .listening = {},
      .path = folder + "/" + std::string(kOperatorPrefix) + std::to_string(incarnation)};
  const auto address = unix_address(made.path);
  if (!address.ok()) return address.status();
  auto socket =
      base::Fd::from("socket", ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.ok()) return socket.status();
  if (::bind(socket->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return base::Fd::from(("bind " + made.path).c_str(), -1).status();
  if (::chmod(made.path.c_str(), 0600) != 0 || ::listen(socket->get(), kBacklog) != 0) {
    Status failed = base::Fd::from(("listen at " + made.path).c_str(), -1).status();
    ::unlink(made.path.c_str());
    return failed;
  }
  made.listening = *std::move(socket);
  return made;
}

std::vector<std::string> introspection_sockets(const std::string& folder) {
  std::set<std::string> paths;  // each connection of one has a line too
  for (const fs::directory_entry& each : sockets_in(folder)) paths.insert(each.path().native());
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    const auto at = line.find(" /");
    if (at == std::string::npos) continue;
    std::string path = line.substr(at + 1);
    const auto name = std::string_view(path).substr(path.rfind('/') + 1);
    if (name.starts_with(kOperatorPrefix)) paths.insert(std::move(path));
  }
  return {paths.begin(), paths.end()};
}

Result<IntrospectionCall> IntrospectionCall::connect(const std::string& path,
                                                     const base::FdCloser* closer) {
  auto socket = connect_to(path);
  if (socket.status().code() == Code::unreachable)
    return Status(Code::not_found, Scope::request, "it has ended");
  if (socket.status().code() == Code::no_resource)
    return Status(Code::unreachable, Scope::request, "too many ask it at this time");
  if (!socket.ok()) return socket.status();
  if (closer != nullptr) socket->close_by(closer->sink_of(socket->get()));
  auto owner = base::peer_credentials(socket->get());
  if (!owner.ok()) return owner.status();
  return IntrospectionCall(*std::move(socket), owner->pid, owner->uid);
}

Status IntrospectionCall::ask(IntrospectionOp question) {
  if (Status status =
          channel_.queue({.length = 0, .op = static_cast<std::uint16_t>(question)}, {}, {});
      !status.ok())
    return status;
  return channel_.flush();  // 24 bytes have room in a new socket
}

Result<std::string> IntrospectionCall::answer(base::Deadline deadline) {
  const Status late(Code::timed_out, Scope::peer, "it did not answer in time");
  std::string text;
  for (std::size_t left = kMaxAnswer;;) {
    // An answer may be here already and be read late, after that of another process was awaited.
    const bool passed = deadline.passed();
    if (passed) left = std::min(left, kMaxLate);
    auto frame = channel_.receive();
    if (!frame.ok()) return frame.status();
    if (!*frame) {
      if (passed) return late;
      pollfd wait{.fd = channel_.fd(), .events = POLLIN, .revents = 0};
      ::poll(&wait, 1, deadline.left_ms());
      continue;
    }
    const auto& payload = (*frame)->payload;
    const std::size_t bytes = base::kFrameHeaderBytes + payload.size();
    if (bytes > left)
      return passed ? late : Status(Code::corrupt, Scope::peer, "its answer has no end");
    left -= bytes;
    switch (static_cast<IntrospectionOp>((*frame)->header.op)) {
      case IntrospectionOp::text:
        if (payload.empty())
          return Status(Code::corrupt, Scope::peer, "a part of its answer is empty");
        text.append(reinterpret_cast<const char*>(payload.data()), payload.size());
        break;
      case IntrospectionOp::end:
        return text;
      case IntrospectionOp::error:
        return decode_error(payload);
      default:
        return Status(Code::corrupt, Scope::peer, "it answered with an op that is none");
    }
  }
}

}  // namespace linkspan::control
