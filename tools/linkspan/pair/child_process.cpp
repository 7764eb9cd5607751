#include "tools/linkspan/pair/child_process.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxText = 4096;
constexpr std::string_view kOk = "ok";

base::Deadline after(Duration timeout) { return base::Deadline::in(timeout); }

bool send_text(int socket, std::string_view text) {
  text = text.substr(0, kMaxText);
  ssize_t sent = 0;
  do {
    sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(text.size());
}

/// Returns an empty text if the other end is closed.
std::string receive_text(int socket) {
  std::array<char, kMaxText> text{};
  ssize_t got = 0;
  do {
    got = ::recv(socket, text.data(), text.size(), 0);
  } while (got < 0 && errno == EINTR);
  return got > 0 ? std::string(text.data(), static_cast<std::size_t>(got)) : std::string();
}

/// Restores the Status from a text of Status::to_string().
Status its_status(const std::string& text) {
  unsigned code = static_cast<unsigned>(Code::internal);
  while (code > 0 && !text.starts_with(std::string(name_of(static_cast<Code>(code))) + ": "))
    --code;
  if (code == 0) return {Code::internal, Scope::peer, "the second process: " + text};
  const std::size_t what = text.find(": ") + 2;
  return {static_cast<Code>(code), Scope::peer, "the second process: " + text.substr(what)};
}

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::spawn(
    std::string_view verb, Duration timeout, const std::vector<std::string>& environment) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return base::Fd::from("socketpair", -1).status();
  std::unique_ptr<ChildProcess> child(new ChildProcess(base::Fd(ends[0])));
  auto process = SpawnedProcess::start(std::string(verb), base::Fd(ends[1]), environment);
  if (!process.ok()) return process.status();
  child->process_ = *std::move(process);
  if (auto hello = child->receive(timeout); !hello.ok()) return hello.status();
  return child;
}

ChildProcess::~ChildProcess() {
  socket_ = base::Fd();
  if (process_) (void)process_->wait(3s);
}

Status ChildProcess::send(std::string_view request) {
  if (!socket_.valid() || !send_text(socket_.get(), request)) return ended();
  return {};
}

Result<std::string> ChildProcess::receive(Duration timeout) {
  const base::Deadline deadline = after(timeout);
  for (;;) {
    pollfd readable{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    const int ready = ::poll(&readable, 1, deadline.left_ms());
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      unusable_ = true;
      return Status(Code::timed_out, Scope::peer,
                    "the second process (pid " + std::to_string(pid()) + ") does not answer");
    }
    break;
  }
  const std::string text = receive_text(socket_.get());
  if (text.empty()) return ended();
  if (text.starts_with(kOk)) return text.substr(std::min(text.size(), kOk.size() + 1));
  return its_status(text);
}

Status ChildProcess::ended() {
  unusable_ = true;
  socket_ = base::Fd();
  std::string how = "closed its socket";
  if (const auto status = process_->wait(3s)) {
    if (WIFSIGNALED(*status)) {
      const int number = WTERMSIG(*status);
      const char* name = ::sigdescr_np(number);
      how = "was ended by signal " + std::to_string(number) + " (" +
            (name != nullptr ? name : "unknown") + ")";
    } else {
      how = "ended with code " + std::to_string(WEXITSTATUS(*status));
    }
  }
  return {Code::disconnected, Scope::peer,
          "the second process (pid " + std::to_string(pid()) + ") " + how};
}

void serve_parent(const std::function<Result<std::string>(const std::string& request)>& handle) {
  const base::Fd socket = SpawnedProcess::take_socket();
  if (!send_text(socket.get(), kOk)) return;
  for (;;) {
    const std::string request = receive_text(socket.get());
    if (request.empty()) return;
    const auto result = handle(request);
    const std::string text =
        result.ok() ? std::string(kOk) + " " + *result : result.status().to_string();
    if (!send_text(socket.get(), text)) return;
  }
}

}  // namespace linkspan::tool
