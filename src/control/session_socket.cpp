#include "control/session_socket.hpp"

#include <exception>
#include <utility>

#include "base/no_memory.hpp"

namespace linkspan::control {

SessionSocket::SessionSocket(std::uint64_t session, base::Fd socket, std::uint64_t incarnation,
                             SessionWriter& writer)
    : session_(session),
      incarnation_(incarnation),
      writer_(writer),
      remote_(!base::is_unix_socket(socket.get())),
      fd_(socket.get()),
      channel_(std::move(socket)) {}

Status SessionSocket::send(FrameOp op, std::uint64_t id, std::span<const std::byte> payload,
                           std::span<base::Fd> fds) {
  if (Status status = queue(op, id, payload, fds); !status.ok()) return status;
  arm_write();
  return {};
}

/// Makes the Control thread send what is left. Without memory for that the connection ends, which
/// the Control thread sees.
void SessionSocket::arm_write() noexcept {
  try {
    if (wants_write()) writer_.write_when_ready(session_);
  } catch (const std::exception&) {
    shut_down();
  }
}

Status SessionSocket::queue(FrameOp op, std::uint64_t id, std::span<const std::byte> payload,
                            std::span<base::Fd> fds) {
  if (remote_ && !fds.empty())  // the kernel would drop them silently
    return {Code::unsupported, Scope::request, "no file descriptor travels over TCP"};
  const base::MutexLock lock(mutex_);
  if (Status status = channel_.queue(header_of(op, id), payload, fds); !status.ok()) return status;
  // The rest is sent when the socket has room. A broken connection shows as end-of-file.
  (void)flush_queued();
  return {};
}

base::FrameHeader SessionSocket::header_of(FrameOp op, std::uint64_t id) const noexcept {
  return {.length = 0,
          .version = base::kProtocolVersion,
          .op = static_cast<std::uint16_t>(op),
          .id = id,
          .incarnation = incarnation_};
}

Status SessionSocket::flush_queued() noexcept {
  try {
    Status status = channel_.flush();
    if (!collect_owed_ || !channel_.queue(header_of(FrameOp::collect, 0), {}, {}).ok())
      return status;
    collect_owed_ = false;
    return channel_.flush();
  } catch (const std::exception&) {
    return base::no_memory(Scope::peer);
  }
}

void SessionSocket::request_collection() noexcept {
  {
    const base::MutexLock lock(mutex_);
    collect_owed_ = true;
    (void)flush_queued();
  }
  arm_write();
}

bool SessionSocket::wants_write() {
  const base::MutexLock lock(mutex_);
  return collect_owed_ || channel_.wants_write();
}

Status SessionSocket::flush() {
  const base::MutexLock lock(mutex_);
  return flush_queued();
}

}  // namespace linkspan::control
